"""The length of a run, and complaints about arguments that come before it starts."""

import math
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path

from torch.nn.modules.batchnorm import _BatchNorm

from bayesieve.checks import check_positive
from bayesieve.core.problem import Problem
from bayesieve.training.checkpoint import has_checkpoint
from bayesieve.training.options import Pruning
from bayesieve.training.schedule import Schedule


@dataclass(frozen=True)
class Plan:
    """How many steps of which size.

    Args:
        batch_size: examples per step; the last step of an epoch may have fewer.
        per_epoch: steps that see every example once.
        n_steps: in all; the last epoch may be cut short.

    Example:
        >>> Plan.of(10, epochs=2, steps=None, batch_size=4)
        Plan(batch_size=4, per_epoch=3, n_steps=6)
    """

    batch_size: int
    per_epoch: int
    n_steps: int

    @classmethod
    def of(cls, n_data: int, epochs: int | None, steps: int | None, batch_size: int) -> "Plan":
        """Work out the steps of a run over `n_data` examples."""
        given = {"epochs": epochs, "steps": steps}
        lengths = {name: value for name, value in given.items() if value is not None}
        if len(lengths) != 1:
            raise ValueError(f"fit: give either epochs or steps, got {epochs=} and {steps=}.")
        for name, value in {**lengths, "batch_size": batch_size}.items():
            if not isinstance(value, Integral):
                raise TypeError(f"fit: {name} must be a whole number, got {value!r}.")
            check_positive("fit", **{name: value})
        batch_size = min(batch_size, n_data)
        per_epoch = math.ceil(n_data / batch_size)
        return cls(batch_size, per_epoch, steps or (epochs or 0) * per_epoch)

    @property
    def n_epochs(self) -> int:
        """Epochs begun."""
        return math.ceil(self.n_steps / self.per_epoch)

    def check(
        self,
        problem: Problem,
        schedule: Schedule | None,
        pruning: Pruning | None,
        folder: Path | None,
    ) -> None:
        """Raise now for what would fail, or silently do nothing, later."""
        n_data = problem.n_data
        has_norm = any(isinstance(m, _BatchNorm) for m in problem.network.skeleton.modules())
        if has_norm and (n_data - 1) % self.batch_size == 0:
            raise ValueError(
                f"fit: {n_data} examples in batches of {self.batch_size} leave a last batch of 1, "
                "which BatchNorm cannot train on. Choose another batch_size."
            )
        if schedule is not None and schedule.kl_after is not None and pruning is None:
            raise ValueError(
                "fit: kl_after holds once pruning has ended, but there is no pruning. Set kl."
            )
        if folder is not None and has_checkpoint(folder):
            raise ValueError(
                f"fit: {folder} holds checkpoints of an earlier run. Use another folder, remove "
                "them, or continue that run with resume=True."
            )
