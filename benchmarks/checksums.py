"""How much of loading a run its checksums take, in processor time.

    python benchmarks/checksums.py --data mnist --net lenet-300-100

Trains two steps, then opens the run again and again. The least times of several rounds count.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

from bayesieve import runs
from bayesieve.core import storage

ROUNDS = 15


def timed(work: Callable[..., Any], spent: list[float]) -> Callable[..., Any]:
    """The same function, which adds its processor time, in milliseconds, to the last entry."""

    def watched(*arguments: Any, **options: Any) -> Any:
        began = time.process_time()
        try:
            return work(*arguments, **options)
        finally:
            spent[-1] += 1000 * (time.process_time() - began)

    return watched


def main() -> None:
    """Print one line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="digits")
    parser.add_argument("--net", default="mlp:100,50")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        out = Path(home) / "a"
        runs.train(out=out, data=asked.data, net=asked.net, steps=2, figures=False, device="cpu")
        n_bytes = sum(path.stat().st_size for path in out.glob("*.safetensors"))
        loads: list[float] = []
        sums: list[float] = []
        with mock.patch.object(storage, "_hash", timed(storage._hash, sums)):
            for _ in range(ROUNDS):
                loads.append(0.0)
                sums.append(0.0)
                timed(runs.load, loads)(out, device="cpu")
    print(
        f"{asked.data}, {asked.net}: {n_bytes:,} bytes, load {min(loads):.1f} ms, of that "
        f"checksums {min(sums):.2f} ms, {min(sums) / min(loads):.1%}"
    )


if __name__ == "__main__":
    main()
