"""What only a CUDA device can show: captured steps equal plain ones and leave nothing behind."""

import pytest
import torch
from torch import nn

from bayesieve.core.batch import Batch
from bayesieve.core.likelihoods import Categorical
from bayesieve.core.problem import Problem
from bayesieve.engines.flat_vi import FlatVI
from bayesieve.engines.map import MAP
from bayesieve.engines.sbnn import SBNN
from bayesieve.sieve.schedule import GradualPruning
from bayesieve.training.fit import fit
from bayesieve.training.stepper import make_stepper

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
ENGINES = [MAP(), FlatVI(), SBNN(), SBNN(local=True), SBNN(optimizer="sgd", lr=0.01)]


def make_problem() -> Problem:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3)
    )
    x, y = torch.randn(60, 1, 8, 8), torch.randint(3, (60,))
    return Problem(model, Categorical(), (x, y)).to("cuda")


@pytest.mark.parametrize("engine", ENGINES, ids=repr)
@pytest.mark.parametrize("n_models", [1, 3])
def test_captured_steps_equal_plain_steps(engine, n_models):
    index = torch.arange(60, device="cuda").view(6, 10)
    results = []
    for captured in (False, True):
        problem = make_problem()
        state = engine.init(problem, torch.Generator("cuda").manual_seed(5), n_models)
        stepper = make_stepper(problem, engine, state)
        for i in [*range(6), 0, 1]:
            if captured:
                stepper(index[i])
            else:
                engine.step(problem, state, Batch(problem.x[index[i]], problem.y[index[i]]))
        results.append(engine.posterior(problem, state, n_models - 1))
    torch.testing.assert_close(results[0].mean, results[1].mean, rtol=1e-4, atol=1e-5)
    for name, value in results[0].buffers.items():
        torch.testing.assert_close(value, results[1].buffers[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("compile", ["off", "on"])
def test_fit_prunes_on_the_device_and_repeats_itself(compile):
    runs = [
        fit(
            make_problem(), SBNN(local=True), epochs=6, batch_size=16, seed=3, n_models=2,
            pruning=GradualPruning(0.5, start=0.1, end=0.6), compile=compile,
        )
        for _ in range(2)
    ]  # fmt: skip
    for first, second in zip(runs[0].posteriors, runs[1].posteriors, strict=True):
        assert first.mean.is_cuda
        torch.testing.assert_close(first.mean, second.mean, rtol=1e-3, atol=1e-4)
        assert (first.mean == 0).double().mean() >= 0.45
