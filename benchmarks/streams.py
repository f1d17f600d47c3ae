"""Speed of training on streams, against the same examples in memory.

    OMP_NUM_THREADS=1 python -m benchmarks.streams [--net mlp:400,400] [--repeats 5] [--out FILE]

Examples have the size of MNIST's, batches 128, the engine is SBNN. Every repetition trains on each
source in turn, so that other work on the machine touches all of them alike. `ratio` is the median
over repetitions of the time per epoch in memory divided by that of the stream, from the second
epoch on; `ratio_whole` is of whole runs, with the start of the processes that read. On a busy
machine look at `cpu_ratio`, the same of the processor time of the training process with its start,
and at `reader_ms`, the processor time of all readers for a step: they keep up while all of them
together get that much time in a step.
"""

import argparse
import gc
import json
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset

from bayesieve.core.likelihoods import Categorical
from bayesieve.core.problem import Problem
from bayesieve.data.streams import Stream
from bayesieve.engines.sbnn import SBNN
from bayesieve.files import write_atomically
from bayesieve.nets import lenet5_caffe, mlp
from bayesieve.training.launch import fit
from bayesieve.training.schedule import Schedule

N, BATCH, WORKERS = 6_400, 128, 2
SHAPE, CLASSES = (1, 28, 28), 10
NETS = {
    "mlp:400,400": lambda: mlp(SHAPE, CLASSES, (400, 400)),
    "lenet5-caffe": lambda: lenet5_caffe(SHAPE, CLASSES),
}
Source = Callable[[], Any]


class Mapped(Dataset[Any]):
    """Bytes and labels in files that stay on the disk, read a batch at a time."""

    def __init__(self, folder: Path) -> None:
        names = ("pixels.npy", "labels.npy")
        self.x, self.y = (np.load(folder / name, mmap_mode="r") for name in names)

    def __len__(self) -> int:
        return len(self.y)

    def __getitems__(self, rows: list[int]) -> tuple[Tensor, Tensor]:
        """Inputs and targets of some rows."""
        return torch.from_numpy(self.x[rows]) * (1 / 255), torch.from_numpy(self.y[rows])


def whole(batch: Any) -> Any:
    """A batch as `Mapped` made it."""
    return batch


def sources(folder: Path, x: Tensor, y: Tensor) -> dict[str, Source]:
    """The same examples in memory and in files, by name."""
    pixels, labels = (x * 255).to(torch.uint8).numpy(), y.numpy()
    np.save(folder / "pixels.npy", pixels)
    np.save(folder / "labels.npy", labels)
    rows = TensorDataset(x, y)

    return {
        "in memory": lambda: (x, y),
        "DataLoader, 2 workers": lambda: DataLoader(rows, BATCH, shuffle=True, num_workers=WORKERS),
        "Dataset, no worker": lambda: Stream(rows),
        "mapped bytes, no worker": lambda: Stream(Mapped(folder), collate=whole),
        "mapped bytes, 2 workers": lambda: Stream(Mapped(folder), workers=WORKERS, collate=whole),
    }


class Times(NamedTuple):
    """Seconds of an epoch."""

    steady: float  # from the second epoch on
    whole: float  # with the start of the run
    cpu: float  # of the training process
    readers: float  # of the processes that read


def children() -> float:
    """Processor time of processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def epoch_seconds(net: str, source: Any, epochs: int) -> Times:
    """Times of one run."""
    before, others = time.process_time(), children()
    torch.manual_seed(0)
    problem = Problem(NETS[net](), Categorical(), source)
    run = fit(problem, SBNN(), epochs=epochs, batch_size=BATCH, schedule=Schedule(compile="off"))
    gc.collect()  # readers end with the loader
    rows = [row["seconds"] for row in run.history]
    used = time.process_time() - before, children() - others
    return Times(statistics.median(rows[1:]), run.seconds / epochs, *(s / epochs for s in used))


def measure(net: str, repeats: int, epochs: int) -> list[dict[str, Any]]:
    """A row of numbers for each source."""
    source = torch.Generator().manual_seed(0)
    x, y = torch.rand(N, 1, 28, 28, generator=source), torch.arange(N) % 10
    seconds: dict[str, list[Times]] = {}
    with tempfile.TemporaryDirectory() as folder:
        named = sources(Path(folder), x, y)
        epoch_seconds(net, named["in memory"](), 2)  # loads all libraries
        for _ in range(repeats):
            for name, make in named.items():
                seconds.setdefault(name, []).append(epoch_seconds(net, make(), epochs))
    memory = seconds["in memory"]
    rows = []
    for name, times in seconds.items():
        pairs = list(zip(memory, times, strict=True))
        rows.append(
            {
                "net": net,
                "source": name,
                "ms_per_step": 1000 * statistics.median(t.steady for t in times) / (N / BATCH),
                "ratio": statistics.median(m.steady / t.steady for m, t in pairs),
                "ratio_whole": statistics.median(m.whole / t.whole for m, t in pairs),
                "cpu_ratio": statistics.median(m.cpu / t.cpu for m, t in pairs),
                "cpu_ms": 1000 * statistics.median(t.cpu for t in times) / (N / BATCH),
                "reader_ms": 1000 * statistics.median(t.readers for t in times) / (N / BATCH),
            }
        )
    return rows


def main() -> None:
    """Print the rows, and write them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--net", choices=NETS, action="append")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    rows = [row for net in asked.net or NETS for row in measure(net, asked.repeats, asked.epochs)]
    for row in rows:
        print(
            f"{row['net']:>14}  {row['source']:<24} {row['ms_per_step']:7.2f} ms a step, "
            f"{row['ratio']:.3f} of memory, {row['ratio_whole']:.3f} with the start; "
            f"processor {row['cpu_ms']:.2f} ms, {row['cpu_ratio']:.3f}, readers "
            f"{row['reader_ms']:.2f} ms"
        )
    if asked.out:
        record = {"n": N, "batch_size": BATCH, "engine": "SBNN()", "repeats": asked.repeats,
                  "threads": 1, "rows": rows}  # fmt: skip
        write_atomically(asked.out, json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
