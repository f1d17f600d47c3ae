"""What a run may be told besides its problem and engine: stopping, saving, pruning, progress."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from bayesieve.checks import check_not_negative, check_positive
from bayesieve.core.batch import ExamplesLike
from bayesieve.core.posterior import Posterior

Row = dict[str, Any]  # one line of metrics.jsonl


class Pruning(Protocol):
    """A sparsity schedule; `sieve.GradualPruning` is one."""

    @property
    def end(self) -> float:
        """Fraction of the run after which no more is pruned."""
        ...

    @property
    def soft(self) -> bool:
        """Whether pruned weights keep learning, and may return, until the end."""
        ...

    def is_active(self, progress: float) -> bool:
        """Whether a mask is in force at this fraction of the run."""
        ...

    def check(self, posterior: Posterior) -> None:
        """Raise before training if the schedule cannot work on such a posterior."""
        ...

    def keep(self, posterior: Posterior, progress: float, within: Tensor | None) -> Tensor:
        """The mask of weights to keep, (d,) bool, inside `within` if that is given."""
        ...


@dataclass(frozen=True)
class Validation:
    """Held-out examples to watch, and when to stop.

    Args:
        data: examples the posterior mean is scored on after each epoch.
        patience: epochs without a better value before stopping; the run then ends in the state of
            its best epoch. None never stops. With pruning, epochs count once it has ended.
        min_delta: how much lower the negative log-likelihood must be to count as better.
    """

    data: ExamplesLike
    patience: int | None = None
    min_delta: float = 0.0

    def __post_init__(self) -> None:
        check_not_negative("Validation", min_delta=self.min_delta)
        if self.patience is not None:
            check_positive("Validation", patience=self.patience)


@dataclass(frozen=True)
class Saving:
    """Where a run leaves its metrics and checkpoints.

    Args:
        folder: receives `metrics.jsonl` and `checkpoints/`.
        every: steps between checkpoints; None writes one at the end of each epoch.
        resume: continue from the newest checkpoint in the folder.
    """

    folder: Path
    every: int | None = None
    resume: bool = False

    def __post_init__(self) -> None:
        if self.every is not None:
            check_positive("Saving", every=self.every)


@dataclass(frozen=True)
class Progress:
    """Where a run stands after an epoch; given to callbacks, which stop it by returning True."""

    epoch: int
    step: int
    n_steps: int
    row: Row
    posterior: Callable[[], Posterior]


Callback = Callable[[Progress], bool]
