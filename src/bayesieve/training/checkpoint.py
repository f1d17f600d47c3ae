"""Keep a run in a folder: its rows, and checkpoints from which it goes on.

Checkpoints are safetensors files that carry their own checksums, written atomically; the last two
are kept. Earlier versions wrote the checksum beside each, into a file of its own.
"""

import json
import logging
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor

from bayesieve.core.storage import file_bytes, header_sum, read_tensors
from bayesieve.errors import DamagedFileError, DataError, damaged
from bayesieve.files import parse_json, sha256, write_atomically
from bayesieve.lock import folder_locked
from bayesieve.training.fingerprint import Fingerprint, data_of, difference, settings_of
from bayesieve.training.progress import Row

if TYPE_CHECKING:
    from bayesieve.training.loop import Loop

_NAME = re.compile(r"checkpoint-(\d{9})\.safetensors")
_KEPT = 2
_log = logging.getLogger(__name__)

OTHER_DATA = "with other data"  # what `resume` of `fit` may be besides True and False
_BEST, _HISTORY = "best.", "history"
_PLAIN = ("step", "best_nll", "best_epoch", "diverged")  # of a record
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
    """Return whether a run folder holds checkpoints, damaged or not."""
    return bool(_checkpoints(run_folder / "checkpoints"))


def check_resumable(folder: Path) -> list[Path]:
    """The checkpoints in a folder, damaged or not; raises where there is none."""
    paths = _checkpoints(folder)
    if not paths:
        raise ValueError(f"resume: no checkpoint in {folder}; start without `resume`.")
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
        "Start it again: `bayesieve train` with `force` in place of `resume`; in Python remove "
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


class Checkpoints:
    """Keeps a run in a folder: `metrics.jsonl`, and a checkpoint of everything now and then.

    As a context it locks the folder, and refuses one that holds another run.

    Args:
        folder: of the run; made where it does not exist.
        resume: whether the run goes on from the newest checkpoint in the folder. Its data must be
            those of the first run, unless this is "with other data".
    """

    def __init__(self, folder: Path, resume: bool | str = False) -> None:
        self.folder, self._resume = folder, resume
        self._locked = folder_locked(folder)
        self._data: Fingerprint | None = None
        if resume:
            check_resumable(folder / "checkpoints")

    def __enter__(self) -> Self:
        self._locked.__enter__()
        if not self._resume and has_checkpoint(self.folder):
            self._locked.__exit__(None, None, None)
            raise ValueError(
                f"fit: {self.folder} holds checkpoints of an earlier run. Use another folder, "
                "remove them, or continue that run with resume=True."
            )
        return self

    def __exit__(self, *error: Any) -> None:
        self._locked.__exit__(*error)

    def start(self, loop: "Loop") -> None:
        """Put a run and the global random states back to the newest checkpoint, if asked to."""
        self._data = data_of(loop.population.problem)
        if not self._resume:
            return
        record, population = loop.record, loop.population
        tensors, meta = read_checkpoint(self.folder / "checkpoints")
        for name, value in settings_of(loop).items():
            made_with = meta["settings"].get(name)
            if isinstance(made_with, str):
                made_with = _GONE.sub("", made_with)
            if made_with != value:
                raise ValueError(
                    f"resume: the checkpoint was made with {name} {made_with}, this run has "
                    f"{value}. Use the settings of the first run, or start without `resume`."
                )
        stored = None if self._resume == OTHER_DATA else meta.get("data")  # None of old versions
        if self._data and stored and (words := difference(stored, self._data)):
            raise DataError(
                f"resume: the data are not those that the run was begun with: {words}. Bring them "
                "back, or go on with these: `resume_with_other_data` (in Python "
                f'resume="{OTHER_DATA}").'
            )
        population.restore_(tensors)
        for name in _PLAIN:
            setattr(record, name, meta.get(name, getattr(record, name)))
        rows = tensors.get(_HISTORY)
        record.history = meta["history"] if rows is None else json.loads(rows.numpy().tobytes())
        record.order = tensors["order"]
        record.log_lik_sum.copy_(tensors["log_lik_sum"])
        best = {n.removeprefix(_BEST): v for n, v in tensors.items() if n.startswith(_BEST)}
        record.best = {n: v.to(population.problem.device) for n, v in best.items()}
        set_rng_states(tensors, population.problem.device)

    def close_epoch(self, loop: "Loop") -> None:
        """Write the rows of all epochs, and a checkpoint if one is due."""
        every = loop.schedule.checkpoint_every
        write_metrics(self.folder, loop.record.history)
        if every is None or loop.record.step % every == 0:
            self.save(loop)

    def save(self, loop: "Loop") -> None:
        """Write a checkpoint."""
        record, population = loop.record, loop.population
        tensors = population.copies() | {_BEST + name: v for name, v in record.best.items()}
        tensors |= {"order": record.order, "log_lik_sum": record.log_lik_sum}
        tensors |= rng_states(population.problem.device)
        # Not in the header, whose size is bounded: a long run has many rows.
        rows = bytearray(json.dumps(record.history).encode())
        tensors[_HISTORY] = torch.frombuffer(rows, dtype=torch.uint8)
        meta = {"settings": settings_of(loop), "data": self._data}
        meta |= {name: getattr(record, name) for name in _PLAIN}
        write_checkpoint(self.folder / "checkpoints", record.step, tensors, meta)


def write_metrics(folder: Path, history: list[Row]) -> None:
    """Write `metrics.jsonl`: one line per finished epoch."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = "".join(json.dumps(row) + "\n" for row in history)
    write_atomically(folder / "metrics.jsonl", lines)
