"""What a network costs: size, work, memory and time, for several candidates side by side.

Times of all candidates are taken in one run, in turns: round after round, each candidate runs for
a few milliseconds. The median over rounds is reported, and a ratio is the median of the ratios
inside the rounds, so that a machine that slows down for a while slows all candidates alike.
"""

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from bayesieve.assess.costs import count_macs, count_units, gzipped, peak_bytes, serialised
from bayesieve.checks import check_choice, check_positive
from bayesieve.nets.importing import modes_kept

Candidate = nn.Module | Callable[[Tensor], object]
ClockName = Literal["wall", "cpu"]
Case = Callable[[], object]

BATCHES = (1, 64)
_CLOCKS: Mapping[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}
_BURST = 2e-3  # seconds a candidate runs before the next one's turn
_MOST_REPEATS = 1000


@dataclass(frozen=True)
class ProfileRow:
    """The cost of one candidate; None where it cannot be told, as for a plain function.

    Args:
        name: what was measured.
        parameters: entries of all parameters, zeros among them.
        zeros: how many of them are exactly 0.
        units: outputs of all Linear and convolution layers.
        removed_units: how many fewer than the first candidate has.
        macs: multiply-adds of one example in Linear, convolution and attention layers.
        nonzero_macs: the same without those whose weight is 0.
        bytes: of the weights as a safetensors file, or of the candidate's own file.
        gzip_bytes: of that file after gzip.
        peak_bytes: weights plus the most that intermediate tensors take at once at the largest
            batch, counted operation by operation; not the memory of the process, which the
            allocator's reserves blur.
        latency_ms: median milliseconds of a call by batch size.
    """

    name: str
    parameters: int | None
    zeros: int | None
    units: int | None
    removed_units: int | None
    macs: int | None
    nonzero_macs: int | None
    bytes: int | None
    gzip_bytes: int | None
    peak_bytes: int | None
    latency_ms: Mapping[int, float]

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON; batch sizes become part of the names."""
        values = asdict(self)
        times = values.pop("latency_ms")
        return values | {f"latency_ms_batch_{n}": ms for n, ms in times.items()}


def profile(
    models: Mapping[str, Candidate],
    example: Tensor,
    *,
    files: Mapping[str, Path] | None = None,
    rounds: int = 15,
    clock: ClockName = "wall",
    batches: Sequence[int] = BATCHES,
) -> list[ProfileRow]:
    """Measure candidates that map the same inputs, all in one interleaved run.

    Args:
        models: by name; the first is the one removed units are counted from. A module is run in
            eval mode, without gradients. A function that carries the module it stands for as
            `.module`, such as a `Runtime`, is described by that module, and its own memory by
            `.nbytes` if it has that.
        example: inputs, (n, ...); repeated or cut to each batch size.
        files: the file behind a candidate, where it has one.
        rounds: turns each candidate takes at each batch size.
        clock: "wall", or "cpu" for the processor time of this process on a busy machine.
        batches: batch sizes.

    Example:
        >>> dense, small = nn.Linear(8, 4), nn.Linear(8, 1)
        >>> rows = profile({"dense": dense, "small": small}, torch.zeros(1, 8), rounds=1)
        >>> [(row.name, row.parameters, row.macs, row.removed_units) for row in rows]
        [('dense', 36, 32, 0), ('small', 9, 8, 3)]
    """
    if not models:
        raise ValueError("profile: give at least one model.")
    check_positive("profile", rounds=rounds, batches=tuple(batches))
    modules = [own for own in models.values() if isinstance(own, nn.Module)]
    with evaluating(*modules), torch.no_grad():
        times = _times(models, example, rounds, clock, batches)
        largest = resized(example, max(batches))
        sizes = {name: _describe(own, largest) for name, own in models.items()}
    reference = next((size["units"] for size in sizes.values() if size), None)
    rows = []
    for name, size in sizes.items():
        own: dict[str, int | None] = {**size}
        removed = None if reference is None or not size else reference - size["units"]
        file = (files or {}).get(name)
        if file is not None:
            data = file.read_bytes()
            own |= {"bytes": len(data), "gzip_bytes": gzipped(data)}
        known = {key: own.get(key) for key in _SIZES}
        rows.append(ProfileRow(name, removed_units=removed, latency_ms=times[name], **known))
    return rows


_SIZES = (
    "parameters", "zeros", "units", "macs", "nonzero_macs", "bytes", "gzip_bytes", "peak_bytes",
)  # fmt: skip


def _describe(candidate: Candidate, batch: Tensor) -> dict[str, int]:
    module = candidate if isinstance(candidate, nn.Module) else getattr(candidate, "module", None)
    if not isinstance(module, nn.Module):
        return {}
    parameters = list(module.parameters())
    data = serialised(module)
    macs, nonzero = count_macs(module, batch[:1])
    own_bytes = getattr(candidate, "nbytes", None)
    peak = peak_bytes(module, batch) if candidate is module else own_bytes
    found = {
        "parameters": sum(p.numel() for p in parameters),
        "zeros": sum(int((p == 0).sum()) for p in parameters),
        "units": count_units(module),
        "macs": macs,
        "nonzero_macs": nonzero,
        "bytes": len(data),
        "gzip_bytes": gzipped(data),
    }
    return found if peak is None else found | {"peak_bytes": peak}


def _times(
    models: Mapping[str, Candidate],
    example: Tensor,
    rounds: int,
    clock: ClockName,
    batches: Sequence[int],
) -> dict[str, dict[int, float]]:
    times: dict[str, dict[int, float]] = {name: {} for name in models}
    for n in batches:
        x = resized(example, n)
        cases = {name: _case(own, x) for name, own in models.items()}
        for name, own in interleaved(cases, rounds=rounds, clock=clock).items():
            times[name][n] = statistics.median(own)
    return times


def _case(model: Candidate, x: Tensor) -> Case:
    return lambda: model(x)


# -------------------------------------------------------------------------------------- timing


def interleaved(
    cases: Mapping[str, Case], *, rounds: int = 15, clock: ClockName = "wall"
) -> dict[str, list[float]]:
    """Milliseconds per call of every case, one number per round, cases taking turns.

    Args:
        cases: what to call, by name; each is called a few times first.
        rounds: turns of each case.
        clock: "wall", or "cpu" for the processor time of this process.

    Example:
        >>> times = interleaved({"short": lambda: sum(range(9)), "long": lambda: sum(range(9999))})
        >>> ratio(times, "long", "short") > 5
        True
    """
    check_positive("interleaved", rounds=rounds)
    check_choice("interleaved", "clock", clock, _CLOCKS)
    now = _CLOCKS[clock]
    repeats = {name: _repeats(case) for name, case in cases.items()}
    times: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(rounds):
        for name, case in cases.items():
            n = repeats[name]
            case()  # the caches are this case's own again
            start = now()
            for _ in range(n):
                case()
            times[name].append((now() - start) / n * 1e3)
    return times


def ratio(times: Mapping[str, Sequence[float]], above: str, below: str) -> float:
    """Median over rounds of the time of one case by that of another, in the same round.

    Example:
        >>> ratio({"a": [2.0, 4.0, 9.0], "b": [1.0, 2.0, 3.0]}, "a", "b")
        2.0
    """
    pairs = zip(times[above], times[below], strict=True)
    return statistics.median(a / b for a, b in pairs)


def _repeats(case: Case) -> int:
    """Calls that fill a burst, from the quickest of a few."""
    case()
    quickest = float("inf")
    for _ in range(3):
        start = time.perf_counter()
        case()
        quickest = min(quickest, time.perf_counter() - start)
    return max(1, min(_MOST_REPEATS, round(_BURST / max(quickest, 1e-9))))


def resized(example: Tensor, n: int) -> Tensor:
    """The first n rows of an example, (m, ...), starting again when they run out.

    Example:
        >>> resized(torch.tensor([[1.0], [2.0]]), 3).flatten()
        tensor([1., 2., 1.])
    """
    if len(example) == 0:
        raise ValueError("profile: the example must have at least one row, got none.")
    return example[torch.arange(n, device=example.device) % len(example)]


@contextmanager
def evaluating(*modules: nn.Module) -> Iterator[None]:
    """Put modules into eval mode for a while, exported ones too, whose `eval` refuses."""
    with modes_kept(*modules):
        for own in (own for module in modules for own in module.modules()):
            own.training = False
        yield
