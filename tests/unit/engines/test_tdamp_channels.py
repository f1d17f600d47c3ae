"""Channels of EM-TDAMP against quadrature, the specification and finite differences."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.special import log_ndtr

from bayesieve.core.likelihoods import Bernoulli, Categorical
from bayesieve.engines.tdamp.channels import (
    PROBIT_VARIANCE,
    class_log_probs,
    gaussian_channel,
    inverse_mills,
    log_mills,
    observe,
    probit_channel,
    relu_channel,
    restricted,
    star_channel,
)

F64 = torch.float64


def number(value):
    return torch.tensor(value, dtype=F64)


def truncated(mean, std):
    return restricted(inverse_mills(mean / std), std)


def moments_on_a_grid(log_density, low, high, transform=lambda z: z, n=400_001):
    """Mean and variance of transform(z) under an unnormalised log density."""
    z = torch.linspace(low, high, n, dtype=F64)
    weight = log_density(z).softmax(0)
    values = transform(z)
    mean = (weight * values).sum()
    return mean, (weight * (values - mean).square()).sum()


@pytest.mark.parametrize("b", [-40.0, -12.0, -6.5, -5.5, -1.0, 0.0, 2.0, 9.0])
@pytest.mark.parametrize("std", [0.1, 3.0])
def test_truncated_moments_in_both_tails(b, std):
    mean = b * std
    high = std * (10 + b) if b > 0 else std * min(10.0, 40 / (1 + abs(b)))
    expected = moments_on_a_grid(lambda z: -0.5 * ((z - mean) / std) ** 2, 0.0, high)
    unit = truncated(number(mean), number(std))
    torch.testing.assert_close(unit.mean, expected[0], rtol=2e-4, atol=0)
    torch.testing.assert_close(unit.var, expected[1], rtol=2e-3, atol=0)


@pytest.mark.parametrize("a", [-30.0, -3.0, 0.0, 4.0])
def test_the_inverse_mills_ratio_is_the_slope_of_log_ndtr(a):
    x = number(a).requires_grad_()
    log_ndtr(x).backward()
    torch.testing.assert_close(inverse_mills(x.detach()).ratio, x.grad, rtol=1e-6, atol=0)


@pytest.mark.parametrize("omega", [-7.0, -3.0, 0.0, 0.5, 4.0])
@pytest.mark.parametrize(("a", "b"), [(2.0, 1.0), (0.0, 0.0), (-0.3, 0.5), (5.0, -4.0)])
def test_the_relu_channel_against_quadrature(omega, a, b):
    var = 0.8

    def log_density(z):
        u = z.clamp(min=0)
        return -0.5 * (z - omega) ** 2 / var + b * u - 0.5 * a * u**2

    z_mean, z_var = moments_on_a_grid(log_density, omega - 12, omega + 14)
    u_mean, u_var = moments_on_a_grid(log_density, omega - 12, omega + 14, lambda z: z.clamp(min=0))
    response, unit = relu_channel(*map(number, (omega, var, a, b)))
    close = {"rtol": 1e-3, "atol": 1e-9}
    torch.testing.assert_close(unit.mean, u_mean, **close)
    torch.testing.assert_close(unit.var, u_var, **close)
    torch.testing.assert_close(response.g, (z_mean - omega) / var, rtol=1e-4, atol=1e-7)
    torch.testing.assert_close(response.gamma, (1 - z_var / var) / var, rtol=1e-4, atol=1e-6)


def test_the_gaussian_channel_is_the_slope_of_the_evidence():
    omega, var, target, noise = (number(v) for v in (0.4, 0.7, -1.0, 0.3))
    omega.requires_grad_()
    log_z = torch.distributions.Normal(omega, (var + noise).sqrt()).log_prob(target)
    (slope,) = torch.autograd.grad(log_z, omega, create_graph=True)
    (curvature,) = torch.autograd.grad(slope, omega)
    found = gaussian_channel(omega.detach(), var, target, noise)
    torch.testing.assert_close(found.g, slope.detach())
    torch.testing.assert_close(found.gamma, -curvature)


@pytest.mark.parametrize("omega", [-8.0, -1.0, 0.5, 6.0])
@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_the_probit_channel_against_quadrature(omega, sign):
    var, noise = 1.3, 0.6
    mean, spread = moments_on_a_grid(
        lambda z: -0.5 * (z - omega) ** 2 / var + log_ndtr(sign * z / math.sqrt(noise)), -25, 25
    )
    found = probit_channel(number(omega), number(var), number(sign), noise)
    torch.testing.assert_close(found.g, (mean - omega) / var, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(found.gamma, (1 - spread / var) / var, rtol=1e-5, atol=1e-8)


def test_the_star_channel_against_the_table_of_the_specification():
    omega = torch.tensor([[0.5, 0.0, -0.3, 1.0]], dtype=F64)
    var = torch.tensor([[1.0, 0.5, 2.0, 0.7]], dtype=F64)
    found = star_channel(omega, var, torch.tensor([0]), 0.5)
    # That of the true class is 0.9215 there, from sites that four sweeps leave unconverged.
    g = torch.tensor([[0.9690, -0.2240, -0.1807, -0.5643]], dtype=F64)
    gamma = torch.tensor([[0.4489, 0.2248, 0.1272, 0.3297]], dtype=F64)
    torch.testing.assert_close(found.g, g, rtol=0, atol=6e-5)
    torch.testing.assert_close(found.gamma, gamma, rtol=0, atol=6e-5)


def test_outputs_that_shift_together_change_nothing():
    source = torch.Generator().manual_seed(0)
    omega = 5 * torch.randn(50, 10, generator=source, dtype=F64)
    var = 0.01 + 3 * torch.rand(50, 10, generator=source, dtype=F64)
    label = torch.randint(10, (50,), generator=source)
    found = star_channel(omega, var, label, PROBIT_VARIANCE)
    torch.testing.assert_close(found.g.sum(-1), torch.zeros(50, dtype=F64))
    moved = star_channel(omega + 7.0, var, label, PROBIT_VARIANCE)
    torch.testing.assert_close(moved.g, found.g)
    torch.testing.assert_close(moved.gamma, found.gamma)


def test_the_star_channel_against_quadrature():
    # Given the true output the others are independent: one integral over it is all of log Z.
    source = torch.Generator().manual_seed(1)
    omega = torch.randn(200, 10, generator=source, dtype=F64, requires_grad=True)
    var = 0.01 + 0.1 * torch.rand(200, 10, generator=source, dtype=F64)
    label = torch.randint(10, (200,), generator=source)
    nodes = torch.linspace(-8, 8, 400, dtype=F64)
    true = omega.gather(1, label[:, None]) + var.gather(1, label[:, None]).sqrt() * nodes
    scale = (PROBIT_VARIANCE + var).sqrt()[:, None, :]
    terms = log_ndtr((true[:, :, None] - omega[:, None, :]) / scale)
    true = torch.nn.functional.one_hot(label, 10).bool()[:, None, :]
    log_z = torch.logsumexp(terms.masked_fill(true, 0).sum(-1) - nodes.square() / 2, 1)
    (exact,) = torch.autograd.grad(log_z.sum(), omega)
    found = star_channel(omega.detach(), var, label, PROBIT_VARIANCE)
    error = (found.g - exact).square().mean().sqrt() / exact.square().mean().sqrt()
    assert error < 0.01  # 0.054 with the true class's own sites


def test_two_classes_are_one_probit_of_the_difference():
    omega, var = torch.tensor([[0.7, -0.4]], dtype=F64), torch.tensor([[0.9, 0.5]], dtype=F64)
    found = star_channel(omega, var, torch.tensor([1]), 0.8)
    total = probit_channel(omega[:, 1] - omega[:, 0], var.sum(1), number(1.0), 0.8)
    # Only Γ of the true class is that of a damped site.
    torch.testing.assert_close(found.g[:, 0], -total.g)
    torch.testing.assert_close(found.gamma[:, 0], total.gamma)
    torch.testing.assert_close(found.g[:, 1], total.g)


@pytest.mark.parametrize("far", [0.1, 5.0, 500.0])
def test_no_class_is_pulled_harder_than_a_logit(far):
    """Near the boundary nothing changes; a lost example pulls as one that is just lost."""
    omega, var = torch.tensor([[-far, far, 0.0]], dtype=F64), torch.full((1, 3), 0.2, dtype=F64)
    label, none = torch.tensor([0]), torch.ones(1, 1, dtype=F64)
    free = star_channel(omega, var, label, PROBIT_VARIANCE)
    found = observe(Categorical(), label, none, (1, 3))(omega, var)
    steepest = max(free.g.abs().max().item(), 1.0)
    assert (steepest > 1) is (far > 1)
    for ours, theirs in zip(found, free, strict=True):
        torch.testing.assert_close(ours, theirs / steepest)
    binary = observe(Bernoulli(), torch.zeros(1, 1, dtype=F64), none, (1, 1))
    assert binary(omega[:, 1:2], var[:, :1]).g.abs().max() <= 1


def test_class_probabilities_sum_to_one_and_follow_the_order_of_the_outputs():
    omega = torch.tensor([[0.0, 2.0, 1.0]])
    log_probs = class_log_probs(omega, torch.ones(1, 3), 1.0)
    torch.testing.assert_close(log_probs.exp().sum(1), torch.ones(1))
    assert log_probs.argsort(1).tolist() == omega.argsort(1).tolist()


EXTREME = st.floats(-1e4, 1e4, width=32)
VARIANCE = st.floats(-8.0, 4.0).map(lambda e: 10.0**e)


@settings(max_examples=200, deadline=None)
@given(EXTREME, VARIANCE, EXTREME, EXTREME)
def test_extreme_messages_to_the_relu_give_numbers(omega, var, a, b):
    for dtype in (torch.float32, F64):
        numbers = (torch.tensor(v, dtype=dtype) for v in (omega, var, a, b))
        response, unit = relu_channel(*numbers)
        for value in (*response, *unit):
            assert torch.isfinite(value)
        assert unit.mean >= 0
        assert unit.var >= 0


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(EXTREME, VARIANCE), min_size=2, max_size=5))
def test_extreme_outputs_give_numbers(outputs):
    omega, var = torch.tensor(outputs, dtype=torch.float32).T[:, None]
    results = (*star_channel(omega, var, torch.tensor([0]), 1.0), class_log_probs(omega, var, 1.0))
    for value in (*results, *probit_channel(omega, var, torch.tensor(-1.0), 1.0)):
        assert torch.isfinite(value).all()


def test_single_precision_keeps_its_digits_in_both_tails():
    a = torch.linspace(-40, 12, 5201, dtype=F64)
    exact, rounded = inverse_mills(a), inverse_mills(a.float())
    for name in ("ratio", "excess", "rest"):
        found, expected = getattr(rounded, name).double(), getattr(exact, name)
        shown = expected > 1e-30  # φ underflows in the right tail
        torch.testing.assert_close(found[shown], expected[shown], rtol=5e-3, atol=0)
    log_cdf = -0.5 * a.float().square() - 0.5 * math.log(2 * math.pi)
    log_cdf = log_cdf - log_mills(a.float(), rounded.ratio)
    torch.testing.assert_close(log_cdf.double(), log_ndtr(a), rtol=1e-4, atol=1e-6)
