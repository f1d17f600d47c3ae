"""The networks, sparsities and trainings that `bmr_mnist` compares."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from bayesieve.core.priors import LayerScaled, SpikeSlab
from bayesieve.engines import Engine
from bayesieve.engines.bmr import BMR, Reduction
from bayesieve.engines.sbnn import SBNN
from bayesieve.sieve.evidence import weight_evidence
from bayesieve.sieve.schedule import GradualPruning
from bayesieve.sieve.scores import Score, ScoreName
from bayesieve.training.schedule import Schedule


@dataclass(frozen=True)
class Numbers:
    """What may differ between the models of one population.

    Args:
        lr: learning rate; of layers with learned widths in units of the width.
        init_std: starting std of the weights, in the same units.
        width: of the layers (γ₀), or of the slab.
        last_width: of the last layer.
        spike: width of the spike; only for "spike-slab".
        shape: of the Gamma prior of c⁻², and its rate; a large one holds the widths where they are.
    """

    lr: float = 1e-2
    init_std: float = 0.18
    width: float = 0.1
    last_width: float = 1.0
    spike: float = math.exp(-3)
    shape: float = 2.0


_SBNN = Numbers(lr=1e-3, init_std=math.exp(-4), width=math.exp(-1))


@dataclass(frozen=True)
class Candidate:
    """One way to train a row.

    Args:
        own: how the engine prunes by itself: weights with ΔF > 0 ("savage-dickey"), ΔF > ζ with a
            learned ζ per layer ("layer"; both spare the last layer) or one for all weights
            ("global"), or not at all ("none").
        top_up: which weights go until the row's zeros are reached: those of least "evidence" (ΔF)
            or "snr"; "none" leaves it to the engine.
        kl: weight of the KL until pruning ends.
        kl_after: weight afterwards.
        prune_epochs: first and last epoch of pruning.
        prior: "layers" (normal, a learned width per layer: the paper's) or "spike-slab".
        numbers: of the engine.
    """

    own: Literal["savage-dickey", "layer", "global", "none"] = "savage-dickey"
    top_up: Literal["evidence", "snr", "none"] = "snr"
    kl: float = 0.1
    kl_after: float = 1.0
    prune_epochs: tuple[int, int] = (16, 90)
    prior: Literal["layers", "spike-slab"] = "layers"
    numbers: Numbers = Numbers()

    def __post_init__(self) -> None:
        if self.own == self.top_up == "none":
            raise ValueError("bmr_mnist: a candidate must prune by itself or be topped up.")
        if self.prior == "spike-slab" and self.own != "none":
            raise ValueError("bmr_mnist: SBNN does not prune by itself; give own='none'.")

    @property
    def reduction(self) -> Reduction | None:
        """What the engine is told; None where it does not prune. Fractions are set by the row."""
        if self.own == "none":
            return None
        if self.own == "savage-dickey":
            return Reduction("savage-dickey")
        return Reduction("hierarchical", scope=self.own, spare_last=self.own == "layer")

    @property
    def shared(self) -> "Candidate":
        """What candidates must agree in to be trained as one population."""
        return replace(self, numbers=Numbers())

    def engine(self, epochs: int) -> Engine[Any]:
        """The engine in a run of some epochs."""
        own = self.numbers
        if self.prior == "spike-slab":
            prior = SpikeSlab(own.width, own.spike, 0.5)
            return SBNN(prior, lr=own.lr, init_std=own.init_std, start="he", local=True)
        reduction = self.reduction
        if reduction is not None:  # then the engine turns the dial of the KL
            first, last = self.fractions(epochs)
            reduction = replace(reduction, start=first, end=last, kl=self.kl / self.kl_after)
        widths = LayerScaled(own.width, own.last_width, own.shape, own.shape)
        return BMR(widths, reduction, lr=own.lr, init_std=own.init_std, start="he", local=True)

    def schedule(self) -> Schedule:
        """Learning rate and weight of the KL."""
        if self.own != "none":
            return Schedule(lr="cosine", kl=self.kl_after, kl_warmup_epochs=10)
        return Schedule(lr="cosine", kl=self.kl, kl_after=self.kl_after, kl_warmup_epochs=10)

    def pruning(self, zeros: float, epochs: int) -> GradualPruning | None:
        """What prunes beside the engine."""
        if self.top_up == "none":
            return None
        score: Score | ScoreName = self.top_up  # under the prior of the posterior, if it has one
        if self.top_up == "evidence" and self.prior == "layers":
            score = weight_evidence("savage-dickey", prior_std="empirical")
        first, last = self.fractions(epochs)
        return GradualPruning(zeros, start=first, end=last, score=score)

    def fractions(self, epochs: int) -> tuple[float, float]:
        """First and last point of pruning as fractions of a run."""
        return self.prune_epochs[0] / epochs, self.prune_epochs[1] / epochs


@dataclass(frozen=True)
class Row:
    """A network, a sparsity, and the trainings to choose from.

    Args:
        net: "l300" or "l5".
        zeros: fraction of zeros over all parameters to reach.
        target: error (a fraction) to reach.
        epochs: passes over the data.
        candidates: by name.
    """

    net: str
    zeros: float
    target: float
    epochs: int
    candidates: dict[str, Candidate]


def together(ways: Mapping[str, Candidate]) -> list[list[str]]:
    """Names of candidates that can be trained as one population, group by group.

    Example:
        >>> a, b = Candidate(), Candidate(kl=0.3)
        >>> together({"a": a, "b": b, "c": replace(a, numbers=Numbers(lr=1e-3))})
        [['a', 'c'], ['b']]
    """
    groups: dict[Candidate, list[str]] = {}
    for label, own in ways.items():
        groups.setdefault(own.shared, []).append(label)
    return list(groups.values())


_EVIDENCE = Candidate("none", "evidence", 0.3, prune_epochs=(20, 90))
_SPIKES = replace(_EVIDENCE, prior="spike-slab", numbers=_SBNN)
_SLOW = Numbers(lr=3e-3, last_width=0.1)
_L300 = {
    "savage-dickey": Candidate(top_up="none"),
    "savage-dickey, topped up": Candidate(),
    "savage-dickey kl .03, topped up": Candidate(kl=0.03),
    "savage-dickey, slow, topped up": Candidate(numbers=_SLOW),
    "one zeta, topped up": Candidate(own="global"),
    "zeta per layer, topped up": Candidate(own="layer"),
    "snr kl .1": Candidate(own="none"),
    "snr kl .3": Candidate(own="none", kl=0.3),
    "evidence kl .3": _EVIDENCE,
    "evidence kl .3, last width .1": replace(_EVIDENCE, numbers=Numbers(last_width=0.1)),
    "evidence kl .3, slow": replace(_EVIDENCE, numbers=_SLOW),
    "evidence kl .3, slow, last width 1": replace(_EVIDENCE, numbers=Numbers(lr=3e-3)),
    "evidence kl .3, fixed widths": replace(
        _EVIDENCE, numbers=Numbers(3e-3, 0.06, 0.3, last_width=0.3, shape=1e6)
    ),
    "spikes, evidence kl .3": _SPIKES,
    "spikes, evidence kl .3, until 120": replace(_SPIKES, prune_epochs=(20, 120)),
    "spikes, evidence kl .3, until 70": replace(_SPIKES, prune_epochs=(20, 70)),
    "spikes, evidence kl .2": replace(_SPIKES, kl=0.2),
    "spikes, evidence kl .5": replace(_SPIKES, kl=0.5),
    "spikes, evidence kl .3, lr 2e-3": replace(_SPIKES, numbers=replace(_SBNN, lr=2e-3)),
    "spikes, evidence kl .3, lr 5e-4": replace(_SPIKES, numbers=replace(_SBNN, lr=5e-4)),
}
_L5 = {
    "savage-dickey, topped up": Candidate(kl_after=0.3, prune_epochs=(8, 42)),
    "savage-dickey kl .03, topped up": Candidate(kl=0.03, kl_after=0.3, prune_epochs=(8, 42)),
    "snr kl .1": Candidate(own="none", kl_after=0.3, prune_epochs=(8, 42)),
    "snr kl .3": Candidate(own="none", kl=0.3, kl_after=0.3, prune_epochs=(8, 42)),
}
ROWS = {
    "l300-97.6": Row("l300", 0.976, 0.0170, 160, _L300),
    "l300-98.5": Row("l300", 0.985, 0.0170, 160, _L300),
    "l5-99.2": Row("l5", 0.992, 0.0090, 70, _L5),
}
