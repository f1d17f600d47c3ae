"""Random changes of images, made on the device they live on, whole batches at a time.

Images have shape (n, channels, height, width). Every function draws from the generator it is given,
waits for nothing on the host and returns new tensors of the same shape, so it may run inside a
captured step. What leaves the image is lost and what enters is 0; `Augment` has a `fill` in its
place. `PixelScale.black` is the fill that is a black pixel after a data set's scaling.
"""

import math
from dataclasses import dataclass

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from bayesieve.checks import check_fraction, check_not_negative


def random_shift(x: Tensor, pixels: int, generator: Generator) -> Tensor:
    """Move each image by up to `pixels` up or down and left or right: a crop of the padded image.

    Example:
        >>> x = torch.ones(1, 1, 4, 4)
        >>> random_shift(x, 2, Generator().manual_seed(0)).shape
        torch.Size([1, 1, 4, 4])
    """
    n, channels, height, width = _checked("random_shift", x)
    padded = F.pad(x, (pixels,) * 4)
    offset = torch.randint(0, 2 * pixels + 1, (2, n, 1), generator=generator, device=x.device)
    rows = (offset[0] + torch.arange(height, device=x.device))[:, None, :, None]
    columns = (offset[1] + torch.arange(width, device=x.device))[:, None, None, :]
    image = torch.arange(n, device=x.device)[:, None, None, None]
    channel = torch.arange(channels, device=x.device)[None, :, None, None]
    return padded[image, channel, rows, columns]


def random_flip(x: Tensor, generator: Generator) -> Tensor:
    """Mirror each image left to right with probability 1/2."""
    n, *_ = _checked("random_flip", x)
    mirrored = torch.rand(n, 1, 1, 1, generator=generator, device=x.device) < 0.5
    return torch.where(mirrored, x.flip(-1), x)


def rotate(x: Tensor, degrees: Tensor | float) -> Tensor:
    """Turn images counter-clockwise about their centre, by bilinear interpolation; 0 outside.

    Args:
        x: (n, channels, height, width).
        degrees: one angle for all, or one per image, (n,).

    Example:
        >>> x = torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]])
        >>> rotate(x, 90.0).round().flatten().tolist()
        [2.0, 4.0, 1.0, 3.0]
    """
    n, _, height, width = _checked("rotate", x)
    angle = torch.as_tensor(degrees, dtype=x.dtype, device=x.device).expand(n) * (math.pi / 180)
    cos, sin, zero = angle.cos(), angle.sin(), torch.zeros_like(angle)
    ratio = height / width  # the grid runs from -1 to 1 along both sides, whatever their lengths
    first = torch.stack([cos, -sin * ratio, zero], 1)
    second = torch.stack([sin / ratio, cos, zero], 1)
    grid = F.affine_grid(torch.stack([first, second], 1), list(x.shape), align_corners=False)
    return F.grid_sample(x, grid, mode="bilinear", padding_mode="zeros", align_corners=False)


def random_rotation(x: Tensor, degrees: float, generator: Generator) -> Tensor:
    """Turn each image by an angle uniform in ±degrees."""
    draw = torch.rand(len(x), generator=generator, device=x.device, dtype=x.dtype)
    return rotate(x, degrees * (2 * draw - 1))


def random_erasing(x: Tensor, probability: float, generator: Generator) -> Tensor:
    """Blank a random rectangle of each image with the given probability ([Zhong], algorithm 1).

    Its share of the image is 0.02 to 0.4 and its ratio of height to width 0.3 to 1 / 0.3. A
    rectangle that would not fit is cut to the image instead of drawn again.
    """
    n, _, height, width = _checked("random_erasing", x)
    draw = torch.rand(5, n, 1, 1, 1, generator=generator, device=x.device)
    size = (0.02 + (0.4 - 0.02) * draw[0]) * (height * width)
    ratio = torch.exp(math.log(0.3) * (1 - 2 * draw[1]))
    tall = (size * ratio).sqrt().round().clamp(1, height)
    wide = (size / ratio).sqrt().round().clamp(1, width)
    top = (draw[2] * (height - tall + 1)).floor()
    left = (draw[3] * (width - wide + 1)).floor()
    row = torch.arange(height, device=x.device)[:, None]
    column = torch.arange(width, device=x.device)
    inside = (row >= top) & (row < top + tall) & (column >= left) & (column < left + wide)
    return x.masked_fill(inside & (draw[4] < probability), 0)


@dataclass(frozen=True)
class Augment:
    """Random changes applied one after the other: shift, flip, rotation, erasing.

    Args:
        shift: most pixels an image is moved by; 0 for none.
        flip: whether half of the images are mirrored.
        rotation: largest angle in degrees; 0 for none.
        erase: probability of losing a rectangle.
        fill: value of what is new, one for all channels or one for each; 0 is black for pixels that
            are not centred, `PixelScale.of(data.preprocessing).black` for any scaling.

    Example:
        >>> Augment(shift=4, rotation=15)(torch.ones(2, 1, 28, 28), Generator()).shape
        torch.Size([2, 1, 28, 28])
    """

    shift: int = 0
    flip: bool = False
    rotation: float = 0.0
    erase: float = 0.0
    fill: float | tuple[float, ...] = 0.0

    def __post_init__(self) -> None:
        check_not_negative("Augment", shift=self.shift, rotation=self.rotation)
        check_fraction("Augment", erase=self.erase)

    def check(self, x: Tensor) -> None:
        """Raise unless these are images with as many channels as `fill` has values."""
        channels = _checked("Augment", x)[1]
        if isinstance(self.fill, tuple) and len(self.fill) != channels:
            raise ValueError(
                f"Augment: fill has {len(self.fill)} values, the images {channels} channels."
            )

    def __call__(self, x: Tensor, generator: Generator) -> Tensor:
        """Changed copies of images (n, channels, height, width), or of k batches of them."""
        if x.dim() == 5:  # each model of a population has its own batch
            return self(x.flatten(0, 1), generator).view(x.shape)
        fill = self._fill(x)
        if fill is not None:  # what is new then enters as 0
            x = x - fill
        if self.shift:
            x = random_shift(x, self.shift, generator)
        if self.flip:
            x = random_flip(x, generator)
        if self.rotation:
            x = random_rotation(x, self.rotation, generator)
        if self.erase:
            x = random_erasing(x, self.erase, generator)
        return x if fill is None else x + fill

    def _fill(self, x: Tensor) -> Tensor | float | None:
        """One number, or one per channel, (channels, 1, 1), made without a copy from the host."""
        if isinstance(self.fill, float | int):
            return self.fill or None
        if not any(self.fill):
            return None
        return torch.stack([x.new_full((1, 1), value) for value in self.fill])


def _checked(who: str, x: Tensor) -> tuple[int, int, int, int]:
    if x.dim() != 4:
        raise ValueError(
            f"{who}: images must have shape (n, channels, height, width), got {tuple(x.shape)}."
        )
    n, channels, height, width = x.shape
    return n, channels, height, width
