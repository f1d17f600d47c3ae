"""Rules that decide which single weights stay: frozen dataclasses, called with a posterior.

Every rule obeys three promises. Only prunable weights compete; biases and point parameters stay,
except biases of units without a kept outgoing weight (see `groups`). A weight pruned before never
comes back. No layer is emptied, unless asked: a path of best weights through the network stays.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from bayesieve.checks import check_choice, check_fraction
from bayesieve.core.network import Network
from bayesieve.core.posterior import Posterior
from bayesieve.sieve.ranking import (
    Scope,
    Score,
    ScoreName,
    allowed_entries,
    check_score,
    inclusion_score,
    keep_at_most,
    protected_path,
    prunable_tensors,
    rank,
    score_of,
)
from bayesieve.sieve.units import units_of

Rule = Callable[[Posterior, Tensor | None], Tensor]


# Rules have lower-case names, so that a rule prints as it was called.
@dataclass(frozen=True)
class keep_zeros:
    """Keep the best weights so that a fraction of ALL parameters is 0.

    Biases of live units and point parameters count: `keep_zeros(0.985)` leaves at most
    round(0.015 d) of d entries: exactly that many, or one or a few less where the next weight
    would bring a unit and its bias back.

    Args:
        zeros: fraction of all d entries, between 0 and 1.
        score: a name of `SCORES` or a function of the posterior; ties go to the larger |mean|,
            then to the lower index.
        scope: "global" compares all weights; "layer" leaves every layer the same fraction.
        allow_empty_layers: whether a layer may lose its last weight.

    Example:
        >>> from bayesieve.sieve.examples import small_posterior
        >>> posterior = small_posterior()
        >>> keep = keep_zeros(0.75, score="magnitude")(posterior)
        >>> int(keep.sum()), posterior.layout.size
        (4, 16)
    """

    zeros: float
    score: ScoreName | Score = "snr"
    scope: Scope = "global"
    allow_empty_layers: bool = False

    def __post_init__(self) -> None:
        check_fraction("keep_zeros", zeros=self.zeros)
        check_score("keep_zeros", self.score)
        check_choice("keep_zeros", "scope", self.scope, ("global", "layer"))

    def __call__(self, posterior: Posterior, within: Tensor | None = None) -> Tensor:
        """The entries to keep, (d,) bool, among `within`, (d,) bool, or those not yet pruned."""
        target = round((1 - self.zeros) * posterior.layout.size)
        units = units_of(posterior.network)
        return keep_at_most(self.priorities(posterior, within), target, units)

    def priorities(self, posterior: Posterior, within: Tensor | None = None) -> Tensor:
        """Order in which entries go, (d,), lowest first; does not depend on `zeros`."""
        allowed = allowed_entries(posterior, within)
        priorities = rank(posterior, self.score, allowed, self.scope)
        if self.allow_empty_layers:
            return priorities
        path = protected_path(units_of(posterior.network), priorities)
        return torch.where(path, posterior.layout.n_sparse + 1, priorities)


def fewest_kept(network: Network) -> int:
    """Return how many entries `keep_zeros` leaves at least, whatever the weights are.

    What is not pruned and belongs to no removed unit, and one weight of each layer.

    Example:
        >>> from bayesieve.sieve.examples import small_posterior
        >>> fewest_kept(small_posterior().network)  # a path of two weights and its two biases
        4
    """
    layout, units = network.layout, units_of(network)
    top = layout.n_sparse + 1
    priorities = torch.ones(layout.size, dtype=torch.int64)
    priorities[layout.n_sparse :] = top
    path = protected_path(units, priorities)
    return int((units.clean(torch.where(path, top, priorities)) == top).sum())


@dataclass(frozen=True)
class keep_scored:
    """Keep the weights whose score is at least a threshold.

    Args:
        threshold: in the unit of the score; 0 is the point of indifference of "evidence".
        score: a name of `SCORES` or a function of the posterior.
        allow_empty_layers: whether a layer may lose its last weight.

    Example:
        >>> from bayesieve.sieve.examples import small_posterior
        >>> int(keep_scored(0.85, "magnitude")(small_posterior()).sum())  # 4 weights, 4 biases
        8
    """

    threshold: float
    score: ScoreName | Score = "snr"
    allow_empty_layers: bool = False

    def __post_init__(self) -> None:
        check_score("keep_scored", self.score)
        if math.isnan(self.threshold):
            raise ValueError("keep_scored: threshold must be a number, got nan.")

    def __call__(self, posterior: Posterior, within: Tensor | None = None) -> Tensor:
        """The entries to keep, (d,) bool, among `within`, (d,) bool, or those not yet pruned."""
        score = score_of(posterior, self.score)[posterior.layout.sparse]
        wanted = score >= self.threshold
        return _closed(posterior, wanted, self.score, within, self.allow_empty_layers)


@dataclass(frozen=True)
class keep_probable:
    """Keep the weights whose inclusion probability is at least a threshold.

    Args:
        threshold: between 0 and 1.
        allow_empty_layers: whether a layer may lose its last weight.

    Example:
        >>> from bayesieve.sieve.examples import small_posterior
        >>> int(keep_probable(0.5)(small_posterior()).sum())  # 6 weights, 4 biases
        10
    """

    threshold: float = 0.5
    allow_empty_layers: bool = False

    def __post_init__(self) -> None:
        check_fraction("keep_probable", threshold=self.threshold)

    def __call__(self, posterior: Posterior, within: Tensor | None = None) -> Tensor:
        """The entries to keep, (d,) bool, among `within`, (d,) bool, or those not yet pruned."""
        logit = torch.tensor(self.threshold, dtype=torch.float64).logit().item()
        return keep_scored(logit, inclusion_score, self.allow_empty_layers)(posterior, within)


@dataclass(frozen=True)
class keep_n_of_m:
    """Keep the n best of every m consecutive weights along the inputs of each output.

    The weights of one output (for a convolution its whole filter, flattened) are cut into groups
    of m; a shorter last group also keeps at most n. 2:4 is what sparse tensor cores compute.

    Args:
        n: weights kept in a group.
        m: weights in a group.
        score: a name of `SCORES` or a function of the posterior.

    Example:
        >>> from bayesieve.sieve.examples import small_posterior
        >>> keep = keep_n_of_m(2, 3, score="magnitude")(small_posterior())
        >>> keep[9:12], keep[:9].view(3, 3).sum(1)  # the first unit has lost its only reader
        (tensor([False,  True,  True]), tensor([0, 2, 2]))
    """

    n: int = 2
    m: int = 4
    score: ScoreName | Score = "snr"

    def __post_init__(self) -> None:
        check_score("keep_n_of_m", self.score)
        if not 1 <= self.n <= self.m:
            raise ValueError(f"keep_n_of_m: 1 <= n <= m must hold, got n={self.n}, m={self.m}.")

    def __call__(self, posterior: Posterior, within: Tensor | None = None) -> Tensor:
        """The entries to keep, (d,) bool, among `within`, (d,) bool, or those not yet pruned."""
        layout = posterior.layout
        ranks = rank(posterior, self.score, allowed_entries(posterior, within))
        tensors = prunable_tensors(layout)
        chosen = [self._choose(ranks[part].view(shape)) for part, shape in tensors]
        wanted = torch.cat(chosen) if chosen else ranks[layout.sparse] > 0
        return _closed(posterior, wanted, self.score, within, allow_empty_layers=True)

    def _choose(self, ranks: Tensor) -> Tensor:
        """The n largest of every m ranks in each row, flattened, bool."""
        if ranks.dim() < 2:
            return ranks.flatten() >= 0
        rows = ranks.flatten(1)
        padding = -rows.shape[1] % self.m
        groups = F.pad(rows, (0, padding), value=-1).unflatten(1, (-1, self.m))
        order = groups.argsort(dim=2, descending=True, stable=True)
        best = torch.zeros_like(groups, dtype=torch.bool).scatter_(2, order[..., : self.n], True)
        return best.flatten(1)[:, : rows.shape[1]].flatten()


def _closed(
    posterior: Posterior, wanted: Tensor, score: ScoreName | Score, within: Tensor | None,
    allow_empty_layers: bool,
) -> Tensor:  # fmt: skip
    """Wanted prunable weights, (n_sparse,) bool, made to obey the promises of a rule, (d,)."""
    layout, units = posterior.layout, units_of(posterior.network)
    allowed = allowed_entries(posterior, within)
    keep = allowed.clone()
    keep[layout.sparse] &= wanted
    if not allow_empty_layers:
        keep |= protected_path(units, rank(posterior, score, allowed))
    return units.clean(keep)
