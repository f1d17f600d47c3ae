"""The IDX format of MNIST and Fashion-MNIST, plain or gzip.

A file is 0, 0, type code, number of axes, then one big-endian 32-bit size per axis, then the
entries in row-major order. Byte offsets in messages count in the unpacked content.
"""

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray

from bayesieve.data.examples import DataSet, Examples
from bayesieve.data.files import MAX_BYTES, missing_set, read_up_to
from bayesieve.data.preprocessing import image_recipe, prepare_images
from bayesieve.errors import DataError

PIXEL_STD = 126 / 255  # pixels 0..255 are divided by 126, as in [Blundell] and [Saha]
DIGITS = tuple(str(digit) for digit in range(10))
GARMENTS = (
    "T-shirt/top",
    "trouser",
    "pullover",
    "dress",
    "coat",
    "sandal",
    "shirt",
    "sneaker",
    "bag",
    "ankle boot",
)
TITLES = {"mnist": "MNIST", "fashion-mnist": "Fashion-MNIST"}
_PARTS = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
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
            if packed:
                with gzip.GzipFile(fileobj=raw) as file:
                    return _parse(path, file, n_axes, packed=True)  # type: ignore[arg-type]
            return _parse(path, raw, n_axes, packed=False)
    except OSError as error:
        raise DataError(f"idx: {path} must be readable: {error}. Fetch it again.") from error


def _parse(path: Path, file: BinaryIO, n_axes: int, *, packed: bool) -> NDArray[np.uint8]:
    start = _read(path, file, 4, at=0)
    if start[:3] != b"\x00\x00\x08" or start[3:4] != bytes([n_axes]):
        raise DataError(
            f"idx: {path} must begin with 00 00 08 {n_axes:02x} (unsigned bytes, {n_axes} axes), "
            f"got {start.hex(' ') or 'nothing'} at byte offset 0. Is it the right file?"
        )
    header = _read(path, file, 4 * n_axes, at=4)
    if len(header) < 4 * n_axes:
        raise _truncated(path, 4 + len(header), 4 + 4 * n_axes)
    sizes = struct.unpack(f">{n_axes}I", header)
    first, wanted = 4 + 4 * n_axes, math.prod(sizes)
    file_size = path.stat().st_size
    possible = file_size * _DEFLATE_LIMIT if packed else file_size - first
    if wanted > min(possible, MAX_BYTES):
        raise DataError(
            f"idx: {path} declares {'x'.join(map(str, sizes))} entries at byte offset 4, more than "
            f"its {file_size} bytes can hold. The file is damaged: fetch it again."
        )
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
    found = []
    for part in _PARTS:
        names = [f"{part}-ubyte", f"{part.replace('-idx', '.idx')}-ubyte"]
        options = [folder / f"{name}{end}" for name in names for end in ("", ".gz")]
        found.extend([path for path in options if path.is_file()][:1])
    return (found[0], found[1], found[2], found[3]) if len(found) == 4 else None


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
    classes = GARMENTS if name == "fashion-mnist" else DIGITS
    train_pixels, train_labels = _read_pair(paths[0], paths[1], len(classes))
    test_pixels, test_labels = _read_pair(paths[2], paths[3], len(classes))
    if train_pixels.shape[1:] != test_pixels.shape[1:]:
        raise DataError(
            f"{name}: images of {paths[2]} must be {train_pixels.shape[1:]} pixels like those of "
            f"{paths[0]}, got {test_pixels.shape[1:]}. Fetch the set again."
        )
    recipe = image_recipe((1, *train_pixels.shape[1:]), [0.0], [PIXEL_STD])
    train = Examples(prepare_images(train_pixels, recipe), torch.from_numpy(train_labels))
    test = Examples(prepare_images(test_pixels, recipe), torch.from_numpy(test_labels))
    return DataSet(TITLES[name], train, test, "classification", classes, preprocessing=recipe)


def _read_pair(
    image_path: Path, label_path: Path, n_classes: int
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
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
