"""The calibration study in short: its oracles, and how near to exact the engines are."""

import pytest
import torch

from bayesieve.core.likelihoods import Gaussian
from problems import conjugate, logistic, normal
from studies.calibration import (
    Linear,
    Logistic,
    columns,
    coverage,
    distance,
    enumeration,
    exact_inclusion,
    uniform_distance,
    unit_noise,
)

F64 = torch.float64
K = 30


def test_the_linear_oracle_is_that_of_the_conjugate_problem():
    known = conjugate(orthogonal=False)
    ours = Linear(known.x[None], torch.zeros(1, 4), known.y[None, :, 0], 0.5, Gaussian(0.8))
    torch.testing.assert_close(ours.mean[0], known.mean)
    torch.testing.assert_close(ours.std[0], known.std)
    mean, std = known.mean + 0.1, known.precision.diagonal().rsqrt()
    prior = torch.distributions.Normal(torch.zeros(4, dtype=F64), 0.5)
    kl = torch.distributions.kl_divergence(torch.distributions.Normal(mean, std), prior).sum()
    gap = known.log_evidence - (known.expected_log_lik(mean, std) - kl)
    assert ours.nats(mean[None], std[None]).item() == pytest.approx(gap.item(), rel=1e-6)


def test_the_grid_is_that_of_quadrature():
    known = logistic()
    ours = Logistic(known.x[None], torch.zeros(1, 2), known.y[None])
    mean, std, log_evidence = known.moments()
    torch.testing.assert_close(ours.mean[0], mean, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(ours.std[0], std, rtol=1e-6, atol=1e-6)
    draws = mean + 0.9 * std * normal(200_000, 2, seed=0)
    q = torch.distributions.Normal(mean, 0.9 * std)
    gap = log_evidence - (known.log_joint(draws) - q.log_prob(draws).sum(1)).mean()
    assert ours.nats(mean[None], 0.9 * std[None]).item() == pytest.approx(gap.item(), abs=0.01)


def test_enumeration_of_one_weight_is_bayes_rule():
    """Two models of one weight: the evidence of each is a normal density of the targets."""
    x, y = normal(1, 12, 1, seed=1), normal(1, 12, seed=2)
    logs = []
    for std in (0.05, 1.0):
        covariance = std**2 * x[0] @ x[0].T + 0.64 * torch.eye(12, dtype=F64)
        marginal = torch.distributions.MultivariateNormal(torch.zeros(12, dtype=F64), covariance)
        logs.append(marginal.log_prob(y[0]))
    odds = 0.3 / 0.7 * (logs[1] - logs[0]).exp()
    found = exact_inclusion(x, y, 0.8, 0.3, 0.05)
    assert found.item() == pytest.approx((odds / (1 + odds)).item(), rel=1e-9)


def test_uniform_ranks_are_near_the_diagonal():
    ranks = torch.rand(2000, generator=torch.Generator().manual_seed(0))
    assert uniform_distance(ranks) < 1.63 / 2000**0.5  # 99 %
    assert uniform_distance(0.5 + 0.5 * ranks) > 0.45


@pytest.mark.parametrize("kind", ["gaussian", "heavy", "uneven"])
def test_every_noise_has_variance_one(kind):
    x = columns(0, 200, 100, 4, 0.0)
    middle = unit_noise(kind, x, 3).clamp(-20, 20).square().mean()
    assert middle == pytest.approx(1, abs=0.1)


# Distances in exact standard deviations; z has a standard error of 1 / sqrt(2 K d) = 6 %.
@pytest.mark.parametrize(
    ("name", "mean_off", "std"),
    [("laplace", 1e-3, 0.08), ("flat-vi", 0.12, 0.08), ("sbnn", 0.12, 0.08)],
)
def test_independent_columns(name, mean_off, std):
    result = distance(name, Linear.simulate(K))
    assert result["mean_off"] < mean_off
    assert result["std_ratio"] == pytest.approx(1, abs=std)
    assert result["z"] == pytest.approx(1, abs=0.25)
    assert result["ks"] < 1.2 * result["ks_limit"]


def test_products_of_gaussians_are_too_narrow_under_correlation_and_chains_are_not():
    world = Linear.simulate(K, correlation=0.9)
    narrow, chain = distance("laplace", world), distance("sghmc", world)
    assert narrow["std_ratio"] < 0.6
    assert narrow["z"] > 1.5
    assert chain["std_ratio"] == pytest.approx(1, abs=0.15)
    assert chain["z"] == pytest.approx(1, abs=0.3)


def test_inclusion_under_independence_is_near_the_sum_over_all_models():
    assert enumeration(0.0, 6, 1)["inclusion_off"] < 0.12


def test_intervals_of_a_linear_network_cover():
    result = coverage("sbnn", 200, "gaussian", 6)
    assert result["coverage"] == pytest.approx(0.9, abs=0.06)
    assert result["width"] == pytest.approx(1, abs=0.1)
