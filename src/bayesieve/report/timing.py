"""How long networks take: as torch modules, and as the runtime that skips zeros."""

import platform
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from bayesieve.assess.latency import evaluating, interleaved, resized
from bayesieve.deliver.runtime import as_runtime
from bayesieve.errors import UnsupportedModelError

BATCHES = (1, 64)
_ROUNDS = 5

Times = dict[int, float]  # median milliseconds by batch size


def milliseconds(
    modules: Sequence[nn.Module], runtimes: Sequence[Callable[[Tensor], object]], example: Tensor
) -> tuple[list[Times], list[Times]]:
    """Median milliseconds of modules and of runtimes by batch size, all in one interleaved run.

    Processor time on one thread: what else the machine does is not counted.

    Args:
        modules: on the CPU; run in eval mode.
        runtimes: functions of the same inputs.
        example: inputs, (n, ...); repeated or cut to each batch size.

    Example:
        >>> (own,), none = milliseconds([nn.Linear(2, 1)], [], torch.zeros(1, 2))
        >>> sorted(own), none
        ([1, 64], [])
    """
    candidates: list[Callable[[Tensor], object]] = [*modules, *runtimes]
    times: list[Times] = [{} for _ in candidates]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with evaluating(*modules), torch.no_grad():
            for n in BATCHES:
                x = resized(example, n)
                cases = {str(i): _case(own, x) for i, own in enumerate(candidates)}
                for name, own in interleaved(cases, rounds=_ROUNDS, clock="cpu").items():
                    times[int(name)][n] = statistics.median(own)
    finally:
        torch.set_num_threads(threads)
    return times[: len(modules)], times[len(modules) :]


def runtimes_of(
    modules: Sequence[nn.Module], example: Tensor
) -> list[Callable[[Tensor], object]] | None:
    """Each module as the fastest function we know on this machine; None if one has no such form.

    Example:
        >>> runtimes_of([nn.Linear(2, 1).double()], torch.zeros(3, 2).double()) is None
        True
    """
    if example.dtype != torch.float32 or example.dim() < 2:
        return None
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return [as_runtime(module, example) for module in modules]
    except UnsupportedModelError:
        return None
    finally:
        torch.set_num_threads(threads)


def processor() -> str:
    """The name of the machine's processor, as far as it tells."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return next(iter(names), "") or platform.processor() or platform.machine()


def _case(candidate: Callable[[Tensor], object], x: Tensor) -> Callable[[], object]:
    return lambda: candidate(x)
