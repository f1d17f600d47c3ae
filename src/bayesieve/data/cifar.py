"""CIFAR-10 and CIFAR-100: the official binary files, or (CIFAR-10) a copy as images.

A record is the label byte (CIFAR-100: coarse, then fine label) and 3072 bytes of pixels, the red
plane first. Pixels are standardised channel by channel on the training images.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from bayesieve.data.archives import is_tar, iterate_files
from bayesieve.data.examples import DataSet, Examples
from bayesieve.data.files import missing_set
from bayesieve.data.images import decode_images, load_images
from bayesieve.data.preprocessing import channel_statistics, image_recipe, prepare_images
from bayesieve.errors import DataError

_PIXELS = 3 * 32 * 32
_MAX_FILE_BYTES = 1 << 28


@dataclass(frozen=True)
class CifarLayout:
    """Names and record format of one of the two sets."""

    title: str
    folder: str
    archive: str
    train: tuple[str, ...]
    test: str
    class_file: str
    n_label_bytes: int
    n_classes: int


LAYOUTS = {
    "cifar10": CifarLayout(
        "CIFAR-10",
        "cifar-10-batches-bin",
        "cifar-10-binary.tar.gz",
        tuple(f"data_batch_{k}.bin" for k in range(1, 6)),
        "test_batch.bin",
        "batches.meta.txt",
        1,
        10,
    ),
    "cifar100": CifarLayout(
        "CIFAR-100",
        "cifar-100-binary",
        "cifar-100-binary.tar.gz",
        ("train.bin",),
        "test.bin",
        "fine_label_names.txt",
        2,
        100,
    ),
}
CIFAR10_CLASSES = (
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
)


def find_cifar(name: str, root: Path) -> Path | None:
    """Find the folder or archive to read: official files first, image copies last.

    Example:
        >>> find_cifar("cifar10", Path("no-such-folder")) is None
        True
    """
    layout, home = LAYOUTS[name], root / name
    for folder in (home / layout.folder, home, root / layout.folder):
        if (folder / layout.test).is_file():
            return folder
    for archive in (home / layout.archive, root / layout.archive):
        if archive.is_file():
            return archive
    if name != "cifar10" or not home.is_dir():
        return None
    if (home / "train").is_dir():
        return home
    return next((path for path in sorted(home.iterdir()) if is_tar(path)), None)


def load_cifar(name: str, root: Path) -> DataSet:
    """Load `cifar10` or `cifar100` from below `root`; inputs are (N, 3, 32, 32), standardised.

    A JPEG copy is lossy and says so in its name: "CIFAR-10 (JPEG copy)".

    Example:
        >>> data = load_cifar("cifar10", data_root())  # doctest: +SKIP
        >>> data.name, len(data.train)  # doctest: +SKIP
        ('CIFAR-10 (JPEG copy)', 50000)
    """
    source = find_cifar(name, root)
    if source is None:
        raise missing_set(name, root / name)
    layout = LAYOUTS[name]
    if source.name == layout.archive or (source / layout.test).is_file():
        return _load_binary(source, layout)
    return _load_copy(source, layout)


def _load_binary(source: Path, layout: CifarLayout) -> DataSet:
    names = (*layout.train, layout.test)
    files = dict[str, bytes]()
    for path, content in iterate_files(
        source, lambda p: p.split("/")[-1] in (*names, layout.class_file), _MAX_FILE_BYTES
    ):
        files[path.split("/")[-1]] = content
    absent = [name for name in names if name not in files]
    if absent:
        raise DataError(
            f"{layout.title}: {source} must hold {', '.join(names)}; {', '.join(absent)} not "
            "found. Fetch the set again."
        )
    batches = [_records(source, name, files[name], layout) for name in names]
    sizes = {len(labels) for _, labels in batches[:-1]}
    if len(sizes) > 1:
        raise DataError(
            f"{layout.title}: training batches of {source} must be equally long, got "
            f"{sorted(sizes)} records. One is truncated: fetch the set again."
        )
    train_pixels = np.concatenate([pixels for pixels, _ in batches[:-1]])
    train_labels = np.concatenate([labels for _, labels in batches[:-1]])
    mean, std = channel_statistics(train_pixels)
    recipe = image_recipe((3, 32, 32), mean, std)
    test_pixels, test_labels = batches[-1]
    train = Examples(prepare_images(train_pixels, recipe), torch.from_numpy(train_labels))
    test = Examples(prepare_images(test_pixels, recipe), torch.from_numpy(test_labels))
    classes = _class_names(source, files.get(layout.class_file), layout)
    return DataSet(layout.title, train, test, "classification", classes, preprocessing=recipe)


def _records(
    source: Path, name: str, content: bytes, layout: CifarLayout
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    size = layout.n_label_bytes + _PIXELS
    n_records, left_over = divmod(len(content), size)
    if left_over or not n_records:
        raise DataError(
            f"{layout.title}: {name} in {source} must hold whole records of {size} bytes, but "
            f"the one at byte offset {n_records * size} has only {left_over}. The file is "
            "truncated: fetch the set again."
        )
    records = np.frombuffer(content, dtype=np.uint8).reshape(n_records, size)
    labels = records[:, layout.n_label_bytes - 1]
    wrong = np.flatnonzero(labels >= layout.n_classes)
    if len(wrong):
        offset = wrong[0] * size + layout.n_label_bytes - 1
        raise DataError(
            f"{layout.title}: labels must be 0 to {layout.n_classes - 1}, got "
            f"{labels[wrong[0]]} at byte offset {offset} of {name} in {source}. The file is "
            "damaged: fetch the set again."
        )
    planes = records[:, layout.n_label_bytes :].reshape(n_records, 3, 32, 32)
    return np.moveaxis(planes, 1, -1), labels.astype(np.int64)


def _class_names(source: Path, content: bytes | None, layout: CifarLayout) -> tuple[str, ...]:
    if content is not None:
        names = tuple(content.decode("utf-8", errors="replace").split())
    elif layout.n_classes == 10:
        names = CIFAR10_CLASSES
    else:
        names = tuple(str(label) for label in range(layout.n_classes))
    if len(names) != layout.n_classes:
        raise DataError(
            f"{layout.title}: {layout.class_file} in {source} must name {layout.n_classes} "
            f"classes, got {len(names)}. Fetch the set again, or remove the file."
        )
    return names


def _load_copy(source: Path, layout: CifarLayout) -> DataSet:
    decoded = decode_images(source)
    shape = decoded.pixels.shape[1:]
    if shape != (32, 32, 3) or decoded.classes != CIFAR10_CLASSES:
        raise DataError(
            f"{layout.title}: {source} must hold 32x32 colour images of the ten classes, got "
            f"shape {shape} and classes {', '.join(decoded.classes)}. For other images use "
            f"images:{source}."
        )
    if not decoded.for_test.any():
        raise DataError(f"{layout.title}: {source} must hold a test folder, found none.")
    title = f"{layout.title} (JPEG copy)" if decoded.lossy else layout.title
    return load_images(source, name=title, decoded=decoded)
