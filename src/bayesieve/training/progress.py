"""State of a run: its record, what callbacks see, the signals that reach it, and a bar."""

import math
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import FrameType
from typing import Any, ClassVar

import torch
from torch import Tensor

from bayesieve.checks import check_positive
from bayesieve.core.posterior import Posterior

Row = dict[str, Any]  # one line of metrics.jsonl


@dataclass
class Record:
    """Where a run stands, apart from its models.

    Args:
        order: state of the generator of batch orders at the start of the epoch.
        log_lik_sum: (k,) over the steps of the epoch.
        step: steps taken.
        history: one row per finished epoch.
        best_nll: lowest validation score that counted, one per group of models.
        best_epoch: its epoch, from 0, one per group; empty before any.
        best: copy of the models at those epochs; empty without early stopping.
        diverged: numbers of the models that met a number that is not finite.
    """

    order: Tensor
    log_lik_sum: Tensor
    step: int = 0
    history: list[Row] = field(default_factory=list)
    best_nll: list[float] = field(default_factory=list)
    best_epoch: list[int] = field(default_factory=list)
    best: dict[str, Tensor] = field(default_factory=dict)
    diverged: list[int] = field(default_factory=list)

    def to(self, device: torch.device | str) -> "Record":
        """The same record with its tensors on another device."""
        best = {name: value.to(device) for name, value in self.best.items()}
        return replace(self, log_lik_sum=self.log_lik_sum.to(device), best=best)

    def epochs_without_gain(self) -> int:
        """Finished epochs since the newest best one; 0 before any score counted."""
        return len(self.history) - 1 - max(self.best_epoch) if self.best_epoch else 0

    def note_best(self, nll: list[float], epoch: int, min_delta: float) -> set[int]:
        """Remember the groups whose score is lower than ever, and return their numbers.

        Example:
            >>> import torch
            >>> record = Record(torch.zeros(1), torch.zeros(1))
            >>> record.note_best([1.0, 2.0], 0, 0.0), record.note_best([0.5, 3.0], 1, 0.0)
            ({0, 1}, {0})
        """
        if not self.best_epoch:
            self.best_nll, self.best_epoch = [math.inf] * len(nll), [epoch] * len(nll)
        better = {i for i, score in enumerate(nll) if score < self.best_nll[i] - min_delta}
        for group in better:
            self.best_nll[group], self.best_epoch[group] = nll[group], epoch
        return better


def plain(values: Tensor | list[float]) -> float | list[float]:
    """A number for one model, a list for a population.

    Example:
        >>> plain([0.5]), plain([0.5, 1.0])
        (0.5, [0.5, 1.0])
    """
    numbers: list[float] = values.tolist() if isinstance(values, Tensor) else values
    return numbers[0] if len(numbers) == 1 else numbers


class Interrupted(KeyboardInterrupt):
    """A run was stopped by a signal after its state was saved."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}; continue with `resume`")
        self.exit_code = 128 + number


@contextmanager
def interruptible(*, caught: bool) -> Iterator[list[int]]:
    """Catch SIGINT and SIGTERM inside the block if asked: where there is something to save.

    Yields a list, to which the numbers of the signals that arrive are added. Signal handlers can be
    set in the main thread alone; elsewhere the list stays empty.
    """
    arrived: list[int] = []
    if not caught or threading.current_thread() is not threading.main_thread():
        yield arrived
        return

    def catch(number: int, _: FrameType | None) -> None:
        arrived.append(number)

    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, catch) for number in numbers]
    try:
        yield arrived
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


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


@dataclass(frozen=True)
class Progress:
    """Where a run stands; given to callbacks, which end it by returning True.

    Args:
        epoch: the one that ended, or that the step belongs to; from 1.
        step: steps done.
        n_steps: of the whole run.
        row: after an epoch, its line of metrics.jsonl; after a step, its log-likelihood, factor of
            the learning rate, and zeros.
        posterior: makes the posterior of now.
    """

    epoch: int
    step: int
    n_steps: int
    row: Row
    posterior: Callable[[], Posterior]


Callback = Callable[[Progress], bool]


@dataclass(frozen=True)
class EverySteps:
    """A callback of `fit` that is called after every n-th step instead of after each epoch.

    One that returns True ends the run there; with a folder, a checkpoint is written, and `resume`
    goes on from it. Of processes that share a run, each must be given the same ones.

    Args:
        n: steps between calls.
        callback: takes a `Progress`.

    Example:
        fit(problem, engine, epochs=10, callbacks=[EverySteps(100, CsvLog("runs/a"))])
    """

    n: int
    callback: Callback

    def __post_init__(self) -> None:
        check_positive("EverySteps", n=self.n)
        if not callable(self.callback):
            raise TypeError(f"EverySteps: callback must be a function, got {self.callback!r}.")

    def __call__(self, progress: Progress) -> bool:
        """Call it."""
        return self.callback(progress)
