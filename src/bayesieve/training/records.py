"""What a run remembers of its past, and how that goes into files and comes back."""

import json
import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from bayesieve.files import write_atomically
from bayesieve.training.checkpoint import (
    Checkpoint,
    read_checkpoint,
    rng_states,
    set_rng_states,
    write_checkpoint,
)
from bayesieve.training.models import Models
from bayesieve.training.options import Row

Settings = dict[str, Any]  # what must not change between a run and its continuation
_BEST = "best."


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
    """

    order: Tensor
    log_lik_sum: Tensor
    step: int = 0
    history: list[Row] = field(default_factory=list)
    best_nll: list[float] = field(default_factory=list)
    best_epoch: list[int] = field(default_factory=list)
    best: dict[str, Tensor] = field(default_factory=dict)

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
        better = {i for i, own in enumerate(nll) if own < self.best_nll[i] - min_delta}
        for group in better:
            self.best_nll[group], self.best_epoch[group] = nll[group], epoch
        return better


def save_run(folder: Path, record: Record, models: Models, settings: Settings) -> None:
    """Write a checkpoint of everything into `folder/checkpoints`."""
    tensors = models.copies() | {_BEST + name: value for name, value in record.best.items()}
    tensors |= {"order": record.order, "log_lik_sum": record.log_lik_sum}
    tensors |= rng_states(models.problem.device)
    meta = {
        "settings": settings,
        "step": record.step,
        "history": record.history,
        "best_nll": record.best_nll,
        "best_epoch": record.best_epoch,
    }
    write_checkpoint(folder / "checkpoints", record.step, Checkpoint(tensors, meta))


def resume_run(folder: Path, record: Record, models: Models, settings: Settings) -> None:
    """Put record, models and global random states back to the newest checkpoint, in place."""
    checkpoint = read_checkpoint(folder / "checkpoints")
    meta, tensors = checkpoint.meta, checkpoint.tensors
    for name, own in settings.items():
        if meta["settings"].get(name) != own:
            raise ValueError(
                f"resume: the checkpoint was made with {name} {meta['settings'].get(name)}, this "
                f"run has {own}. Use the settings of the first run, or start without --resume."
            )
    models.restore_(tensors)
    record.order = tensors["order"]
    record.log_lik_sum.copy_(tensors["log_lik_sum"])
    record.step, record.history = meta["step"], meta["history"]
    record.best_nll, record.best_epoch = meta["best_nll"], meta["best_epoch"]
    best = {n.removeprefix(_BEST): v for n, v in tensors.items() if n.startswith(_BEST)}
    record.best = {n: v.to(models.problem.device) for n, v in best.items()}
    set_rng_states(tensors, models.problem.device)


def write_metrics(folder: Path, history: list[Row]) -> None:
    """Write `metrics.jsonl`: one line per finished epoch."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = "".join(json.dumps(row) + "\n" for row in history)
    write_atomically(folder / "metrics.jsonl", lines)


def printed(value: object) -> str:
    """A setting as text that is the same in every process: no addresses of functions."""
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))


def plain(values: Tensor | list[float]) -> float | list[float]:
    """A number for one model, a list for a population.

    Example:
        >>> plain([0.5]), plain([0.5, 1.0])
        (0.5, [0.5, 1.0])
    """
    own: list[float] = values.tolist() if isinstance(values, Tensor) else values
    return own[0] if len(own) == 1 else own
