"""Your own images: a folder or tar archive laid out as train/<class>/* and test/<class>/*.

Without a test folder (or with <class>/* at the top) a random part is set aside. Folders inside that
of a class belong to it. Greyscale images give one channel, all others three; in a mixture grey ones
have three equal channels. Pixels are standardised channel by channel on the training part. Files
that cannot be used are all listed at once.

An image recipe is {"kind": "image", "shape": [C, H, W], "scale", "mean", "std"} and means
x = (raw / scale - mean) / std, channel by channel.
"""

import io
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bayesieve.checks import check_positive
from bayesieve.data import cache
from bayesieve.data.examples import DataSet, Examples, Preprocessing, Recipe, split_index
from bayesieve.data.files import iterate_files
from bayesieve.errors import DataError
from bayesieve.files import check_growth, check_limit

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff")
_FORMATS = ("PNG", "JPEG", "BMP", "WEBP", "TIFF")  # others may start programs, as EPS does
CACHE_FROM = 1000  # so many images and more are decoded only once
_PARTS = ("train", "test")
_LITTER = ("Thumbs.db", "desktop.ini")
_SHOWN = 10  # files that a message names
_STACK = 1024  # images of one shape kept together while others are decoded
_IMAGES_AT_ONCE = 1000
_Pixels: TypeAlias = NDArray[np.uint8]
Labelled: TypeAlias = tuple[NDArray[Any], NDArray[np.int64]]  # pixels (N, H, W[, C]), classes (N,)


class Decoded(NamedTuple):
    """Images of a folder or archive as arrays, in the order of their names.

    Args:
        pixels: (N, H, W, C), C = 1 or 3; perhaps mapped from the disk.
        labels: (N,), index into classes.
        for_test: (N,), True for images of the test folder.
        classes: sorted names.
    """

    pixels: _Pixels
    labels: NDArray[np.int64]
    for_test: NDArray[np.bool_]
    classes: NDArray[np.str_]


def load_images(
    path: Path,
    *,
    image_size: int | None = None,
    skip_bad: bool = False,
    test_fraction: float = 0.2,
    seed: int = 0,
    max_memory: int | None = None,
) -> DataSet:
    """Load images whose folder names their class.

    Args:
        path: folder or tar archive.
        image_size: resize all to this many pixels each way; None demands one common size.
        skip_bad: leave out files that cannot be used, with a warning; else they are an error.
        test_fraction: part set aside at random if there is no test folder.
        seed: of that choice.
        max_memory: bytes of inputs beyond which these stay on the disk, in the cache folder; None
            reads all into memory.

    Example:
        >>> data = load_images(Path("leaves"), image_size=32)  # doctest: +SKIP
        >>> data.input_shape  # doctest: +SKIP
        (3, 32, 32)
    """
    decoded = decode_images(path, image_size, skip_bad=skip_bad, max_memory=max_memory)
    for_test = decoded.for_test
    if not for_test.any():
        for_test = np.zeros(len(for_test), dtype=bool)
        _, held_out = split_index(len(for_test), test_fraction, seed, who=f"images: {path}")
        for_test[held_out.numpy()] = True
    if for_test.all():
        raise DataError(f"images: {path} must hold training images, got only a test folder.")
    pixels, labels, classes = decoded.pixels, decoded.labels, tuple(map(str, decoded.classes))
    if isinstance(pixels, np.memmap):
        settings = image_size, skip_bad, test_fraction, seed
        return _on_disk(path, settings, pixels, labels, for_test, classes)
    train, test = ((pixels[mask], labels[mask]) for mask in (~for_test, for_test))
    del pixels, decoded  # before they stand there a second time, as numbers of four bytes
    return image_set(path.name.split(".")[0], train, test, classes)


def _on_disk(
    path: Path,
    settings: tuple[object, ...],
    pixels: _Pixels,
    labels: NDArray[np.int64],
    for_test: NDArray[np.bool_],
    classes: tuple[str, ...],
) -> DataSet:
    """The data set with inputs that are mapped from the cache folder."""
    height, width, channels = pixels.shape[1:]
    places = [np.flatnonzero(mask) for mask in (~for_test, for_test)]
    statistics = channel_statistics(pixels[places[0][part]] for part in parts(len(places[0])))
    recipe = image_recipe((channels, height, width), *statistics)
    splits = []
    for rows, name in zip(places, _PARTS, strict=True):
        blocks = (prepare_images(pixels[rows[part]], recipe).numpy() for part in parts(len(rows)))
        entry = cache.entry_of(path, *settings, recipe, name)
        x = cache.mapped_inputs(entry, (len(rows), channels, height, width), blocks)
        splits.append(Examples(x, torch.from_numpy(labels[rows])))
    train, test = splits
    title = path.name.split(".")[0]
    return DataSet(title, train, test, "classification", classes, preprocessing=recipe)


def decode_images(
    path: Path,
    image_size: int | None = None,
    *,
    skip_bad: bool = False,
    max_memory: int | None = None,
) -> Decoded:
    """Read and decode every image below `path`; many images are remembered in the cache folder.

    Pixels stay on the disk if the inputs that they become, of four bytes each, would take more than
    `max_memory`.

    Example:
        >>> decode_images(Path("leaves")).pixels.shape  # doctest: +SKIP
        (120, 32, 32, 3)
    """
    if image_size is not None:
        check_positive("images", image_size=image_size)
        check_limit(path, "pixels", image_size**2, "pixels per image (image_size)")
    if not path.exists():
        raise DataError(f"data: {path} must be a folder or a tar archive, but does not exist.")
    entry = cache.entry_of(path, image_size, skip_bad)
    large = ("pixels",) if max_memory is not None else ()
    if (arrays := cache.read_arrays(entry, Decoded._fields, mapped=large)) is not None:
        if max_memory is not None and 4 * arrays["pixels"].size <= max_memory:
            arrays["pixels"] = np.array(arrays["pixels"])
        return Decoded(**arrays)
    with cache.scratch() if large else nullcontext() as spill:
        decoded = _decoded(path, image_size, skip_bad, spill, max_memory)
        spilled = isinstance(decoded.pixels, np.memmap)
        worth = len(decoded.labels) >= CACHE_FROM or spilled
        if worth and not cache.write_arrays(entry, decoded._asdict()) and spilled:
            raise DataError(f"images: {path} needs the cache folder, which cannot be written.")
        if not spilled:
            return decoded
    arrays = cache.read_arrays(entry, Decoded._fields, mapped=large)
    assert arrays is not None
    return Decoded(**arrays)


def _decoded(
    path: Path, image_size: int | None, skip_bad: bool, spill: Path | None, most: int | None
) -> Decoded:
    """Decode all images; beyond `most` bytes of inputs they go to files in the folder `spill`."""
    names: list[str] = []
    stacks: list[_Pixels] = []  # of images that share a shape, not one by one: that takes twice it
    some: list[_Pixels] = []
    packed = unpacked = 0
    bad: dict[str, str] = {}

    def stack_up() -> None:
        stacks.append(np.stack(some))
        some.clear()
        if spill is not None and most is not None and 4 * unpacked > most:
            for i, stack in enumerate(stacks):
                if not isinstance(stack, np.memmap):
                    np.save(spill / f"{i}.npy", stack)
                    stacks[i] = np.load(spill / f"{i}.npy", mmap_mode="r")

    for name, content in iterate_files(path, _is_wanted, bad):
        try:
            _place(path, name)  # before it is decoded
            pixels = decode_image(path, name, content, image_size)
        except BadImageError as error:
            bad[name] = error.reason
            continue
        if some and (some[0].shape != pixels.shape or len(some) == _STACK):
            stack_up()
        some.append(pixels)
        names.append(name)
        packed, unpacked = packed + len(content), unpacked + pixels.nbytes
        check_growth(path, unpacked, packed)
    if bad:
        _tell(path, bad, skip_bad=skip_bad)
    if not names:
        raise DataError(f"images: {path} must hold train/<class>/ with images, found none.")
    stack_up()
    on_disk = isinstance(stacks[0], np.memmap)
    return _collect(path, names, stacks, spill if on_disk else None)


def is_image(name: str) -> bool:
    """Return whether a file is an image by its name, and not hidden."""
    return name.lower().endswith(SUFFIXES) and not _is_hidden(name)


def _is_hidden(name: str) -> bool:
    return any(word.startswith((".", "__MACOSX")) for word in name.split("/"))


def _is_wanted(name: str) -> bool:
    loose_note = "/" not in name and not name.lower().endswith(SUFFIXES)  # such as a README
    return not (_is_hidden(name) or loose_note or name.split("/")[-1] in _LITTER)


class BadImageError(DataError):
    """A file that is no image we can read.

    Args:
        place: the file, for the message.
        reason: what is wrong, without its name.
    """

    def __init__(self, place: str, reason: str) -> None:
        super().__init__(f"images: {place} {reason}. Replace or remove it.")
        self.reason = reason


def _place(path: Path, name: str) -> tuple[str, str]:
    """Part (train, test or none) and class of a file, by its folders."""
    folders = name.split("/")[:-1]
    if len(folders) >= 3 and folders[1] in _PARTS:
        folders = folders[1:]  # the archive wraps everything in one folder
    if not name.lower().endswith(SUFFIXES):
        raise BadImageError(f"{name} in {path}", f"must be an image ({', '.join(SUFFIXES)})")
    if len(folders) >= 2 and folders[0] in _PARTS:
        return folders[0], folders[1]
    if folders and folders[0] not in _PARTS:
        return "", folders[0]
    reason = "must be in train/<class>/, test/<class>/ or <class>/"
    raise BadImageError(f"{name} in {path}", reason)


def _tell(path: Path, bad: Mapping[str, str], *, skip_bad: bool) -> None:
    """Raise with all files that cannot be used, or warn of them."""
    shown = [f"{name} {reason}" for name, reason in sorted(bad.items())[:_SHOWN]]
    more = f"; and {len(bad) - _SHOWN:,} more" if len(bad) > _SHOWN else ""
    files = "1 file" if len(bad) == 1 else f"{len(bad):,} files"
    text = f"images: {files} in {path} cannot be used: {'; '.join(shown)}{more}."
    if not skip_bad:
        raise DataError(f"{text} Fix, move or remove them, or leave them out (`skip_bad`).")
    warnings.warn(f"{text} They are left out.", stacklevel=4)


def decode_image(
    path: Path, name: str, content: bytes, image_size: int | None
) -> NDArray[np.uint8]:
    """Pixels of an encoded image, (H, W, 1 or 3), resized to a square if asked."""
    from PIL import Image, UnidentifiedImageError

    try:
        with warnings.catch_warnings():  # Pillow's bound is above ours
            warnings.simplefilter("ignore")
            image = Image.open(io.BytesIO(content), formats=_FORMATS)
        with image:
            check_limit(path / name, "pixels", image.width * image.height, "pixels")
            if image.mode in ("I", "F") or image.mode.startswith("I;"):
                reason = f"must have 8 bits per channel, got mode {image.mode}"
                raise BadImageError(f"{name} in {path}", reason)
            plain = image.convert("L" if image.mode in ("L", "1") else "RGB")
    except UnidentifiedImageError as error:  # its own text names an object in memory
        reason = "must be an intact image, but is in no format known"
        raise BadImageError(f"{name} in {path}", reason) from error
    except DataError:
        raise
    except Exception as error:  # each decoder has its own errors
        reason = f"must be an intact image: {str(error)[:200]}"
        raise BadImageError(f"{name} in {path}", reason) from error
    if image_size is not None and plain.size != (image_size, image_size):
        plain = plain.resize((image_size, image_size), Image.Resampling.BILINEAR)
    pixels = np.asarray(plain, dtype=np.uint8)
    return pixels[..., None] if pixels.ndim == 2 else pixels


def _collect(path: Path, names: list[str], stacks: list[_Pixels], spill: Path | None) -> Decoded:
    """Images in the order of their names; raises where they disagree. Empties the stacks.

    They go to a file in the folder `spill`, if there is one.
    """
    known: dict[tuple[str, str], tuple[str, str]] = {}
    places = [known.setdefault(place, place) for place in (_place(path, name) for name in names)]
    n = len(names)
    order = sorted(range(n), key=names.__getitem__)
    place_of = np.empty(n, dtype=np.int64)
    place_of[order] = np.arange(n)
    first, ends = order[0], np.cumsum([len(stack) for stack in stacks])
    sizes = [f"{stack.shape[2]}x{stack.shape[1]}" for stack in stacks]
    size = sizes[int(np.searchsorted(ends, first, side="right"))]
    for stack, end, other in zip(stacks, ends, sizes, strict=True):
        if other != size:
            name = min(names[end - len(stack) : end])
            raise DataError(
                f"images: all images must share a size; {name} is {other}, but "
                f"{names[first]} is {size}. Give image_size to resize them."
            )
    for i in order:
        if bool(places[i][0]) != bool(places[first][0]):
            raise DataError(
                f"images: {path} must use train/ and test/ for all files or for none, got "
                f"{names[first]} and {names[i]}. Move one."
            )
    channels = max(stack.shape[3] for stack in stacks)
    shape = (n, *stacks[0].shape[1:3], channels)
    pixels: _Pixels = np.empty(0, np.uint8)
    if spill is None:
        pixels = np.empty(shape, np.uint8)
    else:
        pixels = np.lib.format.open_memmap(spill / "all.npy", "w+", np.uint8, shape)
    for end in reversed(ends):  # dropped one by one: nothing stands there twice
        stack = stacks.pop()
        pixels[place_of[end - len(stack) : end]] = stack  # grey ones into every channel
    classes, numbers = np.unique([places[i][1] for i in order], return_inverse=True)
    if len(classes) == 1 and not places[first][0] and any(name.count("/") > 1 for name in names):
        raise DataError(
            f"images: all images in {path} are in one folder, {classes[0]}. Give that folder if "
            "its folders are the classes."
        )
    for_test = np.array([places[i][0] == "test" for i in order], dtype=bool)
    return Decoded(pixels, numbers.astype(np.int64), for_test, classes)


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
