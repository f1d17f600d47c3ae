"""Rules that choose inputs from their importances or probabilities, and how stable a choice is.

The posterior expected false-discovery rate of a set A of inputs with probabilities P is

    FDR(A) = Σ_{j in A} (1 - P_j) / |A|

and the largest set with FDR(A) <= level is made of the most probable inputs.

Stability compares b selections of D inputs, made on b samples of the rows. With f_j the frequency
with which input j was kept, the index is the variance of these choices against that of b random
selections of the same sizes:

    1 - mean_j [b / (b - 1) f_j (1 - f_j)] / [(k̄ / D) (1 - k̄ / D)],   k̄ the mean number kept.

It is 1 when all selections agree and near 0 when they agree no more than by chance.

References: [Saha], section 3.5, for the fraction; [Mueller] for the rate; [Nogueira], definition 4,
for the stability.
"""

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from bayesieve.checks import check_fraction, check_positive


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

    Example:
        >>> select_fdr(torch.tensor([0.99, 0.60, 0.95, 0.90]), level=0.1)
        tensor([ True, False,  True,  True])
    """
    check_fraction("select_fdr", open_ends=True, level=level)
    _check_probability(probability, "select_fdr")
    order = probability.argsort(descending=True, stable=True)
    wrong = (1 - probability[order].double()).cumsum(0)
    rate = wrong / torch.arange(1, len(order) + 1, device=wrong.device)
    # Rates never fall along the order, so those below the level come first.
    n = int((rate <= level + 1e-12).sum())
    return torch.zeros_like(probability, dtype=torch.bool).scatter_(0, order[:n], True)


@dataclass(frozen=True, eq=False)
class Stability:
    """Agreement of b selections.

    Args:
        frequency: (D,), how often each input was kept.
        index: 1 for equal selections, about 0 for random ones; NaN if all inputs or none were kept
            each time, where nothing can be said.
    """

    frequency: Tensor
    index: float


def selection_stability(selections: Tensor) -> Stability:
    """Frequency of each input and agreement of selections, (b, D) bool, b > 1.

    Example:
        >>> same = torch.tensor([[True, False, False]] * 4)
        >>> selection_stability(same)
        Stability(frequency=tensor([1., 0., 0.]), index=1.0)
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
    return Stability(frequency.float(), index)


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
