"""How much a selection of inputs depends on the rows it was made from.

From b selections of D inputs, made on b samples of the rows, f_j is how often input j was kept. The
index compares the variance of these choices with that of b random selections of the same sizes:

    1 - mean_j [b / (b - 1) f_j (1 - f_j)] / [(k̄ / D) (1 - k̄ / D)],   k̄ the mean number kept.

It is 1 when all selections agree and near 0 when they agree as chance would have it.

Reference: [Nogueira], definition 4.
"""

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from bayesieve.checks import check_positive


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
