"""Networks as large as a device holds: memory and time of training, of Laplace and of sieving.

    OMP_NUM_THREADS=1 python -m benchmarks.large --size gpt2 --parts sieve --out results/large.json
    python -m benchmarks.large --size billion --device cuda --out results/large.json

The network is a transformer that reads random symbols: nothing is learned, but every pass has its
true size. `train` takes 20 steps of `SBNN` in bfloat16, after 3 that do not count; `sieve` passes
the sequences through `laplace` and leaves 10 % of the weights, by |mean| / std. Bytes are the most
at once, network, data and libraries included, and per weight. With `--out`, rows of other sizes,
parts and devices are kept.
"""

import argparse
import gc
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

from bayesieve import SBNN, Problem, laplace, likelihoods, priors, prune
from bayesieve.assess.memory import forget_peak, peak_resident_bytes
from bayesieve.files import write_atomically
from bayesieve.nets import gpt
from bayesieve.runs.memory import memory_need
from bayesieve.sieve.rules import keep_zeros
from bayesieve.training.launch import fit


class Size(NamedTuple):
    """A transformer and its data."""

    n_symbols: int
    context: int
    n_blocks: int
    width: int
    n_heads: int
    sequences: int
    batch_size: int


SIZES = {
    "tiny": Size(100, 16, 2, 32, 2, 8, 4),
    "gpt2": Size(50_257, 128, 12, 768, 12, 16, 4),
    "billion": Size(32_000, 256, 19, 2048, 16, 64, 16),
}
PARTS = ("train", "sieve")
WARM, STEPS, ZEROS = 3, 20, 0.9


def problem_of(size: Size, device: str) -> Problem:
    """The network on random symbols, made where it is needed."""
    torch.manual_seed(0)
    with torch.device(device):
        net = gpt(size.n_symbols, size.context, n_blocks=size.n_blocks, width=size.width,
                  n_heads=size.n_heads, dropout=0.0)  # fmt: skip
        x = torch.randint(size.n_symbols, (size.sequences, size.context))
    return Problem(net, likelihoods.Categorical(), (x, x.roll(-1, 1)), precision="bf16")


def train(size: Size, device: str) -> dict[str, Any]:
    """Seconds of a step, and what the estimate says before."""
    problem = problem_of(size, device)
    engine = SBNN(priors.SpikeSlab(slab_std=0.1, spike_std=0.01, slab_prob=0.5), init_std=0.003,
                  local=False)  # fmt: skip
    estimate = memory_need(problem, engine, batch_size=size.batch_size).peak
    seconds = []
    for steps in (WARM, WARM + STEPS):
        run = fit(problem, engine, steps=steps, batch_size=size.batch_size, seed=0)
        seconds.append(run.seconds)
        finite = bool(torch.isfinite(run.posterior.mean).all())
        del run
        gc.collect()
    return {
        "steps": STEPS, "seconds_per_step": round((seconds[1] - seconds[0]) / STEPS, 4),
        "estimated_bytes_per_weight": round(estimate / problem.layout.size, 1), "finite": finite,
    }  # fmt: skip


def sieve(size: Size, device: str) -> dict[str, Any]:
    """Seconds of Laplace and of the cut."""
    problem = problem_of(size, device)
    began = time.perf_counter()
    posterior = laplace(problem, labels="sampled")
    ended = time.perf_counter()
    model = prune(posterior, keep_zeros(ZEROS))
    zeros = round(model.zeros, 4)
    return {
        "laplace_seconds": round(ended - began, 2),
        "sequences": size.sequences,
        "prune_seconds": round(time.perf_counter() - ended, 2),
        "zeros": zeros,
    }


def measure(name: str, part: str, device: str) -> dict[str, Any]:
    """One part by itself: its numbers and the most memory at once."""
    size = SIZES[name]
    parts: dict[str, Callable[[Size, str], dict[str, Any]]] = {"train": train, "sieve": sieve}
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    else:
        torch.set_num_threads(1)
        forget_peak()
    found = parts[part](size, device)
    peak = torch.cuda.max_memory_allocated() if device == "cuda" else peak_resident_bytes()
    with torch.device("meta"):
        net = gpt(size.n_symbols, size.context, n_blocks=size.n_blocks, width=size.width,
                  n_heads=size.n_heads)  # fmt: skip
    weights = sum(p.numel() for p in net.parameters())
    return {
        "size": name, "part": part, "device": device, "weights": weights,
        "gib": round(peak / 2**30, 2), "bytes_per_weight": round(peak / weights, 1), **found,
    }  # fmt: skip


def main() -> None:
    """Print a row per part, and write them if asked."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--size", choices=tuple(SIZES), default="gpt2")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    for part in asked.parts:
        row = measure(asked.size, part, asked.device)
        print(json.dumps(row), flush=True)
        if asked.out is not None:
            add_row(asked.out, row)


def add_row(path: Path, row: dict[str, Any]) -> None:
    """Put a row into a record, in the place of an earlier one of its kind."""
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"] if path.is_file() else []
    device = torch.cuda.get_device_name() if row["device"] == "cuda" else "CPU, one thread"
    kept = [one for one in rows if any(one[n] != row[n] for n in ("size", "part", "device"))]
    found = row | {
        "machine": device,
        "torch": torch.__version__,
        "load": round(os.getloadavg()[0], 1),
    }
    write_atomically(path, {"rows": [*kept, found]})


if __name__ == "__main__":
    main()
