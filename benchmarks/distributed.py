"""Gain of many processes: steps of R ranks on R cores against one rank on one core.

    python -m benchmarks.distributed [--ranks 1 2] [--rounds 150] [--out results/distributed.json]

Every rank has the same number of examples whatever R is. In each round the first rank takes some
steps alone while the others wait; then all take as many steps together, one message per step. The
efficiency of a round is the time alone over the time together, so that 1 means R times the examples
in the same time. `efficiency` is the median over rounds. On a shared machine any other process that
gets one of the cores stops all ranks: `undisturbed` divides the shortest time alone by the shortest
time together, and `cpu_efficiency` does the same with the median processor time of the first rank,
messages included, which no other process changes. `message_ms` is the time of the sum itself, the
shortest of many, and `bytes` what each rank gives to it. Ranks are pinned to a core each and have
one thread. Images are random.

`--extrapolate results/steps-cuda.json` measures nothing: it prints what the cost model makes of
eager steps that were measured on one GPU, for links whose speed is assumed (`LINKS`).
"""

import argparse
import json
import os
import platform
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Generator, nn

from bayesieve.core.likelihoods import Categorical
from bayesieve.core.problem import Problem
from bayesieve.engines import Engine
from bayesieve.engines.map import MAP
from bayesieve.engines.sbnn import SBNN
from bayesieve.fast.stepper import make_stepper
from bayesieve.files import write_atomically
from bayesieve.nets import lenet5, mlp
from bayesieve.training.distributed import Ranks, join

NETS: dict[str, Callable[[], nn.Module]] = {
    "MLP 784-400-400-10": lambda: mlp((1, 28, 28), 10, (400, 400)),
    "LeNet-5": lambda: lenet5((1, 28, 28), 10),
}
ENGINES: dict[str, Engine[Any]] = {"MAP": MAP(lr=1e-3), "SBNN": SBNN(lr=1e-3)}
PER_RANK = {"MLP 784-400-400-10": (128, 512), "LeNet-5": (128,)}
BYTES = {"MAP": 4, "FlatVI": 8, "SBNN": 8}  # per weight in a message
N_DATA, STEPS = 8192, 1
MESSAGES = 40  # timed alone


@dataclass(frozen=True)
class Network:
    """A link between GPUs: bytes per second and seconds per message; assumed, not measured."""

    name: str
    bandwidth: float
    latency: float


LINKS = {
    8: Network("NVLink inside a host, 300 GB/s", 300e9, 30e-6),
    64: Network("8 hosts, 400 Gbit/s per GPU", 40e9, 100e-6),
}


def message_seconds(n_bytes: float, n_ranks: int, link: Network) -> float:
    """Time of a ring sum: each rank sends and receives 2 (R - 1) / R of the message.

    Example:
        >>> message_seconds(1e9, 2, Network("", 1e9, 0.0))
        1.0
    """
    return link.latency + 2 * (n_ranks - 1) / n_ranks * n_bytes / link.bandwidth


def efficiency(step: float, message: float) -> float:
    """Share of the time that is not spent on the message, which waits for the gradient.

    Example:
        >>> efficiency(0.75, 0.25)
        0.75
    """
    return step / (step + message)


def extrapolated(steps: Path) -> list[dict[str, Any]]:
    """Efficiency on many GPUs from eager steps on one; nothing of it is measured."""
    rows = []
    for row in json.loads(steps.read_text())["rows"]:
        name = row["name"].removeprefix("graphed step: ")
        engine, _, how = name.partition(", ")
        if how != "eager, no graph" or engine not in BYTES:
            continue
        size = sum(p.numel() for p in NETS[row["net"]]().parameters())
        for n_ranks, link in LINKS.items():
            message = message_seconds(BYTES[engine] * size, n_ranks, link)
            rows.append({
                "net": row["net"], "engine": engine, "gpus": n_ranks, "link": link.name,
                "step_ms": round(row["median_ms"], 2), "message_ms": round(1e3 * message, 3),
                "efficiency": round(efficiency(row["median_ms"] / 1e3, message), 3),
            })  # fmt: skip
    return rows


def timed(action: Callable[[], object]) -> tuple[float, float]:
    """Seconds of a call, and seconds of the processor that this process used."""
    began, used = time.perf_counter(), time.process_time()
    action()
    return time.perf_counter() - began, time.process_time() - used


class Pair:
    """One engine on one network, alone and with the other ranks."""

    def __init__(self, net: str, engine: str, per_rank: int, ranks: Ranks) -> None:
        torch.manual_seed(0)
        x, y = torch.randn(N_DATA, 1, 28, 28), torch.arange(N_DATA) % 10
        self.ranks, self.per_rank, kind = ranks, per_rank, ENGINES[engine]
        self.problem = Problem(NETS[net](), Categorical(), (x, y))
        state = kind.init(self.problem, Generator().manual_seed(0))
        self.alone = make_stepper(self.problem, kind, state)
        self.problem.execution = replace(self.problem.execution, sharing=ranks)
        self.together = make_stepper(self.problem, kind, state)

    def steps(self, *, together: bool) -> None:
        """Take some steps."""
        n = self.per_rank * (self.ranks.size if together else 1)
        sharing = self.ranks if together else None
        self.problem.execution = replace(self.problem.execution, sharing=sharing)
        for step in range(STEPS):
            if together:
                self.ranks.begin(0, step)
            (self.together if together else self.alone)(torch.arange(n) % N_DATA)


def measure(net: str, engine: str, per_rank: int, ranks: Ranks, rounds: int) -> dict[str, Any]:
    """One row of the record."""
    pair = Pair(net, engine, per_rank, ranks)
    rounds_alone, rounds_together = [], []
    for _ in range(rounds + 1):
        ranks.wait()
        if ranks.rank == 0:
            rounds_alone.append(timed(lambda: pair.steps(together=False)))
        ranks.wait()
        rounds_together.append(timed(lambda: pair.steps(together=True)))
    size, message = pair.problem.layout.size, ranks.message_numbers
    buffer, seconds = torch.zeros(message), []
    for _ in range(MESSAGES):
        ranks.wait()
        seconds.append(timed(lambda: dist.all_reduce(buffer))[0])
    if ranks.rank > 0:
        return {}
    # The first round warms up.
    alone, used_alone = (torch.tensor(v[1:]) / STEPS for v in zip(*rounds_alone, strict=True))
    both, used_both = (torch.tensor(v[1:]) / STEPS for v in zip(*rounds_together, strict=True))
    return {
        "net": net, "engine": engine, "weights": size, "per_rank": per_rank,
        "alone_ms": round(1e3 * alone.min().item(), 2),
        "together_ms": round(1e3 * both.min().item(), 2),
        "efficiency": round((alone / both).median().item(), 3),
        "undisturbed": round((alone.min() / both.min()).item(), 3),
        "cpu_alone_ms": round(1e3 * used_alone.median().item(), 2),
        "cpu_together_ms": round(1e3 * used_both.median().item(), 2),
        "cpu_efficiency": round((used_alone.median() / used_both.median()).item(), 3),
        "bytes": 4 * message, "bytes_per_weight": round(4 * message / size, 2),
        "message_ms": round(1e3 * min(seconds), 3),
    }  # fmt: skip


def work(rounds: int) -> None:
    """Measure all cases on each rank, and let the first print them."""
    torch.set_num_threads(1)
    ranks = join(torch.device("cpu"))
    assert ranks is not None
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[ranks.rank]})
    for net, sizes in PER_RANK.items():
        for engine in ENGINES:
            for per_rank in sizes:
                row = measure(net, engine, per_rank, ranks, rounds)
                if row:
                    print(json.dumps({"ranks": ranks.size} | row), flush=True)


def rows_of(n_ranks: int, rounds: int) -> list[dict[str, Any]]:
    """Start the ranks and read what the first one prints."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    variables = {"WORLD_SIZE": n_ranks, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    shared = os.environ | {name: str(value) for name, value in variables.items()}
    command = [sys.executable, "-m", "benchmarks.distributed", "--rounds", str(rounds)]
    processes = [
        subprocess.Popen(command, env=shared | {"RANK": str(rank)}, stdout=subprocess.PIPE)
        for rank in range(n_ranks)
    ]
    outputs = [process.communicate()[0] for process in processes]
    if any(process.returncode for process in processes):
        raise SystemExit("a rank failed; see above.")
    return [json.loads(line) for line in outputs[0].splitlines()]


def main() -> None:
    """Measure and print, or do the work of one rank."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[2])
    parser.add_argument("--rounds", type=int, default=150)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--extrapolate", type=Path, metavar="FILE")
    asked = parser.parse_args()
    if asked.extrapolate is not None:
        for row in extrapolated(asked.extrapolate):
            print(json.dumps(row))
        return
    if "RANK" in os.environ:
        work(asked.rounds)
        return
    load = os.getloadavg()[0]
    rows = [row for n in asked.ranks for row in rows_of(n, asked.rounds)]
    for row in rows:
        print(json.dumps(row))
    if asked.out is not None:
        record = {
            "command": " ".join(["python -m benchmarks.distributed", *sys.argv[1:]]),
            "cores": len(os.sched_getaffinity(0)), "load_before": round(load, 2),
            "machine": platform.machine(), "torch": torch.__version__, "rows": rows,
        }  # fmt: skip
        write_atomically(asked.out, record)


if __name__ == "__main__":
    main()
