"""The table of engines: every engine in every variant that the contract holds it to.

Tests of all engines, or of one setting of each, read it. A new engine joins by one or more lines.
"""

from bayesieve.core.priors import Normal, SpikeSlab
from bayesieve.core.priors_laplace import GaussianLaplace
from bayesieve.engines.bmr import BMR, Reduction
from bayesieve.engines.flat_vi import FlatVI
from bayesieve.engines.horseshoe import HorseshoeVI
from bayesieve.engines.map import MAP
from bayesieve.engines.sampling import Averaging, Chain
from bayesieve.engines.sbnn import SBNN
from bayesieve.engines.scaled import Horseshoe, LayerScaled
from bayesieve.engines.sgmcmc import SGHMC, SGLD
from bayesieve.engines.tdamp import TDAMP
from bayesieve.engines.tdamp.state import GroupSparse

MIXED = SpikeSlab(0.5, 0.1, 0.4)
ENGINES = {
    "map": MAP(lr=0.01),
    "map-adam-normal": MAP(prior=Normal(0.3), optimizer="adam", lr=0.01, weight_decay=0.1),
    "map-sgd-mixture": MAP(prior=MIXED, optimizer="sgd", lr=0.01),
    "map-decay-he": MAP(lr=0.01, weight_decay=0.1, start="he"),
    "flat_vi": FlatVI(lr=0.01),
    "flat_vi-local": FlatVI(prior=Normal(0.3), lr=0.01, init_std=0.1, local=True),
    "flat_vi-mixture": FlatVI(prior=MIXED, lr=0.01, init_std=0.1),
    "horseshoe": HorseshoeVI(prior=Horseshoe(0.1), lr=0.1),
    "horseshoe-local": HorseshoeVI(prior=Horseshoe(0.1), lr=0.1, local=True),
    "bmr": BMR(lr=0.1),
    "bmr-local": BMR(reduction=None, lr=0.1, local=True),
    "bmr-uniform": BMR(LayerScaled(0.2), Reduction("savage-dickey"), lr=0.1, start="uniform"),
    "sbnn": SBNN(lr=0.01),
    "sbnn-he": SBNN(prior=MIXED, lr=0.01, init_std=0.05, start="he"),
    "sbnn-sgd": SBNN(prior=MIXED, lr=0.01, optimizer="sgd"),
    "sbnn-local": SBNN(prior=MIXED, lr=0.01, local=True),
    "sgld": SGLD(step_size=1e-3),
    "sgld-sa": SGLD(GaussianLaplace(0.5, 1.0), 1e-3, adapt="sa", averaging=Averaging(5.0)),
    "sgld-rms": SGLD(step_size=1e-4, preconditioned=True, chain=Chain(thin=2, n_kept=2)),
    "sghmc": SGHMC(step_size=1e-4),
    "sghmc-em": SGHMC(GaussianLaplace(0.5, 1.0), 1e-4, 0.1, adapt="em"),
    "sghmc-rms": SGHMC(step_size=1e-5, preconditioned=True, chain=Chain(cycle=9, cooling=0.99)),
    "tdamp": TDAMP(keep=1.0),
    "tdamp-inputs": TDAMP(GroupSparse("inputs"), keep=1.0, power=2.0, cool_passes=(2, 4)),
    "tdamp-learned": TDAMP(prune_passes=(50, 60)),  # judges units, but removes none so early
}

# One setting of each engine. Message passing needs a plain network.
ONE_EACH = {name: engine for name, engine in ENGINES.items() if "-" not in name}
ANY_NETWORK = {name: engine for name, engine in ONE_EACH.items() if name != "tdamp"}
