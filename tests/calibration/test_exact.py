"""The calibration study in short: its oracles, and how near to exact the engines are."""

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from bayesieve.core.likelihoods import Gaussian
from bayesieve.data.examples import Examples
from pages import calibration as page
from problems import conjugate, logistic, normal
from studies import calibration as study
from studies.calibration import (
    Linear,
    Logistic,
    Shrunk,
    columns,
    coverage,
    distance,
    enumeration,
    exact_inclusion,
    posteriors,
    uci_coverage,
    uniform_distance,
    unit_noise,
    unit_scaled_log_prob,
)
from studies.record import read

F64 = torch.float64
RESULTS = Path(__file__).parents[2] / "results"
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


def test_the_horseshoe_of_one_weight_is_that_of_quadrature():
    """The prior of w is the integral over widths, here by the trapezium rule in log γ."""
    x, y = normal(1, 12, 1, seed=1), 1.5 + normal(1, 12, seed=2)
    ours = Shrunk(x, torch.zeros(1, 1), y)
    w, log_width = (
        torch.linspace(-9, 9, 9001, dtype=F64),
        torch.linspace(-9, math.log(5), 2001, dtype=F64),
    )
    width = log_width.exp()
    prior = torch.distributions.Normal(0.0, width).log_prob(w[:, None]).exp()
    prior = torch.trapezoid(prior * width / (1 + width**2), log_width, dim=1)
    log_lik = -0.5 * ((y[0] - w[:, None] * x[0, :, 0]) / 0.8).square().sum(1)
    density = prior * (log_lik - log_lik.max()).exp()
    density /= torch.trapezoid(density, w)
    mean = torch.trapezoid(w * density, w)
    std = torch.trapezoid((w - mean) ** 2 * density, w).sqrt()
    assert ours.mean.item() == pytest.approx(mean.item(), rel=1e-3)
    assert ours.std.item() == pytest.approx(std.item(), rel=1e-3)
    here = ((w - mean).abs() < 3 * std) & (w.abs() > 0.02)  # the prior has no bound at 0
    torch.testing.assert_close(
        ours.log_density(0, w[here, None]), density[here].log(), rtol=0, atol=0.01
    )


def test_the_density_of_a_horseshoe_posterior_is_that_of_its_draws():
    world = Logistic.simulate(1, shrunk=True)
    (q,) = posteriors("horseshoe", world.x, world.y, world.likelihood, 1.0, steps=1)
    mean, spread = torch.tensor([[0.5, -0.3], [0.2, 0.3]], dtype=F64)
    q = replace(q, mean=mean, spread=spread, log_std=torch.full_like(q.log_std, 0.6))
    density = (unit_scaled_log_prob(q, world.grid) + world.log_area).exp()
    assert density.sum().item() == pytest.approx(1, abs=0.02)
    draws = q.draw(20_000, torch.Generator().manual_seed(0)).double()
    torch.testing.assert_close(density @ world.grid, q.mean.double(), rtol=0, atol=1e-3)
    torch.testing.assert_close(density @ world.grid.abs(), draws.abs().mean(0), rtol=0.03, atol=0)


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


@pytest.mark.parametrize("name", ["laplace", "tdamp"])
def test_laplace_and_tdamp_cover_with_learned_noise(name):
    assert 0.86 < coverage(name, 40, "heavy", 4)["coverage"] < 0.97


@pytest.mark.parametrize("name", ["map", "laplace"])
def test_tables_are_covered(name, monkeypatch):
    def split(table, root, split):
        rng = np.random.default_rng(split)
        x = rng.normal(size=(120, 3)).astype(np.float32)
        y = (x[:, :1] + 0.3 * rng.normal(size=(120, 1))).astype(np.float32)
        train, test = (
            Examples(torch.tensor(x[rows]), torch.tensor(y[rows]))
            for rows in (slice(80), slice(80, None))
        )
        return SimpleNamespace(train=train, test=test)

    monkeypatch.setattr(study, "load_uci", split)
    result = uci_coverage(name, "yacht", 2, hidden=(4,), epochs=20)
    assert 0.75 < result["coverage"] <= 1
    assert 0 < result["error"] < 0.06


def test_recorded_conformal_intervals_cover_what_they_say():
    for row in read(RESULTS / "conformal.json", "conformal")["rows"]:
        found = row["metrics"]["coverage"]
        assert row["seeds"] == 300
        assert 0.88 <= found <= 0.93, row["name"]


def test_recorded_selection_keeps_its_level_and_its_power():
    record = read(RESULTS / "selection.json", "selection")
    designs = [row for row in record["rows"] if row["name"] != "weights"]
    for row in designs:
        assert len(row["seeds"]) == 60
        for level, most in ((0.1, 0.12), (0.2, 0.22)):
            assert row["metrics"][f"ours fdr {level}"] <= most, row["name"]
            if row["setting"]["n_true"]:
                assert page.power_share(row["metrics"], level) >= 0.9, row["name"]
    n, true, total = (sum(row["detail"]["bins"][4][j] for row in designs) for j in range(3))
    assert true / n == pytest.approx(total / n, abs=2.5 * (true * (n - true) / n**3) ** 0.5)
    assert total / n == pytest.approx(0.85, abs=0.02)


def test_the_table_has_every_check_and_every_engine():
    text = (RESULTS.parent / "docs" / "calibration.md").read_text(encoding="utf-8")
    for words in ("conjugate regression", "2-D logistic", "evidence lost", "ranks of the truth",
                  "2⁸ models", "n 20, heavy", "n 200, uneven", "UCI yacht", "conformal",
                  "false discoveries", "power", "probability 0.8 to 0.9"):  # fmt: skip
        assert words in text
    assert all(f"`{name}`" in text for name in study.NAMES)
