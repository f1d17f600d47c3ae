"""The columns and methods of [Deng], table 2: data, networks, engines and the paper's numbers."""

import math
from dataclasses import dataclass
from typing import Any, Literal

from torch import nn

from bayesieve.core.gaussian_laplace import GaussianLaplace
from bayesieve.core.precision import Precision
from bayesieve.core.priors import Normal
from bayesieve.data.augment import Augment
from bayesieve.engines import Engine
from bayesieve.engines.chain import Adapt, Averaging, Chain
from bayesieve.engines.map import MAP
from bayesieve.engines.sghmc import SGHMC
from bayesieve.engines.sgld import SGLD
from bayesieve.nets import conv2_bn_fc3, conv2_fc2
from bayesieve.training.compiling import CompileMode

METHODS = ("vanilla", "dropout", "sgd", "sghmc", "sghmc-em", "sghmc-sa",
           "sgld", "sgld-em", "sgld-sa")  # fmt: skip
_SGLD_FACTOR = 4.0  # SGHMC moves 1 / friction = 10 times its step; SGLD is stable at this much


@dataclass(frozen=True)
class Task:
    """One column of the table.

    Args:
        data: name of the data set.
        epochs: passes over it.
        temperature: of the chains; the paper's 1/τ.
        augment: random changes of each batch; they decide the network too. `fill` is set later.
        paper: its accuracies in percent, by method.
        target: what the average of SGHMC-SA should reach, in percent.
    """

    data: str
    epochs: int
    temperature: float
    augment: Augment | None
    paper: tuple[tuple[str, float], ...]
    target: float


TASKS = {
    "mnist": Task("mnist", 200, 1e-3, None,
                  (("vanilla", 99.31), ("dropout", 99.38), ("sghmc", 99.47), ("sghmc-sa", 99.59)),
                  99.55),
    "mnist-da": Task("mnist", 300, 1e-3, Augment(shift=4, rotation=15.0),
                     (("vanilla", 99.54), ("dropout", 99.56), ("sghmc", 99.63),
                      ("sghmc-sa", 99.75)), 99.70),
    "fashion": Task("fashion-mnist", 200, 4e-4, None,
                    (("vanilla", 92.73), ("dropout", 92.81), ("sghmc", 92.88),
                     ("sghmc-sa", 93.01)), 93.0),
    "fashion-da": Task("fashion-mnist", 300, 4e-4, Augment(shift=4, flip=True, erase=0.5),
                       (("vanilla", 93.14), ("dropout", 93.35), ("sghmc", 94.29),
                        ("sghmc-sa", 94.38)), 94.2),
}  # fmt: skip


@dataclass(frozen=True)
class Setting:
    """How one method is run on one task; `lr` is per example, as of a mean loss."""

    method: str
    lr: float = 0.03
    temperature: float = 1e-3
    spike_scale: float = 1.0
    slab_var: float = 0.1
    batch_size: int = 1000
    epochs: int = 200
    n_kept: int = 30
    chains: int = 1
    precision: Precision = "float32"
    compile: CompileMode = "off"
    weight_decay: float = 5e-4  # per example, of weights outside the sparse layer
    decay: Literal["constant", "cosine", "linear"] = "constant"  # of a chain's step, from half-way


def network(setting: Setting, shape: tuple[int, ...], *, augmented: bool) -> nn.Module:
    """The paper's network for this column."""
    if augmented:
        return conv2_bn_fc3(shape, 10)
    return conv2_fc2(shape, 10, dropout=0.5 if setting.method == "dropout" else 0.0)


def engine(setting: Setting, n_data: int, n_steps: int) -> Engine[Any]:
    """The engine of a method for N examples."""
    method, _, variant = setting.method.partition("-")
    if method in ("vanilla", "dropout"):
        return MAP(optimizer="adam", lr=1e-3)
    if method == "sgd":
        return MAP(optimizer="sgd", lr=setting.lr, weight_decay=setting.weight_decay)
    other_std = (setting.weight_decay * n_data) ** -0.5
    prior: Normal | GaussianLaplace = Normal(other_std)
    if variant:
        # a = b = p of the paper, and its ν = λ = 1000
        prior = GaussianLaplace(
            spike_scale=setting.spike_scale, slab_std=math.sqrt(setting.slab_var), slab_share=1.0,
            scale_count=1000.0, scale_square=1000.0, other_std=other_std,
        )  # fmt: skip
    adapt: Adapt = "sa" if variant == "sa" else "em" if variant == "em" else "none"
    chain = Chain.over(n_steps, n_kept=setting.n_kept, burn_in=0.5)
    averaging = Averaging(weight=1.0, delay=1000.0, power=0.75)
    step_size = setting.lr / n_data
    common = (adapt, averaging, chain)
    if method == "sgld":
        return SGLD(prior, _SGLD_FACTOR * step_size, setting.temperature, *common)
    return SGHMC(prior, step_size, setting.temperature, *common)
