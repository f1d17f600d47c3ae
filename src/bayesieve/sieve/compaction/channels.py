"""The channels of one activation tensor, and which of them are known constants."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Channels:
    """The entries of a tensor along its channel axis.

    Args:
        axis: which axis of the tensor, counted from the front.
        value: (n,) float64; where a channel is the same number for every example and position,
            that number, and NaN where it varies.
    """

    axis: int
    value: Tensor

    def __len__(self) -> int:
        return len(self.value)

    @property
    def constant(self) -> Tensor:
        """Which channels are constants, (n,) bool."""
        return ~self.value.isnan()


def varying(axis: int, n: int) -> Channels:
    """N channels of which nothing is known."""
    return Channels(axis, torch.full((n,), torch.nan, dtype=torch.float64))


def spread(values: Tensor, axis: int, shape: torch.Size) -> Tensor:
    """A tensor of a given shape filled with one value per channel, (n,) -> shape.

    Example:
        >>> spread(torch.tensor([1.0, 2.0]), 1, torch.Size([1, 2, 3]))
        tensor([[[1., 1., 1.],
                 [2., 2., 2.]]])
    """
    return values.view(-1, *[1] * (len(shape) - axis - 1)).expand(shape).clone()


def constants_of(x: Tensor, axis: int) -> Tensor:
    """The value of each channel where it is the same all over a tensor, else NaN, (n,) float64.

    Example:
        >>> constants_of(torch.tensor([[[1.0, 1.0], [2.0, 3.0]]]), 1)
        tensor([1., nan], dtype=torch.float64)
    """
    rows = x.detach().movedim(axis, 0).reshape(x.shape[axis], -1)
    low, high = rows.amin(1), rows.amax(1)
    rounding = 8 * torch.finfo(x.dtype).eps * torch.maximum(low.abs(), high.abs())
    same = (high - low <= rounding) & high.isfinite() & low.isfinite()
    return torch.where(same, rows[:, 0], torch.nan).double()


def evened(wanted: Tensor, rows: Tensor) -> Tensor:
    """Fill up rows to the width of the longest, at least 1, from the left.

    Args:
        wanted: (r, n) bool.
        rows: (r,) bool; the other rows are emptied.

    Example:
        >>> evened(torch.tensor([[0, 1, 1], [0, 0, 1]]).bool(), torch.tensor([True, True])).int()
        tensor([[0, 1, 1],
                [1, 0, 1]], dtype=torch.int32)
    """
    wanted = wanted & rows[:, None]
    width = max(int(wanted.sum(1).max()), 1)
    first = (~wanted).int().argsort(dim=1, stable=True)[:, :width]
    return torch.zeros_like(wanted).scatter_(1, first, True) & rows[:, None]
