"""Threads take turns at what torch has once in a process: its global generator and its tracer.

A module's dropout draws from the global generator, and initial weights do. Tracing a module
replaces methods of all modules meanwhile. Predictions need neither: they never wait.
"""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_log = logging.getLogger(__name__)
_turn = threading.RLock()


@contextmanager
def own_turn(who: str) -> Iterator[None]:
    """Wait until no other thread is inside, and say so in the log."""
    if not _turn.acquire(blocking=False):
        _log.info("%s: waits for a fit or a trace in another thread", who)
        _turn.acquire()
    try:
        yield
    finally:
        _turn.release()


@contextmanager
def turn_if_free() -> Iterator[bool]:
    """Take the turn, or go on without it: whether it is taken."""
    taken = _turn.acquire(blocking=False)
    try:
        yield taken
    finally:
        if taken:
            _turn.release()


@contextmanager
def own_stream(who: str, seed: int, device: torch.device | None = None) -> Iterator[None]:
    """Seed the global generators of the CPU and of a device inside the block; restore them after.

    Example:
        >>> with own_stream("example", 3):
        ...     first = torch.rand(1)
        >>> with own_stream("example", 3):
        ...     print(torch.equal(torch.rand(1), first))
        True
    """
    devices = [device] if device is not None and device.type == "cuda" else []
    with own_turn(who), torch.random.fork_rng(devices=devices):
        torch.default_generator.manual_seed(seed)
        for one in devices:
            with torch.cuda.device(one):
                torch.cuda.manual_seed(seed)
        yield
