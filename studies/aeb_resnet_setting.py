"""How one network of the ResNet-20 study is trained: settings, sparse layers, prior and sampler."""

import math
from dataclasses import dataclass

from bayesieve.core.layout import Roles
from bayesieve.core.precision import Precision
from bayesieve.core.priors import GaussianLaplace, Normal
from bayesieve.engines.sampling import Adapt, Averaging, Chain
from bayesieve.engines.sgmcmc import SGHMC
from bayesieve.training.compiling import CompileMode

METHODS: dict[str, Adapt] = {"a-sghmc": "none", "a-sghmc-em": "em", "a-sghmc-sa": "sa",
                             "sghmc-sa": "sa"}  # fmt: skip
PRIORS = {30: (0.5, 1e-3), 50: (0.1, 5e-4), 70: (0.1, 5e-5), 90: (0.005, 1e-5)}  # v₀, v₁
_DECAY = 5e-4  # weight decay per example of weights outside the sparse layers
_DENSE_TEMPERATURE, _TEMPERATURE = 1 / 20_000, 1e-3
_LAST_TEMPERATURE = 1.005**-1000
_PAPER_PULL = 1e-4 * (35_000 + 0.1 * 10_000 + 0.01 * 5_000)  # Σ lr over the paper's sparse phase
MASK_END, HOLD, _BURN_IN = 0.6, 0.3, 0.8  # fractions of a sparse run


@dataclass(frozen=True)
class Setting:
    """One run; `lr` is per example, as of a mean loss.

    Args:
        method: "dense" or one of METHODS.
        zeros: percent of all parameters.
        lr: learning rate.
        epochs: passes over the data.
        batch_size: images per step.
        spike_scale: v₀.
        slab_var: v₁.
        omega: factor of the stochastic approximation's weight (k + 1000)^-0.75.
        n_kept: draws averaged.
        precision: of the network in training.
        compile: whether elementwise kernels are compiled.
        pull: factor on the weight of the prior of sparse runs.
    """

    method: str
    zeros: int
    lr: float
    epochs: int
    batch_size: int = 500
    spike_scale: float = 0.1
    slab_var: float = 5e-4
    omega: float = 1.0
    n_kept: int = 20
    precision: Precision = "float32"
    compile: CompileMode = "off"
    pull: float = 1.0


def roles() -> Roles:
    """The paper's sparse layers: every 3x3 convolution but the first."""
    return Roles(
        prune=("stage*.conv1.weight", "stage*.conv2.weight"),
        keep=("conv1.weight", "*.shortcut.conv.weight", "out.weight"),
    )


def pull(setting: Setting, n_steps: int) -> float:
    """Weight of the prior with which its total pull over a sparse run is the paper's, or more.

    Example:
        >>> round(pull(Setting("a-sghmc-sa", 90, 0.02, 100), 10_000), 4)
        0.0277
    """
    mean_factor = HOLD + (1 - HOLD) / 2  # of a constant, then cosine, learning rate
    return min(1.0, setting.pull * _PAPER_PULL / (setting.lr * mean_factor * n_steps))


def engine(setting: Setting, n_data: int, n_steps: int) -> SGHMC:
    """The sampler of one run."""
    std = (_DECAY * n_data) ** -0.5
    step_size = setting.lr / n_data
    if setting.method == "dense":
        chain = Chain.over(n_steps, n_kept=setting.n_kept, burn_in=0.9)
        return SGHMC(Normal(std), step_size, _DENSE_TEMPERATURE, chain=chain)
    adapt = METHODS[setting.method]
    last = 1.0 if setting.method == "sghmc-sa" else _LAST_TEMPERATURE
    chain = Chain.over(n_steps, n_kept=setting.n_kept, burn_in=_BURN_IN, last_temperature=last)
    if adapt == "none":
        return SGHMC(Normal(std), step_size, _TEMPERATURE, chain=chain)
    prior = GaussianLaplace(
        spike_scale=setting.spike_scale, slab_std=math.sqrt(setting.slab_var), slab_share=1.0,
        penalty=_DECAY, other_std=std,
    )  # fmt: skip
    # The authors advise to leave σ and δ of deep networks alone.
    averaging = Averaging(setting.omega, 1000.0, 0.75, scale=False, slab_prob=False)
    return SGHMC(prior, step_size, _TEMPERATURE, adapt, averaging, chain)
