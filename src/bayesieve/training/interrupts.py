"""Ctrl-C and SIGTERM during a run: finish the step, save, then leave with the usual exit code."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType


class Interrupted(KeyboardInterrupt):
    """A run was stopped by a signal after its state was saved."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}; continue with --resume")
        self.exit_code = 128 + number


class Flag:
    """Raised by a signal, read between steps."""

    def __init__(self) -> None:
        self.number: int | None = None

    @property
    def raised(self) -> bool:
        """Whether a signal has arrived."""
        return self.number is not None

    def leave(self) -> None:
        """Leave the run with the signal's exit code."""
        assert self.number is not None
        raise Interrupted(self.number)


@contextmanager
def interruptible(folder: Path | None) -> Iterator[Flag]:
    """Catch SIGINT and SIGTERM inside the block; only where there is something to save.

    Signal handlers can be set in the main thread alone; elsewhere the flag is never raised.
    """
    flag = Flag()
    if folder is None or threading.current_thread() is not threading.main_thread():
        yield flag
        return

    def catch(number: int, _: FrameType | None) -> None:
        flag.number = number

    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, catch) for number in numbers]
    try:
        yield flag
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
