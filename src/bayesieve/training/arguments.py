"""What `fit` was given, looked at before any work: a wrong kind of thing is named, with the fix."""

from collections.abc import Sequence

from bayesieve.core.posterior import Posterior, SparseModel
from bayesieve.core.problem import Problem
from bayesieve.training.schedule import Schedule


def check_kinds(
    problem: object,
    schedule: object = None,
    pruning: object = None,
    start_from: object = None,
    callbacks: object = (),
) -> None:
    """Raise where an argument of `fit` is something else than it must be.

    Example:
        >>> from torch import nn
        >>> check_kinds(nn.ReLU())
        Traceback (most recent call last):
        TypeError: fit: problem must be a Problem(model, likelihood, data), got ReLU.
    """
    if not isinstance(problem, Problem):
        kind = type(problem).__name__
        raise TypeError(f"fit: problem must be a Problem(model, likelihood, data), got {kind}.")
    if not isinstance(schedule, Schedule | None):
        raise TypeError(f"fit: schedule must be a Schedule, got {schedule!r}.")
    if pruning is not None and not hasattr(pruning, "check"):
        raise TypeError(
            f"fit: pruning must be a schedule such as GradualPruning(zeros=0.9), got {pruning!r}."
        )
    for start in start_from if isinstance(start_from, Sequence) else [start_from]:
        if not isinstance(start, Posterior | SparseModel | None):
            raise TypeError(
                f"fit: start_from must be a posterior or a sparse model, got "
                f"{type(start).__name__}. A model's own weights are the start of Problem(model, "
                "...) anyway."
            )
    if not isinstance(callbacks, Sequence) or not all(map(callable, callbacks)):
        raise TypeError(f"fit: callbacks must be a list of functions, got {callbacks!r}.")
