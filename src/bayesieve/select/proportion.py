"""How many inputs to keep: cross-validated error against the proportion kept.

For each of K folds the inputs are ranked by a fit on the other folds; for each proportion the best
of them are kept, the network is trained again on those columns alone and its error is measured on
the fold. The proportion with the lowest mean error wins, or the smallest that is not clearly worse.

The K rankings, and the K · P fits that follow, have one architecture: they are asked for at once,
so that they can train as one population.

Reference: [Saha], section 3.5 and experiment 3; [Breiman] for the rule of one standard error.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Generator, Tensor

from bayesieve.checks import check_choice, check_fraction
from bayesieve.select.selection import select_fraction

ProportionRule = Literal["best", "one-se", "paired", "generous"]
RULES: tuple[ProportionRule, ...] = ("best", "one-se", "paired", "generous")
PROPORTIONS = tuple(round(0.05 * i, 2) for i in range(1, 21))


class TableFits(Protocol):
    """Trains many networks on sets of rows of one table."""

    def importance(self, rows: Sequence[Tensor]) -> Tensor:
        """Importance of the D inputs from a fit on each set of rows, (k, D)."""
        ...

    def errors(
        self, rows: Sequence[Tensor], held_out: Sequence[Tensor], keep: Tensor
    ) -> Tensor:  # fmt: skip
        """Error per held-out example, (k,), of fits that see only the inputs `keep`, (k, D)."""
        ...


@dataclass(frozen=True, eq=False)
class ProportionPath:
    """Error against the proportion of inputs kept.

    Args:
        proportions: P of them, ascending.
        errors: (K, P), one line per fold.
        chosen: index of the proportion that is used.
    """

    proportions: tuple[float, ...]
    errors: Tensor
    chosen: int

    @property
    def proportion(self) -> float:
        """The proportion that is used."""
        return self.proportions[self.chosen]

    @property
    def mean(self) -> Tensor:
        """Mean error over the folds, (P,)."""
        return self.errors.mean(0)

    @property
    def standard_error(self) -> Tensor:
        """Standard error of that mean, (P,)."""
        return self.errors.std(0) / len(self.errors) ** 0.5


def choose_proportion(
    proportions: Sequence[float], errors: Tensor, *, rule: ProportionRule = "one-se"
) -> ProportionPath:
    """Pick a proportion from errors of shape (K, P).

    Args:
        proportions: ascending.
        errors: one line per fold, lower is better.
        rule: "best" takes the lowest mean error; "one-se" the smallest proportion whose mean error
            is within one standard error of it; "paired" the smallest whose excess over it, fold by
            fold, is within one standard error of that excess; "generous" the largest such. Folds
            differ in difficulty, which the excess does not see: "paired" gives up less. An input
            may matter too little to pay for its weights, so the best share is on the small side
            of the share that matters: "generous" is nearer to it.

    Example:
        >>> errors = torch.tensor([[0.9, 0.5, 0.45, 0.6], [1.1, 0.7, 0.65, 0.8]])
        >>> shares = (0.1, 0.2, 0.5, 1.0)
        >>> [choose_proportion(shares, errors, rule=rule).proportion for rule in RULES]
        [0.5, 0.2, 0.5, 0.5]
    """
    check_choice("choose_proportion", "rule", rule, RULES)
    shares = tuple(proportions)
    check_fraction("choose_proportion", proportions=shares)
    if list(shares) != sorted(set(shares)) or shares[0] <= 0:
        raise ValueError(f"choose_proportion: proportions must be > 0 and ascending, got {shares}.")
    if errors.ndim != 2 or errors.shape[1] != len(shares) or len(errors) < 2:
        raise ValueError(
            f"choose_proportion: errors must have shape (folds >= 2, {len(shares)}), got "
            f"{tuple(errors.shape)}."
        )
    if not bool(errors.isfinite().all()):
        raise ValueError("choose_proportion: errors must be finite.")
    best = int(errors.mean(0).argmin())
    path = ProportionPath(shares, errors, best)
    excess = errors - errors[:, best : best + 1]
    if rule == "best":
        return path
    if rule == "one-se":
        within = excess.mean(0) <= path.standard_error[best]
    else:
        within = excess.mean(0) <= excess.std(0) / len(errors) ** 0.5
    return ProportionPath(shares, errors, int(within.nonzero()[-1 if rule == "generous" else 0]))


def cross_validate_proportion(
    fits: TableFits,
    n_rows: int,
    generator: Generator,
    *,
    proportions: Sequence[float] = PROPORTIONS,
    n_folds: int = 10,
    rule: ProportionRule = "one-se",
) -> ProportionPath:
    """Measure the error of every proportion by cross-validation and choose one.

    Args:
        fits: trains the networks.
        n_rows: examples in the table.
        generator: source of the folds.
        proportions: candidates, ascending.
        n_folds: K.
        rule: see `choose_proportion`.
    """
    train, held_out = folds(n_rows, n_folds, generator)
    importance = fits.importance(train)
    keep = torch.stack([select_fraction(importance, share) for share in proportions], 1)
    n = len(proportions)
    errors = fits.errors(
        [rows for rows in train for _ in range(n)],
        [rows for rows in held_out for _ in range(n)],
        keep.flatten(0, 1),
    )
    return choose_proportion(proportions, errors.reshape(n_folds, n), rule=rule)


def folds(n_rows: int, n_folds: int, generator: Generator) -> tuple[list[Tensor], list[Tensor]]:
    """Random training and held-out rows of each fold; held-out sets are disjoint and cover all.

    Example:
        >>> train, held_out = folds(10, 3, torch.Generator().manual_seed(0))
        >>> [len(rows) for rows in held_out], [len(rows) for rows in train]
        ([4, 3, 3], [6, 7, 7])
    """
    if not 2 <= n_folds <= n_rows:
        raise ValueError(f"folds: n_folds must be 2 to {n_rows} (the rows), got {n_folds}.")
    held_out = torch.randperm(n_rows, generator=generator).tensor_split(n_folds)
    train = [torch.cat([*held_out[:i], *held_out[i + 1 :]]) for i in range(n_folds)]
    return [rows.sort().values for rows in train], [rows.sort().values for rows in held_out]
