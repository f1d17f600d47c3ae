"""Structured sieving: whole units, channels, heads and blocks stay or go.

A group is a set of entries of w that only make sense together:

    unit      a row of a Linear layer, its bias, and the columns of the layer that reads it
    channel   the same for a convolution
    head      rows of query, key and value, their biases, and columns of the output projection
    block     all parameters of a branch that is added to its own input; without them the block
              passes its input on

Removing it changes the shape a `compact`ed network has, and so its time. Units and channels are
found as `units` finds them, heads in `nn.MultiheadAttention`, blocks at additions in the trace.

Its score comes from the posterior, larger = keep:

    evidence    Σ log BF of its weights, in nats: if the posterior is a product, the log Bayes
                factor for the group against all of it being 0 [Dickey]
    inclusion   -Σ log(1 - p): a larger value is a larger probability that any of it is needed
    magnitude   Σ mean², for posteriors without a spread

Unless told, evidence where the posterior is normal and has its prior, else magnitude.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from bayesieve.checks import check_choice, check_fraction, check_positive
from bayesieve.core.posterior import Factorised, Posterior, Samples, SparseModel
from bayesieve.sieve._departures import Departures
from bayesieve.sieve._grouping import INSIDE, GroupSet, Kind, groups_of
from bayesieve.sieve._ranking import Scope, allowed_entries
from bayesieve.sieve._work import count_macs, group_cost, layer_positions, median_ms
from bayesieve.sieve.scores import (
    Score,
    evidence_score,
    inclusion_score,
    magnitude_score,
    score_of,
)

GroupScoreName = Literal["evidence", "inclusion", "magnitude"]
GroupScore = GroupScoreName | Score | None
_SCORES = ("evidence", "inclusion", "magnitude")


def group_scores(posterior: Posterior, groups: GroupSet, score: GroupScore = None) -> Tensor:
    """How much each group deserves to stay, (n,); what is pruned already counts nothing.

    Example:
        >>> from bayesieve.sieve.examples import small_posterior  # incoming, then outgoing weights
        >>> group_scores(small_posterior(), groups_of(small_posterior().network)[0], "magnitude")
        tensor([1.1400, 1.9800, 3.3800])
    """
    values = torch.where(_present(posterior), _entry_scores(posterior, score), 0.0)
    values[posterior.layout.n_bayesian :] = 0  # points have no prior to be judged by
    return groups.total(values)


def _present(posterior: Posterior) -> Tensor:
    """Entries that are not exactly 0 in mean and spread, (d,) bool; biases are judged alike."""
    if isinstance(posterior, Samples):
        return (posterior.draws != 0).any(0)
    if isinstance(posterior, Factorised):
        return (posterior.mean != 0) | (posterior.std != 0)
    return posterior.mean != 0


def _entry_scores(posterior: Posterior, score: GroupScore) -> Tensor:
    """What each entry adds to its group's score, (d,)."""
    if score is None:
        normal = isinstance(posterior, Factorised) and posterior.prior is not None
        score = "evidence" if normal else "magnitude"
    if score == "evidence":
        return score_of(posterior, evidence_score)
    if score == "inclusion":
        return F.softplus(score_of(posterior, inclusion_score))  # -log(1 - p)
    if score == "magnitude":
        return score_of(posterior, magnitude_score).square()
    return score_of(posterior, score)


def _check_score(who: str, score: GroupScore) -> None:
    if isinstance(score, str):
        check_choice(who, "score", score, _SCORES)


# --------------------------------------------------------------------------------------- rules


# The rules bear the names users write, so that a rule prints as it was called.
@dataclass(frozen=True)
class keep_units:
    """Keep the best groups and drop the others whole: what leads in, the bias, what leads out.

    At least one group of each layer stays, except blocks, of which all may go.

    Args:
        units: the fraction of groups to keep, or the number for each layer named.
        score: see the module; or a function of the posterior, summed over each group.
        scope: "layer" keeps the fraction in every layer; "global" over all layers together.
        kinds: which groups take part.

    Example:
        >>> from bayesieve.sieve.examples import small_posterior
        >>> keep = keep_units({"0": 1}, score="magnitude")(small_posterior())
        >>> keep[:9].view(3, 3).sum(1), keep[9:12], keep[12:15]  # into, out of, bias of the units
        (tensor([0, 0, 3]), tensor([False, False,  True]), tensor([False, False,  True]))
    """

    units: float | Mapping[str, int]
    score: GroupScore = None
    scope: Scope = "layer"
    kinds: tuple[Kind, ...] = INSIDE

    def __post_init__(self) -> None:
        if isinstance(self.units, Mapping):
            check_positive("keep_units", **{str(k): int(v) for k, v in self.units.items()})
        else:
            check_fraction("keep_units", units=self.units)
        check_choice("keep_units", "scope", self.scope, ("global", "layer"))
        _check_score("keep_units", self.score)

    def __call__(self, posterior: Posterior, within: Tensor | None = None) -> Tensor:
        """The entries to keep, (d,) bool, among `within`, (d,) bool, or those not yet pruned."""
        order = _departures("keep_units", posterior, within, self.score, self.kinds)
        if isinstance(self.units, Mapping):
            return order.keep_counts(self.units)
        if self.scope == "layer":
            counts = {own.layer: round(self.units * own.n) for own in order.sets}
            return order.keep_counts(counts)
        return order.keep_best(round(self.units * sum(own.n for own in order.sets)))


@dataclass(frozen=True, eq=False)
class keep_macs:
    """Drop the worst groups until the multiply-adds of what is left are a fraction of all.

    Groups go in the order of their score per multiply-add they cost. Counted are those of Linear
    and convolution layers as `compact` will leave them: rows and columns without a weight are
    gone, zeros inside are not.

    Args:
        fraction: of the multiply-adds of the whole network.
        example: an input, (n, ...), to see how often each layer is applied.
        score: see `keep_units`.
        kinds: see `keep_units`.
    """

    fraction: float
    example: Tensor
    score: GroupScore = None
    kinds: tuple[Kind, ...] = INSIDE

    def __post_init__(self) -> None:
        check_fraction("keep_macs", fraction=self.fraction)
        _check_score("keep_macs", self.score)

    def __call__(self, posterior: Posterior, within: Tensor | None = None) -> Tensor:
        """The entries to keep, (d,) bool, among `within`, (d,) bool, or those not yet pruned."""
        positions = layer_positions(posterior, self.example)
        order = _departures("keep_macs", posterior, within, self.score, self.kinds, positions)
        whole = count_macs(posterior.layout, torch.ones_like(order.allowed), positions)

        def share(keep: Tensor) -> float:
            return count_macs(posterior.layout, keep, positions) / whole

        return order.keep_most("keep_macs: multiply-adds", share, self.fraction)


@dataclass(frozen=True, eq=False)
class keep_latency:
    """Drop the worst groups until the compacted network answers within a time on this machine.

    Groups go in the order of `keep_macs`. Each trial is compacted and timed as a plain module, so
    the answer depends on the machine and varies a little from call to call.

    Args:
        target_ms: median milliseconds for the example as one batch.
        example: the batch, (n, ...).
        score: see `keep_units`.
        kinds: see `keep_units`.
        rounds: timings of each trial.
    """

    target_ms: float
    example: Tensor
    score: GroupScore = None
    kinds: tuple[Kind, ...] = INSIDE
    rounds: int = 15

    def __post_init__(self) -> None:
        check_positive("keep_latency", target_ms=self.target_ms, rounds=self.rounds)
        _check_score("keep_latency", self.score)

    def __call__(self, posterior: Posterior, within: Tensor | None = None) -> Tensor:
        """The entries to keep, (d,) bool, among `within`, (d,) bool, or those not yet pruned."""
        positions = layer_positions(posterior, self.example)
        order = _departures("keep_latency", posterior, within, self.score, self.kinds, positions)

        def milliseconds(keep: Tensor) -> float:
            return self._milliseconds(SparseModel(posterior.masked(keep), keep))

        return order.keep_most("keep_latency: milliseconds", milliseconds, self.target_ms)

    def _milliseconds(self, sparse: SparseModel) -> float:
        from bayesieve.sieve.compact import compact

        return median_ms(compact(sparse, self.example), self.example, self.rounds)


def _departures(
    who: str, posterior: Posterior, within: Tensor | None, score: GroupScore,
    kinds: Sequence[Kind], positions: Mapping[str, int] | None = None,
) -> Departures:  # fmt: skip
    """Score the groups; per multiply-add where positions are given."""
    layout, allowed = posterior.layout, allowed_entries(posterior, within)
    sets = groups_of(posterior.network, kinds)
    if not sets:
        raise ValueError(
            f"{who}: this network has no {', '.join(kinds)} that can go alone (its layers are "
            "not linked in a chain, or it cannot be traced). Use keep_fraction."
        )
    masked = posterior.masked(allowed)
    prunable = torch.zeros_like(allowed)
    prunable[layout.sparse] = allowed[layout.sparse]
    scores, costs = [], []
    for own in sets:
        alive = own.total(prunable.double()) > 0
        scores.append(torch.where(alive, group_scores(masked, own, score).double(), -torch.inf))
        costs.append(group_cost(own, layout, positions) if positions is not None else 1.0)
    return Departures(who, posterior, allowed, sets, scores, costs)


# ------------------------------------------------------------------------------------ schedule


@dataclass(frozen=True)
class GradualUnits:
    """A cubic schedule that removes whole groups; `fit` asks it for a mask once per epoch.

    Args:
        keep_units: final fraction of groups kept, or their number in each layer named.
        start: fraction of the run after which pruning begins.
        end: fraction of the run after which no more goes.
        score: see `keep_units`.
        kinds: see `keep_units`.

    Example:
        >>> GradualUnits(keep_units={"fc1": 80}, start=0.0, end=0.5).kept_at(0.25, "fc1", 500)
        132
    """

    keep_units: float | Mapping[str, int]
    start: float = 0.125
    end: float = 0.5625
    score: GroupScore = None
    kinds: tuple[Kind, ...] = INSIDE

    def __post_init__(self) -> None:
        _layerwise(self.keep_units, self.score, self.kinds)  # checks what is to be kept
        check_fraction("GradualUnits", start=self.start, end=self.end)
        if self.start >= self.end:
            raise ValueError(f"GradualUnits: start must be < end, got {self.start} and {self.end}.")

    @property
    def soft(self) -> bool:
        """Never: a group that is gone does not come back."""
        return False

    def is_active(self, progress: float) -> bool:
        """Whether a mask is in force; true to the end of the run, also after `end`."""
        return progress > self.start

    def kept_at(self, progress: float, layer: str, n: int) -> int:
        """Groups of a layer of n that are kept at a fraction `progress` of the run."""
        f = min(max((progress - self.start) / (self.end - self.start), 0.0), 1.0)
        own = self.keep_units
        final = own.get(layer, n) if isinstance(own, Mapping) else max(round(own * n), 1)
        return n - round((n - final) * (1 - (1 - f) ** 3))

    def keep(self, posterior: Posterior, progress: float, within: Tensor | None) -> Tensor:
        """The weights to keep at a fraction `progress` of the run, (d,) bool, inside `within`."""
        sets = groups_of(posterior.network, self.kinds)
        counts = {own.layer: self.kept_at(progress, own.layer, own.n) for own in sets}
        return _layerwise(counts, self.score, self.kinds)(posterior, within)

    def check(self, posterior: Posterior) -> None:
        """Raise now if this network has no such groups or this posterior no such score."""
        _layerwise(self.keep_units, self.score, self.kinds)(posterior)


def _layerwise(
    units: float | Mapping[str, int], score: GroupScore, kinds: tuple[Kind, ...]
) -> keep_units:
    return keep_units(units, score, "layer", kinds)
