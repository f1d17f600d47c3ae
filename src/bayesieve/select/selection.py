"""Rules that choose inputs from their importances or probabilities, and how stable a choice is.

The posterior expected false-discovery rate of a set A of inputs with probabilities P is

    FDR(A) = Σ_{j in A} (1 - P_j) / |A|

and the largest set with FDR(A) <= level is made of the most probable inputs; of these `select_fdr`
keeps the ones that are more probable than not.

How many inputs to keep may also be read from cross-validated errors. For each of K folds the inputs
are ranked by a fit on the other folds; for each proportion the best of them are kept, the network
is trained again on those columns alone and its error is measured on the fold. The proportion with
the lowest mean error wins, or the smallest that is not clearly worse. The K rankings, and the K · P
fits that follow, have one architecture: they are asked for at once, so that they can train as one
population.

Stability compares b selections of D inputs, made on b samples of the rows. With f_j the frequency
with which input j was kept, the index is the variance of these choices against that of b random
selections of the same sizes:

    1 - mean_j [b / (b - 1) f_j (1 - f_j)] / [(k̄ / D) (1 - k̄ / D)],   k̄ the mean number kept.

It is 1 when all selections agree and near 0 when they agree no more than by chance.

References: [Saha], section 3.5, for the fraction and, with experiment 3, for its choice; [Breiman]
for the rule of one standard error; [Mueller] for the rate; [Nogueira], definition 4, for the
stability.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Generator, Tensor
from torch.nn.functional import one_hot

from bayesieve.checks import check_choice, check_fraction, check_positive
from bayesieve.select.additive import HingeBasis, additive_errors
from bayesieve.select.importance import normalised
from bayesieve.select.joint import JointPosterior, joint_posterior

ProportionRule = Literal["best", "one-se", "paired", "generous"]
RULES: tuple[ProportionRule, ...] = ("best", "one-se", "paired", "generous")
PROPORTIONS = tuple(round(0.05 * i, 2) for i in range(1, 21))


def select_fraction(importance: Tensor, fraction: float) -> Tensor:
    """Keep round(fraction · D) inputs, at least one, the most important first; (..., D) bool.

    Equal importances are kept in the order of the inputs, so exactly that many are kept.

    Example:
        >>> select_fraction(torch.tensor([0.3, 0.9, 0.9, 0.1, 0.9]), 0.4)
        tensor([False,  True,  True, False, False])
    """
    check_fraction("select_fraction", fraction=fraction)
    _check(importance, "select_fraction", "importance")
    n = max(1, round(fraction * importance.shape[-1]))
    order = importance.argsort(dim=-1, descending=True, stable=True)[..., :n]
    return torch.zeros_like(importance, dtype=torch.bool).scatter_(-1, order, True)


def select_threshold(probability: Tensor, threshold: float = 0.5) -> Tensor:
    """Keep inputs whose probability is at least the threshold, (..., D) bool; maybe none.

    Example:
        >>> select_threshold(torch.tensor([0.2, 0.5, 0.9]))
        tensor([False,  True,  True])
    """
    check_fraction("select_threshold", threshold=threshold)
    _check(probability, "select_threshold", "probability")
    return probability >= threshold


def expected_fdr(probability: Tensor, keep: Tensor) -> float:
    """Posterior expected share of inputs among those kept that do not matter; 0 if none is kept.

    Example:
        >>> round(expected_fdr(torch.tensor([0.9, 0.7, 0.2]), torch.tensor([True, True, False])), 4)
        0.2
    """
    _check_probability(probability, "expected_fdr")
    n = int(keep.sum())
    return float((1 - probability[keep]).sum()) / n if n else 0.0


def select_fdr(probability: Tensor, level: float) -> Tensor:
    """The largest set whose posterior expected false-discovery rate is at most `level`, (D,) bool.

    An input that is less probable than ½ is never in it. The average alone would let ten certain
    inputs pay for one that is almost surely false; whoever names an input should believe in it.

    Example:
        >>> select_fdr(torch.tensor([0.99, 0.60, 0.95, 0.90]), level=0.1)
        tensor([ True, False,  True,  True])
        >>> select_fdr(torch.tensor([1.0] * 10 + [0.001]), level=0.1).sum()
        tensor(10)
    """
    check_fraction("select_fdr", open_ends=True, level=level)
    _check_probability(probability, "select_fdr")
    order = probability.argsort(descending=True, stable=True)
    ranked = probability[order].double()
    rate = (1 - ranked).cumsum(0) / torch.arange(1, len(order) + 1, device=ranked.device)
    # Along the order rates never fall and probabilities never rise, so what is kept comes first.
    n = int(((rate <= level + 1e-12) & (ranked >= 0.5)).sum())
    return torch.zeros_like(probability, dtype=torch.bool).scatter_(0, order[:n], True)


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
class AdditiveFits:
    """`TableFits` of an additive model, which needs no training.

    The joint posterior ranks the inputs (`joint_posterior`); errors have a closed form
    (`additive_errors`). Classes are regressions on their indicators.

    Args:
        x: (N, D), inputs.
        y: (N,) or (N, o), targets; class numbers (N,) if they are integers.
        weight: (N,), what each training row counts; None counts all once.
        seed: of the joint posterior.
        groups: (D,), the column that each input belongs to, from 0: importance and what is kept
            are then of columns. None makes each its own.

    Example:
        >>> x = torch.randn(80, 2, generator=torch.Generator().manual_seed(0))
        >>> fits = AdditiveFits(x, x[:, 0].abs())
        >>> rows, rest = torch.arange(60), torch.arange(60, 80)
        >>> fits.importance([rows])
        tensor([[1., 0.]], dtype=torch.float64)
        >>> first, second = fits.errors([rows] * 2, [rest] * 2, torch.eye(2, dtype=torch.bool))
        >>> bool(first < 0.1 * second)
        True
    """

    x: Tensor
    y: Tensor
    weight: Tensor | None = None
    seed: int = 0
    groups: Tensor | None = None

    def posterior(self, rows: Tensor, *, tolerance: float = 0.03) -> JointPosterior:
        """The joint posterior from some of the rows."""
        weight = None if self.weight is None else self.weight[rows]
        return joint_posterior(
            self.x[rows], self.y[rows], weight=weight, groups=self.groups, tolerance=tolerance,
            seed=self.seed,
        )  # fmt: skip

    def importance(self, rows: Sequence[Tensor]) -> Tensor:
        """Size of the effects of the D inputs, mapped to [0, 1], from each set of rows, (k, D)."""
        joints = [self.posterior(each, tolerance=1.0) for each in rows]
        return torch.stack([normalised(joint.effect) for joint in joints])

    def errors(self, rows: Sequence[Tensor], held_out: Sequence[Tensor], keep: Tensor) -> Tensor:
        """Squared error per held-out row, (k,), of fits that see the inputs `keep`, (k, D).

        It is the mean over targets, and of classes the sum over their indicators: a Brier score.
        """
        basis = HingeBasis(self.x)
        classes = not self.y.is_floating_point()
        y = one_hot(self.y) if classes else self.y.reshape(len(self.y), -1)
        keep = keep if self.groups is None else keep[:, self.groups]
        errors = additive_errors(basis, basis(self.x), y, rows, held_out, keep, self.weight)
        return errors * y.shape[1] if classes else errors


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


def selection_stability(selections: Tensor) -> tuple[Tensor, float]:
    """Frequency of each input, (D,), and agreement of selections, (b, D) bool, b > 1.

    The agreement is 1 for equal selections, about 0 for random ones; NaN if all inputs or none were
    kept each time, where nothing can be said.

    Example:
        >>> same = torch.tensor([[True, False, False]] * 4)
        >>> selection_stability(same)
        (tensor([1., 0., 0.]), 1.0)
    """
    if selections.ndim != 2 or len(selections) < 2 or selections.dtype != torch.bool:
        raise ValueError(
            f"selection_stability: selections must be bool of shape (b > 1, D), got "
            f"{selections.dtype} of shape {tuple(selections.shape)}."
        )
    b, frequency = len(selections), selections.double().mean(0)
    variance = float((frequency * (1 - frequency)).mean()) * b / (b - 1)
    share = float(frequency.mean())
    chance = share * (1 - share)
    index = 1 - variance / chance if chance > 0 else float("nan")
    return frequency.float(), index


def bootstrap_rows(n_rows: int, n_samples: int, generator: Generator) -> list[Tensor]:
    """Row indices of `n_samples` bootstrap samples, each (n_rows,), drawn with replacement.

    Example:
        >>> [len(rows) for rows in bootstrap_rows(5, 2, torch.Generator().manual_seed(0))]
        [5, 5]
    """
    check_positive("bootstrap_rows", n_rows=n_rows, n_samples=n_samples)
    return list(torch.randint(n_rows, (n_samples, n_rows), generator=generator))


def _check(values: Tensor, who: str, name: str) -> None:
    if values.ndim == 0 or not values.shape[-1] or bool(values.isnan().any()):
        raise ValueError(
            f"{who}: {name} must be numbers of shape (..., D), D > 0, without NaN; got shape "
            f"{tuple(values.shape)}."
        )


def _check_probability(probability: Tensor, who: str) -> None:
    _check(probability, who, "probability")
    if probability.ndim != 1 or bool(((probability < 0) | (probability > 1)).any()):
        raise ValueError(f"{who}: probability must have shape (D,) and lie between 0 and 1.")
