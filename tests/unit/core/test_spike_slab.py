"""Closed forms against quadrature, brute force, Monte Carlo, scipy and autograd."""

import math

import pytest
import torch
from scipy import optimize
from torch import distributions as td

from bayesieve.core.priors import (
    Normal,
    SpikeSlab,
    inclusion_logit,
    mixture_numbers,
    mixture_precision,
    normal_kl,
    profiled_kl,
)
from bayesieve.engines.sbnn import proximal_step
from oracles import spike_slab_kl
from problems import normal, seeded

F64 = torch.float64
PRIORS = [
    SpikeSlab(1.0, 0.1, 0.5),
    SpikeSlab(0.4, 0.05, 0.2),
    SpikeSlab(2.0, 0.5, 0.9),
    SpikeSlab(0.7, 0.7, 0.3),
]
POINTS = [(0.0, 0.1), (0.3, 0.02), (-0.15, 0.3), (1.2, 0.8), (-2.0, 0.05)]


def f64(value):
    return torch.tensor(value, dtype=F64)


def random_settings(n):
    """n random (mean, std, prior), as in the checks of the paper's formulas."""
    rows = torch.rand(n, 5, generator=seeded(0), dtype=F64).tolist()
    for a, b, c, d, e in rows:
        spike = math.exp(-4 + 3 * c)
        prior = SpikeSlab(spike * math.exp(3 * d), spike, 0.05 + 0.9 * e)
        yield f64(4 * (a - 0.5)), f64(math.exp(-4 + 5 * b)), prior


def kl_by_quadrature(mean, std, p, prior):
    """Σ_z ∫ q(w) q(z) log [q(w) q(z) / (p(z) p(w|z))] dw by the trapezoid rule."""
    w = mean + std * torch.linspace(-12, 12, 20001, dtype=F64)
    log_q = td.Normal(mean, std).log_prob(w)
    total = torch.zeros((), dtype=F64)
    for q_z, prior_z, scale in (
        (p, prior.slab_prob, prior.slab_std),
        (1 - p, 1 - prior.slab_prob, prior.spike_std),
    ):
        log_prior = math.log(prior_z) + td.Normal(f64(0.0), f64(scale)).log_prob(w)
        integrand = log_q.exp() * q_z * (log_q + math.log(q_z) - log_prior)
        total += torch.trapezoid(integrand, w)
    return total


@pytest.mark.parametrize("prior", PRIORS, ids=str)
@pytest.mark.parametrize("point", POINTS, ids=str)
@pytest.mark.parametrize("p", [0.03, 0.5, 0.97])
def test_spike_slab_kl_equals_quadrature(prior, point, p):
    mean, std = map(f64, point)
    exact = kl_by_quadrature(mean, std, p, prior)
    torch.testing.assert_close(spike_slab_kl(mean, std, f64(p), prior), exact, rtol=1e-8, atol=1e-8)


def test_profiled_kl_is_the_kl_at_the_best_inclusion_in_value_and_gradient():
    for mean, std, prior in random_settings(100):
        mean, log_std = mean.requires_grad_(), std.log().requires_grad_()
        profiled = profiled_kl(mean, log_std, prior)
        p = torch.sigmoid(inclusion_logit(mean, log_std.exp(), prior)).detach()
        reference = spike_slab_kl(mean, log_std.exp(), p, prior)
        torch.testing.assert_close(profiled, reference, rtol=1e-10, atol=1e-10)
        gradient = torch.autograd.grad(profiled, (mean, log_std))
        held = torch.autograd.grad(reference, (mean, log_std))  # p constant: envelope theorem
        torch.testing.assert_close(gradient, held, rtol=1e-9, atol=1e-9)


def test_normal_kl_agrees_with_torch():
    mean, log_std, prior_std = normal(50, seed=1), normal(50, seed=2), normal(50, seed=3).exp()
    exact = td.kl_divergence(
        td.Normal(mean, log_std.exp()), td.Normal(torch.zeros_like(mean), prior_std)
    )
    torch.testing.assert_close(normal_kl(mean, log_std, prior_std), exact)


def inclusion(mean, std, *numbers):
    return torch.sigmoid(inclusion_logit(f64(mean), f64(std), SpikeSlab(*numbers))).item()


def test_limits_of_the_inclusion_probability():
    assert inclusion(10.0, 0.1, 1.0, 0.1) == 1.0  # e to infinity
    assert inclusion(0.3, 0.1, 1e8, 0.05) == pytest.approx(0.195, abs=5e-4)  # slow: sbnn errata 9
    assert inclusion(0.3, 0.1, 1e12, 0.05) < 1e-4  # wide slab
    assert inclusion(0.3, 0.1, 1.0, 1e-4) == 1.0  # narrow spike, a weight that is not 0
    assert inclusion(0.0, 0.0, 1.0, 1e-12) < 1e-11  # narrow spike, a weight at 0


def test_ranking_by_logit_is_ranking_by_second_moment_in_float32():
    prior = SpikeSlab(1.0, math.exp(-6))
    mean = torch.rand(5000, generator=seeded(0)) + 0.02
    std = torch.full_like(mean, 1e-3)
    logit = inclusion_logit(mean, std, prior)
    e = mean.square() + std.square()
    assert (logit[e.argsort()].diff() >= 0).all()
    assert len(logit.unique()) > 0.99 * len(e.unique())
    assert len(torch.sigmoid(logit).unique()) < 0.1 * len(e.unique())  # why logits are kept


@pytest.mark.parametrize("log_std", [-100.0, -50.0, -15.0, 0.0, 5.0, 20.0])
@pytest.mark.parametrize("mean", [0.0, 50.0, -50.0])
def test_extreme_values_stay_finite_in_float32(log_std, mean):
    prior = SpikeSlab(1.0, math.exp(-7))
    m = torch.tensor(mean, requires_grad=True)
    s = torch.tensor(log_std, requires_grad=True)
    profiled_kl(m, s, prior).backward()
    kappa = mixture_precision(m.square() + (2 * s).exp(), *mixture_numbers(prior, m))
    logit = inclusion_logit(m, s.exp(), prior)
    for value in (profiled_kl(m, s, prior), kappa, logit, m.grad, s.grad):
        assert torch.isfinite(value), value


def test_mixture_precision_gives_the_gradient_of_the_profiled_kl():
    for mean, std, prior in random_settings(100):
        mean, log_std = mean.requires_grad_(), std.log().requires_grad_()
        exact = torch.autograd.grad(profiled_kl(mean, log_std, prior), (mean, log_std))
        kappa = mixture_precision(mean**2 + std**2, *mixture_numbers(prior, mean))
        torch.testing.assert_close((mean * kappa, std**2 * kappa - 1), exact)


@pytest.mark.parametrize("length", [1e-4, 0.1, 10.0])
@pytest.mark.parametrize("kappa", [1.0, 400.0, 160000.0])
def test_proximal_step_equals_numerical_minimisation(length, kappa):
    mean, std = 0.7, 0.2

    def of_mean(m):
        return length * kappa * m**2 / 2 + (m - mean) ** 2 / 2

    def of_std(s):
        return length * (kappa * s**2 / 2 - math.log(s)) + (s - std) ** 2 / 2

    new_mean, new_std = proximal_step(f64(mean), f64(std), f64(kappa), f64(length))
    options = {"xatol": 1e-12}
    best = optimize.minimize_scalar(of_mean, bounds=(0, 1), method="bounded", options=options)
    assert new_mean.item() == pytest.approx(best.x, abs=1e-7)
    best = optimize.minimize_scalar(of_std, bounds=(1e-9, 9), method="bounded", options=options)
    assert new_std.item() == pytest.approx(best.x, rel=1e-6, abs=1e-7)


def test_the_rest_point_of_the_proximal_step_is_the_stationary_std():
    prior = SpikeSlab(1.0, 0.1)
    numbers = mixture_numbers(prior, f64(0.0))
    mean, std = f64(0.05), f64(prior.safe_init_std())
    for _ in range(2000):
        kappa = mixture_precision(mean**2 + std**2, *numbers)
        mean, std = proximal_step(mean, std, kappa, f64(0.01))
    assert mean.abs() < 1e-12
    assert std.item() == pytest.approx(prior.stationary_stds()[0], rel=1e-6)


def test_settings_of_a_population_act_member_by_member():
    numbers = (1.0, 0.5), (0.1, 0.05), (0.5, 0.2)
    prior = SpikeSlab(*numbers)
    mean, log_std = normal(2, 7, seed=1), normal(2, 7, seed=2)
    p = torch.full_like(mean, 0.4)
    for i in range(2):
        member = prior.member(i)
        pairs = (
            (profiled_kl(mean, log_std, prior), profiled_kl(mean[i], log_std[i], member)),
            (inclusion_logit(mean, p, prior), inclusion_logit(mean[i], p[i], member)),
            (spike_slab_kl(mean, p, p, prior), spike_slab_kl(mean[i], p[i], p[i], member)),
            (prior.log_prob(mean), member.log_prob(mean[i])),
            (Normal((1.0, 0.5)).log_prob(mean), Normal(numbers[0][i]).log_prob(mean[i])),
        )
        for together, alone in pairs:
            torch.testing.assert_close(together[i], alone)


@pytest.mark.parametrize("slab_prob", [0.5, 0.1, 0.01])
def test_the_ratio_from_which_a_weight_without_data_has_two_resting_places(slab_prob):
    def excess(ratio):  # docs/theory/sbnn.md, S12
        a = (ratio**2 - 1) / 2
        return math.exp(a - 1) / (2 * a * (a - 1)) - ratio * (1 - slab_prob) / slab_prob

    ratio = optimize.brentq(excess, 2.5, 10)
    for factor, places in ((0.99, 1), (1.01, 3)):
        prior = SpikeSlab(0.03 * factor * ratio, 0.03, slab_prob)
        assert len(prior.stationary_stds()) == places
