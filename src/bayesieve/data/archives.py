"""Files of a folder or a tar archive as (name, content) pairs; nothing is ever unpacked to disk."""

import lzma
import tarfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

from bayesieve.data.files import MAX_BYTES
from bayesieve.errors import DataError


def is_tar(path: Path) -> bool:
    """Tell by its name whether a path is a tar archive.

    Example:
        >>> is_tar(Path("images.tar.xz")), is_tar(Path("images"))
        (True, False)
    """
    return path.name.endswith((".tar", ".tar.gz", ".tgz", ".tar.xz", ".tar.bz2"))


def iterate_files(
    path: Path, wanted: Callable[[str], bool], max_file_bytes: int
) -> Iterator[tuple[str, bytes]]:
    """Yield (name with forward slashes, content) of the wanted files of a folder or archive.

    Args:
        path: a folder, read recursively in order of names, or a tar archive, read in its order.
        wanted: which names to read.
        max_file_bytes: a larger file is refused before it is read.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> _ = (folder / "a.bin").write_bytes(b"abc")
        >>> list(iterate_files(folder, lambda name: True, 10))
        [('a.bin', b'abc')]
    """
    if path.is_dir():
        return _folder_files(path, wanted, max_file_bytes)
    if not path.is_file():
        raise DataError(f"data: {path} must be a folder or a tar archive, but does not exist.")
    return _tar_files(path, wanted, max_file_bytes)


def _folder_files(
    path: Path, wanted: Callable[[str], bool], max_file_bytes: int
) -> Iterator[tuple[str, bytes]]:
    for file in sorted(path.rglob("*")):
        name = file.relative_to(path).as_posix()
        if file.is_file() and wanted(name):
            _check_size(path, name, file.stat().st_size, max_file_bytes)
            yield name, file.read_bytes()


def _tar_files(
    path: Path, wanted: Callable[[str], bool], max_file_bytes: int
) -> Iterator[tuple[str, bytes]]:
    total = 0
    with path.open("rb") as raw:
        try:
            with tarfile.open(fileobj=raw, mode="r|*") as archive:
                for member in archive:
                    name = _safe_name(path, member)
                    total += member.size
                    _check_size(path, "all files together", total, MAX_BYTES)
                    if not member.isfile() or not wanted(name):
                        continue
                    _check_size(path, name, member.size, max_file_bytes)
                    file = archive.extractfile(member)
                    content = b"" if file is None else file.read()
                    if len(content) != member.size:
                        raise tarfile.ReadError(f"{name} ends after {len(content)} bytes")
                    yield name, content
        except (tarfile.TarError, lzma.LZMAError, zlib.error, EOFError, OSError) as error:
            raise DataError(
                f"data: {path} must be an intact tar archive, but is damaged before byte offset "
                f"{raw.tell()}: {error}. Fetch or make it again."
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


def _check_size(path: Path, name: str, n_bytes: int, limit: int) -> None:
    if n_bytes > limit:
        raise DataError(
            f"data: {name} in {path} must have at most {limit} bytes, got {n_bytes}. "
            "Is it the right file?"
        )
