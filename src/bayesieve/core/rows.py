"""Which rows of the data each model of a population learns from.

Folds, bootstrap samples, published splits and seeds of one architecture train as one problem: the
data lie in memory once, and every model draws its batches from its own rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Rows:
    """Row numbers of k models, all of one length n.

    Args:
        index: (k, n) int64, places in the data; a row may stand there more than once.
        weight: (k, n), what each of them counts; None counts all once.

    Example:
        >>> rows = Rows.of([torch.tensor([0, 1, 2]), torch.tensor([3, 4])])
        >>> rows.index.tolist(), rows.weight.tolist()  # the shorter one is filled up with weight 0
        ([[0, 1, 2], [3, 4, 3]], [[1.0, 1.0, 1.0], [1.0, 1.0, 0.0]])
    """

    index: Tensor
    weight: Tensor | None = None

    def __post_init__(self) -> None:
        if self.index.dim() != 2 or self.index.dtype != torch.int64 or not self.index.numel():
            raise ValueError(
                f"Rows: index must be int64 of shape (models, rows), both > 0, got "
                f"{self.index.dtype} of shape {tuple(self.index.shape)}. Use Rows.of."
            )
        if self.weight is not None and self.weight.shape != self.index.shape:
            raise ValueError(
                f"Rows: weight must have the shape of index, {tuple(self.index.shape)}, got "
                f"{tuple(self.weight.shape)}."
            )

    @classmethod
    def of(cls, parts: Sequence[Tensor]) -> "Rows":
        """One index vector per model; shorter ones are filled up with rows of weight 0."""
        if not parts or any(len(part) == 0 for part in parts):
            raise ValueError("Rows: every model needs at least one row.")
        n = max(len(part) for part in parts)
        index = torch.stack([part.long().repeat(-(-n // len(part)))[:n] for part in parts])
        if all(len(part) == n for part in parts):
            return cls(index)
        lengths = torch.tensor([len(part) for part in parts])
        return cls(index, (torch.arange(n)[None] < lengths[:, None]).to(torch.float32))

    @property
    def n_models(self) -> int:
        """Number of models."""
        return self.index.shape[0]

    @property
    def n(self) -> int:
        """Rows per model, those of weight 0 included."""
        return self.index.shape[1]

    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> "Rows":
        """The same rows on another device; `dtype` is of the weights."""
        weight = None if self.weight is None else self.weight.to(device, dtype)
        return Rows(self.index.to(device), weight)

    def check(self, n_data: int) -> None:
        """Raise unless every row lies in 0..n_data - 1."""
        low, high = int(self.index.min()), int(self.index.max())
        if low < 0 or high >= n_data:
            raise ValueError(f"Rows: rows must lie in 0..{n_data - 1}, got {low}..{high}.")
