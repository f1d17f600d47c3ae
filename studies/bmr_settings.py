"""Networks, engines and schedules of the model-reduction study.

Presets: "paper" has the settings of Marković, Friston and Kiebel (2024), "paper-weights" the same
in our coordinates; "default" our schedule, one `Recipe` per data set and network; the others are
what was tried on held-out training images before "default" was chosen.
"""

from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from torch import nn

from bayesieve.core.layout import RoleRule, default_role
from bayesieve.core.precision import Precision
from bayesieve.data.augment import Augment
from bayesieve.engines import Engine
from bayesieve.engines.bmr import BMR, PAPER_ROLES, Reduction
from bayesieve.engines.horseshoe import HorseshoeVI
from bayesieve.engines.map import MAP
from bayesieve.nets import lenet5, lenet5_wide, mixer, mlp, vit
from bayesieve.sieve.schedule import GradualPruning
from bayesieve.training.schedule import Schedule
from studies.bmr_published import DATA

Net = Literal["mlp", "lenet", "mixer", "vit"]
Method = Literal["map", "flat", "tiered", "bmr"]


@dataclass(frozen=True)
class Recipe:
    """Our schedule of model reduction: a light KL, and a learning rate that falls at the end.

    Args:
        kl: weight of the KL while masks change.
        kl_after: weight afterwards, and that of the other Bayesian methods.
        rule: which weights go.
        end: fraction of the run after which masks are final and the learning rate falls.
        lr: learning rate in units of the prior's width.
        local: add the noise to activations instead of weights.
        start: starting means: the module's own, or uniform by fan-in.
        zeros: share of zeros to reach where the evidence removes fewer weights; those of least
            signal to noise go too. None leaves it to the evidence.
        augment: random changes of the training images, which the paper does not make.
    """

    kl: float = 0.1
    kl_after: float = 0.1
    rule: Literal["hierarchical", "savage-dickey"] = "savage-dickey"
    end: float = 0.6
    lr: float = 1e-2
    local: bool = True
    start: Literal["module", "he"] = "module"
    zeros: float | None = None
    augment: Augment | None = None

    def engine(self) -> BMR:
        """BMR whose own weight of the KL is relative to `kl_after`, which the schedule sets."""
        reduction = Reduction(rule=self.rule, end=self.end, kl=self.kl / self.kl_after)
        return BMR(reduction=reduction, lr=self.lr, local=self.local, start=self.start)

    def top_up(self) -> GradualPruning | None:
        """What prunes beside the evidence."""
        if self.zeros is None:
            return None
        return GradualPruning(self.zeros, start=0.1, end=self.end, score="snr")


_BASE = Recipe()
_MIRROR, _MOVED = Augment(flip=True), Augment(flip=True, shift=1)
TRIALS = {
    "sd-.1": _BASE,
    "sd-.03": replace(_BASE, kl=0.03, kl_after=0.03),
    "sd-.3": replace(_BASE, kl=0.3, kl_after=0.3),
    "sd-.1-.3": replace(_BASE, kl_after=0.3),
    "sd-.3-.1": replace(_BASE, kl=0.3),
    "sd-.1-.03": replace(_BASE, kl_after=0.03),
    "sd-.3-.03": replace(_BASE, kl=0.3, kl_after=0.03),
    "hier-.1": replace(_BASE, rule="hierarchical"),
    "hier-.3-.1": replace(_BASE, kl=0.3, rule="hierarchical"),
    "shared-.1": replace(_BASE, local=False),
    "fast-.1": replace(_BASE, lr=2e-2),
    "late-.1": replace(_BASE, end=0.8),
    "he-.1": replace(_BASE, start="he"),
    "top-.1": replace(_BASE, zeros=0.91),
    "top-.03": replace(_BASE, kl=0.03, kl_after=0.03, zeros=0.91),
    "top-.3": replace(_BASE, kl=0.3, kl_after=0.3, zeros=0.96),
    "top-.1-.03": replace(_BASE, kl_after=0.03, zeros=0.91),
    "top90-.3": replace(_BASE, kl=0.3, kl_after=0.3, zeros=0.905),
    "top90-.3-1": replace(_BASE, kl=0.3, kl_after=1.0, zeros=0.905),
    "top90-.5": replace(_BASE, kl=0.5, kl_after=0.5, zeros=0.905),
    "top90-1": replace(_BASE, kl=1.0, kl_after=1.0, zeros=0.905),
    "top95-1": replace(_BASE, kl=1.0, kl_after=1.0, zeros=0.955),
    "top90-.1-1": replace(_BASE, kl=0.1, kl_after=1.0, zeros=0.905),
    "top90-.1-.6": replace(_BASE, kl_after=0.6, zeros=0.905),
    "top90-.2-1": replace(_BASE, kl=0.2, kl_after=1.0, zeros=0.905),
    "top95-.1-.3": replace(_BASE, kl=0.1, kl_after=0.3, zeros=0.955),
    "top95-.1-1": replace(_BASE, kl=0.1, kl_after=1.0, zeros=0.955),
    "top95-.1-.6": replace(_BASE, kl_after=0.6, zeros=0.955),
    "top95-.03-.6": replace(_BASE, kl=0.03, kl_after=0.6, zeros=0.955),
    "slow90-.1-1": replace(_BASE, kl_after=1.0, zeros=0.905, lr=5e-3),
    "slow95-.03-.2": replace(_BASE, kl=0.03, kl_after=0.2, zeros=0.955, lr=5e-3),
    "slow95-.03-.3": replace(_BASE, kl=0.03, kl_after=0.3, zeros=0.955, lr=5e-3),
    "mirror90-.1-1": replace(_BASE, kl_after=1.0, zeros=0.905, augment=_MIRROR),
    "moved90-.1-.6": replace(_BASE, kl_after=0.6, zeros=0.905, augment=_MOVED),
    "mirror90-.1-.6": replace(_BASE, kl_after=0.6, zeros=0.905, augment=_MIRROR),
    "mirror90-.1-.3": replace(_BASE, kl_after=0.3, zeros=0.905, augment=_MIRROR),
    "moved90-.1-.3": replace(_BASE, kl_after=0.3, zeros=0.905, augment=_MOVED),
    "mirror95-.1-.6": replace(_BASE, kl_after=0.6, zeros=0.955, augment=_MIRROR),
    "moved95-.03-.1": replace(_BASE, kl=0.03, kl_after=0.1, zeros=0.955, augment=_MOVED),
    "moved95-.03-.2": replace(_BASE, kl=0.03, kl_after=0.2, zeros=0.955, augment=_MOVED),
    "moved95-.03-.3": replace(_BASE, kl=0.03, kl_after=0.3, zeros=0.955, augment=_MOVED),
}
_SHARED = replace(_BASE, local=False, zeros=0.85)  # noise on every token would triple a step's cost
_DEFAULTS = {
    **{(data, net): _SHARED for data in DATA for net in ("mixer", "vit")},
    ("fashion-mnist", "lenet"): TRIALS["moved90-.1-.3"],
    ("fashion-mnist", "mlp"): TRIALS["top90-.1-1"],
    ("cifar10", "lenet"): TRIALS["moved95-.03-.2"],
}
_PAPERS: dict[str, Literal["weights", "standard"]] = {  # and what a step of a scale holds
    "paper": "standard",
    "paper-weights": "weights",
}
PRESETS = ("paper", "default", "paper-weights", *TRIALS)


@dataclass(frozen=True)
class Row:
    """One line of the table: what is trained on what, how."""

    data: str
    net: Net
    method: Method
    preset: str

    @property
    def name(self) -> str:
        """How the row is called in files."""
        return f"{self.data}/{self.net}/{self.method}/{self.preset}"


@dataclass(frozen=True)
class Sizes:
    """How long a row trains and how often it is scored.

    Args:
        epochs: of `steps` steps each; the paper has one without pruning and 50 with.
        steps: gradient steps of an epoch.
        batch_size: examples of a step.
        every: epochs between two points of the curves.
        curve_draws: posterior draws for a point of the curves.
        draws: posterior draws for the final score.
        seeds: models trained together.
        small: shrink the Mixer and the ViT, for a look at the whole grid on a CPU.
        precision: of the network while it trains; scores are always made in float32.
    """

    epochs: int = 51
    steps: int = 500
    batch_size: int = 128
    every: int = 5
    curve_draws: int = 10
    draws: int = 100
    seeds: int = 1
    small: bool = False
    precision: Precision = "float32"


@dataclass(frozen=True)
class Setting:
    """What a row is trained with."""

    engine: Engine[Any]
    schedule: Schedule
    roles: RoleRule
    dropout: float
    pruning: GradualPruning | None = None
    augment: Augment | None = None


def setting(row: Row) -> Setting:
    """The engine and schedule of a row.

    MAP has dropout of 0.2 but in the Mixer, and no prior: with a free scale per layer the paper's
    prior hardly binds a point estimate. "paper": constant learning rates of 1e-3, 5e-3, 5e-3 and
    1e-2, the whole KL, and everything has a posterior and is pruned. Otherwise the learning rate
    falls by a cosine, norms and positions are point estimates and biases are kept.
    """
    dropout = 0.2 if row.method == "map" and row.net != "mixer" else 0.0
    point = MAP(optimizer="adam", lr=1e-3)
    if row.preset in _PAPERS:
        reduced = replace(BMR.paper(), coordinates=_PAPERS[row.preset])
        paper: dict[Method, Engine[Any]] = {
            "map": point,
            "flat": replace(reduced, reduction=None, lr=5e-3),
            "tiered": HorseshoeVI(lr=5e-3, start="he"),
            "bmr": reduced,
        }
        return Setting(paper[row.method], Schedule(), PAPER_ROLES, dropout)
    recipe = TRIALS.get(row.preset) or _DEFAULTS.get((row.data, row.net), _BASE)
    own: dict[Method, Engine[Any]] = {
        "map": point,
        "flat": replace(recipe.engine(), reduction=None),
        "tiered": HorseshoeVI(lr=5e-3, start="he", local=recipe.local),
        "bmr": recipe.engine(),
    }
    kl = 1.0 if row.method == "map" else recipe.kl_after
    schedule = Schedule(lr="cosine", kl=kl, hold=recipe.end if row.method == "bmr" else None)
    pruning = recipe.top_up() if row.method == "bmr" else None
    return Setting(own[row.method], schedule, default_role, dropout, pruning, recipe.augment)


def resolved(row: Row, sizes: Sizes) -> dict[str, Any]:
    """Everything that decides a row's numbers, ready for JSON."""
    own = setting(row)
    return {
        **asdict(sizes), "engine": repr(own.engine), "schedule": repr(own.schedule),
        "roles": "all pruned" if own.roles is PAPER_ROLES else "weights pruned",
        "dropout": own.dropout, "pruning": repr(own.pruning), "augment": repr(own.augment),
    }  # fmt: skip


def build(
    net: Net, shape: tuple[int, ...], n_outputs: int, *, dropout: float = 0.0, small: bool = False
) -> nn.Module:
    """The paper's network for images of a shape; dropout is for point estimates.

    Example:
        >>> sum(p.numel() for p in build("mlp", (1, 28, 28), 10).parameters())
        959610
    """
    if net == "mlp":
        return mlp(shape, n_outputs, (400,) * 5, "swish", dropout)
    if net == "lenet":
        return (lenet5 if shape[0] == 1 else lenet5_wide)(shape, n_outputs, dropout=dropout)
    if net == "mixer":
        sizes = {"n_blocks": 2, "width": 32, "token_hidden": 64, "hidden": 64} if small else {}
        return mixer(shape, n_outputs, **sizes)
    sizes = {"n_blocks": 2, "width": 32, "n_heads": 4, "hidden": 64} if small else {}
    return vit(shape, n_outputs, dropout=dropout, **sizes)
