"""Write files whole or not at all, and read those that may be damaged or hostile within limits.

`LIMITS` has every bound on what a file may ask for before it is read. The environment variable
BAYESIEVE_LIMITS raises them, such as BAYESIEVE_LIMITS=columns=80000,json=100000000.
"""

import ctypes
import errno
import hashlib
import json
import os
import re
import secrets
import shutil
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from bayesieve.errors import DamagedFileError, TooLargeError, UsageError, damaged

LIMITS_VARIABLE = "BAYESIEVE_LIMITS"
LIMITS = {
    "json": 8 << 20,  # bytes of JSON: a file, or the header of one
    "depth": 64,  # levels of JSON and YAML
    "settings": 1 << 16,  # bytes of a file of settings
    "columns": 50_000,  # of a table, and arrays of an NPZ file
    "pixels": 1 << 26,  # of one image
    "member": 256 << 20,  # bytes of one image, or of another file of a folder or archive
    "header": 1 << 20,  # bytes of a name or other header inside an archive
    "unpacked": 256 << 20,  # bytes to which packed files may grow whatever their size
    "ratio": 100,  # and how many times their size beyond that
}
Content = bytes | str | Mapping[str, Any] | list[Any] | Callable[[IO[bytes]], object]
# Possessive, and a string without an end is one token: no part of a text is looked at twice.
_TOKENS = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[\[{]|[\]}]', re.S)
_NEIGHBOUR = re.compile(r"\.(.+)\.[0-9a-f]{16}\.(part|old)", re.S)
_KINDS = {
    stat.S_IFCHR: "a device", stat.S_IFBLK: "a device", stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
}  # fmt: skip
_HERE, _SWAP = -100, 2  # AT_FDCWD and RENAME_EXCHANGE of Linux; RENAME_SWAP of macOS is 2 too
_NOT_HERE = {errno.ENOSYS, errno.EINVAL, errno.ENOTSUP}  # of a system that cannot exchange names


def write_atomically(path: Path | str, content: Content) -> Path:
    r"""Write a file: after a crash the path holds the old content or the new, never a mixture.

    The content goes to a hidden neighbour of the file, is forced to the disk, and then takes the
    file's name in one step. Neighbours that a killed process left are removed.

    Args:
        path: file to write; its folder must exist. An existing regular file is replaced; a device,
            a pipe or a link to one is refused.
        content: bytes; text, as UTF-8; a mapping or list, as JSON; or a function that writes to an
            open stream, for content that should not be in memory whole.

    Returns:
        The path.

    Raises:
        OSError: the file cannot be written; `filename` names it, also when the disk is full.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = write_atomically(Path(folder) / "a.json", {"n": 1})
        ...     [(file.name, file.read_text()) for file in Path(folder).iterdir()]
        [('a.json', '{\n "n": 1\n}\n')]
    """
    if isinstance(content, Mapping | list):
        content = json.dumps(content, indent=1) + "\n"
    data = content.encode() if isinstance(content, str) else content
    target = _regular(path)
    remove_stale_parts(target)
    try:
        hidden, stream = _open_part(target)
        try:
            with stream:
                if isinstance(data, bytes):
                    stream.write(data)
                else:
                    data(stream)
                stream.flush()
                os.fsync(stream.fileno())
            hidden.replace(target)
        finally:
            hidden.unlink(missing_ok=True)
        if os.name == "posix":  # make the new name survive a power cut
            folder = os.open(target.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
    except OSError as error:
        if error.errno is not None and error.filename is None:  # such as a full disk
            error.filename = str(target)
        raise
    return Path(path)


def check_output(path: Path | str, inputs: Iterable[Path | str] = (), flag: str = "`out`") -> Path:
    """Raise unless a command may write a file of this name; call it before any work.

    It may be a new name or a regular file, but none of the command's inputs, no folder, and neither
    a device nor a pipe, through links too. Every output that a user names is checked here.

    Args:
        path: file to write.
        inputs: files that the command reads, and folders of such; names that do not exist are
            passed over.
        flag: how the user gave the path.

    Example:
        >>> check_output("/dev/null", flag="-o")
        Traceback (most recent call last):
        bayesieve.errors.UsageError: -o /dev/null is a device; give the name of a regular file.
    """
    if not str(path):
        raise UsageError(f"{flag} is empty; give a file name.")
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise UsageError(f"{flag} {path} is a folder; give a file name.")
    if what := _what_else(target):
        raise UsageError(f"{flag} {path} is {what}; give the name of a regular file.")
    for one in inputs if target.exists() else ():
        inside = os.path.isdir(one) and target.is_relative_to(os.path.realpath(one))
        if inside or (os.path.exists(one) and os.path.samefile(target, one)):
            raise UsageError(f"{flag} {path} is an input of this command; give another name.")
    return target


def same_place(a: Path, b: Path) -> bool:
    """Return whether two paths lead to one place, through links; links may form a circle.

    Example:
        >>> same_place(Path("a"), Path("b") / ".." / "a")
        True
    """
    return os.path.realpath(a) == os.path.realpath(b)


def _regular(path: Path | str) -> Path:
    """The file that a path leads to, new or regular."""
    target = Path(os.path.realpath(path))  # a link keeps pointing where it points
    if not target.parent.is_dir():
        raise FileNotFoundError(f"save: the folder {target.parent} does not exist; create it.")
    if target.is_dir():
        raise IsADirectoryError(f"save: {target} is a folder; give a file name.")
    if what := _what_else(target):
        raise FileExistsError(f"save: {path} is {what}; give the name of a regular file.")
    return target


def _what_else(target: Path) -> str | None:
    """Name the kind of a path that is neither new nor a regular file; None otherwise."""
    try:
        mode = target.lstat().st_mode
    except OSError:
        return None
    return None if stat.S_ISREG(mode) else _KINDS.get(stat.S_IFMT(mode), "no regular file")


def try_lock(descriptor: int) -> bool:
    """Lock an open file for this process until it is closed; False if another process has it.

    The system drops the lock when the process ends, however it ends.
    """
    if sys.platform == "win32":
        import msvcrt

        try:
            os.lseek(descriptor, 1 << 30, os.SEEK_SET)  # far behind the content, which stays free
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _open_part(target: Path) -> tuple[Path, IO[bytes]]:
    """A new hidden neighbour of a file, locked while it is written: it is not stale."""
    while True:
        hidden = part_of(target)
        stream = hidden.open("xb")
        with suppress(OSError):  # a file system without locks
            if sys.platform != "win32":  # where an open file cannot be removed anyway
                try_lock(stream.fileno())
        if os.fstat(stream.fileno()).st_nlink:
            return hidden, stream
        stream.close()  # taken for stale before it was locked


def part_of(target: Path) -> Path:
    """A name for what will become the target: hidden, and known to `remove_stale_parts`."""
    return target.with_name(f".{target.name}.{secrets.token_hex(8)}.part")


def remove_stale_parts(target: Path) -> None:
    """Remove half-written neighbours of a file or folder whose process has died."""
    for part in _hidden(target, "part"):
        with suppress(OSError):  # another process was faster, or has it open
            descriptor = os.open(part, os.O_RDONLY)
            try:
                if not try_lock(descriptor):
                    continue
                if part.is_dir():
                    shutil.rmtree(part)
                else:
                    part.unlink()
            finally:
                os.close(descriptor)


@contextmanager
def folder_for(target: Path) -> Iterator[Path]:
    """Yield an empty hidden folder, which takes the target's name when the block ends well.

    Readers meet the old folder or the new one, complete. Where the system can exchange two names in
    one step, one of them always stands; elsewhere the old one is moved aside first, and `standing`
    finds it there. What was in the target is removed: check before that it is yours.
    """
    remove_stale_parts(target)
    if not target.exists() and (aside := standing(target)) != target:
        os.rename(aside, target)  # the last writer was killed between its two steps
    hidden = part_of(target)
    hidden.mkdir()
    lock = os.open(hidden, os.O_RDONLY) if os.name == "posix" else None
    try:
        if lock is not None:
            with suppress(OSError):  # a file system without locks
                try_lock(lock)
        yield hidden
        _replace_folder(hidden, target)
    finally:
        if lock is not None:
            os.close(lock)
        shutil.rmtree(hidden, ignore_errors=True)


def _replace_folder(new: Path, target: Path) -> None:
    """Move a folder to a name that may be taken; what had it is then at the first path, or gone."""
    if not target.exists():
        os.rename(new, target)
    elif not exchange(new, target):
        aside = target.with_name(f".{target.name}.{secrets.token_hex(8)}.old")
        os.rename(target, aside)
        try:
            os.rename(new, target)
        except OSError:
            os.rename(aside, target)
            raise
    for old in _aside(target):  # of this writer, or of one that was killed
        shutil.rmtree(old, ignore_errors=True)


def standing(folder: Path) -> Path:
    """Return a folder, or its other name during or after a replacement in two steps."""
    return folder if folder.is_dir() else next(iter(_aside(folder)), folder)


def _aside(folder: Path) -> list[Path]:
    return _hidden(folder, "old")


def _hidden(target: Path, ending: str) -> list[Path]:
    """Hidden neighbours of a file or folder: those of `part_of`, or with another ending."""
    try:
        names = os.listdir(target.parent)
    except OSError:
        return []
    found = [match for name in names if (match := _NEIGHBOUR.fullmatch(name))]
    return [target.with_name(m[0]) for m in found if (m[1], m[2]) == (target.name, ending)]


def exchange(a: Path, b: Path) -> bool:
    """Give two existing paths each other's name in one step; False where the system cannot."""
    library: Any = ctypes.CDLL(None, use_errno=True) if os.name == "posix" else None
    one, two = os.fsencode(a), os.fsencode(b)
    if hasattr(library, "renameat2"):
        failed = library.renameat2(_HERE, one, _HERE, two, _SWAP)
    elif hasattr(library, "renamex_np"):
        failed = library.renamex_np(one, two, _SWAP)
    else:
        return False
    if not failed:
        return True
    number = ctypes.get_errno()
    if number in _NOT_HERE:
        return False
    raise OSError(number, os.strerror(number), str(b))


def sha256(path: Path) -> str:
    """The checksum of a file."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def limit(name: str) -> int:
    """One of `LIMITS`, or what the environment variable puts in its place.

    Example:
        >>> limit("depth")
        64
    """
    chosen = dict(LIMITS)
    for entry in filter(None, os.environ.get(LIMITS_VARIABLE, "").split(",")):
        key, _, number = entry.strip().partition("=")
        if key not in LIMITS or not number.isdecimal():
            raise UsageError(
                f"{LIMITS_VARIABLE} must read name=number,... with names of {', '.join(LIMITS)}; "
                f"got {entry!r}."
            )
        chosen[key] = int(number)
    return chosen[name]


def check_limit(path: Path, name: str, value: int, what: str) -> None:
    """Raise if a file asks for more than a limit; the message says how to raise the limit.

    Example:
        >>> check_limit(Path("t.csv"), "columns", 100_000, "columns")
        Traceback (most recent call last):
        bayesieve.errors.TooLargeError: load: t.csv must have at most 50,000 columns, got 100,000. \
If you trust it, set BAYESIEVE_LIMITS=columns=100000.
    """
    if value > limit(name):
        raise TooLargeError(
            f"load: {path} must have at most {limit(name):,} {what}, got {value:,}. If you trust "
            f"it, set {LIMITS_VARIABLE}={name}={value}."
        )


def check_growth(path: Path, unpacked: int, packed: int | None = None) -> None:
    """Raise if a packed file would grow beyond the limits, before it is unpacked.

    Args:
        path: the file.
        unpacked: bytes that it asks for.
        packed: its own bytes; those on the disk unless given.
    """
    packed = path.stat().st_size if packed is None else packed
    most = max(limit("unpacked"), limit("ratio") * packed)
    if unpacked > most:
        raise TooLargeError(
            f"load: {path} must unpack to at most {most:,} bytes ({limit('ratio')} times its size, "
            f"or {limit('unpacked'):,}), got {unpacked:,}. If you trust it, set "
            f"{LIMITS_VARIABLE}=unpacked={unpacked}."
        )


def read_json(path: Path, *, constants: bool = False) -> dict[str, Any]:
    """Read one JSON object from a file, of bounded size and depth.

    Args:
        path: the file.
        constants: whether NaN and Infinity are allowed as numbers, as Python writes them.

    Raises:
        DamagedFileError: the file is too large, nested too deeply, or no JSON object.

    Example:
        >>> import tempfile
        >>> read_json(write_atomically(Path(tempfile.mkdtemp()) / "a.json", {"a": [1]}))
        {'a': [1]}
    """
    check_limit(path, "json", path.stat().st_size, "bytes of JSON")
    return parse_json(path, path.read_bytes(), constants=constants)


def parse_json(
    path: Path, text: bytes, what: str = "it", *, constants: bool = False
) -> dict[str, Any]:
    """One JSON object of bounded depth; raises an error that names the file and `what` of it."""
    depth = deepest = 0
    check_limit(path, "json", len(text), "bytes of JSON")
    for token in _TOKENS.finditer(text):
        if token[0] in (b"[", b"{"):
            depth += 1
        elif token[0] in (b"]", b"}"):
            depth -= 1
        deepest = max(deepest, depth)
    check_limit(path, "depth", deepest, "levels of nesting")
    try:
        values = json.loads(text.decode("utf-8"), parse_constant=None if constants else _refuse)
    except (ValueError, RecursionError) as error:
        raise damaged(path, f"{what} is no JSON ({str(error)[:120]})") from error
    if not isinstance(values, dict):
        raise damaged(path, f"{what} must hold one JSON object")
    return values


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is no JSON number")


@contextmanager
def what_works(text: str) -> Iterator[None]:
    """Add to the error of a damaged file what still works, or how to make it anew.

    Example:
        >>> with what_works("Copy it again."):
        ...     raise damaged(Path("a"), "it is cut off")
        Traceback (most recent call last):
        bayesieve.errors.DamagedFileError: load: a is damaged: it is cut off. Copy it again.
    """
    try:
        yield
    except TooLargeError:
        raise
    except DamagedFileError as error:
        raise DamagedFileError(f"{error} {text}") from error
