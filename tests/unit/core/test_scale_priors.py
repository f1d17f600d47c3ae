"""Scales: half-Cauchy quantiles, independence of units, limits and exact KLs."""

import math

import pytest
import torch
from torch.nn.functional import softplus

from bayesieve.core.priors import Horseshoe, LayerScaled, log_normal_gamma_kl
from oracles import horseshoe_draws, log_cauchy_square, log_regularised_scale
from problems import normal, seeded


def double(x):
    return torch.tensor(x, dtype=torch.float64)


@pytest.mark.parametrize(("shape", "rate"), [(2.0, 2.0), (2.0, 6.0), (0.5, 1.0)])
@pytest.mark.parametrize(("mean", "std"), [(0.3, 0.4), (-1.0, 0.8)])
def test_the_kl_of_a_scale_agrees_with_monte_carlo(shape, rate, mean, std):
    x = mean + std * normal(400_000, seed=0)
    log_q = torch.distributions.LogNormal(double(mean), double(std)).log_prob(x.exp())
    log_p = torch.distributions.Gamma(double(shape), double(rate)).log_prob(x.exp())
    values = log_q - log_p
    exact = log_normal_gamma_kl(double(mean), double(std).log(), double(shape), double(rate))
    assert (values.mean() - exact).abs() < 4 * values.std() / math.sqrt(len(values))
    assert exact > 0


def test_the_best_log_normal_is_a_stationary_point():
    mean, log_std = double(-0.2).requires_grad_(), double(-0.5).requires_grad_()
    optimizer = torch.optim.LBFGS([mean, log_std], max_iter=100, tolerance_grad=1e-12)

    def closure():
        optimizer.zero_grad()
        kl = log_normal_gamma_kl(mean, log_std, double(2.0), double(6.0))
        kl.backward()
        return kl

    optimizer.step(closure)
    # Derivatives vanish at s² = 1 / a and e^{m + s²/2} = a / b.
    assert math.exp(2 * log_std.item()) == pytest.approx(1 / 2, rel=1e-5)
    assert math.exp(mean.item() + 0.25) == pytest.approx(1 / 3, rel=1e-5)


def test_the_log_form_is_the_direct_form_and_has_its_limits():
    ratio, precision = normal(50, seed=1) * 2, normal(50, seed=2)
    lam2, c2 = ratio.exp(), (-precision).exp()
    direct = (c2 * lam2 / (c2 + lam2)).sqrt()
    torch.testing.assert_close(log_regularised_scale(ratio, precision).exp(), direct)
    tiny = log_regularised_scale(double(-80.0), double(0.0))
    assert tiny.item() == pytest.approx(-40.0)  # γ = λ far below the slab
    huge = log_regularised_scale(double(80.0), double(1.4))
    assert huge.item() == pytest.approx(-0.7)  # γ = c far above it
    assert softplus(double(80.0)) == 80


def test_a_ratio_of_gammas_has_half_cauchy_quantiles():
    source = seeded(0)
    z = torch.empty(2, 1_000_000, dtype=torch.float64).normal_(generator=source)
    scale = (0.5 * log_cauchy_square(z)).exp()  # √(a / b), a and b ~ Gamma(½, 1)
    levels = double([0.25, 0.5, 0.75, 0.9])
    exact = torch.tan(0.5 * math.pi * levels)
    quantiles = torch.stack([scale.kthvalue(int(level * len(scale)))[0] for level in levels])
    torch.testing.assert_close(quantiles, exact, rtol=0.01, atol=0)


def test_draws_from_the_prior_have_the_median_of_two_half_cauchys():
    prior = Horseshoe(std=0.5, shape=2.0, rate=1e12)  # hardly any slab
    w = horseshoe_draws(prior, 40_000, n_units=1, fan_in=1, generator=seeded(0)).double()
    # log|w| is log 0.5 plus two symmetric terms plus log|ŵ|: compare with a simulation of those.
    source = seeded(1)
    z = torch.empty(5, 400_000, dtype=torch.float64).normal_(generator=source).abs()
    expected = (0.5 * z[0] / z[1] * z[2] / z[3] * z[4]).median()
    assert w.abs().median().item() == pytest.approx(expected.item(), rel=0.05)


def test_each_unit_has_its_scale_and_weights_of_a_unit_share_one():
    prior = Horseshoe(std=1.0, shape=50.0, rate=50.0)
    w = horseshoe_draws(prior, 4000, n_units=3, fan_in=2, generator=seeded(2))
    square = w.double().square()
    kurtosis = square.square().mean() / square.mean().square()
    assert kurtosis > 3.3  # one scale for all would give the 3 of a Gaussian
    size = square.log()
    within = torch.corrcoef(torch.stack([size[:, 0, 0], size[:, 0, 1]]))[0, 1]
    between = torch.corrcoef(torch.stack([size[:, 0, 0], size[:, 1, 0]]))[0, 1]
    assert within > between + 0.05
    # Draws of different layers share nothing.
    across = torch.corrcoef(torch.stack([size[:2000, 0, 0], size[2000:, 0, 0]]))[0, 1]
    assert across.abs() < 4 / math.sqrt(2000)


def test_equal_generators_give_equal_draws():
    first, second = (
        horseshoe_draws(Horseshoe(), 2, n_units=3, fan_in=2, generator=seeded(5)) for _ in range(2)
    )
    assert torch.equal(first, second)


def test_each_member_has_its_prior():
    assert LayerScaled(std=(0.1, 0.2)).member(1) == LayerScaled(std=0.2)
    assert Horseshoe(rate=(6.0, 2.0)).member(0) == Horseshoe()
    with pytest.raises(ValueError, match=r"^Horseshoe: rate must be > 0, got -1"):
        Horseshoe(rate=-1.0)
