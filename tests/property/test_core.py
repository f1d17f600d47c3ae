"""Properties of the core that hold for any input."""

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from bayesieve.core.batch import Batch
from bayesieve.core.likelihoods import Gaussian
from bayesieve.core.network import Network
from bayesieve.core.posterior import Factorised
from bayesieve.core.priors import SpikeSlab, inclusion_logit, profiled_kl
from bayesieve.core.problem import Problem
from oracles import spike_slab_kl
from problems import normal, seeded
from zoo import built

F64 = torch.float64


def f64(value):
    return torch.tensor(value, dtype=F64)


MEANS = st.floats(-10, 10).map(f64)
LOG_STDS = st.floats(-8, 3).map(f64)
PROBABILITIES = st.floats(0, 1).map(f64)
OPEN = st.floats(0.01, 0.99)


@st.composite
def spike_slabs(draw):
    log_spike = draw(st.floats(-7, 1))
    return SpikeSlab(math.exp(log_spike + draw(st.floats(0, 6))), math.exp(log_spike), draw(OPEN))


@given(MEANS, LOG_STDS, PROBABILITIES, spike_slabs())
def test_the_spike_slab_kl_is_not_negative_and_the_profiled_one_is_least(mean, log_std, p, prior):
    profiled = profiled_kl(mean, log_std, prior)
    other = spike_slab_kl(mean, log_std.exp(), p, prior)
    assert profiled >= -1e-9
    assert other >= profiled - 1e-9 * (1 + other.abs())


@given(MEANS, MEANS, LOG_STDS, spike_slabs())
def test_inclusion_rises_with_the_size_of_the_mean_and_with_the_std(a, b, log_std, prior):
    std = log_std.exp()
    small, large = sorted((a.abs(), b.abs()))
    assert inclusion_logit(small, std, prior) <= inclusion_logit(large, std, prior)
    assert inclusion_logit(std, small, prior) <= inclusion_logit(std, large, prior)
    assert inclusion_logit(-a, std, prior) == inclusion_logit(a, std, prior)


@settings(max_examples=30)
@given(spike_slabs())
def test_there_are_one_or_three_stationary_stds_between_spike_and_slab(prior):
    roots = prior.stationary_stds()
    assert len(roots) in (1, 3)
    assert list(roots) == sorted(roots)
    assert prior.spike_std * 0.999 <= roots[0]
    assert roots[-1] <= prior.slab_std * 1.001
    assert 0 < prior.safe_init_std() <= prior.spike_std
    if len(roots) == 3:
        assert prior.safe_init_std() < roots[1]


LAYERS = st.sampled_from(["linear", "tanh", "norm", "batch_norm", "no_bias", "frozen"])


@st.composite
def architectures(draw):
    """A small stack of layers between 2 inputs and 1 output."""
    width, layers = 2, []
    for kind in draw(st.lists(LAYERS, max_size=4)):
        if kind == "tanh":
            layers.append(nn.Tanh())
        elif kind == "norm":
            layers.append(nn.LayerNorm(width))
        elif kind == "batch_norm":
            layers.append(nn.BatchNorm1d(width))
        else:
            new = draw(st.integers(1, 4))
            layers.append(nn.Linear(width, new, bias=kind != "no_bias"))
            layers[-1].requires_grad_(kind != "frozen")
            width = new
    return built(
        lambda: nn.Sequential(*layers, nn.Linear(width, 1)).double(), draw(st.integers(0, 100))
    )


@settings(max_examples=25)
@given(architectures(), st.integers(1, 3), st.integers(2, 5))
def test_values_and_gradients_agree_with_autograd_for_any_architecture(model, k, n):
    x, y = normal(5, 2, seed=1), normal(5, 1, seed=2)
    problem = Problem(model, Gaussian(0.5), (x, y))
    w = problem.initial + 0.2 * normal(k, problem.layout.size, seed=3)
    values, grads = problem.value_and_grad(w, Batch(x[:n], y[:n]))
    for i in range(k):
        leaf = w[i].clone().requires_grad_()
        parts = problem.layout.unflatten(leaf)
        output = torch.func.functional_call(model.train(), parts, (x[:n],))
        exact = torch.distributions.Normal(output, 0.5).log_prob(y[:n]).sum() * 5 / n
        torch.testing.assert_close(values[i], exact.detach())
        torch.testing.assert_close(grads[i], torch.autograd.grad(exact, leaf)[0])


@given(st.integers(0, 1000))
def test_masking_twice_is_masking_by_both(seed):
    network = Network.of(nn.Linear(4, 3).double(), Gaussian())
    q = Factorised(network, normal(15, seed=seed), normal(15, seed=seed + 1).exp())
    first, second = torch.rand(2, 15, generator=seeded(seed)) < 0.5
    once, twice = q.masked(first & second), q.masked(first).masked(second)
    assert torch.equal(once.mean, twice.mean)
    assert torch.equal(once.std, twice.std)
    assert torch.equal(once.draw(2, seeded(0)), twice.draw(2, seeded(0)))
