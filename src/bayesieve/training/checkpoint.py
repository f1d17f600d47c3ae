"""Checkpoints of a run: safetensors files written atomically, with checksums, the last two kept."""

import hashlib
import json
import logging
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from bayesieve.files import write_atomically

_NAME = re.compile(r"checkpoint-(\d{9})\.safetensors")
_KEPT = 2
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Checkpoint:
    """Everything a run needs to go on: tensors by name, and plain data about where it stands."""

    tensors: dict[str, Tensor]
    meta: dict[str, Any]


def write_checkpoint(folder: Path, step: int, checkpoint: Checkpoint) -> Path:
    """Write `checkpoint-<step>.safetensors` and its SHA-256; drop all but the last two."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {
        name: value.detach().cpu().contiguous() for name, value in checkpoint.tensors.items()
    }
    data = save_tensors(tensors, {"bayesieve": json.dumps(checkpoint.meta)})
    path = folder / f"checkpoint-{step:09d}.safetensors"
    write_atomically(path, data)
    write_atomically(_sum_path(path), hashlib.sha256(data).hexdigest())
    for old in _checkpoints(folder)[:-_KEPT]:
        old.unlink(missing_ok=True)
        _sum_path(old).unlink(missing_ok=True)
    return path


def has_checkpoint(run_folder: Path) -> bool:
    """Whether a run folder holds checkpoints, damaged or not."""
    return bool(_checkpoints(run_folder / "checkpoints"))


def read_checkpoint(folder: Path) -> Checkpoint:
    """The newest undamaged checkpoint of a folder; a damaged newer one is named in a warning."""
    paths = _checkpoints(folder)
    if not paths:
        raise ValueError(f"resume: no checkpoint in {folder}; start without --resume.")
    for path in reversed(paths):
        data = path.read_bytes()
        sum_path = _sum_path(path)
        expected = sum_path.read_text() if sum_path.exists() else "missing"
        if hashlib.sha256(data).hexdigest() == expected:
            header = int.from_bytes(data[:8], "little")
            meta = json.loads(data[8 : 8 + header])["__metadata__"]["bayesieve"]
            return Checkpoint(load_tensors(data), json.loads(meta))
        _log.warning("resume: %s fails its checksum; trying the one before it", path.name)
    raise ValueError(
        f"resume: every checkpoint in {folder} fails its checksum; start without --resume."
    )


def seed_rng(seed: int, device: torch.device) -> None:
    """Seed the global random numbers of the CPU and of one device; other devices stay as is."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(seed)


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
    found = [p for p in folder.glob("checkpoint-*.safetensors") if _NAME.fullmatch(p.name)]
    return sorted(found)


def _sum_path(path: Path) -> Path:
    return path.with_suffix(".sha256")
