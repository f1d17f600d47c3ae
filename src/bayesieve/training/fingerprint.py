"""A short description of data and settings, to see whether a run goes on with what it began with.

The examples are cut into 16 parts in their order. Of each the SHA-256 is kept, and one weighted sum
with its scale: another machine may round the last digit of standardised numbers otherwise, which
changes the hash but not the data. Of large sets every k-th example is taken.
"""

import hashlib
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from bayesieve.core.inputs import Input
from bayesieve.core.problem import Problem

if TYPE_CHECKING:
    from bayesieve.training.loop import Loop

_PARTS = 16
_MOST_BYTES = 64 << 20  # that are looked at, of inputs and of targets
_AT_ONCE = 1 << 17  # numbers of eight bytes, several times
_ROUNDING = 3e-7  # of the sum of absolute values: some last digits of float32
Fingerprint = dict[str, Any]


def fingerprint(x: Input, y: Tensor) -> Fingerprint:
    """Describe inputs (N, ...) and targets (N, ...), plain JSON.

    Example:
        >>> data = fingerprint(torch.zeros(4, 2), torch.arange(4))
        >>> data["inputs"]["shape"], len(data["targets"]["parts"])
        ([4, 2], 4)
    """
    inputs = {"inputs": x} if isinstance(x, Tensor) else x.named
    return {name: _describe(tensor) for name, tensor in ({**inputs, "targets": y}).items()}


def data_of(problem: Problem) -> Fingerprint | None:
    """Fingerprint of the data of a run; None of a stream that may come in any order."""
    if problem.data.stream is None:
        return fingerprint(problem.x, problem.y)
    if not problem.data.stream.repositionable:
        return None
    return fingerprint(problem.data.sample.x, problem.data.sample.y)


def settings_of(loop: "Loop") -> dict[str, Any]:
    """The settings that must not change between a run and its continuation, by name."""
    problem, watch = loop.population.problem, loop.validation
    return {
        "engine": printed(loop.population.engine),
        "n_models": loop.population.n,
        "n_data": problem.n_data,
        "n_steps": loop.size.n_steps,
        "batch_size": loop.size.batch_size,
        "seed": loop.seed,
        "schedule": loop.schedule.text(),
        "pruning": printed(loop.pruning),
        "patience": None if watch is None else watch.patience,
        "min_delta": None if watch is None else watch.min_delta,
        "clip_norm": loop.schedule.clip_norm,
        "augment": printed(problem.data.augment),
    }


def printed(value: object) -> str:
    """Print a setting alike in every process: without addresses of functions."""
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))


def difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """Say in words how two data sets differ; None if they do not.

    Example:
        >>> x, y = torch.ones(32, 2), torch.arange(32)
        >>> other = y.clone()
        >>> other[5] = 0
        >>> difference(fingerprint(x, y), fingerprint(x, other))
        'targets differ among examples 4 to 5'
    """
    if before.keys() != now.keys():
        return f"inputs are {', '.join(now)}, were {', '.join(before)}"
    words = [text for name in now if (text := _compare(name, before[name], now[name]))]
    return "; ".join(words) or None


def _describe(values: Tensor) -> dict[str, Any]:
    every = max(1, -(-values.nbytes // _MOST_BYTES))
    parts = []
    for rows in values.chunk(_PARTS) if len(values) else ():
        part = rows[::every].detach().cpu().contiguous().reshape(-1)
        digest = hashlib.sha256(part.view(torch.uint8).numpy().data).hexdigest()
        weighted = absolute = 0.0
        for start in range(0, len(part), _AT_ONCE):
            numbers = part[start : start + _AT_ONCE].double()
            places = torch.arange(start, start + len(numbers), dtype=torch.float64)
            weights = 1 + (places * 0.618033988749895).frac()  # no two neighbours can change places
            weighted += float((numbers * weights).sum())
            absolute += float(numbers.abs().sum())
        parts.append([digest, weighted, absolute])
    return {"shape": [*values.shape], "dtype": str(values.dtype), "parts": parts}


def _compare(name: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    for key in ("shape", "dtype"):
        if before[key] != now[key]:
            return f"{name} have {key} {now[key]}, had {before[key]}"
    pairs = zip(before["parts"], now["parts"], strict=True)
    exact = not str(now["dtype"]).startswith(("torch.float", "torch.bfloat"))  # labels, bytes
    wrong = [i for i, (a, b) in enumerate(pairs) if not (a[0] == b[0] if exact else _same(a, b))]
    if not wrong:
        return None
    if len(wrong) == len(now["parts"]):
        return f"{name} differ everywhere"
    n = now["shape"][0]
    width = -(-n // _PARTS)  # as `chunk` cuts them
    first, last = wrong[0] * width, min(n, (wrong[-1] + 1) * width) - 1
    return f"{name} differ among examples {first} to {last}"


def _same(a: list[Any], b: list[Any]) -> bool:
    """Return whether two parts are equal, or their numbers within rounding."""
    return bool(a[0] == b[0] or abs(a[1] - b[1]) <= _ROUNDING * max(a[2], b[2]))
