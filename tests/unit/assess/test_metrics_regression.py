"""Regression metrics against scipy, scikit-learn and closed forms."""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.special import logsumexp
from sklearn import metrics as sk
from torch import Tensor

from bayesieve.assess.metrics import (
    interval_coverage,
    log_likelihood_mixture,
    mae,
    regression_report,
    rmse,
)
from bayesieve.core.likelihoods import Gaussian, RealPrediction, StudentT


def interval(
    mean: Tensor, std: Tensor, level: float, family: Gaussian | StudentT | None = None
) -> tuple[Tensor, Tensor]:
    """The interval of a prediction of one draw."""
    return RealPrediction(mean[None], std[None], family or Gaussian()).interval(level)


def _normal(seed: int, *shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("shape", [(40,), (40, 3)])
def test_errors_agree_with_sklearn(shape: tuple[int, ...]) -> None:
    mean, targets = _normal(0, *shape), _normal(1, *shape)
    expected = math.sqrt(sk.mean_squared_error(targets.ravel(), mean.ravel()))
    assert rmse(mean, targets) == pytest.approx(expected, rel=1e-12)
    expected = sk.mean_absolute_error(targets.ravel(), mean.ravel())
    assert mae(mean, targets) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("layout", ["per output", "per draw", "per entry"])
def test_mixture_likelihood_of_several_outputs_is_joint(layout: str) -> None:
    draws, targets = _normal(4, 5, 8, 2), _normal(5, 8, 2)
    shapes = {"per output": (2,), "per draw": (5, 1, 1), "per entry": (5, 8, 2)}
    noise = _normal(6, *shapes[layout]).exp()
    densities = np.empty((5, 8))
    whole = noise.expand(5, 8, 2).numpy()
    for s, n in np.ndindex(5, 8):
        covariance = np.diag(whole[s, n] ** 2)
        densities[s, n] = stats.multivariate_normal(draws[s, n], covariance).pdf(targets[n])
    expected = np.log(densities.mean(0)).mean()
    found = log_likelihood_mixture(draws, noise, targets, Gaussian())
    assert found == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("df", [2.5, 4.0, 30.0])
def test_student_t_noise_agrees_with_scipy(df: float) -> None:
    means, targets, std = _normal(0, 5, 8), _normal(1, 8), 0.7
    scale, family = std * math.sqrt((df - 2) / df), StudentT(df=df)
    log_density = stats.t.logpdf(targets.numpy(), df, means.numpy(), scale)
    expected = (logsumexp(log_density, axis=0) - math.log(5)).mean()
    assert log_likelihood_mixture(means, std, targets, family) == pytest.approx(expected, rel=1e-12)
    half = stats.t.ppf(0.9, df, scale=scale)
    assert family.half_width(0.8) * std == pytest.approx(half, rel=1e-9)
    lower, upper = interval(means[0], torch.full((8,), std), 0.8, family)
    torch.testing.assert_close(upper - lower, torch.full((8,), 2 * half, dtype=torch.float64))
    inside = (lower <= targets) & (targets <= upper)
    coverage = interval_coverage(lower, upper, targets)
    assert coverage == pytest.approx(float(inside.double().mean()))


def test_mixture_likelihood_far_from_the_target_is_finite() -> None:
    far = log_likelihood_mixture(torch.zeros(3, 1), 1.0, torch.tensor([100.0]), Gaussian())
    assert far == pytest.approx(-5000 - 0.5 * math.log(2 * math.pi))


@pytest.mark.parametrize("level", [0.1, 0.5, 0.9, 0.99])
def test_interval_agrees_with_scipy(level: float) -> None:
    mean, std = _normal(9, 6), _normal(10, 6).exp()
    lower, upper = interval(mean, std, level)
    expected = stats.norm.interval(level, mean.numpy(), std.numpy())
    assert np.allclose(lower, expected[0], rtol=1e-9)
    assert np.allclose(upper, expected[1], rtol=1e-9)


def test_wrong_shapes_and_numbers_raise() -> None:
    column, row = torch.zeros(3, 1), torch.zeros(3)
    for metric in (rmse, mae):
        with pytest.raises(ValueError, match=r"must have one non-empty shape, got \(3, 1\)"):
            metric(column, row)
    with pytest.raises(ValueError, match="targets must be finite"):
        rmse(row, torch.tensor([0.0, math.nan, 1.0]))
    with pytest.raises(ValueError, match=r"sample_means must have shape \(S, N\) or"):
        log_likelihood_mixture(row, 1.0, row, Gaussian())
    with pytest.raises(ValueError, match="noise_std must be a number"):
        log_likelihood_mixture(torch.zeros(2, 3), torch.ones(3), row, Gaussian())
    with pytest.raises(ValueError, match="noise_std must be > 0, got 0"):
        log_likelihood_mixture(torch.zeros(2, 3), 0.0, row, Gaussian())
    with pytest.raises(ValueError, match="level must be strictly between 0 and 1, got 90"):
        interval(row, row + 1, 90)
    with pytest.raises(ValueError, match="noise_std must be > 0"):
        regression_report(torch.zeros(2, 3), -1.0, row, Gaussian())
    with pytest.raises(ValueError, match=r"interval_coverage: lower and upper and targets"):
        interval_coverage(row, row + 1, column)
