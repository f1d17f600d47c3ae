"""The command line: flags and what is printed; `commands` has one function per command."""

import gc
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager


def run() -> None:
    """Run the command line."""
    with ended_at_once():
        with uncollected():
            from bayesieve.cli import main  # takes half a second

        main.run()


def ended_at_once() -> AbstractContextManager[None]:
    """Let a signal end the process in one line, for imports before any work.

    An exception would not do: modules that are half imported swallow it, or fail in other ways.
    """
    return signals_to(_end)


@contextmanager
def uncollected() -> Iterator[None]:
    """Import modules without a search for garbage, which is a quarter of the time torch takes.

    They live as long as the process. Later searches leave out what was there, and so does the last
    one when Python ends. A process that had torch before us keeps its habits.
    """
    if "torch" in sys.modules:
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


@contextmanager
def signals_to(handler: Callable[[int, object], None]) -> Iterator[None]:
    """Handle Ctrl-C and SIGTERM inside the block; only the main thread can, and gets them."""
    before = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) is not signal.SIG_IGN:  # as of a job in the background
                before[number] = signal.signal(number, handler)
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


def stopped_by(number: int) -> str:
    """Say what stopped a command and how to go on.

    Example:
        >>> stopped_by(signal.SIGTERM).partition(";")[0]
        'stopped by SIGTERM'
    """
    name = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
    return (
        f"stopped by {name}; give the command again: it says whether --resume or --force is needed"
    )


def _end(number: int, _: object) -> None:
    os.write(2, f"error: {stopped_by(number)}\n".encode())
    os._exit(128 + number)
