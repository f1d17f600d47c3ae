"""The order in which groups go, and the masks that leaves; see `groups`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bayesieve.checks import check_choice
from bayesieve.core.posterior import Posterior
from bayesieve.sieve._grouping import GroupSet
from bayesieve.sieve.units import unit_chain


@dataclass(frozen=True, eq=False)
class Departures:
    """The groups of a posterior with their scores: which go first, and what then stays.

    Args:
        who: the rule, for messages.
        posterior: whose groups.
        allowed: (d,) bool, what is not gone yet.
        sets: the groups, by layer.
        scores: of each set, (n,); -inf for groups that are gone.
        costs: of each set, what one group costs.
    """

    who: str
    posterior: Posterior
    allowed: Tensor
    sets: list[GroupSet]
    scores: list[Tensor]
    costs: list[float]

    def keep_counts(self, counts: Mapping[str, int]) -> Tensor:
        """The best groups of each layer, as many as named; layers not named stay whole."""
        known = {own.layer for own in self.sets}
        for layer in counts:
            check_choice(self.who, "layer", layer, sorted(known))
        keep = self.allowed
        for own, scores in zip(self.sets, self.scores, strict=True):
            if own.layer in counts:
                least = 0 if own.kind == "block" else 1
                n = min(max(counts[own.layer], least), own.n)
                kept = torch.zeros(own.n, dtype=torch.bool, device=scores.device)
                kept[scores.argsort(descending=True, stable=True)[:n]] = True
                keep = own.without(keep, kept & (scores > -torch.inf))
        return self._closed(keep)

    def keep_best(self, n: int) -> Tensor:
        """The n best groups of all layers, and the best of each layer."""
        order = self._departures()
        n_alive = sum(int((scores > -torch.inf).sum()) for scores in self.scores)
        return self._without(order[: max(n_alive - n, 0)])

    def keep_most(self, what: str, measure: Callable[[Tensor], float], target: float) -> Tensor:
        """As many groups as a measure allows; assumes that it falls as groups go."""
        order = self._departures()
        low, high = 0, len(order)
        if measure(self._without([])) <= target:
            return self._without([])
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

    def _departures(self) -> list[tuple[int, int]]:
        """(set, group) pairs that may go, worst first; the best of each layer is not among them."""
        pairs: list[tuple[float, int, int]] = []
        for i, (own, scores) in enumerate(zip(self.sets, self.scores, strict=True)):
            order = scores.argsort(stable=True).tolist()
            going = order if own.kind == "block" else order[:-1]
            values = scores.tolist()
            pairs += [(values[g] / self.costs[i], i, g) for g in going if values[g] > -torch.inf]
        return [(i, g) for _, i, g in sorted(pairs)]

    def _without(self, gone: Sequence[tuple[int, int]]) -> Tensor:
        keep = self.allowed
        for i, (own, scores) in enumerate(zip(self.sets, self.scores, strict=True)):
            kept = scores > -torch.inf
            kept[[g for j, g in gone if j == i]] = False
            keep = own.without(keep, kept)
        return self._closed(keep)

    def _closed(self, keep: Tensor) -> Tensor:
        return unit_chain(self.posterior.network).clean(keep)
