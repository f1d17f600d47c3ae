"""Priors of the weights, by name: the namespace `bs.priors`."""

from bayesieve.core.priors import Normal as Normal
from bayesieve.core.priors import SpikeSlab as SpikeSlab
from bayesieve.core.priors_laplace import GaussianLaplace as GaussianLaplace
from bayesieve.engines.scaled import Horseshoe as Horseshoe
from bayesieve.engines.scaled import LayerScaled as LayerScaled
from bayesieve.engines.tdamp.state import GroupSparse as GroupSparse
