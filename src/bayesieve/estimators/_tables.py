"""From arrays to the tensors a network sees: standardised columns, weights, inner folds."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

FloatArray = NDArray[np.float64]
DTYPE = torch.float32


@dataclass(frozen=True, eq=False)
class Scale:
    """Mean and standard deviation of columns, (p,); those that never vary have std 1.

    Example:
        >>> scale = Scale.of(np.array([[0.0, 5.0], [2.0, 5.0]]))
        >>> scale.mean.tolist(), scale.std.tolist(), scale.varies.tolist()
        ([1.0, 5.0], [1.0, 1.0], [True, False])
    """

    mean: FloatArray
    std: FloatArray
    varies: NDArray[np.bool_]

    @classmethod
    def of(cls, values: NDArray[Any], weight: FloatArray | None = None) -> "Scale":
        """Of the rows of (n, p), each counting as its weight says."""
        values = values.astype(np.float64)
        mean = np.average(values, axis=0, weights=weight)
        std = np.sqrt(np.average((values - mean) ** 2, axis=0, weights=weight))
        varies = std > 1e-12 * np.abs(mean)  # else constant up to rounding
        # The value itself for a constant: of a huge one the mean's rounding would be an input.
        return cls(np.where(varies, mean, values[0]), np.where(varies, std, 1.0), varies)

    @classmethod
    def neutral(cls, n_columns: int) -> "Scale":
        """Leaves values as they are."""
        return cls(np.zeros(n_columns), np.ones(n_columns), np.ones(n_columns, dtype=bool))

    def apply(self, values: NDArray[Any]) -> Tensor:
        """(n, p) in units of the standard deviation."""
        return torch.as_tensor((values.astype(np.float64) - self.mean) / self.std).to(DTYPE)

    def undo(self, values: Tensor) -> FloatArray:
        """(..., p) back in its own unit."""
        own: FloatArray = values.double().cpu().numpy() * self.std + self.mean
        return own


@dataclass(frozen=True, eq=False)
class Table:
    """What one fit learns from.

    Args:
        x: (n, p), standardised.
        y: class numbers (n,), int64, or standardised targets (n, m).
        weight: (n,), what each row counts; None counts all once.
        held_out: rows that each inner fold leaves out; empty without folds.
    """

    x: Tensor
    y: Tensor
    weight: Tensor | None = None
    held_out: list[Tensor] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.x)

    def counts(self) -> Tensor:
        """What each row counts, (n,)."""
        return torch.ones(len(self), dtype=DTYPE) if self.weight is None else self.weight


def inner_folds(y: Tensor, n_folds: int, seed: int) -> list[Tensor]:
    """Rows held out by each fold; classes are dealt out evenly.

    One fold holds out a tenth, more share out all rows. Nothing is held out for no fold.

    Example:
        >>> [len(part) for part in inner_folds(torch.zeros(10, 1), 3, seed=0)]
        [4, 3, 3]
    """
    if n_folds == 0:
        return []
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))
    if not y.is_floating_point():
        order = order[y[order].sort(stable=True).indices]
    parts = 10 if n_folds == 1 else n_folds
    dealt = [order[i::parts].sort().values for i in range(n_folds)]
    return [part for part in dealt if len(part)]


def usable_folds(table_y: Tensor, weight: Tensor | None, held_out: list[Tensor]) -> list[Tensor]:
    """The folds of which both sides count for something."""
    counts = torch.ones(len(table_y)) if weight is None else weight
    total = float(counts.sum())
    return [part for part in held_out if 0 < float(counts[part].sum()) < total]
