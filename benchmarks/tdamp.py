"""What message passing costs: one pass of EM-TDAMP as a multiple of one pass of Adam.

784-128-10, 10,000 images, one thread of a shared machine, torch 2.13.0, Python 3.11, 3 rounds,
2026-11-15 (results/tdamp_bench_cpu.json); target: at most 4 times Adam, linear in width and data:

    Adam                        0.15 s
    TDAMP, half of the units    0.57 s   3.7 times Adam   (half the data 0.49, 784-256-10 1.5 of it)
    TDAMP, support learned      0.60 s   3.9 times Adam

Baseline: the same network trained by plain PyTorch with Adam at its default settings (zero_grad,
forward, backward, step), eager. Batch 100. A pass includes Module B and the M-step at its end. All
cases are built first, then run in interleaved rounds; on a CPU time is CPU time of the process, so
that a busy machine does not inflate it; on a GPU our step replays a CUDA graph and a pass is timed
between two synchronisations.

    python benchmarks/tdamp.py                                  # about a minute on a CPU
    python benchmarks/tdamp.py --device cuda --n 60000
"""

import argparse
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from bayesieve.core.likelihoods import Categorical
from bayesieve.core.problem import Problem
from bayesieve.engines.tdamp import TDAMP
from bayesieve.fast.stepper import fast_kernels, make_stepper
from bayesieve.files import write_atomically
from bayesieve.nets import mlp

BATCH = 100
ADAM = "Adam"
TARGETS = {"TDAMP": 4.0}  # times Adam, on a CPU
CUDA_TARGET_S = 2.0  # a pass over 60,000 images

Case = Callable[[], object]


@dataclass(frozen=True)
class Row:
    """Seconds of one pass, and how that compares with the case `against`."""

    name: str
    seconds: float
    against: str
    ratio: float
    target: float | None = None


def random_images(n: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Noise of unit variance with labels that a linear model can learn in part."""
    generator = Generator().manual_seed(0)
    x = torch.randn(n, 784, generator=generator)
    return x.to(device), x[:, :10].argmax(1).to(device)


def adam_pass(widths: tuple[int, ...], n: int, device: torch.device) -> Case:
    """One pass of plain PyTorch."""
    x, y = random_images(n, device)
    model: nn.Module = mlp((784,), 10, widths=widths).to(device)
    optimizer = torch.optim.Adam(model.parameters())

    def once() -> None:
        for index in torch.randperm(n, device=device).split(BATCH):
            optimizer.zero_grad()
            F.cross_entropy(model(x[index]), y[index]).backward()
            optimizer.step()

    return once


def tdamp_pass(engine: TDAMP, widths: tuple[int, ...], n: int, device: torch.device) -> Case:
    """One pass of the engine, through the stepper that `fit` uses."""
    problem = Problem(mlp((784,), 10, widths=widths).to(device), Categorical(),
                      random_images(n, device))  # fmt: skip
    state = engine.init(problem, Generator(device).manual_seed(0))
    stepper = make_stepper(problem, engine, state)

    def once() -> None:
        for index in torch.randperm(n, device=device).split(BATCH):
            stepper(index)

    return once


def cases_of(n: int, device: torch.device) -> dict[str, tuple[Case, str]]:
    """Every case, and the one it is compared with."""
    kept, learned = TDAMP(keep=0.5, prune_passes=(1, 2)), TDAMP(prune_passes=(1, 9))
    return {
        ADAM: (adam_pass((128,), n, device), ADAM),
        "TDAMP": (tdamp_pass(kept, (128,), n, device), ADAM),
        "TDAMP, support learned": (tdamp_pass(learned, (128,), n, device), ADAM),
        "TDAMP, half the data": (tdamp_pass(kept, (128,), n // 2, device), "TDAMP"),
        "TDAMP, twice the width": (tdamp_pass(kept, (256,), n, device), "TDAMP"),
        "TDAMP, 784-256-128-10": (tdamp_pass(kept, (256, 128), n, device), "TDAMP"),
    }


def measure(cases: dict[str, tuple[Case, str]], rounds: int, device: torch.device) -> list[Row]:
    """Median seconds, and the median over rounds of the ratio within a round."""
    times: dict[str, list[float]] = {name: [] for name in cases}
    for case, _ in cases.values():
        case()
    for _ in range(rounds):
        for name, (case, _) in cases.items():
            times[name].append(_seconds(case, device))
    rows = []
    for name, (_, against) in cases.items():
        pairs = zip(times[name], times[against], strict=True)
        target = TARGETS.get(name) if device.type == "cpu" else None
        rows.append(Row(name, statistics.median(times[name]), against,
                        statistics.median(a / b for a, b in pairs), target))  # fmt: skip
    return rows


def _seconds(case: Case, device: torch.device) -> float:
    if device.type != "cuda":
        start = time.process_time()
        case()
        return time.process_time() - start
    torch.cuda.synchronize()
    start = time.perf_counter()
    case()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def main(arguments: list[str] | None = None) -> int:
    """Measure, print, and write JSON on request."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--n", type=int, default=10_000, help="images per pass")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, help="JSON file to write")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    device = torch.device(options.device)
    with fast_kernels(device):
        rows = measure(cases_of(options.n, device), options.rounds, device)
    for row in rows:
        target = "" if row.target is None else f"  (target {row.target:g})"
        print(f"{row.name:<26} {row.seconds:8.3f} s   {row.ratio:5.2f} x {row.against}{target}")
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    result = {
        "benchmark": "tdamp",
        "settings": {"n": options.n, "batch": BATCH, "rounds": options.rounds},
        "machine": {"device": name, "threads": torch.get_num_threads(), "torch": torch.__version__,
                    "python": platform.python_version()},
        "cuda_target_seconds": CUDA_TARGET_S if device.type == "cuda" else None,
        "rows": [asdict(row) for row in rows],
    }  # fmt: skip
    if options.out is not None:
        write_atomically(options.out, result)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
