"""Effect of keeping less of Adam's moments: held-out scores, memory of the state, time.

    OMP_NUM_THREADS=1 python -m benchmarks.moments [--seeds 5] [--epochs 20] [--out FILE]

Digits, a fifth of the training images held out, perceptron of 100 units, each engine with its
recommended settings. Each seed trains once with each format; differences are of the same seed. For
comparison, `nearest` rounds to the nearest number of bfloat16 instead.
"""

import argparse
import json
import statistics
from pathlib import Path
from typing import Any, cast
from unittest import mock

import torch
from torch import Tensor

from bayesieve.assess.evaluate import evaluate
from bayesieve.core.execution import KeptMoments
from bayesieve.core.likelihoods import Categorical
from bayesieve.core.problem import Problem
from bayesieve.core.state import named_tensors
from bayesieve.data import load_data
from bayesieve.engines import optimisers
from bayesieve.engines.flat_vi import FlatVI
from bayesieve.engines.map import MAP
from bayesieve.engines.sbnn import SBNN
from bayesieve.files import write_atomically
from bayesieve.nets import mlp
from bayesieve.training.launch import fit
from bayesieve.training.schedule import Schedule

ENGINES = {"MAP": MAP(), "FlatVI": FlatVI(), "SBNN": SBNN()}
FORMATS = ("float32", "bf16", "nearest")


def nearest(value: Tensor, _: Tensor) -> Tensor:
    """The nearest number of bfloat16."""
    return value.bfloat16().float()


def trained(engine: Any, kind: str, seed: int, epochs: int) -> dict[str, float]:
    """Scores of one run on held-out training images."""
    data = load_data("digits").train
    rest, held_out = data.split(0.2, seed=0)
    torch.manual_seed(seed)
    problem = Problem(mlp((1, 8, 8), 10, (100,)), Categorical(), rest)
    moments: KeptMoments = "bf16" if kind == "nearest" else cast(KeptMoments, kind)
    schedule = Schedule(lr="cosine", kl=0.1, moments=moments)
    round_by = nearest if kind == "nearest" else optimisers.rounded
    with mock.patch.object(optimisers, "rounded", round_by):
        run = fit(problem, engine, epochs=epochs, seed=seed, schedule=schedule)
    scores = evaluate(run.posterior, held_out)
    size = sum(value.nbytes for _, value in named_tensors(run.state)) / problem.layout.size
    return {"nll": scores["nll"], "error": scores["error"], "state_bytes": size,
            "seconds": run.seconds}  # fmt: skip


def measure(seeds: int, epochs: int) -> list[dict[str, Any]]:
    """A row for each engine and format: means, and differences from float32."""
    rows = []
    for name, engine in ENGINES.items():
        runs = {
            kind: [trained(engine, kind, seed, epochs) for seed in range(seeds)] for kind in FORMATS
        }
        for kind, results in runs.items():
            gaps = [r["nll"] - f["nll"] for r, f in zip(results, runs["float32"], strict=True)]
            means = {key: statistics.mean(r[key] for r in results) for key in results[0]}
            error = statistics.stdev(gaps) / len(gaps) ** 0.5
            gap = {"nll_gap": statistics.mean(gaps), "nll_gap_error": error}
            rows.append({"engine": name, "moments": kind, **means, **gap})
    return rows


def main() -> None:
    """Print the rows, and write them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    rows = measure(asked.seeds, asked.epochs)
    for row in rows:
        print(
            f"{row['engine']:<7} {row['moments']:<8} nll {row['nll']:.4f} "
            f"({row['nll_gap']:+.4f} ± {row['nll_gap_error']:.4f})  error {row['error']:.4f}  "
            f"{row['state_bytes']:.1f} bytes a weight  {row['seconds']:.1f} s"
        )
    if asked.out:
        record = {"data": "digits, held-out training images", "seeds": asked.seeds,
                  "epochs": asked.epochs, "rows": rows}  # fmt: skip
        write_atomically(asked.out, json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
