"""How a mean-field step draws its weights, and what it recovers from the draw afterwards."""

from types import SimpleNamespace

import pytest
import torch
from torch import Generator, nn

from bayesieve.core.batch import Batch
from bayesieve.core.likelihoods import Gaussian
from bayesieve.core.noise import AtDraw, draw_
from bayesieve.core.problem import Problem
from bayesieve.core.random import counter_normals, fresh_keys
from bayesieve.core.state import Controls
from bayesieve.engines.flat_vi import FlatVI, constant_precision
from bayesieve.engines.optimisers import Moments, Pace
from bayesieve.engines.sbnn import SBNN
from bayesieve.engines.variational import MeanField, PriorNumbers, move_
from problems import BY_COUNTER, run_by

F64 = torch.float64


def state_of(mean, log_std):
    """Fresh moments, and a prior of precision 1."""
    one = torch.ones((), dtype=F64)
    return MeanField(
        mean, log_std, Moments.zeros_like(mean), Moments.zeros_like(log_std), 0 * one, one,
        PriorNumbers(one, one, one), Controls.neutral(mean), Generator(),
    )  # fmt: skip


def test_draw_by_counter_is_mean_plus_std_times_the_normals():
    k, n, d = 2, 5, 7
    mean, log_std = torch.randn(k, d, dtype=F64), torch.randn(k, n, dtype=F64)
    keep = torch.rand(k, d) < 0.5
    keys = fresh_keys(Generator().manual_seed(0))
    weights = torch.full((k, d), torch.nan, dtype=F64)
    state = state_of(mean, log_std)
    draw_(state, weights, keys, None, slice(0, d))
    noise = counter_normals((k, n), keys, F64)
    torch.testing.assert_close(weights[:, :n], mean[:, :n] + log_std.exp() * noise)
    assert torch.equal(weights[:, n:], mean[:, n:])
    masked = torch.empty_like(weights)
    draw_(state, masked, keys, keep, slice(0, d))
    torch.testing.assert_close(masked, torch.where(keep, weights, 0.0))


@pytest.mark.parametrize("engine", [FlatVI(), SBNN()], ids=["flat_vi", "sbnn"])
@pytest.mark.parametrize("k", [1, 3])
def test_a_compiled_cpu_step_draws_by_counter(engine, k):
    torch.manual_seed(0)
    x, y = torch.randn(8, 3, dtype=F64), torch.randn(8, dtype=F64)
    problem = Problem(nn.Linear(3, 1).double(), Gaussian(), (x, y))
    run_by(problem, BY_COUNTER)  # as compiled, up to rounding
    state = engine.init(problem, Generator().manual_seed(1), k)
    keys = fresh_keys(state.generator.clone_state())
    expected = state.mean + state.log_std.exp() * counter_normals((k, 4), keys, F64)
    engine.step(problem, state, Batch(x, y))
    torch.testing.assert_close(problem.workspace(k).weights, expected)


def test_the_data_gradient_for_log_std_is_the_gradient_times_the_shift():
    # One Adam step from zero moments leaves (1 - β₁) times the gradient in the first moment.
    mean, log_std = torch.randn(1, 4, dtype=F64), torch.randn(1, 4, dtype=F64)
    noise, grad = torch.randn(1, 4, dtype=F64), torch.randn(1, 4, dtype=F64)
    keep = torch.tensor([[True, True, False, True]])
    weights = (mean + log_std.exp() * noise) * keep
    one, nothing = torch.ones((), dtype=F64), torch.zeros((), dtype=F64)
    state = state_of(mean, log_std)
    expected = -0.1 * grad * log_std.exp() * noise * keep  # minus: the loss is minimised
    state.controls.keep = keep
    space = SimpleNamespace(weights=weights)
    found, pace = AtDraw(one, [], space).replaced(grad), Pace(one, one)
    move_(state, found, pace, nothing, 1, constant_precision, False, slice(0, 4))
    torch.testing.assert_close(state.log_std_moments.first, expected)
    torch.testing.assert_close(state.mean_moments.first, -0.1 * grad)
