"""The first 20 log-likelihoods of a tiny run of every engine, in float64, are those on record.

A change that moves a digit says so and rewrites the files: `python tests/golden/test_losses.py`.
"""

import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from bayesieve.core.batch import Batch
from engine_table import ENGINES
from problems import run
from zoo import Case, chain

HERE = Path(__file__).parent / "losses"
N_STEPS, N_DATA, BATCH = 20, 24, 8
CHAIN = Case("chain", partial(chain, 3, 6, 3, act=nn.ReLU, seed=None), (3,))


class Recorded:
    """An engine that notes the log-likelihood of every step."""

    def __init__(self, engine):
        self.engine, self.losses = engine, []

    def __getattr__(self, name):
        return getattr(self.engine, name)

    def step(self, problem, state, batch):
        metrics = self.engine.step(problem, state, batch)
        self.losses.append(metrics["log_lik"][0].item())
        return metrics


def losses(engine):
    problem = CHAIN.problem(N_DATA, dtype=torch.float64)
    pairs = zip(problem.x.split(BATCH), problem.y.split(BATCH), strict=True)
    recorded = Recorded(engine)
    run(recorded, problem, N_STEPS, seed=7, batches=[Batch(x, y) for x, y in pairs])
    return recorded.losses


def file_of(name):
    return HERE / f"{name}.txt"


@pytest.mark.parametrize("name", ENGINES)
def test_an_engine_repeats_its_first_losses(name):
    frozen = [float(line) for line in file_of(name).read_text(encoding="utf-8").split()]
    assert len(frozen) == N_STEPS
    assert losses(ENGINES[name]) == pytest.approx(frozen, rel=1e-9)


def test_no_file_is_left_over():
    assert {path.stem for path in HERE.glob("*.txt")} == {*ENGINES}


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name, engine in ENGINES.items():
        text = "".join(f"{loss:.12g}\n" for loss in losses(engine))
        file_of(name).write_text(text, encoding="utf-8")
