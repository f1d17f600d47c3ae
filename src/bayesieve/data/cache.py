"""Files that were decoded or prepared once, kept in the cache folder with its checksum.

An entry belongs to a path as it is: names, sizes and times of all its files. The newest entries are
kept. An entry whose checksum differs, or that cannot be written, is as if it were not there.
"""

import hashlib
import shutil
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bayesieve.data.files import cache_dir, names_below, npy_header, read_npz
from bayesieve.errors import DataError
from bayesieve.files import sha256, write_atomically

Arrays: TypeAlias = dict[str, NDArray[Any]]
_KEPT = 16  # entries
_mapped: set[int] = set()  # where mapped tensors begin


def entry_of(path: Path, *settings: object) -> str:
    """The name of the entry of a file or folder under some settings.

    Example:
        >>> entry_of(Path("nowhere"), 28) == entry_of(Path("nowhere"), 32)
        False
    """
    digest = hashlib.sha256(f"{path.resolve()}|{settings}".encode())
    for name in names_below(path) if path.is_dir() else [""]:
        with suppress(OSError):  # a link to nothing, which decoding names
            stat = (path / name).stat()
            digest.update(f"{name}|{stat.st_size}|{stat.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:32]


def read_arrays(entry: str, names: Iterable[str], *, mapped: tuple[str, ...] = ()) -> Arrays | None:
    """The arrays of an entry, those named in `mapped` on the disk; None where it is not whole."""
    path = _folder() / f"{entry}.npz"
    if not _is_whole(path):
        return None
    with suppress(DataError, KeyError):
        if not mapped:
            arrays = read_npz(path)
            return {name: arrays[name] for name in names}
        found = {name: _mapped_member(path, name) for name in names}
        return {name: a if name in mapped else np.array(a) for name, a in found.items()}
    return None


def _mapped_member(path: Path, name: str) -> NDArray[Any]:
    """An array of a whole entry, on the disk; behind the names in its own header of the archive."""
    with zipfile.ZipFile(path) as archive:
        start = archive.getinfo(f"{name}.npy").header_offset
    with path.open("rb") as file:
        file.seek(start + 26)
        lengths = np.frombuffer(file.read(4), "<u2")
        file.seek(start + 30 + int(lengths.sum()))
        shape, fortran, dtype = npy_header(file)
        return np.memmap(path, dtype, "r", file.tell(), shape, "F" if fortran else "C")


def write_arrays(entry: str, arrays: Arrays) -> bool:
    """Keep arrays as an entry; False where the folder is read-only or full."""
    try:
        path = _folder() / f"{entry}.npz"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, lambda stream: np.savez(stream, **arrays))  # type: ignore[arg-type]
        write_atomically(path.with_suffix(".sha256"), sha256(path))
    except OSError:
        return False
    _tidy()
    return True


def mapped_inputs(
    entry: str, shape: tuple[int, ...], blocks: Iterable[NDArray[np.float32]]
) -> Tensor:
    """Inputs of `shape` on the disk as a float32 tensor, from the cache or written block by block.

    The tensor may be changed; changes stay in memory.
    """
    path = _folder() / f"{entry}.npy"
    if not (_is_whole(path) and np.load(path, mmap_mode="r").shape == shape):
        path.parent.mkdir(parents=True, exist_ok=True)

        def write(stream: IO[bytes]) -> None:
            header = {"descr": "<f4", "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(stream, header)
            for block in blocks:
                stream.write(np.ascontiguousarray(block, "<f4").data)

        write_atomically(path, write)
        write_atomically(path.with_suffix(".sha256"), sha256(path))
        _tidy()
    tensor = torch.from_numpy(np.load(path, mmap_mode="c"))
    _mapped.add(tensor.data_ptr())
    return tensor


def is_mapped(x: object) -> bool:
    """Return whether a tensor of inputs is on the disk."""
    return isinstance(x, Tensor) and not x.is_meta and x.data_ptr() in _mapped


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder beside the entries, which is removed after the block."""
    _folder().mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="part-", dir=_folder()))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _folder() -> Path:
    return cache_dir() / "decoded"


def _is_whole(path: Path) -> bool:
    with suppress(OSError):
        return path.with_suffix(".sha256").read_text() == sha256(path)
    return False


def _tidy() -> None:
    """Remove the oldest entries; a mapped file that is removed stays readable."""
    entries = [path for path in _folder().iterdir() if path.suffix in (".npz", ".npy")]
    for old in sorted(entries, key=lambda path: path.stat().st_mtime)[:-_KEPT]:
        old.unlink(missing_ok=True)
        old.with_suffix(".sha256").unlink(missing_ok=True)
