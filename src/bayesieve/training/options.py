"""Optional arguments of `fit`: pruning and callbacks; `validation` has the third."""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from bayesieve.checks import check_positive
from bayesieve.core.posterior import Posterior

Row = dict[str, Any]  # one line of metrics.jsonl
_FEWEST_RENEWALS = 50  # of the mask in a run; always less than twice as many


class Pruning(Protocol):
    """A sparsity schedule; `sieve.GradualPruning` is one."""

    @property
    def end(self) -> float:
        """Fraction of the run after which no more is pruned."""

    @property
    def soft(self) -> bool:
        """Return whether pruned weights keep learning, and may return, until the end."""

    def is_active(self, progress: float) -> bool:
        """Return whether a mask is in force at this fraction of the run."""

    def check(self, posterior: Posterior) -> None:
        """Raise before training if the schedule cannot work on such a posterior."""

    def keep(self, posterior: Posterior, progress: float, within: Tensor | None) -> Tensor:
        """The mask of weights to keep, (d,) bool, inside `within` if that is given."""


def renewal_steps(pruning: Pruning, n_steps: int) -> range:
    """The steps after which the mask is renewed: 50 to 100 of them, whatever an epoch is.

    They are evenly spread over the part of the run in which the schedule prunes; if that has fewer
    than 50 steps, all of them. The last one is the first step at or after `pruning.end`.

    Example:
        >>> from bayesieve.sieve.schedule import GradualPruning
        >>> renewal_steps(GradualPruning(start=0.1, end=0.5), 1000)
        range(108, 501, 8)
        >>> len(renewal_steps(GradualPruning(start=0.1, end=0.5), 40))
        16
    """
    steps = range(n_steps + 1)
    first = bisect_left(steps, True, key=lambda step: pruning.is_active(step / n_steps))
    last = bisect_left(steps, True, key=lambda step: step / n_steps >= pruning.end)
    every = max(1, (last - first + 1) // _FEWEST_RENEWALS)
    return range(last - (last - first) // every * every, last + 1, every)


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
