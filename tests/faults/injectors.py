"""Faults to inject: damaged files, failing system calls, and what a folder held before.

Tests here use a few positions; the long form calls the same functions at every 4 kB.
"""

import errno
import os
from pathlib import Path

RUN = {"data": "digits", "net": "mlp:8", "steps": 4, "figures": False, "device": "cpu"}


def contents(folder):
    """Every file below a folder, with its bytes; links and special files by what they are."""
    files = {}
    for path in sorted(Path(folder).rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink():
            files[name] = f"link to {os.readlink(path)}"
        elif path.is_file():
            files[name] = path.read_bytes()
        elif not path.is_dir():
            files[name] = "special"
    return files


def flip(path, at, mask=0x01):
    """Change one byte of a file; `at` may count from the end."""
    data = bytearray(Path(path).read_bytes())
    data[at] ^= mask
    Path(path).write_bytes(data)


def truncate(path, size):
    """Cut a file to its first bytes."""
    os.truncate(path, size)


def positions(path, every=4096, least=5):
    """Places in a file: one per `every` bytes, but at least a few, and always both ends."""
    size = Path(path).stat().st_size
    step = max(1, min(every, size // least))
    return sorted({*range(0, size, step), size - 1})


def fail_nth(monkeypatch, name, n, error=None):
    """Let the n-th call, from 1, of a function of `os` fail; returns the arguments of all calls.

    A BaseException stands for a kill: nothing in the library catches it.
    """
    calls, real = [], getattr(os, name)
    error = error if error is not None else OSError(errno.EIO, os.strerror(errno.EIO))

    def failing(*arguments, **keywords):
        calls.append(arguments)
        if len(calls) == n:
            raise error
        return real(*arguments, **keywords)

    monkeypatch.setattr(os, name, failing)
    return calls


class Killed(BaseException):
    """A process that ends here and now: no `except` and no clean-up of ours sees it as an error."""


def full_disk(monkeypatch, after=0):
    """Let the disk be full: `os.fsync`, through which every file goes, fails after some calls."""
    error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    calls = []

    def failing(descriptor):
        calls.append(descriptor)
        if len(calls) > after:
            raise error

    monkeypatch.setattr(os, "fsync", failing)
    return calls
