"""The time a fit may take, and what it says while it works.

A run that is cut in the middle stops at a high learning rate. So a fit with a time limit first
times a few steps, then plans as many as it can afford, with the whole course of the learning rate
in them. The clock is looked at after each epoch too, for machines that become slower.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from bayesieve.training.progress import Callback, Progress

_LINES = 10  # of a report on one run
REHEARSED = 5  # steps that are timed


@dataclass(frozen=True)
class Pace:
    """When a fit must have ended, and whether it reports.

    Args:
        who: named in reports.
        verbose: whether to print how far it is and how long it will take.
        deadline: time on the clock by which training must have ended; None has no limit.
        clock: seconds since some moment.

    Example:
        >>> pace = Pace("fit", deadline=10.0, clock=lambda: 4.0)
        >>> pace.affordable(seconds_a_step=0.01, share=0.5)
        300
        >>> Pace("fit").affordable(0.01, 0.5) is None
        True
    """

    who: str
    verbose: bool = False
    deadline: float | None = None
    clock: Callable[[], float] = time.perf_counter

    def affordable(self, seconds_a_step: float, share: float) -> int | None:
        """Steps that fit into a share of the time left, at least 1; None without a limit."""
        if self.deadline is None:
            return None
        left = max(0.0, self.deadline - self.clock())
        return max(1, int(share * left / max(seconds_a_step, 1e-9)))

    def callbacks(self, what: str) -> list[Callback]:
        """Callbacks of `fit` for a run: report on it, and end it when the time is over."""
        began, printed = self.clock(), 0

        def report(progress: Progress) -> bool:
            nonlocal printed
            part = progress.step / progress.n_steps
            if int(part * _LINES) > printed:
                printed = int(part * _LINES)
                left = (self.clock() - began) * (1 / part - 1)
                step = f"step {progress.step:,} of {progress.n_steps:,}, {left:.0f} s left"
                print(f"{self.who}: {what}: {step}", flush=True)
            return False

        def is_over(progress: Progress) -> bool:
            return self.deadline is not None and self.clock() >= self.deadline

        asked: dict[Callback, bool] = {report: self.verbose, is_over: self.deadline is not None}
        return [callback for callback in asked if asked[callback]]
