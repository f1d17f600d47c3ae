"""Gradual pruning: the sparsity a run should have reached by now, and the mask that has it.

The fraction of zeros follows S · (1 - (1 - f)³), f from 0 to 1 between `start` and `end`
[Zhu, eq. 1]: fast while much can go, slow where each weight counts. `AnnealedPruning` follows
S · (1 - D^(k/U)) after k steps instead, the schedule that accompanies annealed chains
[Deng, section 4.3].
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from bayesieve.checks import check_choice, check_fraction, check_positive
from bayesieve.core.posterior import Posterior
from bayesieve.sieve import unit_rules
from bayesieve.sieve.groups import groups_of
from bayesieve.sieve.ranking import Scope, Score, ScoreName, check_score
from bayesieve.sieve.unit_rules import GroupScore
from bayesieve.sieve.weight_rules import keep_zeros


class _Schedule:
    """A schedule for single weights: `zeros_at` says how many are 0, a score says which ones."""

    zeros: float
    end: float
    score: ScoreName | Score
    soft: bool
    start: float = 0.0
    scope: Scope = "global"

    def is_active(self, progress: float) -> bool:
        """Return whether a mask is in force; true to the end of the run, also after `end`."""
        return progress > self.start

    def zeros_at(self, progress: float) -> float:
        """Fraction of zeros at a fraction `progress` of the run."""
        raise NotImplementedError

    def keep(self, posterior: Posterior, progress: float, within: Tensor | None) -> Tensor:
        """The weights to keep at a fraction `progress` of the run.

        Args:
            posterior: of one member; with `soft` not masked, so that weights can come back.
            progress: fraction of the run done.
            within: (d,) bool, the mask in force, or None before the first one.

        Returns:
            (d,) bool. Hard schedules never leave `within`, nor do soft ones from `end` on.
        """
        free = within is None or (self.soft and progress < self.end)
        allowed = posterior.mean.new_ones(posterior.mean.shape) > 0 if free else within
        return keep_zeros(self.zeros_at(progress), self.score, self.scope)(posterior, allowed)

    def check(self, posterior: Posterior) -> None:
        """Raise now if this posterior has no such score or cannot become that sparse."""
        keep_zeros(self.zeros, self.score, self.scope)(posterior)


@dataclass(frozen=True)
class GradualPruning(_Schedule):
    """A cubic pruning schedule; `fit` asks it for a mask 50 to 100 times between start and end.

    Args:
        zeros: final fraction of zeros over all parameters, biases counted.
        start: fraction of the run after which pruning begins.
        end: fraction of the run after which the final sparsity holds.
        score: which weights go first: a name of `SCORES` or a function of the posterior.
        soft: whether weights may come back until `end`; `fit` then keeps training masked ones.

    Example:
        >>> pruning = GradualPruning(zeros=0.985, start=0.125, end=0.5625)
        >>> [round(pruning.zeros_at(progress), 4) for progress in (0.1, 0.125, 0.34375, 1.0)]
        [0.0, 0.0, 0.8619, 0.985]
    """

    zeros: float = 0.985
    start: float = 0.125
    end: float = 0.5625
    score: ScoreName | Score = "snr"
    soft: bool = False

    def __post_init__(self) -> None:
        _check_span("GradualPruning", self.start, self.end)
        check_fraction("GradualPruning", open_ends=True, zeros=self.zeros)
        check_score("GradualPruning", self.score)

    def zeros_at(self, progress: float) -> float:
        """Fraction of zeros at a fraction `progress` of the run."""
        return self.zeros * _cubic(progress, self.start, self.end)


@dataclass(frozen=True)
class AnnealedPruning(_Schedule):
    """Zeros of S (1 - D^(k/U)) after k steps; `fit` asks for a mask 50 to 100 times until `end`.

    A chain should keep its draws after `end` (`Chain.burn_in`), when its mask no longer changes.

    Args:
        zeros: S, final fraction of zeros over all parameters, biases counted.
        decay: D in (0, 1).
        periods: K/U, the number of periods of U steps in the whole run of K.
        end: fraction of the run at which the mask becomes final, with exactly S zeros.
        score: which weights go first; "inclusion" is ρ of an adaptive prior.
        scope: "layer" leaves each layer the same fraction, as the paper does.
        soft: whether weights may come back until `end`; masked ones then go on learning.

    Example:
        >>> pruning = AnnealedPruning(0.9)  # 1000 epochs of U steps
        >>> [round(pruning.zeros_at(epoch / 1000) / 0.9, 4) for epoch in (10, 100, 300, 700)]
        [0.0956, 0.634, 0.951, 0.9991]
    """

    zeros: float = 0.9
    decay: float = 0.99
    periods: float = 1000.0
    end: float = 0.75
    score: ScoreName | Score = "magnitude"
    scope: Scope = "layer"
    soft: bool = True

    def __post_init__(self) -> None:
        check_fraction("AnnealedPruning", end=self.end)
        check_fraction("AnnealedPruning", open_ends=True, zeros=self.zeros, decay=self.decay)
        check_positive("AnnealedPruning", periods=self.periods, end=self.end)
        check_choice("AnnealedPruning", "scope", self.scope, ("global", "layer"))
        check_score("AnnealedPruning", self.score)

    def zeros_at(self, progress: float) -> float:
        """Fraction of zeros at a fraction `progress` of the run."""
        if progress >= self.end:
            return self.zeros
        return self.zeros * (1 - self.decay ** (progress * self.periods))


@dataclass(frozen=True)
class GradualUnits:
    """A cubic schedule that removes whole groups; `fit` asks for a mask 50 to 100 times.

    Args:
        keep_units: final fraction of groups kept, or their number in each layer named.
        start: fraction of the run after which pruning begins.
        end: fraction of the run after which no more goes.
        score: see `keep_units`.

    Example:
        >>> GradualUnits(keep_units={"fc1": 80}, start=0.0, end=0.5).kept_at(0.25, "fc1", 500)
        132
    """

    keep_units: float | Mapping[str, int]
    start: float = 0.125
    end: float = 0.5625
    score: GroupScore = None
    soft: ClassVar[bool] = False  # a group that is gone does not come back

    def __post_init__(self) -> None:
        self._rule(self.keep_units)  # checks what is to be kept
        _check_span("GradualUnits", self.start, self.end)

    def is_active(self, progress: float) -> bool:
        """Return whether a mask is in force; true to the end of the run, also after `end`."""
        return progress > self.start

    def kept_at(self, progress: float, layer: str, n: int) -> int:
        """Groups of a layer of n that are kept at a fraction `progress` of the run."""
        wanted = self.keep_units
        final = wanted.get(layer, n) if isinstance(wanted, Mapping) else max(round(wanted * n), 1)
        return n - round((n - final) * _cubic(progress, self.start, self.end))

    def keep(self, posterior: Posterior, progress: float, within: Tensor | None) -> Tensor:
        """The weights to keep at a fraction `progress` of the run, (d,) bool, inside `within`."""
        groups = groups_of(posterior.network)
        counts = {name: self.kept_at(progress, name, len(e)) for name, e in groups.items()}
        return self._rule(counts)(posterior, within)

    def check(self, posterior: Posterior) -> None:
        """Raise now if this network has no such groups or this posterior no such score."""
        self._rule(self.keep_units)(posterior)

    def _rule(self, units: float | Mapping[str, int]) -> unit_rules.keep_units:
        return unit_rules.keep_units(units, self.score, "layer")


def _cubic(progress: float, start: float, end: float) -> float:
    """Share of the removals that are done by now, from 0 at `start` to 1 at `end`."""
    f = min(max((progress - start) / (end - start), 0.0), 1.0)
    return 1 - (1 - f) ** 3


def _check_span(who: str, start: float, end: float) -> None:
    check_fraction(who, start=start, end=end)
    if start >= end:
        raise ValueError(f"{who}: start must be < end, got {start} and {end}.")
