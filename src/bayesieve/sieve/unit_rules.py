"""Structured sieving: rules by which whole units, channels and heads stay or go.

Removing a group (see `groups`) changes the shape of the `compact`ed network, and so its time. The
score of a group comes from the posterior, larger = keep:

    evidence    Σ log BF of its weights, in nats: if the posterior is a product, the log Bayes
                factor for the group against all of it being 0 [Dickey]
    inclusion   -Σ log(1 - p): a larger value is a larger probability that any of it is needed
    magnitude   Σ mean², for posteriors without a spread

By default it is evidence where the posterior is normal and has its prior, else magnitude.
"""

import statistics
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bayesieve.checks import check_choice, check_fraction, check_positive
from bayesieve.core.inputs import as_inputs, call
from bayesieve.core.posterior import Posterior, SparseModel, present_entries
from bayesieve.graph.costs import interleaved, live_macs, weight_uses
from bayesieve.sieve.groups import find_groups
from bayesieve.sieve.ranking import (
    Scope,
    Score,
    allowed_entries,
    evidence_score,
    inclusion_score,
    magnitude_score,
    score_of,
)
from bayesieve.sieve.units import units_of

GroupScoreName = Literal["evidence", "inclusion", "magnitude"]
GroupScore = GroupScoreName | Score | None
_SCORES: dict[str, Score] = {
    "evidence": evidence_score,
    "inclusion": lambda posterior: F.softplus(inclusion_score(posterior)),  # -log(1 - p)
    "magnitude": lambda posterior: magnitude_score(posterior).square(),
}


def group_scores(posterior: Posterior, entries: Tensor, score: GroupScore = None) -> Tensor:
    """Score of groups of entries of w, (n, m) -> (n,), larger = keep.

    Entries that are pruned already add nothing.

    Example:
        >>> from bayesieve.sieve.groups import groups_of
        >>> from bayesieve.sieve.examples import small_posterior  # incoming, then outgoing weights
        >>> units = groups_of(small_posterior().network)["0"]
        >>> group_scores(small_posterior(), units, "magnitude")
        tensor([1.1400, 1.9800, 3.3800])
    """
    if score is None:
        score = "magnitude" if posterior.prior is None else "evidence"
    values = score_of(posterior, _SCORES[score] if isinstance(score, str) else score)
    values = torch.where(present_entries(posterior), values, 0.0)
    values[posterior.layout.n_bayesian :] = 0  # points have no prior to compare with
    return values[entries].sum(1)


def _check_score(who: str, score: GroupScore) -> None:
    if isinstance(score, str):
        check_choice(who, "score", score, _SCORES)


# ----------------------------------------------------------------------------------------- rules


# Rules have lower-case names, so that a rule prints as it was called.
@dataclass(frozen=True)
class keep_units:
    """Keep the best groups and drop the others whole: what leads in, the bias, what leads out.

    At least one group of each layer stays.

    Args:
        units: the fraction of groups to keep, or the number for each layer named.
        score: a name of the table above, or a function of the posterior, summed over each group.
        scope: "layer" keeps the fraction in every layer; "global" over all layers together.
        example: an input, (n, ...), by which coupled groups are found; None takes the shape of
            the training data.

    Example:
        >>> from bayesieve.sieve.examples import small_posterior
        >>> keep = keep_units({"0": 1}, score="magnitude")(small_posterior())
        >>> keep[:9].view(3, 3).sum(1), keep[9:12], keep[12:15]  # into, out of, bias of the units
        (tensor([0, 0, 3]), tensor([False, False,  True]), tensor([False, False,  True]))
    """

    units: float | Mapping[str, int]
    score: GroupScore = None
    scope: Scope = "layer"
    example: Any = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        if isinstance(self.units, Mapping):
            check_positive("keep_units", **{str(k): int(v) for k, v in self.units.items()})
        else:
            check_fraction("keep_units", units=self.units)
        check_choice("keep_units", "scope", self.scope, ("global", "layer"))
        _check_score("keep_units", self.score)

    def __call__(self, posterior: Posterior, within: Tensor | None = None) -> Tensor:
        """The entries to keep, (d,) bool, among `within`, (d,) bool, or those not yet pruned."""
        order = RemovalOrder(self, posterior, within)
        if isinstance(self.units, Mapping):
            return order.keep_counts(self.units)
        if self.scope == "layer":
            counts = {name: round(self.units * len(e)) for name, e in order.groups.items()}
            return order.keep_counts(counts)
        return order.keep_best(round(self.units * len(order.scores)))


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
    """

    fraction: float
    example: Any
    score: GroupScore = None

    def __post_init__(self) -> None:
        check_fraction("keep_macs", fraction=self.fraction)
        _check_score("keep_macs", self.score)

    def __call__(self, posterior: Posterior, within: Tensor | None = None) -> Tensor:
        """The entries to keep, (d,) bool, among `within`, (d,) bool, or those not yet pruned."""
        positions = layer_positions(posterior, self.example)
        order = RemovalOrder(self, posterior, within, positions)
        whole = live_macs(posterior.layout, torch.ones_like(order.allowed), positions)

        def share(keep: Tensor) -> float:
            return live_macs(posterior.layout, keep, positions) / whole

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
        rounds: timings of each trial.
    """

    target_ms: float
    example: Any
    score: GroupScore = None
    rounds: int = 15

    def __post_init__(self) -> None:
        check_positive("keep_latency", target_ms=self.target_ms, rounds=self.rounds)
        _check_score("keep_latency", self.score)

    def __call__(self, posterior: Posterior, within: Tensor | None = None) -> Tensor:
        """The entries to keep, (d,) bool, among `within`, (d,) bool, or those not yet pruned."""
        from bayesieve.sieve.compact import compact

        positions = layer_positions(posterior, self.example)
        order = RemovalOrder(self, posterior, within, positions)

        def milliseconds(keep: Tensor) -> float:
            small = compact(SparseModel(posterior.masked(keep), keep), self.example)
            return median_ms(small, self.example, self.rounds)

        return order.keep_most("keep_latency: milliseconds", milliseconds, self.target_ms)


# ----------------------------------------------------------------------------------------- order


class RemovalOrder:
    """The order in which the groups of a posterior go, and the masks that leaves.

    Args:
        rule: with the score of groups.
        posterior: that has the groups.
        within: (d,) bool, what is not gone yet; None asks the posterior.
        positions: how often each layer is applied; if given, groups go by score per multiply-add.
    """

    def __init__(
        self,
        rule: keep_units | keep_macs | keep_latency,
        posterior: Posterior,
        within: Tensor | None,
        positions: Mapping[str, int] | None = None,
    ) -> None:
        layout = posterior.layout
        self.who, self.network = type(rule).__name__, posterior.network
        self.allowed = allowed_entries(posterior, within)
        found = find_groups(posterior.network, rule.example)
        self.groups = found.entries
        if not self.groups:
            raise ValueError(
                f"{self.who}: this network has no unit, channel, head that can go: "
                f"{'; '.join(found.fixed)}. Use keep_zeros."
            )
        masked = posterior.masked(self.allowed)
        prunable = self.allowed.clone()
        prunable[layout.n_sparse :] = False
        macs = torch.zeros_like(prunable, dtype=torch.float64)  # of one example, by each entry
        for name, part in layout.slices.items():
            macs[part] = (positions or {}).get(name, 0)
        scores, costs = [], []
        for entries in self.groups.values():
            worth = group_scores(masked, entries, rule.score).double()
            scores.append(torch.where(prunable[entries].any(1), worth, -torch.inf))
            costs.append(macs[entries].sum(1).clamp_min(1))
        self.scores = torch.cat(scores)  # of all groups, by layer; -inf for those that are gone
        self.costs = torch.cat(costs)

    def keep_counts(self, counts: Mapping[str, int]) -> Tensor:
        """The best groups of each layer, as many as named; layers not named stay whole."""
        for layer in counts:
            check_choice(self.who, "layer", layer, sorted(self.groups))
        kept = torch.ones_like(self.scores, dtype=torch.bool)
        for layer, scores, part in self._by_layer(kept):
            if layer in counts:
                part.copy_(scores > -torch.inf)
                best = scores.argsort(descending=True, stable=True)
                part[best[max(counts[layer], 1) :]] = False
        return self._mask(kept)

    def keep_best(self, n: int) -> Tensor:
        """The n best groups of all layers, and the best of each layer."""
        n_alive = int((self.scores > -torch.inf).sum())
        return self._without(self._removable()[: max(n_alive - n, 0)])

    def keep_most(self, what: str, measure: Callable[[Tensor], float], target: float) -> Tensor:
        """As many groups as a measure allows; assumes that it falls as groups go."""
        order = self._removable()
        low, high = 0, len(order)
        if measure(self._without(order[:0])) <= target:
            return self._without(order[:0])
        least = measure(self._without(order))
        if least > target:
            raise ValueError(
                f"{what} of at most {target:g} cannot be reached: with one group left in each "
                f"layer they are {least:.4g}."
            )
        while high - low > 1:  # low does not fit, high does
            middle = (low + high) // 2
            if measure(self._without(order[:middle])) <= target:
                high = middle
            else:
                low = middle
        return self._without(order[:high])

    def _removable(self) -> Tensor:
        """Numbers of the groups that may go, worst first; the best of each layer does not."""
        going = self.scores > -torch.inf
        for _, scores, part in self._by_layer(going):
            part[scores.argsort(stable=True)[-1]] = False
        order = (self.scores / self.costs).argsort(stable=True)
        return order[going[order]]

    def _without(self, gone: Tensor) -> Tensor:
        """The mask without some groups, by number."""
        kept = self.scores > -torch.inf
        kept[gone] = False
        return self._mask(kept)

    def _mask(self, kept: Tensor) -> Tensor:
        """The entries that stay with the groups that are kept, (n,) bool."""
        keep = self.allowed.clone()
        for layer, _, part in self._by_layer(kept):
            keep[self.groups[layer][~part]] = False
        return units_of(self.network).clean(keep)

    def _by_layer(self, values: Tensor) -> Iterator[tuple[str, Tensor, Tensor]]:
        """Each layer with the scores of its groups and a view of some values, (n,)."""
        sizes = [len(entries) for entries in self.groups.values()]
        return zip(self.groups, self.scores.split(sizes), values.split(sizes), strict=True)


# ------------------------------------------------------------------------------------------ cost


def layer_positions(posterior: Posterior, example: Any) -> dict[str, int]:
    """Return how often one example passes through each weight tensor of a layer."""
    module = posterior.to_module()
    one = as_inputs("layer_positions", example)[:1]
    uses, _ = weight_uses(module, one.to(posterior.network.device))
    macs: dict[str, int] = {}
    for use in uses:
        macs[use.name] = macs.get(use.name, 0) + use.positions * use.weight.numel()
    return {name: round(n / module.get_parameter(name).numel()) for name, n in macs.items()}


def median_ms(module: nn.Module, example: Any, rounds: int) -> float:
    """Median processor time of a call, in milliseconds."""
    with torch.no_grad():
        run = partial(call, module, as_inputs("median_ms", example))
        times = interleaved({"module": run}, rounds=rounds, clock="cpu")
    return statistics.median(times["module"])
