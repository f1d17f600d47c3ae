"""Stop and continue a run: its record, checkpoints in a folder, and what signals do.

Checkpoints are safetensors files that carry their own checksums, written atomically; the last two
are kept. Earlier versions wrote the checksum beside each, into a file of its own.
"""

import json
import logging
import math
import re
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from bayesieve.core.storage import file_bytes, header_sum, read_tensors
from bayesieve.errors import DamagedFileError, DataError, damaged
from bayesieve.files import parse_json, sha256, write_atomically
from bayesieve.training.fingerprint import Fingerprint, difference
from bayesieve.training.options import Row
from bayesieve.training.population import Population

_NAME = re.compile(r"checkpoint-(\d{9})\.safetensors")
_KEPT = 2
_log = logging.getLogger(__name__)

Settings = dict[str, Any]  # what must not change between a run and its continuation
OTHER_DATA = "with other data"  # what `resume` of `fit` may be besides True and False
_BEST, _HISTORY = "best.", "history"
# Fields of engines of version 0.2, with values that changed nothing.
_GONE = re.compile(r", paired=(False|None)|, count_pruned='reference'")


def write_checkpoint(
    folder: Path, step: int, tensors: dict[str, Tensor], meta: dict[str, Any]
) -> Path:
    """Write `checkpoint-<step>.safetensors`; drop all but the last two.

    Args:
        folder: made where it does not exist.
        step: number of steps taken.
        tensors: everything a run needs to go on, by name.
        meta: plain data about where it stands.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"checkpoint-{step:09d}.safetensors"
    write_atomically(path, file_bytes(tensors, {"bayesieve": json.dumps(meta)}))
    for old in _checkpoints(folder)[:-_KEPT]:
        old.unlink(missing_ok=True)
        _sum_path(old).unlink(missing_ok=True)
    return path


def has_checkpoint(run_folder: Path) -> bool:
    """Whether a run folder holds checkpoints, damaged or not."""
    return bool(_checkpoints(run_folder / "checkpoints"))


def check_resumable(folder: Path) -> list[Path]:
    """The checkpoints in a folder, damaged or not; raises where there is none."""
    paths = _checkpoints(folder)
    if not paths:
        raise ValueError(f"resume: no checkpoint in {folder}; start without --resume.")
    return paths


def read_checkpoint(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and plain data of the newest undamaged checkpoint; damaged ones get a warning."""
    for path in reversed(check_resumable(folder)):
        try:
            return _read(path)
        except DamagedFileError as error:
            reason = str(error).removeprefix("load: ").rstrip(".")
            _log.warning("resume: %s; trying the one before it", reason)
    raise DamagedFileError(
        f"resume: every checkpoint in {folder} is damaged ({reason}), so the run cannot go on. "
        "Start it again: `bayesieve train` with --force in place of --resume; in Python remove "
        "them first."
    )


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """One checkpoint; raises `DamagedFileError` if it is not as it was written."""
    beside = _sum_path(path)
    if beside.is_file() and header_sum(path) is None and _not_sum(path, beside.read_bytes()):
        raise damaged(path, f"its bytes are not those of {beside.name}")
    # Without checksum, an earlier version was killed before it wrote one; the file itself is whole.
    tensors, metadata = read_tensors(path)
    return tensors, parse_json(
        path, metadata.get("bayesieve", "").encode(), "its header", constants=True
    )


def _not_sum(path: Path, expected: bytes) -> bool:
    return sha256(path).encode() != expected.strip()


def rng_states(device: torch.device) -> dict[str, Tensor]:
    """The global random states a module's dropout draws from."""
    states = {"rng.cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["rng.cuda"] = torch.cuda.get_rng_state(device)
    return states


def set_rng_states(states: dict[str, Tensor], device: torch.device) -> None:
    """Put back what `rng_states` returned."""
    torch.set_rng_state(states["rng.cpu"])
    if device.type == "cuda" and "rng.cuda" in states:
        torch.cuda.set_rng_state(states["rng.cuda"], device)


def _checkpoints(folder: Path) -> list[Path]:
    files = folder.glob("checkpoint-*.safetensors")
    return sorted(path for path in files if _NAME.fullmatch(path.name))


def _sum_path(path: Path) -> Path:
    return path.with_suffix(".sha256")


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


def save_run(
    folder: Path,
    record: Record,
    population: Population,
    settings: Settings,
    data: Fingerprint | None,
) -> None:
    """Write a checkpoint of everything into `folder/checkpoints`."""
    tensors = population.copies() | {_BEST + name: value for name, value in record.best.items()}
    tensors |= {"order": record.order, "log_lik_sum": record.log_lik_sum}
    tensors |= rng_states(population.problem.device)
    # Not in the header, whose size is bounded: a long run has many rows.
    rows = bytearray(json.dumps(record.history).encode())
    tensors[_HISTORY] = torch.frombuffer(rows, dtype=torch.uint8)
    meta = {
        "settings": settings,
        "data": data,
        "step": record.step,
        "best_nll": record.best_nll,
        "best_epoch": record.best_epoch,
        "diverged": record.diverged,
    }
    write_checkpoint(folder / "checkpoints", record.step, tensors, meta)


def resume_run(
    folder: Path,
    record: Record,
    population: Population,
    settings: Settings,
    data: Fingerprint | None,
) -> None:
    """Put record, population and global random states back to the newest checkpoint, in place.

    `data` are those of this run, which must be those of the first one; None for any of their size.
    """
    tensors, meta = read_checkpoint(folder / "checkpoints")
    for name, value in settings.items():
        made_with = meta["settings"].get(name)
        if isinstance(made_with, str):
            made_with = _GONE.sub("", made_with)
        if made_with != value:
            raise ValueError(
                f"resume: the checkpoint was made with {name} {made_with}, this run has {value}. "
                "Use the settings of the first run, or start without --resume."
            )
    stored = meta.get("data")  # earlier versions wrote none
    if data and stored and (words := difference(stored, data)):
        raise DataError(
            f"resume: the data are not those that the run was begun with: {words}. Bring them "
            "back, or go on with these: --resume-with-other-data (in Python "
            f'resume="{OTHER_DATA}").'
        )
    population.restore_(tensors)
    record.order = tensors["order"]
    record.log_lik_sum.copy_(tensors["log_lik_sum"])
    record.step, rows = meta["step"], tensors.get(_HISTORY)
    record.history = meta["history"] if rows is None else json.loads(rows.numpy().tobytes())
    record.best_nll, record.best_epoch = meta["best_nll"], meta["best_epoch"]
    record.diverged = meta.get("diverged", [])
    best = {n.removeprefix(_BEST): v for n, v in tensors.items() if n.startswith(_BEST)}
    record.best = {n: v.to(population.problem.device) for n, v in best.items()}
    set_rng_states(tensors, population.problem.device)


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
    numbers: list[float] = values.tolist() if isinstance(values, Tensor) else values
    return numbers[0] if len(numbers) == 1 else numbers


class Interrupted(KeyboardInterrupt):
    """A run was stopped by a signal after its state was saved."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}; continue with --resume")
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
