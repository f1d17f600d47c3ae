"""Progress of a run: a bar with the time left on a terminal."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar


class Bar:
    """Counts steps and shows the latest numbers; without a display it does nothing."""

    shown: ClassVar[bool] = False  # whether one is on the screen, which nobody else writes to then

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
        fields = [f"epoch {row['epoch']}/{n_epochs}"]
        fields.append(f"log-lik {_first(row['log_lik']) / n_data:.3f}")
        shares = {"val_error": "error", "zeros": "zeros"}  # of them percent are read
        fields += [f"{shares[key]} {100 * _first(row[key]):.3g} %" for key in shares if key in row]
        self._display.update(self._task, description="  ".join(fields))


@contextmanager
def progress_bar(n_steps: int, done: int, *, shown: bool = True) -> Iterator[Bar]:
    """A bar over `n_steps` steps on standard error, of which `done` are behind us."""
    if not (shown and sys.stderr.isatty()):
        yield Bar()
        return
    from rich.console import Console
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Display

    columns = (TextColumn("{task.description}"), BarColumn(bar_width=10), TaskProgressColumn())
    console = Console(stderr=True)
    Bar.shown = True
    try:
        with Display(*columns, TimeRemainingColumn(compact=True), console=console) as display:
            yield Bar(display, display.add_task("starting", total=n_steps, completed=done))
    finally:
        Bar.shown = False


def _first(value: float | list[float]) -> float:
    return value[0] if isinstance(value, list) else value
