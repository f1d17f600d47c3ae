"""Examples and data sets in memory, and a torch Dataset or DataLoader gathered into them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from bayesieve.checks import check_choice, check_fraction, check_positive
from bayesieve.errors import DataError

Task: TypeAlias = Literal["classification", "regression"]
Recipe: TypeAlias = Mapping[str, Any]
Preprocessing: TypeAlias = dict[str, Any]  # strings, numbers, lists and dicts only: JSON-able


@dataclass(frozen=True, eq=False)
class Examples:
    """One split: inputs, targets, and how targets map back to their own unit.

    Args:
        x: inputs, shape (N, ...), floating point; or tokens, int64.
        y: classes, shape (N,), int64; or standardised targets, shape (N,) or (N, m), floating.
        target_mean: shape () or (m,); a target in its own unit is `y * target_std + target_mean`.
        target_std: shape () or (m,).

    Example:
        >>> data = Examples(torch.arange(10.0)[:, None], torch.arange(10.0))
        >>> rest, held_out = data.split(0.3, seed=0)
        >>> len(rest), len(held_out)
        (7, 3)
    """

    x: Tensor
    y: Tensor
    target_mean: Tensor = field(default_factory=lambda: torch.zeros((), dtype=torch.float32))
    target_std: Tensor = field(default_factory=lambda: torch.ones((), dtype=torch.float32))

    def __post_init__(self) -> None:
        if self.x.ndim == 0 or self.y.ndim == 0 or len(self.x) != len(self.y):
            raise ValueError(
                "Examples: x and y must have one entry per example, "
                f"got shapes {tuple(self.x.shape)} and {tuple(self.y.shape)}."
            )
        if not self.x.is_floating_point() and self.x.dtype != torch.int64:
            raise TypeError(
                f"Examples: x must be floating point, or int64 for tokens, got {self.x.dtype}. "
                "Use x.float()."
            )
        if self.y.dtype != torch.int64 and not self.y.is_floating_point():
            raise TypeError(f"Examples: y must be int64 or floating point, got {self.y.dtype}.")

    def __len__(self) -> int:
        return len(self.x)

    def subset(self, index: Tensor) -> "Examples":
        """Pick examples by an integer index or a boolean mask, shape (k,) or (N,).

        Example:
            >>> Examples(torch.zeros(5, 2), torch.arange(5)).subset(torch.tensor([3, 1])).y.tolist()
            [3, 1]
        """
        return Examples(self.x[index], self.y[index], self.target_mean, self.target_std)

    def split(self, fraction: float, seed: int) -> tuple["Examples", "Examples"]:
        """Return (rest, held-out) with round(fraction * N) examples held out at random.

        Example:
            >>> data = Examples(torch.zeros(8, 1), torch.arange(8))
            >>> sorted(data.split(0.25, seed=1)[0].y.tolist() + data.split(0.25, 1)[1].y.tolist())
            [0, 1, 2, 3, 4, 5, 6, 7]
        """
        rest, held_out = split_index(len(self), fraction, seed, who="Examples.split")
        return self.subset(rest), self.subset(held_out)

    def to(
        self, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> "Examples":
        """Move to a device; `dtype` applies to floating-point tensors, never to classes.

        Example:
            >>> moved = Examples(torch.zeros(2, 1), torch.arange(2)).to(dtype=torch.float64)
            >>> moved.x.dtype, moved.y.dtype
            (torch.float64, torch.int64)
        """
        tensors = (self.x, self.y, self.target_mean, self.target_std)
        return Examples(*(t.to(device, dtype if t.is_floating_point() else None) for t in tensors))

    def in_target_unit(self, values: Tensor) -> Tensor:
        """Turn standardised targets or predictions, shape (..., ) or (..., m), into their own unit.

        Example:
            >>> mean, std = torch.tensor(5.0), torch.tensor(2.0)
            >>> data = Examples(torch.zeros(2, 1), torch.zeros(2), mean, std)
            >>> data.in_target_unit(torch.tensor([0.0, 1.5])).tolist()
            [5.0, 8.0]
        """
        return values * self.target_std + self.target_mean


@dataclass(frozen=True, eq=False)
class DataSet:
    """A training and a test split with what is needed to read and repeat them.

    Args:
        name: what reports print.
        train: the training split.
        test: the test split, untouched by every statistic in `preprocessing`.
        task: "classification" or "regression".
        classes: names of the classes, in label order; None for regression.
        feature_names: one name per input column; None for images.
        preprocessing: JSON-able recipe for `prepare_images` or `prepare_table`: raw input to `x`.
        n_splits: how many published train/test splits the set has (`load_data(split=...)`).

    Example:
        >>> part = Examples(torch.zeros(4, 1, 8, 8), torch.tensor([0, 1, 1, 0]))
        >>> data = DataSet("toy", part, part, "classification", ("no", "yes"))
        >>> data.input_shape, data.n_outputs
        ((1, 8, 8), 2)
    """

    name: str
    train: Examples
    test: Examples
    task: Task
    classes: tuple[str, ...] | None = None
    feature_names: tuple[str, ...] | None = None
    preprocessing: Preprocessing = field(default_factory=dict)
    n_splits: int = 1

    def __post_init__(self) -> None:
        check_choice("DataSet", "task", self.task, ("classification", "regression"))
        if (self.task == "classification") != (self.classes is not None):
            raise ValueError("DataSet: classes must be given for classification and only then.")
        if self.train.x.shape[1:] != self.test.x.shape[1:]:
            raise ValueError(
                "DataSet: train and test inputs must have one shape, got "
                f"{tuple(self.train.x.shape[1:])} and {tuple(self.test.x.shape[1:])}."
            )

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one input, without the example axis."""
        return tuple(self.train.x.shape[1:])

    @property
    def n_outputs(self) -> int:
        """Number of classes, or of target columns."""
        if self.classes is not None:
            return len(self.classes)
        return self.train.y.shape[1] if self.train.y.ndim == 2 else 1


def split_index(n: int, fraction: float, seed: int, *, who: str) -> tuple[Tensor, Tensor]:
    """Return sorted indices (rest, held-out) of a random split; both parts are non-empty.

    Example:
        >>> rest, held_out = split_index(10, 0.2, seed=0, who="example")
        >>> len(rest), len(held_out)
        (8, 2)
    """
    check_fraction(who, open_ends=True, fraction=fraction)
    n_held_out = round(fraction * n)
    if not 0 < n_held_out < n:
        raise ValueError(
            f"{who}: both parts must be non-empty, but a fraction of {fraction} of {n} examples "
            f"holds out {n_held_out}. Give more examples or another fraction."
        )
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    return order[n_held_out:].sort().values, order[:n_held_out].sort().values


_AT_ONCE = 256


def gather(source: Dataset[Any] | DataLoader[Any], *, limit: int | None = None) -> Examples:
    """Read every (input, target) of a Dataset, or every batch of a DataLoader, into memory.

    Training reads tensors in its own order; what a loader draws at random (augmentation) is drawn
    once. Numbers keep their dtype.

    Args:
        source: a `Dataset` of (input, target), or a `DataLoader` of such batches.
        limit: most examples to read; None reads all.

    Example:
        >>> from torch.utils.data import TensorDataset
        >>> data = gather(TensorDataset(torch.zeros(5, 3), torch.arange(5)))
        >>> data.x.shape, data.y.tolist()
        (torch.Size([5, 3]), [0, 1, 2, 3, 4])
    """
    if limit is not None:
        check_positive("gather", limit=limit)
    if not isinstance(source, Dataset | DataLoader):
        raise TypeError(
            f"gather: a Dataset or DataLoader is needed, got {type(source).__name__}. Tensors can "
            "be used as they are, as an (x, y) pair."
        )
    loader = source if isinstance(source, DataLoader) else DataLoader(source, batch_size=_AT_ONCE)
    pairs: list[tuple[Tensor, Tensor]] = []
    n = 0
    for batch in loader:
        items = batch if isinstance(batch, tuple | list) else [batch]
        if len(items) != 2 or not all(isinstance(item, Tensor) for item in items):
            kinds = ", ".join(type(item).__name__ for item in items)
            raise TypeError(f"gather: each batch must be a pair of tensors (x, y), got {kinds}.")
        pairs.append((items[0], items[1]))
        n += len(pairs[-1][0])
        if limit is not None and n >= limit:
            break
    if n == 0:
        raise DataError("gather: there is no example to read.")
    x, y = (torch.cat(tensors)[:limit] for tensors in zip(*pairs, strict=True))
    return Examples(x, y)
