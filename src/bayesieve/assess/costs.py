"""Costs of a network: units, multiply-adds, memory, bytes and time, of several side by side.

Times of all candidates are taken in one run, in turns: round after round, each candidate runs for
a few milliseconds. The median over rounds is reported, and a ratio is the median of the ratios
inside the rounds, so that a machine that slows down for a while slows all candidates alike.
"""

import gzip
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save as tensors_to_bytes
from torch import Tensor, nn

from bayesieve.assess.memory import LiveBytes
from bayesieve.checks import check_positive
from bayesieve.graph.costs import CONVS, ClockName, interleaved, weight_uses
from bayesieve.graph.graph import evaluating

Candidate = nn.Module | Callable[[Tensor], object]

BATCHES = (1, 64)
_BUSY = 1.2  # wall time over processor time, from which the machine was busy


def count_units(module: nn.Module) -> int:
    """Outputs of all Linear and convolution layers, those of attention included.

    Example:
        >>> count_units(nn.Sequential(nn.Conv2d(1, 6, 5), nn.Flatten(), nn.Linear(24, 10)))
        16
    """
    layers = (layer for layer in module.modules() if isinstance(layer, (nn.Linear, *CONVS)))
    return sum(len(layer.get_parameter("weight")) for layer in layers)


def count_macs(module: nn.Module, example: Tensor) -> tuple[int, int]:
    """Multiply-adds of one example: all of them, and those with a weight that is not 0.

    Args:
        module: in eval mode; see `weight_uses` for what is seen of it.
        example: one input, (1, ...).

    Example:
        >>> layer = nn.Conv2d(1, 2, 3, bias=False)
        >>> with torch.no_grad():
        ...     _ = layer.weight[0].zero_()
        >>> count_macs(layer, torch.zeros(1, 1, 5, 5))  # 9 positions, 9 weights, 2 channels
        (162, 81)
    """
    uses, free = weight_uses(module, example)
    total = sum(use.positions * use.weight.numel() for use in uses)
    nonzero = sum(use.positions * int(use.weight.count_nonzero()) for use in uses)
    return total + free, nonzero + free


def peak_bytes(module: nn.Module, batch: Tensor) -> int:
    """Bytes of weights and buffers plus the most that intermediate tensors take at once.

    Example:
        >>> peak_bytes(nn.Sequential(nn.Linear(4, 3), nn.ReLU()), torch.zeros(2, 4))
        108
    """
    tensors = (*module.parameters(), *module.buffers())
    stored = {tensor.untyped_storage()._cdata: tensor.nbytes for tensor in tensors}
    live = LiveBytes((*tensors, batch))
    with torch.no_grad(), live:
        module(batch)
    return sum(stored.values()) + live.most


def serialised(module: nn.Module) -> bytes:
    """The state of a module as a safetensors file; tied tensors are written once."""
    seen: set[int] = set()
    tensors = {}
    for name, value in module.state_dict().items():
        if value.numel() and value.data_ptr() in seen:
            continue
        seen.add(value.data_ptr())
        tensors[name] = value.detach().cpu().clone().contiguous()
    return tensors_to_bytes(tensors)


def ratio(times: Mapping[str, Sequence[float]], above: str, below: str) -> float:
    """Median over rounds of the time of one case by that of another, in the same round.

    Example:
        >>> ratio({"a": [2.0, 4.0, 9.0], "b": [1.0, 2.0, 3.0]}, "a", "b")
        2.0
    """
    pairs = zip(times[above], times[below], strict=True)
    return statistics.median(a / b for a, b in pairs)


def resized(example: Tensor, n: int) -> Tensor:
    """The first n rows of an example, (m, ...), starting again when they run out.

    Example:
        >>> resized(torch.tensor([[1.0], [2.0]]), 3).flatten()
        tensor([1., 2., 1.])
    """
    if len(example) == 0:
        raise ValueError("profile: the example must have at least one row, got none.")
    return example[torch.arange(n, device=example.device) % len(example)]


def profile(
    models: Mapping[str, Candidate],
    example: Tensor,
    *,
    files: Mapping[str, Path] | None = None,
    rounds: int = 15,
    clock: ClockName = "wall",
    batches: Sequence[int] = BATCHES,
) -> list[dict[str, Any]]:
    """Measure candidates that map the same inputs, all in one interleaved run.

    Args:
        models: by name; the first is the one removed units are counted from. A module is run in
            eval mode, without gradients. A function that carries the module it runs as
            `.module`, such as a `Runtime`, is described by that module, and its memory by
            `.nbytes` if it has that.
        example: inputs, (n, ...); repeated or cut to each batch size.
        files: the file behind a candidate, where it has one.
        rounds: turns each candidate takes at each batch size.
        clock: "wall", or "cpu" for the processor time of this process on a busy machine.
        batches: batch sizes.

    Returns:
        One row per candidate, ready for JSON; None for what cannot be told, as of a plain function:

        name: what was measured.
        parameters: entries of all parameters, zeros among them.
        zeros: how many of them are exactly 0.
        units: outputs of all Linear and convolution layers.
        removed_units: how many fewer than the first candidate has.
        macs: multiply-adds of one example in Linear, convolution and attention layers.
        nonzero_macs: the same without those whose weight is 0.
        bytes: of the weights as a safetensors file, or of the file of the candidate.
        gzip_bytes: of that file after gzip.
        peak_bytes: weights plus the most that intermediate tensors take at once at the largest
            batch, counted operation by operation; not the memory of the process, which the
            allocator's reserves blur.
        latency_ms_batch_N: median milliseconds of a call, for each batch size N.
        spread_ms_batch_N: quartiles of these times.
        busy: whether other work took the processor away while all were timed.

    Example:
        >>> dense, small = nn.Linear(8, 4), nn.Linear(8, 1)
        >>> rows = profile({"dense": dense, "small": small}, torch.zeros(1, 8), rounds=1)
        >>> [(row["name"], row["parameters"], row["macs"], row["removed_units"]) for row in rows]
        [('dense', 36, 32, 0), ('small', 9, 8, 3)]
    """
    if not models:
        raise ValueError("profile: give at least one model.")
    check_positive("profile", rounds=rounds, batches=tuple(batches))
    modules = [model for model in models.values() if isinstance(model, nn.Module)]
    rows: dict[str, dict[str, Any]] = {name: {} for name in models}
    with evaluating(*modules), torch.no_grad():
        watch = Stopwatch()
        times = all_times(models, example, rounds=rounds, clock=clock, batches=batches)
        busy = watch.busy
        largest = resized(example, max(batches))
        for name, model in models.items():
            rows[name] = {"name": name, **dict.fromkeys(_COUNTS), **_counts(model, largest)}
            for n, turns in times[name].items():
                low, middle, high = quartiles(turns)
                rows[name] |= {f"latency_ms_batch_{n}": middle, f"spread_ms_batch_{n}": [low, high]}
            rows[name]["busy"] = busy
    units = [row["units"] for row in rows.values() if row["units"] is not None]
    for name, row in rows.items():
        if row["units"] is not None:
            row["removed_units"] = units[0] - row["units"]
        if files and name in files:
            row |= _sizes(files[name].read_bytes())
    return list(rows.values())


_COUNTS = ("parameters", "zeros", "units", "removed_units", "macs", "nonzero_macs", "bytes",
           "gzip_bytes", "peak_bytes")  # fmt: skip


def _counts(candidate: Candidate, batch: Tensor) -> dict[str, int | None]:
    """All that is counted and not timed; empty for a plain function."""
    module = candidate if isinstance(candidate, nn.Module) else getattr(candidate, "module", None)
    if not isinstance(module, nn.Module):
        return {}
    parameters = list(module.parameters())
    macs, nonzero = count_macs(module, batch[:1])
    is_plain = candidate is module
    return {
        "parameters": sum(p.numel() for p in parameters),
        "zeros": sum(int((p == 0).sum()) for p in parameters),
        "units": count_units(module),
        "macs": macs,
        "nonzero_macs": nonzero,
        "peak_bytes": peak_bytes(module, batch) if is_plain else getattr(candidate, "nbytes", None),
        **_sizes(serialised(module)),
    }


def _sizes(data: bytes) -> dict[str, int]:
    return {"bytes": len(data), "gzip_bytes": len(gzip.compress(data, mtime=0))}


def all_times(
    models: Mapping[str, Candidate],
    example: Tensor,
    *,
    rounds: int = 15,
    clock: ClockName = "wall",
    batches: Sequence[int] = BATCHES,
) -> dict[str, dict[int, list[float]]]:
    """Milliseconds of every turn by candidate and batch size, candidates taking turns."""
    times: dict[str, dict[int, list[float]]] = {name: {} for name in models}
    for n in batches:
        x = resized(example, n)
        cases = {name: partial(model, x) for name, model in models.items()}
        for name, turns in interleaved(cases, rounds=rounds, clock=clock).items():
            times[name][n] = turns
    return times


def quartiles(times: Sequence[float]) -> tuple[float, float, float]:
    """The lower quartile, median and upper quartile of some times; one time is all three.

    Example:
        >>> quartiles([1.0, 2.0, 4.0]), quartiles([3.0])
        ((1.5, 2.0, 3.0), (3.0, 3.0, 3.0))
    """
    if len(times) == 1:
        return times[0], times[0], times[0]
    low, middle, high = statistics.quantiles(times, n=4, method="inclusive")
    return low, middle, high


class Stopwatch:
    """Tells whether other work took the processor away since it was made."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    @property
    def busy(self) -> bool:
        """Return whether more than a sixth of the time went to others."""
        wall, cpu = time.perf_counter() - self._wall, time.process_time() - self._cpu
        return wall > _BUSY * cpu


def median_times(
    models: Mapping[str, Candidate],
    example: Tensor,
    *,
    rounds: int = 15,
    clock: ClockName = "wall",
) -> dict[str, dict[int, float]]:
    """Median milliseconds of a call by candidate and batch size, candidates taking turns."""
    return {
        name: {n: statistics.median(turns) for n, turns in by_batch.items()}
        for name, by_batch in all_times(models, example, rounds=rounds, clock=clock).items()
    }
