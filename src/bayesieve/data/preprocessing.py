"""Standardisation: of columns of a table, and of images from raw pixels to network input and back.

**Columns** become (value - mean) / std. One value far out would take most of the std for itself and
pull on every weight that reads the column, so inputs end at ±20: where a column has values further
out, its mean and std are those of the column cut at 20 stds. In n rows no value is more than √n
stds away, so in less than 1,600 rows the end is √n / 2, but at least 5. A table without such values
is not cut at all, in training and after.

An **image** recipe is {"kind": "image", "shape": [C, H, W], "scale", "mean", "std"} and means
x = (raw / scale - mean) / std, channel by channel. Table recipes are in `tables`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bayesieve.checks import check_positive
from bayesieve.data.examples import DataSet, Examples, Preprocessing, Recipe

Labelled: TypeAlias = tuple[NDArray[Any], NDArray[np.int64]]  # pixels (N, H, W[, C]), classes (N,)
_LIMITS = (5.0, 20.0)  # standard deviations at which inputs end, in small and in large tables
_IMAGES_AT_ONCE = 1000
_ROUNDS = 100  # of cutting; each needs the std of the one before


def column_moments(
    values: NDArray[np.float64], weight: NDArray[np.float64] | None = None
) -> tuple[float, float]:
    """Mean and population std of a column, (n,); one that is constant up to rounding has std 1.

    Example:
        >>> column_moments(np.array([1.0, 3.0])), column_moments(np.array([0.1, 0.1, 0.1]))
        ((2.0, 1.0), (0.1, 1.0))
    """
    mean = float(np.average(values, weights=weight))
    std = float(np.sqrt(np.average((values - mean) ** 2, weights=weight)))
    if std <= 1e-12 * abs(mean):
        # The value itself: of a huge one the mean's rounding, in units of 1, would be an input.
        return float(values[0]), 1.0
    return mean, std


def cut_moments(
    values: NDArray[np.float64], weight: NDArray[np.float64] | None = None
) -> tuple[float, float, float]:
    """Mean and std of a column, and the limit in stds at which they were cut; inf if nothing was.

    A column of one value with few exceptions has no spread besides these: nothing is cut from its
    mean and std.

    Example:
        >>> column = np.append(np.tile([-1.0, 1.0], 5000), 1e6)
        >>> [round(number, 2) for number in cut_moments(column)]
        [0.0, 1.02, 20.0]
        >>> cut_moments(np.array([1.0, 3.0]))
        (2.0, 1.0, inf)
    """
    mean, std = column_moments(values, weight)
    limit = float(np.clip(np.sqrt(len(values)) / 2, *_LIMITS))
    if np.abs(values - mean).max() <= limit * std:
        return mean, std, np.inf
    exceptions = np.average(values != np.median(values), weights=weight)
    low, high = -np.inf, np.inf
    for _ in range(_ROUNDS if exceptions * (1 + limit**2) > 1 else 0):
        low, high = max(low, mean - limit * std), min(high, mean + limit * std)
        before, (mean, std) = std, column_moments(values.clip(low, high), weight)
        if std > 0.999 * before:
            break
    return mean, std, limit


def image_recipe(
    shape: Sequence[int], mean: Sequence[float], std: Sequence[float], scale: float = 255.0
) -> Preprocessing:
    """Describe an affine map of pixels; `shape` is (C, H, W), one mean and std per channel.

    Example:
        >>> image_recipe((1, 8, 8), [0.0], [1.0], scale=16)["scale"]
        16.0
    """
    return {
        "kind": "image",
        "shape": [int(size) for size in shape],
        "scale": float(scale),
        "mean": [float(value) for value in mean],
        "std": [float(value) for value in std],
    }


def channel_statistics(blocks: Iterable[NDArray[np.uint8]]) -> tuple[list[float], list[float]]:
    """Mean and population std of each channel of pixels / 255, from blocks of shape (n, H, W, C).

    Counts of the 256 values give both exactly; a channel without variation gets std 1.

    Example:
        >>> channel_statistics([np.array([0, 255], dtype=np.uint8).reshape(2, 1, 1, 1)])
        ([0.5], [0.5])
    """
    each = [
        [np.bincount(block[..., c].ravel(), minlength=256) for c in range(block.shape[-1])]
        for block in blocks
    ]
    values = np.arange(256) / 255.0
    means, stds = [], []
    for counts in np.sum(each, axis=0):
        mean = float(counts @ values / counts.sum())
        variance = float(counts @ (values - mean) ** 2 / counts.sum())
        means.append(mean)
        stds.append(variance**0.5 if np.count_nonzero(counts) > 1 else 1.0)
    return means, stds


def parts(n: int) -> list[slice]:
    """Rows of n images, some at a time: what is computed of them takes much more than they do."""
    return [slice(start, start + _IMAGES_AT_ONCE) for start in range(0, n, _IMAGES_AT_ONCE)]


def prepare_images(pixels: NDArray[Any], recipe: Recipe) -> Tensor:
    """Turn raw images, shape (N, H, W) or (N, H, W, C), into inputs, shape (N, C, H, W), float32.

    Example:
        >>> recipe = image_recipe((1, 1, 2), [0.0], [126 / 255])
        >>> x = prepare_images(np.array([[[0, 252]]], dtype=np.uint8), recipe)
        >>> x.shape, x.flatten().tolist()
        (torch.Size([1, 1, 1, 2]), [0.0, 2.0])
    """
    channels, height, width = recipe["shape"]
    if pixels.ndim == 3:
        pixels = pixels[..., None]
    if pixels.shape[1:] != (height, width, channels):
        raise ValueError(
            f"prepare_images: images must have shape (N, {height}, {width}, {channels}), "
            f"got {pixels.shape}. Resize or convert them first."
        )
    scale = recipe["scale"]
    center = torch.tensor([m * scale for m in recipe["mean"]], dtype=torch.float32)
    spread = torch.tensor([s * scale for s in recipe["std"]], dtype=torch.float32)
    x = torch.from_numpy(np.moveaxis(pixels, -1, 1).astype(np.float32, order="C"))
    return x.sub_(center[:, None, None]).div_(spread[:, None, None])


def image_set(
    name: str,
    train: Labelled,
    test: Labelled,
    classes: tuple[str, ...],
    recipe: Preprocessing | None = None,
) -> DataSet:
    """A data set of labelled pixels; without a recipe each channel is standardised.

    Example:
        >>> pixels, labels = np.zeros((4, 2, 2, 1), dtype=np.uint8), np.array([0, 1, 1, 0])
        >>> image_set("toy", (pixels, labels), (pixels, labels), ("no", "yes")).input_shape
        (1, 2, 2)
    """
    if recipe is None:
        height, width, channels = train[0].shape[1:]
        statistics = channel_statistics(train[0][part] for part in parts(len(train[0])))
        recipe = image_recipe((channels, height, width), *statistics)
    first, second = (
        Examples(prepare_images(pixels, recipe), torch.from_numpy(labels))
        for pixels, labels in (train, test)
    )
    return DataSet(name, first, second, "classification", classes, preprocessing=recipe)


def centred(data: DataSet) -> DataSet:
    """The same images with each channel at mean 0 and variance 1 over the training split.

    The recipe says so as well. Tables come back as they are: their columns are standardised.

    Example:
        >>> from bayesieve.data import load_data
        >>> data = centred(load_data("digits"))
        >>> abs(round(data.train.x.mean().item(), 4)), round(data.train.x.std().item(), 4)
        (0.0, 1.0)
    """
    recipe = data.preprocessing
    if recipe.get("kind") != "image":
        return data
    x = data.train.x
    mean, std = x.mean((0, 2, 3)), x.std((0, 2, 3), correction=0)
    scale = PixelScale(tuple(mean.tolist()), tuple(torch.where(std > 0, std, 1.0).tolist()))
    old = PixelScale.of(recipe)
    means = [m + s * by for m, s, by in zip(old.mean, old.std, scale.mean, strict=True)]
    stds = [s * by for s, by in zip(old.std, scale.std, strict=True)]
    train, test = (replace(split, x=scale.inputs(split.x)) for split in (data.train, data.test))
    new = {**recipe, "mean": means, "std": stds}
    return replace(data, train=train, test=test, preprocessing=new)


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
    def of(cls, preprocessing: Recipe) -> "PixelScale":
        """The scaling in a data set's image recipe (`DataSet.preprocessing`)."""
        if preprocessing.get("kind") != "image":
            raise ValueError(
                f"PixelScale: the recipe must be of images, got {preprocessing.get('kind')!r}."
            )
        return cls(tuple(preprocessing["mean"]), tuple(preprocessing["std"]))

    @property
    def black(self) -> tuple[float, ...]:
        """The input of a pixel of 0, in each channel."""
        return tuple(0.0 - mean / std for mean, std in zip(self.mean, self.std, strict=True))

    @property
    def is_identity(self) -> bool:
        """Return whether inputs are pixels."""
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
