"""Convolutions as linear layers over patches.

Every position of a convolution is one more row that the same weights look at, so messages to the
weights add over positions as they do over examples; a unit that lies in several patches takes the
product of their messages, hence the sum of their natural parameters.
"""

from typing import NamedTuple

from torch import Tensor
from torch.nn.functional import fold, unfold

Pair = tuple[int, int]


class Window(NamedTuple):
    """Where a convolution looks; images are (..., n, c, h, w), rows (..., n * positions, i)."""

    kernel: Pair
    stride: Pair
    padding: Pair
    dilation: Pair

    def size(self, height: int, width: int) -> Pair:
        """Height and width of the result.

        Example:
            >>> Window((3, 3), (2, 2), (1, 1), (1, 1)).size(8, 8)
            (4, 4)
        """
        spans = zip((height, width), *self, strict=True)
        high, wide = ((length + 2 * p - d * (k - 1) - 1) // s + 1 for length, k, s, p, d in spans)
        return high, wide

    def rows(self, images: Tensor) -> Tensor:
        """The patch around every position of every image."""
        *lead, n, _, _, _ = images.shape
        columns = unfold(
            images.flatten(0, -4), self.kernel, self.dilation, self.padding, self.stride
        )
        return columns.mT.reshape(*lead, n * columns.shape[-1], columns.shape[-2])

    def sums(self, rows: Tensor, height: int, width: int) -> Tensor:
        """What all patches say about each entry of the images they were cut from, added up."""
        high, wide = self.size(height, width)
        columns = rows.unflatten(-2, (-1, high * wide)).mT
        lead = columns.shape[:-2]
        flat = columns.flatten(0, -3)
        images = fold(flat, (height, width), self.kernel, self.dilation, self.padding, self.stride)
        return images.unflatten(0, lead)


def as_images(rows: Tensor, size: Pair) -> Tensor:
    """One value per position and channel, (..., n * positions, c) -> (..., n, c, h, w)."""
    return rows.unflatten(-2, (-1, size[0] * size[1])).mT.unflatten(-1, size)


def as_rows(images: Tensor) -> Tensor:
    """The reverse of `as_images`."""
    return images.flatten(-2).mT.flatten(-3, -2)
