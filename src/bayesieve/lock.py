"""A lock file that names its owner, for folders that one process at a time may write into.

The system holds the lock and drops it when its process ends, however it ends, so none is left
behind for ever. The file says who has it: process, host, time and command. Nothing here imports
torch.
"""

import json
import logging
import os
import shlex
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from bayesieve.errors import InUseError
from bayesieve.files import try_lock

LOCK = ".bayesieve.lock"  # in a folder that somebody writes into
_PAUSE = 0.02  # seconds between two attempts
_QUIET = 2.0  # seconds of waiting that nobody needs to hear of
_held = set[tuple[str, int]]()  # folders and the threads that have locked them
_log = logging.getLogger("bayesieve.runs")  # whose remarks the command line prints


@contextmanager
def folder_locked(folder: Path, wait: float = 0.0) -> Iterator[None]:
    """Make a folder and keep other processes and threads from writing into it.

    A call inside another one on the same folder, in the same thread, locks nothing more.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp()) / "a"
        >>> with folder_locked(folder), folder_locked(folder):
        ...     is_locked_here(folder), (folder / LOCK).exists()
        (True, True)
        >>> (folder / LOCK).exists()
        False
    """
    folder.mkdir(parents=True, exist_ok=True)
    key = _key(folder)
    if key in _held:
        yield
        return
    with Lock(folder / LOCK, str(folder), wait):
        _held.add(key)
        try:
            yield
        finally:
            _held.remove(key)


def is_locked_here(folder: Path) -> bool:
    """Return whether this thread has locked a folder."""
    return _key(folder) in _held


def _key(folder: Path) -> tuple[str, int]:
    return os.path.realpath(folder), threading.get_ident()


class Lock:
    """One lock: `with Lock(path, "runs/a")`, or `acquire` and `release`.

    Args:
        path: the lock file; it is removed on release.
        what: what is locked, for messages.
        wait: seconds to wait for another process; 0 refuses at once.
    """

    def __init__(self, path: Path, what: str, wait: float = 0.0) -> None:
        self.path, self.what, self.wait = path, what, wait
        self._descriptor: int | None = None

    def acquire(self) -> bool:
        """Take the lock; raises `InUseError`, which names the owner, when the wait is over."""
        began, told = time.monotonic(), False
        while (descriptor := self._try()) is None:
            waited = time.monotonic() - began
            if waited >= self.wait:
                raise InUseError(self._busy(waited))
            if waited > _QUIET and not told:
                told = True
                _log.info(
                    f"waiting up to {self.wait:g} s for {self.what}, which {self._owner()} holds"
                )
            time.sleep(_PAUSE)
        try:
            self._name_owner(descriptor)
        except BaseException:  # Ctrl-C too: whoever waits next must not wait for this process
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        return True

    def _name_owner(self, descriptor: int) -> None:
        """Write into the lock file who has it, unless a process elsewhere may have it."""
        before = _read(self.path)
        if before and before.get("host") != socket.gethostname():
            # The lock is free as seen from here, but not every file system shares locks.
            raise InUseError(
                f"{self.what} was locked by {_words(before)} and never released. If that process "
                f"has ended, remove {self.path} and try again."
            )
        if before:
            _log.info(
                f"taking over {self.what} from {_words(before)}, which ended without releasing it"
            )
        started = datetime.now(UTC).isoformat(timespec="seconds")
        owner = {"pid": os.getpid(), "host": socket.gethostname(), "time": started,
                 "command": shlex.join(sys.argv)[:200]}  # fmt: skip
        os.ftruncate(descriptor, 0)
        os.write(descriptor, json.dumps(owner).encode())

    def release(self) -> None:
        """Give the lock back."""
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            try:
                self.path.unlink(missing_ok=True)  # before closing: afterwards it may be another's
            finally:
                os.close(descriptor)

    def check(self) -> None:
        """Raise if another process has the lock now; takes nothing and writes nothing."""
        with suppress(FileNotFoundError):
            descriptor = os.open(self.path, os.O_RDWR)
            try:
                if not self._is_free(descriptor):
                    raise InUseError(self._busy(0.0))
            finally:
                os.close(descriptor)

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def _try(self) -> int | None:
        """The open lock file, locked; None while another process has it."""
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            same = self._is_free(descriptor)
            same = same and os.path.samestat(os.fstat(descriptor), self.path.stat())
        except FileNotFoundError:  # released, and so removed, between the two calls
            same = False
        if not same:
            os.close(descriptor)
        return descriptor if same else None

    def _is_free(self, descriptor: int) -> bool:
        try:
            return try_lock(descriptor)
        except OSError:  # a file system without locks: what the file says has to do
            owner = _read(self.path)
            return owner.get("host") != socket.gethostname() or not _is_alive(owner.get("pid"))

    def _owner(self) -> str:
        return _words(_read(self.path))

    def _busy(self, waited: float) -> str:
        after = f" after {waited:.0f} s" if self.wait else ""
        return (
            f"{self.what} is in use{after}: {self._owner()} writes there. Wait until it has ended, "
            "or choose another folder."
        )


def _read(path: Path) -> dict[str, Any]:
    """The owner that a lock file names; nothing if it names none."""
    with suppress(OSError, ValueError):
        owner = json.loads(path.read_bytes()[:4096])
        return owner if isinstance(owner, dict) else {}
    return {}


def _is_alive(pid: object) -> bool:
    """Return whether a process of this host runs."""
    try:
        os.kill(int(str(pid)), 0)
    except (ProcessLookupError, ValueError, OverflowError):
        return False
    except PermissionError:  # it runs, as somebody else
        return True
    return True


def _words(owner: dict[str, Any]) -> str:
    if not owner:
        return "another process"
    return (
        f"process {owner.get('pid')} on {owner.get('host')} (since {owner.get('time')}: "
        f"{owner.get('command')})"
    )
