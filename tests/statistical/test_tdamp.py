"""EM-TDAMP against a known posterior over many data sets, and a known set of useful inputs."""

import pytest
import torch

from bayesieve.core.batch import Batch
from bayesieve.core.likelihoods import Gaussian
from bayesieve.core.problem import Problem
from bayesieve.engines.tdamp import TDAMP
from bayesieve.engines.tdamp.state import GroupSparse
from bayesieve.nets import mlp
from problems import linear_model, normal, normal32, seeded

pytestmark = pytest.mark.slow


def test_standardised_errors_have_unit_variance():
    """Weights from the prior, data from the weights: (truth - mean) / std is N(0, 1) if exact."""
    width, n_sets, noise_std, variance = 200, 60, 1.0, 2.0
    scores = []
    for i in range(n_sets):
        x = normal(10, width, seed=3 * i)
        weights = (variance / width) ** 0.5 * normal(width, 1, seed=3 * i + 1)
        y = x @ weights + noise_std * normal(10, 1, seed=3 * i + 2)
        problem = Problem(linear_model(width), Gaussian(noise_std), (x, y))
        prior = GroupSparse(output_variance=variance)
        engine = TDAMP(prior=prior, power=1.0, memory=1e12, trust=1e6, init_scale=0.0)
        state = engine.init(problem, seeded(i))
        engine.step(problem, state, Batch(x[:1], y[:1]))
        for row in range(1, 10):
            engine.step(problem, state, Batch(x[row : row + 1], y[row : row + 1]))
        posterior = engine.posterior(problem, state)
        scores.append((weights[:, 0] - posterior.mean) / posterior.std)
    ratio = torch.cat(scores).square().mean().item()
    standard_error = (2 / (n_sets * width)) ** 0.5
    # 2 %: the cavity term that AMP drops, one part in the width per example
    assert abs(ratio - 1) < 4 * standard_error + 0.02


def test_useless_inputs_of_a_relu_network_are_found():
    x = normal32(2000, 30, seed=1)
    signal = x[:, 0].relu() - x[:, 1].relu() + (x[:, 2] - x[:, 3]).relu() - 0.5
    y = (signal + 0.1 * normal32(2000, seed=2))[:, None]
    problem = Problem(mlp((30,), 1, widths=(40,)), Gaussian(0.3), (x, y))
    engine = TDAMP(prior=GroupSparse("inputs"), keep=4 / 30, prune_passes=(3, 10), power=1.0)
    state = engine.init(problem, seeded(0))
    for _ in range(15):
        order = torch.randperm(2000, generator=seeded(3))
        for index in order.split(50):
            engine.step(problem, state, Batch(x[index], y[index]))
    kept = problem.layout.unflatten(engine.posterior(problem, state).mean)["fc1.weight"]
    assert (kept != 0).any(0).nonzero().flatten().tolist() == [0, 1, 2, 3]
