"""Stop a command at a moment that can be repeated: its n-th change of a file.

The command runs in a copy of this process (`commands.Forked`). Python tells a hook there about
every file that is opened to write, renamed, removed or cut, and every folder made or removed. These
are the moments, together with `os.fsync`. At the n-th one the copy does what the test asks for: it
kills or stops itself, or the call fails as on a full disk.
"""

import logging
import mmap
import os
import resource
import shutil
import signal
import sys

from bayesieve.cli.main import app
from commands import Forked

PATIENCE_S = 300
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.link"}


class Stopped:
    """How a command ended that was stopped at a moment.

    Attributes:
        code: its exit code, below 0 for a signal that ended it.
        text: its standard output and errors.
        moments: what it was about to do, in order; the last is where it was stopped.
    """

    def __init__(self, code, text, moments):
        self.code, self.text, self.moments = code, text, moments


def stopped_at(home, arguments, n, act):
    """Run a command in a folder and act at its n-th change of a file; n = 0 lets it run.

    Args:
        home: folder it works in; only changes below it count.
        arguments: of the command.
        n: the moment, from 1.
        act: function of the kind of change and its path; it may raise, or end the process.
    """
    log = mmap.mmap(-1, 1 << 20)  # memory of both processes: a file could meet the injected limit
    errors = home.with_name(home.name + ".err")
    process = Forked(errors, _run, home, log, [str(word) for word in arguments], n, act)
    code = process.wait(PATIENCE_S)
    return Stopped(code, process.errors, log[:].rstrip(b"\0").decode().splitlines())


def kill(what, path):
    """End the process as kill -9 does."""
    os.kill(os.getpid(), signal.SIGKILL)


def tear(what, path):
    """Cut power before the disk has all of a new file: half of it is there."""
    if what == "fsync" and path.endswith(".part") and os.path.isfile(path):
        os.truncate(path, os.path.getsize(path) // 2)
    kill(what, path)


def send(number):
    """An act that sends a signal, as a user or a scheduler would."""

    def act(what, path):
        os.kill(os.getpid(), number)

    return act


def fail(number):
    """An act that lets this and every later change fail with an error of the system.

    Files and folders can still be removed, as on a full disk.
    """

    def act(what, path):
        if what not in ("remove", "rmdir"):
            raise OSError(number, os.strerror(number), None if what == "fsync" else str(path))

    act.goes_on = True
    return act


def full(n_bytes):
    """An act after which the system itself lets no file grow beyond some bytes."""

    def act(what, path):
        resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, resource.RLIM_INFINITY))

    return act


def vanish(name):
    """An act that removes a folder, with all that is in it, while the command works there."""

    def act(what, path):
        shutil.rmtree(name, ignore_errors=True)

    return act


def _run(home, log, arguments, n, act):
    os.chdir(home)
    root, count = str(home), 0

    def moment(what, path):
        nonlocal count
        count += 1
        log.write(f"{what} {path}\n".encode())
        if n and (count == n or (count > n and hasattr(act, "goes_on"))):
            act(what, path)

    def hook(event, details):
        if event == "open":
            path, _, flags = details
            if isinstance(path, int) or not flags & _WRITES:
                return
        elif event not in _CHANGES:
            return
        path = details[0]
        if isinstance(path, int):
            path = _path_of(path)
        beside = event == "os.remove" and details[1] != -1  # in a folder that is being removed
        if beside or os.path.join(root, os.fsdecode(path)).startswith(root):
            moment(event.removeprefix("os."), os.fsdecode(path))

    def fsync(descriptor):
        path = _path_of(descriptor)
        if path.startswith(root):
            moment("fsync", path)

    for handler in logging.getLogger("optuna").handlers:  # made for the output of another process
        handler.stream = sys.stderr
    signal.signal(signal.SIGINT, signal.default_int_handler)  # shells ignore it in the background
    os.fsync = fsync
    sys.addaudithook(hook)
    app(arguments)


def _path_of(descriptor):
    return os.path.realpath(f"/proc/self/fd/{descriptor}")
