"""Image sets known by name: digits, MNIST and Fashion-MNIST (IDX files), CIFAR-10 and CIFAR-100.

An IDX file, plain or gzip, is 0, 0, type code, number of axes, then one big-endian 32-bit size per
axis, then the entries in row-major order. Byte offsets in messages count in the unpacked content.

A CIFAR record is the label byte (CIFAR-100: coarse, then fine label) and 3072 bytes of pixels, the
red plane first. Pixels are standardised channel by channel on the training images.
"""

import functools
import gzip
import math
import struct
import zlib
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from bayesieve.data.examples import DataSet
from bayesieve.data.files import iterate_files, missing_set, read_up_to
from bayesieve.data.images import Labelled, image_recipe, image_set
from bayesieve.errors import DataError
from bayesieve.files import check_growth

PIXEL_STD = 126 / 255  # pixels 0..255 are divided by 126, as in [Blundell] and [Saha]
DIGITS = tuple(str(digit) for digit in range(10))
GARMENTS = (
    "T-shirt/top", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag",
    "ankle boot",
)  # fmt: skip
IDX_SETS = {"mnist": ("MNIST", DIGITS), "fashion-mnist": ("Fashion-MNIST", GARMENTS)}
PARTS = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
_DEFLATE_LIMIT = 1032  # no deflate stream unpacks to more than this many times its size


def read_idx(path: Path, n_axes: int) -> NDArray[np.uint8]:
    """Read an IDX file of unsigned bytes with `n_axes` axes.

    Args:
        path: the file; gzip is recognised by its first two bytes.
        n_axes: 3 for images, 1 for labels.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "labels"
        >>> _ = path.write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 3, 7, 2, 1]))
        >>> read_idx(path, n_axes=1).tolist()
        [7, 2, 1]
    """
    try:
        with path.open("rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            file: Any = gzip.GzipFile(fileobj=raw) if packed else raw
            return _parse(path, file, n_axes, packed=packed)
    except OSError as error:
        raise DataError(f"idx: {path} must be readable: {error}. Fetch it again.") from error


def _parse(path: Path, file: BinaryIO, n_axes: int, *, packed: bool) -> NDArray[np.uint8]:
    first = 4 + 4 * n_axes
    header = _read(path, file, first, at=0)
    if header[:3] != b"\x00\x00\x08" or header[3:4] != bytes([n_axes]):
        raise DataError(
            f"idx: {path} must begin with 00 00 08 {n_axes:02x} (unsigned bytes, {n_axes} axes), "
            f"got {header[:4].hex(' ') or 'nothing'} at byte offset 0. Is it the right file?"
        )
    if len(header) < first:
        raise _truncated(path, len(header), first)
    sizes = struct.unpack(f">{n_axes}I", header[4:])
    wanted, file_size = math.prod(sizes), path.stat().st_size
    if wanted > (file_size * _DEFLATE_LIMIT if packed else file_size - first):
        raise DataError(
            f"idx: {path} declares {'x'.join(map(str, sizes))} entries at byte offset 4, more than "
            f"its {file_size} bytes can hold. The file is damaged: fetch it again."
        )
    check_growth(path, wanted)
    data = _read(path, file, wanted + 1, at=first)
    if len(data) < wanted:
        raise _truncated(path, first + len(data), first + wanted)
    if len(data) > wanted:
        raise DataError(
            f"idx: {path} must end at byte offset {first + wanted}, but more data follow. "
            "The file is damaged: fetch it again."
        )
    return np.frombuffer(data, dtype=np.uint8).reshape(sizes)


def _read(path: Path, file: BinaryIO, n_bytes: int, *, at: int) -> bytes:
    try:
        return read_up_to(file, n_bytes)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(
            f"idx: {path} is damaged after byte offset {max(at, file.tell())} of its unpacked "
            f"content: {error}. Fetch it again."
        ) from error


def _truncated(path: Path, end: int, wanted: int) -> DataError:
    return DataError(
        f"idx: {path} must hold {wanted} bytes by its own header, but ends at byte offset {end}. "
        "The file is truncated: fetch it again."
    )


def find_idx(folder: Path) -> tuple[Path, Path, Path, Path] | None:
    """Find the four files of an MNIST-like set, plain or .gz; None unless all are there.

    Example:
        >>> find_idx(Path("no-such-folder")) is None
        True
    """
    files = []
    for part in PARTS:
        names = [f"{part}-ubyte", f"{part.replace('-idx', '.idx')}-ubyte"]
        options = [folder / f"{name}{end}" for name in names for end in ("", ".gz")]
        files.extend([path for path in options if path.is_file()][:1])
    return (files[0], files[1], files[2], files[3]) if len(files) == 4 else None


def load_idx(name: str, root: Path) -> DataSet:
    """Load `mnist` or `fashion-mnist` from root/<name>; inputs are (N, 1, 28, 28), pixel / 126.

    Example:
        >>> data = load_idx("mnist", data_root())  # doctest: +SKIP
        >>> len(data.train), len(data.test)  # doctest: +SKIP
        (60000, 10000)
    """
    paths = find_idx(root / name)
    if paths is None:
        raise missing_set(name, root / name)
    title, classes = IDX_SETS[name]
    train, test = (_read_pair(*pair, len(classes)) for pair in (paths[:2], paths[2:]))
    shape = train[0].shape[1:]
    if shape != test[0].shape[1:]:
        raise DataError(
            f"{name}: images of {paths[2]} must be {shape} pixels like those of {paths[0]}, got "
            f"{test[0].shape[1:]}. Fetch the set again."
        )
    recipe = image_recipe((1, *shape), [0], [PIXEL_STD])
    return image_set(title, train, test, classes, recipe)


def _read_pair(image_path: Path, label_path: Path, n_classes: int) -> Labelled:
    images, labels = read_idx(image_path, n_axes=3), read_idx(label_path, n_axes=1)
    if len(labels) != len(images) or not len(labels):
        raise DataError(
            f"idx: {label_path} must have one label per image of {image_path}, got {len(labels)} "
            f"labels for {len(images)} images. Fetch both files again."
        )
    wrong = np.flatnonzero(labels >= n_classes)
    if len(wrong):
        raise DataError(
            f"idx: labels of {label_path} must be 0 to {n_classes - 1}, got {labels[wrong[0]]} "
            f"at byte offset {8 + wrong[0]}. The file is damaged: fetch it again."
        )
    return images, labels.astype(np.int64)


_PIXELS = 3 * 32 * 32


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
    classes: tuple[str, ...]  # unless the class file names them


CIFAR10_CLASSES = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip
LAYOUTS = {
    "cifar10": CifarLayout(
        "CIFAR-10",
        "cifar-10-batches-bin",
        "cifar-10-binary.tar.gz",
        tuple(f"data_batch_{k}.bin" for k in range(1, 6)),
        "test_batch.bin",
        "batches.meta.txt",
        1,
        CIFAR10_CLASSES,
    ),
    "cifar100": CifarLayout(
        "CIFAR-100",
        "cifar-100-binary",
        "cifar-100-binary.tar.gz",
        ("train.bin",),
        "test.bin",
        "fine_label_names.txt",
        2,
        tuple(str(label) for label in range(100)),
    ),
}


def find_cifar(name: str, root: Path) -> Path | None:
    """Find the folder or archive of the binary files.

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
    return None


def load_cifar(name: str, root: Path) -> DataSet:
    """Load `cifar10` or `cifar100` from below `root`; inputs are (N, 3, 32, 32), standardised.

    Example:
        >>> data = load_cifar("cifar10", data_root())  # doctest: +SKIP
        >>> data.name, len(data.train)  # doctest: +SKIP
        ('CIFAR-10', 50000)
    """
    source = find_cifar(name, root)
    if source is None:
        raise missing_set(name, root / name)
    layout = LAYOUTS[name]
    names = (*layout.train, layout.test)
    files = dict[str, bytes]()
    for path, content in iterate_files(
        source, lambda p: p.split("/")[-1] in (*names, layout.class_file)
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
    pixels, labels = (np.concatenate(arrays) for arrays in zip(*batches[:-1], strict=True))
    classes = layout.classes
    if layout.class_file in files:
        words = files[layout.class_file].decode("utf-8", errors="replace")
        if len(words.split()) != len(classes):
            raise DataError(
                f"{layout.title}: {layout.class_file} in {source} must name {len(classes)} "
                f"classes, got {len(words.split())}. Fetch the set again, or remove the file."
            )
        classes = tuple(words.split())
    return image_set(layout.title, (pixels, labels), batches[-1], classes)


def _records(source: Path, name: str, content: bytes, layout: CifarLayout) -> Labelled:
    size = layout.n_label_bytes + _PIXELS
    n_records, left_over = divmod(len(content), size)
    if left_over or not n_records:
        raise DataError(
            f"{layout.title}: {name} in {source} must hold whole records of {size} bytes, but "
            f"the one at byte offset {n_records * size} has only {left_over}. The file is "
            "truncated: fetch the set again."
        )
    records = np.frombuffer(content, dtype=np.uint8).reshape(n_records, size)
    labels, n_classes = records[:, layout.n_label_bytes - 1], len(layout.classes)
    wrong = np.flatnonzero(labels >= n_classes)
    if len(wrong):
        offset = wrong[0] * size + layout.n_label_bytes - 1
        raise DataError(
            f"{layout.title}: labels must be 0 to {n_classes - 1}, got "
            f"{labels[wrong[0]]} at byte offset {offset} of {name} in {source}. The file is "
            "damaged: fetch the set again."
        )
    planes = records[:, layout.n_label_bytes :].reshape(n_records, 3, 32, 32)
    return np.moveaxis(planes, 1, -1), labels.astype(np.int64)


@functools.cache
def _bundled_digits() -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Images and labels of scikit-learn's digits, without its import, which takes over a second."""
    origin = find_spec("sklearn").origin  # type: ignore[union-attr]
    table = np.loadtxt(Path(str(origin)).parent / "datasets/data/digits.csv.gz", delimiter=",")
    return table[:, :-1].reshape(-1, 8, 8), table[:, -1].astype(np.int64)


def load_digits() -> DataSet:
    """Load the digits as (N, 1, 8, 8) inputs in [0, 1]; every fifth one of a class is for testing.

    Example:
        >>> data = load_digits()
        >>> len(data.train), len(data.test), data.input_shape
        (1433, 364, (1, 8, 8))
    """
    images, labels = _bundled_digits()
    for_test = np.zeros(len(labels), dtype=bool)
    for label in range(10):
        for_test[np.flatnonzero(labels == label)[::5]] = True
    train, test = ((images[mask], labels[mask]) for mask in (~for_test, for_test))
    return image_set("digits", train, test, DIGITS, image_recipe((1, 8, 8), [0], [1], scale=16))
