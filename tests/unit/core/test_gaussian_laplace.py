"""Closed forms of the Gaussian-Laplace prior against densities, autograd and searches."""

import math

import pytest
import torch
from torch.distributions import Laplace, Normal

from bayesieve.core.priors_laplace import (
    GaussianLaplace,
    best_scale,
    best_slab_prob,
    penalties,
    penalty_energy,
    penalty_gradient,
)
from oracles import inclusion_log_odds

F64 = torch.float64


def numbers(n=200):
    generator = torch.Generator().manual_seed(0)
    draw = torch.rand(5, n, generator=generator, dtype=F64)
    w, prob = 4 * draw[0] - 2, 0.02 + 0.96 * draw[1]
    scale, spike, slab = 0.3 + 2 * draw[2], 0.2 + draw[3], 0.2 + 3 * draw[4]
    return w, prob, scale, spike, slab


def test_inclusion_is_the_ratio_of_densities():
    w, prob, scale, spike, slab = numbers()
    wide = prob * Normal(0.0, scale * slab).log_prob(w).exp()
    narrow = (1 - prob) * Laplace(0.0, scale * spike).log_prob(w).exp()
    odds = inclusion_log_odds(w, prob, scale, spike, slab)
    torch.testing.assert_close(torch.sigmoid(odds), wide / (wide + narrow), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("slab_std", [1e-3, 1.0, 10.0])
@pytest.mark.parametrize("slab_prob", [0.0, 1e-12, 0.5, 1.0])
def test_inclusion_is_finite_in_single_precision(slab_std, slab_prob):
    w = torch.linspace(-100, 100, 2001)
    settings = (torch.tensor(value) for value in (slab_prob, 1.0, 0.005, slab_std))
    assert torch.isfinite(inclusion_log_odds(w, *settings)).all()


@pytest.mark.parametrize(("spike", "slab", "ranks"), [(0.1, 3.0, True), (0.005, 0.0032, False)])
def test_which_component_is_the_wide_one(spike, slab, ranks):
    assert GaussianLaplace(spike, slab).ranks_by_inclusion() is ranks


def test_penalties_are_expected_inverse_widths():
    rho, spike, slab = (torch.tensor(value, dtype=F64) for value in (0.25, 0.1, 2.0))
    laplace, gauss = penalties(rho, spike, slab)
    assert laplace.item() == pytest.approx(7.5)
    assert gauss.item() == pytest.approx(0.0625)


def test_the_energy_is_the_expected_negative_log_density_up_to_constants():
    w, rho, scale, spike, slab = numbers()
    laplace, gauss = penalties(rho, spike, slab)

    def expected(v):
        wide = Normal(0.0, scale * slab).log_prob(v)
        return -rho * wide - (1 - rho) * Laplace(0.0, scale * spike).log_prob(v)

    energy = penalty_energy(w, laplace, gauss, scale)
    torch.testing.assert_close(energy, expected(w) - expected(torch.zeros_like(w)))


def test_the_gradient_is_that_of_the_energy():
    w, rho, scale, spike, slab = numbers()
    laplace, gauss = penalties(rho, spike, slab)
    w.requires_grad_()
    (grad,) = torch.autograd.grad(penalty_energy(w, laplace, gauss, scale).sum(), w)
    torch.testing.assert_close(penalty_gradient(w.detach(), laplace, gauss, scale), grad)
    zero = torch.zeros(1, dtype=F64)
    assert penalty_gradient(zero, laplace[:1], gauss[:1], scale[:1]).item() == 0


@pytest.mark.parametrize("laplace_sum", [0.0, 0.5, 30.0])
@pytest.mark.parametrize("square_sum", [0.1, 40.0])
@pytest.mark.parametrize("count", [3.0, 1100.0])
def test_the_scale_maximises_its_objective(laplace_sum, square_sum, count):
    best = best_scale(torch.tensor(laplace_sum, dtype=F64), torch.tensor(square_sum), count)
    grid = best * torch.linspace(0.5, 2.0, 150_001, dtype=F64)
    value = -count * grid.log() - laplace_sum / grid - square_sum / (2 * grid.square())
    assert grid[value.argmax()].item() == pytest.approx(best.item(), rel=2e-5)


@pytest.mark.parametrize(("slab", "spike"), [(0.0, 1.0), (1.0, 1.0), (0.2, 0.0)])
def test_the_slab_probability_maximises_its_objective(slab, spike):
    p, rho_sum = 40, 13.0
    a, b = 1 + slab * p, 1 + spike * p
    grid = torch.linspace(1e-5, 1 - 1e-5, 200_001, dtype=F64)
    value = grid.logit() * rho_sum + (a - 1) * grid.log() + (p + b - 1) * (-grid).log1p()
    shares = torch.tensor(slab, dtype=F64), torch.tensor(spike, dtype=F64)
    best = best_slab_prob(torch.tensor(rho_sum / p, dtype=F64), *shares)
    assert grid[value.argmax()].item() == pytest.approx(best.item(), abs=1e-5)
    assert best.item() == pytest.approx((rho_sum + a - 1) / (a + b + p - 2))  # as printed


def test_the_density_integrates_to_one():
    w = torch.linspace(-60, 60, 1_200_001, dtype=F64)
    density = GaussianLaplace(0.2, 1.5, slab_prob=0.3, scale=1.7).log_prob(w).exp()
    assert torch.trapezoid(density, w).item() == pytest.approx(1.0, abs=1e-6)


def test_each_member_has_its_numbers():
    prior = GaussianLaplace((0.1, 0.2), scale=(1.0, 2.0))
    assert prior.member(1) == GaussianLaplace(0.2, scale=2.0)
    w = torch.ones(2, 1)
    assert prior.log_prob(w)[1] == prior.member(1).log_prob(w)[1]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"spike_scale": 0.0}, "spike_scale must be > 0"),
        ({"slab_std": -1.0}, "slab_std must be > 0"),
        ({"slab_prob": 1.0}, "slab_prob must be strictly between 0 and 1"),
        ({"spike_share": -1.0}, "spike_share must be >= 0"),
        ({"scale": math.inf}, "scale must be > 0"),
        ({"penalty": -1.0}, "penalty must be >= 0"),
    ],
)
def test_impossible_numbers_are_refused(settings, message):
    with pytest.raises(ValueError, match=f"^GaussianLaplace: {message}"):
        GaussianLaplace(**settings)
