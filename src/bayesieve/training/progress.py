"""A progress bar with the time left; silent when the output is not a terminal."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Bar:
    """Counts steps and shows the latest numbers; without a display it does nothing."""

    def __init__(self, display: Any = None, task: Any = None) -> None:
        self._display = display
        self._task = task

    def advance(self) -> None:
        """One more step is done."""
        if self._display is not None:
            self._display.advance(self._task)

    def describe(self, row: dict[str, Any], n_epochs: int, n_data: int) -> None:
        """Show the numbers of the epoch that just ended."""
        if self._display is None:
            return
        parts = [f"epoch {row['epoch']}/{n_epochs}"]
        parts.append(f"log-lik {_first(row['log_lik']) / n_data:.3f}")
        parts += [f"{key} {_first(row[key]):.4g}" for key in ("val_error", "zeros") if key in row]
        self._display.update(self._task, description="  ".join(parts))


@contextmanager
def progress_bar(n_steps: int, done: int) -> Iterator[Bar]:
    """A bar over `n_steps` steps on standard error, of which `done` are behind us."""
    if not sys.stderr.isatty():
        yield Bar()
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True)) as display:
        yield Bar(display, display.add_task("starting", total=n_steps, completed=done))


def _first(value: float | list[float]) -> float:
    return value[0] if isinstance(value, list) else value
