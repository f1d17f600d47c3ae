"""The noise of a regressor: held out for points, by input where it is asked for."""

import numpy as np
import pytest
import torch

from bayesieve.assess.predict import RealPrediction
from bayesieve.core.likelihoods import Gaussian, StudentT
from bayesieve.estimators import SieveRegressor, fit_many
from bayesieve.estimators.tails import Tails, likeliest_tails
from problems import simulated


def curve(n, seed):
    return simulated(n, 5, lambda X: X[:, 0] + np.sin(2 * X[:, 1]), 0.5, seed)


def test_a_point_takes_its_noise_from_rows_it_has_not_seen():
    """Noise of training residuals covered .63 to .67; 12 sets of 200: standard error .02."""
    sets = [curve(50, seed) for seed in range(12)]
    X, y = (np.concatenate(values) for values in zip(*sets, strict=True))
    rows = np.split(np.arange(600), 12)
    model = SieveRegressor(engine="map", epochs=250, random_state=0)
    shares, claimed = [], []
    for seed, one in enumerate(fit_many(model, X, y, rows)):
        X_new, y_new = curve(200, 1000 + seed)
        low, high = one.predict_interval(X_new).T
        shares.append(np.mean((low <= y_new) & (y_new <= high)))
        claimed.append(one.coverage_[0.9])
    assert 0.85 <= np.mean(shares) <= 0.95
    assert np.mean(claimed) == pytest.approx(np.mean(shares), abs=0.05)


def student(n, df, seed=0):
    """Draws of Student's t with scale 1, (n, 1)."""
    g = torch.Generator().manual_seed(seed)
    half = torch.full((n, 1), df / 2, dtype=torch.float64)
    normal = torch.randn(n, 1, generator=g, dtype=torch.float64)
    return normal * (df / 2 / torch._standard_gamma(half, generator=g)).sqrt()


@pytest.mark.parametrize(
    ("likelihood", "df", "tails"),
    [
        (Gaussian(0.3, learned=True), 1e6, None),
        (Gaussian(0.3, learned=True), 3, 3),
        (Gaussian(0.3, learned=True), 8, 8),
        (StudentT(0.3, 5.0, learned=True), 5, None),  # it has its own tails
    ],
)
def test_the_likeliest_noise_of_held_out_rows(likelihood, df, tails):
    """Of 20,000 residuals of a known law noise and tails are known."""
    residuals = 0.2 * student(20000, df)
    means = torch.zeros(1, 20000, 1, dtype=torch.float64)
    prediction = RealPrediction(means, torch.ones_like(means), likelihood)
    found, density = likeliest_tails([prediction], [residuals], [torch.ones(20000)])
    assert found.df == tails
    assert found.factor == pytest.approx(0.2 * (df / (df - 2)) ** 0.5, rel=0.05)
    scale = torch.tensor(0.2, dtype=torch.float64)
    exact = torch.distributions.StudentT(df * torch.ones_like(scale), 0.0, scale)
    assert density == pytest.approx(float(exact.log_prob(residuals).mean()), abs=0.01)


@pytest.mark.parametrize("df", [None, 3])
def test_density_intervals_draws_and_scores_are_of_one_law(df):
    tails = Tails(2.0, df)
    means = torch.full((1, 1, 1), 1.0, dtype=torch.float64)
    prediction = RealPrediction(means, 0.5 * torch.ones_like(means), Gaussian(0.3, learned=True))
    grid = torch.linspace(-60, 60, 200_001, dtype=torch.float64)
    density = torch.stack([tails.log_density(prediction, y) for y in grid[::200]]).exp()
    assert float(density.sum() * 200 * (grid[1] - grid[0])) == pytest.approx(1.0, abs=0.02)
    low, high = tails.interval(prediction.likelihood, means, torch.ones_like(means), 0.8)
    drawn = tails.sample(prediction, 20000, torch.Generator().manual_seed(0))[:, 0, 0]
    assert float(((low <= drawn) & (drawn <= high)).double().mean()) == pytest.approx(0.8, abs=0.01)
    y, other = torch.tensor([[1.7]]), drawn[torch.randperm(20000)]
    score = (drawn - 1.7).abs().mean() - 0.5 * (drawn - other).abs().mean()
    assert float(tails.crps(prediction, y)) == pytest.approx(float(score), abs=0.02)


def test_rows_that_do_not_count_give_no_noise():
    X, y = curve(60, 0)
    wild = np.where(np.arange(60) < 50, y, y + 1000)
    model = SieveRegressor(engine="map", hidden=(6,), epochs=40, random_state=0)
    model.fit(X, wild, sample_weight=(np.arange(60) < 50).astype(float))
    assert model.predict_uncertainty(X)[0].max() < 3


def loud(n, seed):
    """Noise of .1 on one side, of up to 3 on the other."""
    source = np.random.default_rng(seed)
    X = source.uniform(-2, 2, size=(n, 4))
    mean = 2 * np.sin(1.5 * X[:, 0]) + X[:, 1]
    std = 0.1 + 1.5 * (X[:, 0] > 0) * np.abs(X[:, 2])
    return X, mean + std * source.normal(size=n), mean


def test_noise_by_input_beats_one_level_where_the_noise_differs():
    """By its mean and by its density: three sets of 400 rows, each of them clearly."""
    sets = [loud(400, seed) for seed in range(3)]
    X, y = (np.concatenate(values) for values in zip(*[s[:2] for s in sets], strict=True))
    X_new, y_new, mean = loud(2000, 100)
    error, density = {}, {}
    for noise in ("gaussian", "heteroscedastic"):
        model = SieveRegressor(
            likelihood=noise, epochs=100, kl=0.1, folds=0, n_samples=32, random_state=0
        )
        models = fit_many(model, X, y, np.split(np.arange(1200), 3))
        error[noise] = [np.sqrt(np.mean((one.predict(X_new) - mean) ** 2)) for one in models]
        density[noise] = [one.log_likelihood(X_new, y_new) for one in models]
    assert max(error["heteroscedastic"]) < 0.8 * min(error["gaussian"])
    assert min(density["heteroscedastic"]) > max(density["gaussian"]) + 0.3
