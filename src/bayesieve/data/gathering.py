"""A torch Dataset or DataLoader read into memory."""

from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from bayesieve.checks import check_positive
from bayesieve.data.examples import Examples
from bayesieve.errors import DataError

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
        pairs.append(_pair(batch))
        n += len(pairs[-1][0])
        if limit is not None and n >= limit:
            break
    if n == 0:
        raise DataError("gather: there is no example to read.")
    x, y = (torch.cat(parts)[:limit] for parts in zip(*pairs, strict=True))
    return Examples(x, y)


def _pair(batch: Any) -> tuple[Tensor, Tensor]:
    parts = batch if isinstance(batch, tuple | list) else [batch]
    if len(parts) == 2 and all(isinstance(part, Tensor) for part in parts):
        return parts[0], parts[1]
    found = ", ".join(type(part).__name__ for part in parts)
    raise TypeError(f"gather: each batch must be a pair of tensors (x, y), got {found}.")
