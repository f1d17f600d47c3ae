"""Folders, archives and NPZ files of data, read within bounds; nothing is unpacked to disk."""

import math
import os
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import IO, Any, BinaryIO, Self

import numpy as np
from numpy.typing import NDArray

from bayesieve.environment import cache_dir as cache_dir
from bayesieve.errors import DataError
from bayesieve.files import check_growth, check_limit

ROOT_VARIABLE = "BAYESIEVE_DATA"
_HEADERS = (  # members of a tar archive that only describe the next one, and are read whole
    tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
)  # fmt: skip
_EMPTY = 1 << 20  # bytes that an array without entries may seem to have: (10^18, 0) is no table


def data_root() -> Path:
    """Return the folder data sets are read from and fetched to.

    This is $BAYESIEVE_DATA if set and not empty, else the per-user cache folder.

    Example:
        >>> import os
        >>> os.environ["BAYESIEVE_DATA"] = "/srv/data"  # doctest: +SKIP
        >>> data_root()  # doctest: +SKIP
        PosixPath('/srv/data')
    """
    chosen = os.environ.get(ROOT_VARIABLE)
    return Path(chosen).expanduser() if chosen else cache_dir()


def missing_set(name: str, folder: Path) -> DataError:
    """Build the error for a data set that is not on this machine.

    Example:
        >>> print(missing_set("mnist", Path("data") / "mnist"))  # doctest: +ELLIPSIS
        mnist: no data files found in data/mnist. Run `bayesieve data fetch mnist`, or set ...
    """
    return DataError(
        f"{name}: no data files found in {folder}. Run `bayesieve data fetch {name}`, or set "
        f"{ROOT_VARIABLE} to the folder that holds your copy."
    )


def read_npz(path: Path) -> dict[str, NDArray[Any]]:
    """Read every array of an .npz file; pickled objects and lying headers are refused.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "toy.npz"
        >>> np.savez(path, x=np.eye(2))
        >>> read_npz(path)["x"].tolist()
        [[1.0, 0.0], [0.0, 1.0]]
    """
    if not path.is_file():
        raise DataError(f"npz: the file must exist, {path} does not. Check the path.")
    try:
        with zipfile.ZipFile(path) as archive:
            infos = archive.infolist()
            check_limit(path, "columns", len(infos), "arrays")
            check_growth(path, sum(info.file_size for info in infos))
            for info in infos:
                _check_declared_size(path, archive, info)
        with np.load(path, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except DataError:
        raise
    except Exception as error:  # zipfile, numpy and Python's own parser each have their errors
        raise DataError(
            f"npz: {path} must be an intact .npz file of plain arrays: {str(error)[:200]}. "
            "Save it again with numpy.savez."
        ) from error


def _check_declared_size(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> None:
    # numpy allocates what the header declares before it reads; compare with the real size first
    with archive.open(info) as member:
        shape, _, dtype = npy_header(member)
        offset = member.tell()
    if dtype.hasobject:
        raise ValueError(f"array {info.filename!r} holds Python objects")
    declared = dtype.itemsize * int(np.prod([int(size) for size in shape], dtype=object))
    if not declared and dtype.itemsize * math.prod(max(size, 1) for size in shape) > _EMPTY:
        raise ValueError(f"array {info.filename!r} of shape {shape} is large and holds nothing")
    if offset + declared != info.file_size:
        raise DataError(
            f"npz: array {info.filename!r} of {path} declares {declared} bytes of data, but "
            f"{info.file_size - offset} follow its header at byte offset {offset}. "
            "The file is damaged: make or fetch it again."
        )


def npy_header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, whether columns come first, and dtype, from the header of a .npy file."""
    if np.lib.format.read_magic(stream) == (1, 0):
        return np.lib.format.read_array_header_1_0(stream)
    return np.lib.format.read_array_header_2_0(stream)


def read_up_to(file: BinaryIO | IO[bytes], n_bytes: int) -> bytes:
    """Read at most `n_bytes` in bounded pieces, so memory follows the file, not its promises.

    Example:
        >>> import io
        >>> read_up_to(io.BytesIO(b"abcdef"), 4)
        b'abcd'
    """
    pieces = []
    while n_bytes > 0 and (piece := file.read(min(n_bytes, 1 << 22))):
        pieces.append(piece)
        n_bytes -= len(piece)
    return b"".join(pieces)


def iterate_files(
    path: Path, wanted: Callable[[str], bool], unreadable: dict[str, str] | None = None
) -> Iterator[tuple[str, bytes]]:
    """Yield (name with forward slashes, content) of the wanted files of a folder or archive.

    Args:
        path: a folder, read recursively in order of names and through links, or a tar archive, read
            in its order.
        wanted: which names to read.
        unreadable: receives the names of files of a folder that cannot be read, with the reason;
            None raises at the first.

    A file larger than the limit "member" is refused before it is read.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> _ = (folder / "a.bin").write_bytes(b"abc")
        >>> list(iterate_files(folder, lambda name: True))
        [('a.bin', b'abc')]
    """
    if path.is_dir():
        for name in filter(wanted, names_below(path)):
            file = path / name
            try:
                check_limit(file, "member", file.stat().st_size, "bytes")
                content = file.read_bytes()
            except OSError as error:
                reason = "is a link to nothing" if not file.exists() else error.strerror or "fails"
                if unreadable is None:
                    raise DataError(f"data: {file} cannot be read: it {reason}.") from error
                unreadable[name] = reason
                continue
            yield name, content
        return
    if not path.is_file():
        raise DataError(f"data: {path} must be a folder or a tar archive, but does not exist.")
    yield from _tar_files(path, wanted)


def names_below(folder: Path, begin: str = "", around: tuple[Path, ...] = ()) -> Iterator[str]:
    """Names of all files below a folder, part by part in order; one folder's at a time in memory.

    Links are followed, but not into a folder that contains them. One that leads nowhere counts as a
    file, which cannot be read.
    """
    around = (*around, folder.resolve())
    with os.scandir(folder) as entries:
        ordered = sorted(entries, key=lambda entry: entry.name)
    for entry in ordered:
        if entry.is_dir():
            if not entry.is_symlink() or Path(entry.path).resolve() not in around:
                yield from names_below(Path(entry.path), f"{begin}{entry.name}/", around)
        elif entry.is_file() or entry.is_symlink():
            yield begin + entry.name


class _BoundedHeaders(tarfile.TarInfo):
    """A member of an archive whose own headers are small; Python reads them whole."""

    def _proc_member(self, archive: tarfile.TarFile) -> Self:
        if self.type in _HEADERS:
            check_limit(Path(str(archive.name)), "header", self.size, "bytes in a header")
        return super()._proc_member(archive)  # type: ignore[misc]


def _tar_files(path: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    total = 0
    with path.open("rb") as raw:
        try:
            with tarfile.open(path, fileobj=raw, mode="r|*", tarinfo=_BoundedHeaders) as archive:
                for member in archive:
                    name = _safe_name(path, member)
                    total += member.size
                    check_growth(path, max(total, archive.offset))
                    if not member.isfile() or not wanted(name):
                        continue
                    check_limit(path / name, "member", member.size, "bytes")
                    file = archive.extractfile(member)
                    content = b"" if file is None else file.read()
                    if len(content) != member.size:
                        raise tarfile.ReadError(f"{name} ends after {len(content)} bytes")
                    yield name, content
        except DataError:
            raise
        except Exception as error:  # tarfile and the decompressors each have their errors
            raise DataError(
                f"data: {path} must be an intact tar archive, but is damaged before byte offset "
                f"{raw.tell()}: {str(error)[:200]}. Fetch or make it again."
            ) from error


def _safe_name(path: Path, member: tarfile.TarInfo) -> str:
    name = PurePosixPath(member.name)
    if name.is_absolute() or ".." in name.parts or "\\" in member.name:
        raise DataError(
            f"data: names in {path} must stay inside the archive, got {member.name!r} at byte "
            f"offset {member.offset}. Do not use this archive."
        )
    if not (member.isfile() or member.isdir()):
        raise DataError(
            f"data: {path} must hold plain files and folders only, but {member.name!r} at byte "
            f"offset {member.offset} is a link or device. Make the archive again without it."
        )
    return name.as_posix()
