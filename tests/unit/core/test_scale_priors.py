"""Scales: exact KLs, their minimum, and members of a population."""

import math

import pytest
import torch

from bayesieve.engines.scaled import Horseshoe, LayerScaled, log_normal_gamma_kl
from problems import normal


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


def test_each_member_has_its_prior():
    assert LayerScaled(std=(0.1, 0.2)).member(1) == LayerScaled(std=0.2)
    assert Horseshoe(rate=(6.0, 2.0)).member(0) == Horseshoe()
    with pytest.raises(ValueError, match=r"^Horseshoe: rate must be > 0, got -1"):
        Horseshoe(rate=-1.0)
