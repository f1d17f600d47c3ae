"""Images as sequences of square patches."""

import torch
from torch import Tensor, nn

from bayesieve.nets._sizes import check_counts, check_sizes


class Patches(nn.Module):
    """Cut images, (n, channels, height, width), into patches, (n, tokens, channels · size²).

    Args:
        input_shape: channels, height and width of an image.
        size: side of a patch.
    """

    def __init__(self, input_shape: tuple[int, ...], size: int) -> None:
        super().__init__()
        self.channels, height, width = input_shape
        self.size, self.rows, self.columns = size, height // size, width // size

    def forward(self, images: Tensor) -> Tensor:
        """The patches row by row."""
        shape = (-1, self.channels, self.rows, self.size, self.columns, self.size)
        cut = images.reshape(shape).permute(0, 2, 4, 1, 3, 5)
        n_numbers = self.channels * self.size**2
        return torch.reshape(cut, (-1, self.rows * self.columns, n_numbers))


def check_patches(
    who: str, input_shape: tuple[int, ...], n_outputs: int, patch: int, **counts: int
) -> tuple[int, int]:
    """Check sizes; return the number of patches of an image and of numbers in each."""
    check_sizes(who, input_shape, n_outputs)
    check_counts(who, patch=(patch,), **{name: (value,) for name, value in counts.items()})
    if len(input_shape) != 3:
        raise ValueError(
            f"{who}: input_shape must be (channels, height, width), got {input_shape}. "
            "Reshape the data to images, or use mlp."
        )
    channels, height, width = input_shape
    if height % patch or width % patch:
        raise ValueError(
            f"{who}: height and width must be multiples of patch={patch}, got {height}x{width}. "
            "Pad the images."
        )
    return (height // patch) * (width // patch), channels * patch**2
