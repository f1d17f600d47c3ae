"""Two kinds of noise, trained with the same recipe: how well, and in what time.

Noise on weights (one draw for a batch) and on activations. Trained on a part of the training
examples and scored on another part of them; no test example is read. Time is processor time of
`fit`.

    python -m benchmarks.noise --out results/held_out/noise.json          # about 5 minutes
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bayesieve.assess.evaluate import evaluate
from bayesieve.core.likelihoods import Categorical, Gaussian, Likelihood
from bayesieve.core.problem import Problem
from bayesieve.data import load_data
from bayesieve.engines import Engine
from bayesieve.engines.bmr import BMR
from bayesieve.engines.flat_vi import FlatVI
from bayesieve.engines.sbnn import SBNN
from bayesieve.files import write_atomically
from bayesieve.nets import mlp
from bayesieve.sieve.prune import prune
from bayesieve.sieve.rules import keep_zeros
from bayesieve.sieve.schedule import GradualPruning
from bayesieve.text import markdown_table
from bayesieve.training.launch import fit
from benchmarks.steps import lenet5_relu

KINDS: dict[str, dict[str, bool]] = {
    "weights": {"local": False},
    "activations": {"local": True},
}


@dataclass(frozen=True)
class Trial:
    """A network, an engine, data and the length of the run."""

    data: str
    net: Callable[[], nn.Module]
    engine: Callable[..., Engine[Any]]
    epochs: int
    n_train: int
    zeros: float = 0.0
    seeds: int = 3
    cut: float = 0.0  # zeros of one cut afterwards


def lenet_300_100() -> nn.Module:
    """The network of most trials."""
    return mlp((1, 28, 28), 10, (300, 100))


def small_net() -> nn.Module:
    """For small images."""
    return mlp((1, 8, 8), 10, (100,))


TRIALS = {
    "mnist-mlp": Trial("mnist", lenet_300_100, SBNN, 15, 10_000, cut=0.9),
    "digits": Trial("digits", small_net, SBNN, 30, 1_000, seeds=6, cut=0.9),
    "mnist-mlp-98": Trial("mnist", lenet_300_100, SBNN, 15, 10_000, 0.98),
    "mnist-lenet5": Trial("mnist", lenet5_relu, SBNN, 8, 5_000, seeds=2),
    "mnist-bmr": Trial("mnist", lenet_300_100, BMR, 15, 10_000),
    "mnist-flat-vi": Trial("mnist", lenet_300_100, FlatVI, 15, 10_000),
    "uci/kin8nm": Trial("uci/kin8nm", lambda: mlp((8,), 1, (50,)), SBNN, 40, 5_000),
}


def halves(name: str, n_train: int) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Examples to train on and to score, both of the training part."""
    train = load_data(name).train
    order = torch.randperm(len(train.y), generator=torch.Generator().manual_seed(123))
    few, rest = order[:n_train], order[n_train:][-10_000:]
    return (train.x[few], train.y[few]), (train.x[rest], train.y[rest])


def runs(trial: Trial) -> Iterator[tuple[str, dict[str, float]]]:
    """The kind of noise and the scores of every run."""
    data, held_out = halves(trial.data, trial.n_train)
    likelihood: Likelihood = (
        Gaussian(0.5, learned=True) if trial.data.startswith("uci") else Categorical()
    )
    for seed in range(trial.seeds):
        for kind, noise in KINDS.items():
            torch.manual_seed(seed)
            problem = Problem(trial.net(), likelihood, data)
            pruning = GradualPruning(zeros=trial.zeros) if trial.zeros else None
            began = time.process_time()
            run = fit(problem, trial.engine(**noise), epochs=trial.epochs, seed=seed,
                      pruning=pruning)  # fmt: skip
            seconds = time.process_time() - began
            scores = evaluate(run.posterior, held_out, n_samples=32)
            found = {"nll": scores["nll"], "seconds": seconds}
            found["error"] = scores["error"] if "error" in scores else scores["rmse"]
            if trial.cut:
                cut = prune(run.posterior, keep_zeros(trial.cut))
                found["cut_error"] = evaluate(cut, held_out, n_samples=32)["error"]
            yield kind, found


def main() -> None:
    """Print a row for each trial and kind of noise, and write them if asked."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--trials", type=lambda text: text.split(","), default=list(TRIALS))
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for name in asked.trials:
        found = list(runs(TRIALS[name]))
        for kind in KINDS:
            mine = [scores for its, scores in found if its == kind]
            row: dict[str, Any] = {"trial": name, "noise": kind, "seeds": len(mine)}
            for score in mine[0]:
                values = [scores[score] for scores in mine]
                row[score] = round(statistics.mean(values), 5)
                row[f"{score}_se"] = round(statistics.stdev(values) / len(values) ** 0.5, 5)
            rows.append(row)
            print(row, flush=True)
    head = list(dict.fromkeys(name for row in rows for name in row))
    print(markdown_table(head, [[str(row.get(name, "")) for name in head] for row in rows]))
    if asked.out is not None:
        write_atomically(asked.out, {"torch": torch.__version__, "rows": rows})


if __name__ == "__main__":
    main()
