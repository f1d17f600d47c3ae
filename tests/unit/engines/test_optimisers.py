"""Adam against torch.optim, AdaBelief against a trajectory worked out by hand."""

import pytest
import torch
from torch import Generator, nn

from bayesieve.core.likelihoods import Gaussian
from bayesieve.core.problem import Problem
from bayesieve.core.state import named_tensors
from bayesieve.engines.bmr import BMR
from bayesieve.engines.flat_vi import FlatVI
from bayesieve.engines.map import MAP
from bayesieve.engines.optimisers import Moments, adam_, pace_of, rounded
from bayesieve.engines.sbnn import SBNN
from bayesieve.engines.scaled import adabelief_
from bayesieve.engines.sgmcmc import SGHMC
from bayesieve.training.launch import fit
from bayesieve.training.schedule import Schedule
from problems import normal


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_path_equals_torch_adam(dtype):
    parameter = normal(7, seed=0, dtype=dtype)
    theirs = parameter.clone().requires_grad_()
    optimizer = torch.optim.Adam([theirs], lr=0.03)
    moments = Moments.zeros_like(parameter)
    for step in range(1, 51):
        grad = normal(7, seed=step, dtype=dtype)
        count = torch.tensor(float(step), dtype=dtype)
        pace = pace_of(torch.tensor(0.03, dtype=dtype), count)
        adam_(parameter, grad, moments, pace)
        theirs.grad = grad
        optimizer.step()
    tolerance = 1e-12 if dtype == torch.float64 else 3e-6
    torch.testing.assert_close(parameter, theirs.detach(), rtol=0, atol=tolerance)


def path(grads, lr=0.1, scale=1.0):
    parameter = torch.zeros_like(grads[0])
    moments = Moments.zeros_like(parameter)
    points = []
    for step, grad in enumerate(grads, start=1):
        count = torch.tensor(float(step), dtype=parameter.dtype)
        pace = pace_of(torch.tensor(lr, dtype=parameter.dtype), count)
        adabelief_(parameter, scale * grad, moments, pace)
        points.append(parameter.clone())
    return torch.stack(points)


def test_three_steps_by_hand():
    # g = 1, 2, -1:
    # m = 0.1, 0.29, 0.161;  g - m = 0.9, 1.71, -1.161
    # s = 0.00081, 0.00373329, 0.00507747771;  corrections 0.1, 0.19, 0.271 and
    # 0.001, 0.001999, 0.002997001
    steps = [
        (0.1 / 0.1) / (0.00081 / 0.001) ** 0.5,
        (0.29 / 0.19) / (0.00373329 / 0.001999) ** 0.5,
        (0.161 / 0.271) / (0.00507747771 / 0.002997001) ** 0.5,
    ]
    expected = [-0.1 * sum(steps[:n]) for n in (1, 2, 3)]
    grads = [torch.tensor(g, dtype=torch.float64) for g in (1.0, 2.0, -1.0)]
    assert path(grads).tolist() == pytest.approx(expected, abs=1e-9)


def test_the_small_number_counts_beside_gradients_as_small():
    # g = 1e-8: m = 1e-9, g - m = 9e-9, s = 0.001 · 81e-18 + 1e-16; then m = 1.9e-9, g - m = 8.1e-9,
    # s = 0.999 · s + 0.001 · 65.61e-18 + 1e-16
    first = 81e-21 + 1e-16
    second = 0.999 * first + 65.61e-21 + 1e-16
    steps = [
        (1e-9 / 0.1) / ((first / 0.001) ** 0.5 + 1e-16),
        (1.9e-9 / 0.19) / ((second / 0.001999) ** 0.5 + 1e-16),
    ]
    grads = [torch.tensor(1e-8, dtype=torch.float64)] * 2
    expected = [-0.1 * steps[0], -0.1 * sum(steps)]
    assert path(grads).tolist() == pytest.approx(expected, rel=1e-6)
    still = path([torch.zeros((), dtype=torch.float64)])
    assert still.tolist() == [0.0]


@pytest.mark.parametrize("scale", [1 / 60_000, 1e-3, 50.0])
def test_the_unit_of_the_loss_does_not_matter(scale):
    grads = list(normal(20, 5, seed=0))
    torch.testing.assert_close(path(grads, scale=scale), path(grads), rtol=2e-3, atol=1e-4)


def test_what_is_not_trained_stays():
    parameter = torch.zeros(2, dtype=torch.float64)
    moments = Moments.zeros_like(parameter)
    pace = pace_of(torch.tensor(0.1).double(), torch.tensor(1.0).double())
    trained = torch.tensor([True, False])
    adabelief_(parameter, torch.ones(2).double(), moments, pace, trained)
    assert parameter.tolist() == pytest.approx([-0.1 / 0.9, 0.0], abs=1e-8)


def test_random_rounding_is_right_on_average_and_never_far():
    value = torch.randn(1, 1000, generator=Generator().manual_seed(0)) * 3
    draws = torch.cat([rounded(value, torch.tensor(float(step))) for step in range(1, 401)])
    assert torch.equal(draws, draws.bfloat16().float())
    error = (draws - value) / value.abs()
    assert error.abs().max() < 2**-7
    assert error.mean(0).abs().max() < 5 * 2**-8 / 20
    assert error.mean().abs() < 2e-5
    exact = value.bfloat16().float()
    assert torch.equal(rounded(exact, torch.tensor(3.0)), exact)
    assert rounded(torch.zeros(4), torch.tensor(1.0)).count_nonzero() == 0


def test_moments_in_bfloat16_follow_those_in_float32():
    source = Generator().manual_seed(0)
    parameter = torch.zeros(1, 2000)
    small, full = parameter.clone(), parameter.clone()
    moments = Moments.zeros_like(small, torch.bfloat16), Moments.zeros_like(full)
    for step in range(1, 301):
        grad = 1 + torch.randn(1, 2000, generator=source)
        pace = pace_of(torch.tensor(0.01), torch.tensor(float(step)))
        adam_(small, grad, moments[0], pace)
        adam_(full, grad, moments[1], pace)
    assert moments[0].second.dtype == torch.bfloat16
    ratio = moments[0].second.float() / moments[1].second  # nearest rounding would stop at 0.5
    assert abs(ratio.mean().item() - 1) < 0.01
    torch.testing.assert_close(small.mean(), full.mean(), rtol=2e-3, atol=0)
    with pytest.raises(ValueError, match=r"for float32, not torch\.float64"):
        Moments.zeros_like(parameter.double(), torch.bfloat16)


@pytest.mark.parametrize("engine", [MAP(), FlatVI(), SBNN()], ids=lambda e: type(e).__name__)
def test_fits_keep_moments_in_bfloat16_when_asked(engine):
    x = torch.linspace(-1, 1, 32)[:, None]
    runs = []
    for moments in ("float32", "bf16", "bf16"):
        torch.manual_seed(0)
        problem = Problem(nn.Linear(1, 1), Gaussian(), (x, 3 * x[:, 0]))
        schedule = Schedule(moments=moments)
        runs.append(fit(problem, engine, steps=40, batch_size=16, schedule=schedule))
    kept = [value.dtype for _, value in named_tensors(runs[1].state)].count(torch.bfloat16)
    assert kept == (2 if isinstance(engine, MAP) else 4)
    means = [run.posterior.mean for run in runs]
    torch.testing.assert_close(means[1], means[0], rtol=0.05, atol=0.01)
    assert not torch.equal(means[1], means[0])
    assert torch.equal(means[1], means[2])


@pytest.mark.parametrize("engine", [BMR(), SGHMC(), SBNN(optimizer="sgd")], ids=repr)
def test_engines_without_moments_of_adam_say_so(engine):
    problem = Problem(nn.Linear(1, 1), Gaussian(), (torch.ones(8, 1), torch.ones(8)))
    with pytest.raises(ValueError, match='moments="bf16" of Schedule is for Adam of'):
        fit(problem, engine, steps=1, schedule=Schedule(moments="bf16"))
