"""Priors of the weights, by name: the namespace `bs.priors`."""

from bayesieve.core.priors import GroupSparse as GroupSparse
from bayesieve.core.priors import Horseshoe as Horseshoe
from bayesieve.core.priors import LayerScaled as LayerScaled
from bayesieve.core.priors import Normal as Normal
from bayesieve.core.priors import SpikeSlab as SpikeSlab
from bayesieve.core.priors_laplace import GaussianLaplace as GaussianLaplace
