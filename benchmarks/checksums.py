"""How much longer a load takes because of its checksums, in wall time and in processor time.

    python -m benchmarks.checksums [--out results/checksums.json]

Everything is loaded in turns with and without comparing checksums; the least times of all rounds
count. Threads hash what has been read while more comes in, so a second processor must be free.
Rows "from disk" have the system forget the file before each load; TMPDIR must not be in memory.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import nn

from bayesieve import runs
from bayesieve.core import storage
from bayesieve.core.likelihoods import Gaussian
from bayesieve.core.network import Network
from bayesieve.core.posterior import Factorised
from bayesieve.files import write_atomically

NETS = ("mlp:100,50", "mlp:400,400", "mlp:1200,1200")
MEGABYTES = (1, 16, 128)
ROUNDS = 25


@contextmanager
def unchecked() -> Iterator[None]:
    """Read files without their checksums."""
    with mock.patch.object(storage._Sums, "add"), mock.patch.object(storage, "_check_header_sum"):
        yield


def row_of(
    what: str, n_bytes: int, load: Callable[[], object], prepare: Callable[[], None] = lambda: None
) -> dict[str, Any]:
    """Time one load with and without checksums."""
    checked, bare = [], []
    for _ in range(ROUNDS):
        prepare()
        checked.append(timed(load))
        prepare()
        with unchecked():
            bare.append(timed(load))
    row: dict[str, Any] = {"what": what, "bytes": n_bytes}
    for i, clock in enumerate(("wall", "processor")):
        with_sums, without = (min(times[i] for times in rounds) for rounds in (checked, bare))
        row[clock] = {"milliseconds": round(with_sums, 2), "without": round(without, 2),
                      "share": round(1 - without / with_sums, 4)}  # fmt: skip
    return row


def timed(load: Callable[[], object]) -> tuple[float, float]:
    """Milliseconds of wall and of processor time."""
    wall, processor = time.perf_counter(), time.process_time()
    load()
    return 1000 * (time.perf_counter() - wall), 1000 * (time.process_time() - processor)


def forget(path: Path) -> None:
    """Let the system drop its copy of a file in memory."""
    with path.open("rb") as stream:
        os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def rows_of(home: Path) -> Iterator[dict[str, Any]]:
    """Runs, then files of one posterior: on its network, and its tensors alone."""
    for i, net in enumerate(NETS):
        out = home / f"run {i}"
        runs.train(out=out, data="digits", net=net, steps=2, figures=False, device="cpu")
        n_bytes = sum(path.stat().st_size for path in out.glob("*.safetensors"))
        yield row_of(f"run of {net}", n_bytes, partial(runs.load, out, device="cpu"))
    for megabytes in MEGABYTES:
        n = megabytes * 125_000  # mean and std take 8 bytes of each weight
        network = Network.of(nn.Linear(n - 1, 1), Gaussian())
        q = Factorised(network, torch.randn(n), torch.rand(n))
        path = storage.save(q, home / "q.safetensors")
        n_bytes = path.stat().st_size
        load = partial(storage.load_posterior, path, network)
        yield row_of("posterior", n_bytes, load)
        yield row_of("tensors of a file", n_bytes, partial(storage.read_tensors, path))
        yield row_of("posterior from disk", n_bytes, load, partial(forget, path))


def main() -> None:
    """Print one line for each load."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="also write the numbers to this file")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for row in rows_of(Path(folder)):
            rows.append(row)
            shown = ", ".join(
                "{} {milliseconds} ms, without checksums {without} ms ({share:.1%})".format(
                    clock, **row[clock]
                )
                for clock in ("wall", "processor")
            )
            print(f"{row['what']}, {row['bytes']:,} bytes: {shown}", flush=True)
    machine = {"python": sys.version.split()[0], "torch": torch.__version__,
               "processors": os.cpu_count()}  # fmt: skip
    if asked.out is not None:
        write_atomically(asked.out, {"benchmark": "checksums", "machine": machine, "rows": rows})


if __name__ == "__main__":
    main()
