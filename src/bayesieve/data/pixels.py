"""Between the inputs a network sees and pixels from 0 (black) to 1 (white)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bayesieve.checks import check_positive


@dataclass(frozen=True)
class PixelScale:
    """The scaling of a data set of images: input = (pixel - mean) / std, channel by channel.

    Args:
        mean: one number for all channels or one for each.
        std: the same.

    Example:
        >>> scale = PixelScale.of({"kind": "image", "scale": 255.0, "mean": [0.5], "std": [0.25]})
        >>> scale.black, scale.pixels(torch.zeros(1, 1, 1, 2)).tolist()
        ((-2.0,), [[[[0.5, 0.5]]]])
    """

    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)

    def __post_init__(self) -> None:
        check_positive("PixelScale", std=self.std)
        if len(self.mean) != len(self.std):
            raise ValueError(
                f"PixelScale: give as many means as stds, got {len(self.mean)} and {len(self.std)}."
            )

    @classmethod
    def of(cls, preprocessing: Mapping[str, Any]) -> "PixelScale":
        """The scaling in a data set's image recipe (`DataSet.preprocessing`)."""
        if preprocessing.get("kind") != "image":
            raise ValueError(
                f"PixelScale: the recipe must be of images, got {preprocessing.get('kind')!r}."
            )
        return cls(tuple(preprocessing["mean"]), tuple(preprocessing["std"]))

    @property
    def black(self) -> tuple[float, ...]:
        """What a pixel of 0 is as an input, in each channel."""
        return tuple(0.0 - mean / std for mean, std in zip(self.mean, self.std, strict=True))

    @property
    def is_identity(self) -> bool:
        """Whether inputs are pixels."""
        return not any(self.mean) and all(value == 1 for value in self.std)

    def pixels(self, x: Tensor) -> Tensor:
        """Inputs (n, channels, height, width) as pixels."""
        if self.is_identity:
            return x
        return x * self._column(self.std, x) + self._column(self.mean, x)

    def inputs(self, pixels: Tensor) -> Tensor:
        """Pixels (n, channels, height, width) as inputs."""
        if self.is_identity:
            return pixels
        return (pixels - self._column(self.mean, pixels)) / self._column(self.std, pixels)

    def _column(self, values: tuple[float, ...], like: Tensor) -> Tensor | float:
        """One number, or one for each channel, (channels, 1, 1)."""
        if len(values) == 1:
            return values[0]
        return torch.tensor(values, dtype=like.dtype, device=like.device)[:, None, None]
