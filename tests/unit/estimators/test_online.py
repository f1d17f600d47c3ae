"""Yesterday's posterior is today's prior: exact where the exact answer is known."""

import numpy as np
import pytest
import torch

from bayesieve.core.likelihoods import Gaussian
from bayesieve.core.posterior import Factorised
from bayesieve.core.problem import Problem
from bayesieve.estimators import SieveClassifier, SieveRegressor
from bayesieve.estimators.online import Online
from bayesieve.training.launch import fit
from bayesieve.training.schedule import Schedule
from problems import QUICK, conjugate, linear_model, simulated


@pytest.mark.slow
def test_two_batches_in_turn_teach_what_both_together_would():
    """Each half has orthogonal inputs, so that every posterior is a product of normals."""
    data = conjugate(n=32, d=4)
    first = torch.linalg.qr(data.x[:16])[0] * 4
    second = torch.linalg.qr(data.x[16:])[0] * 4
    precision, linear = data.prior_std**-2, 0.0
    net = data.problem.network
    posterior = Factorised(net, torch.zeros(4).double(), torch.full((4,), data.prior_std).double())
    for x, y in ((first, data.y[:16]), (second, data.y[16:])):
        precision = precision + (x.square().sum(0) / data.noise_std**2)
        linear = linear + x.T @ y[:, 0] / data.noise_std**2
        engine = Online(posterior, lr=0.05)
        problem = Problem(linear_model(4), Gaussian(data.noise_std), (x, y))
        run = fit(problem, engine, steps=600, batch_size=16, schedule=Schedule(lr="cosine"))
        posterior = run.posterior
        torch.testing.assert_close(posterior.std, precision**-0.5, rtol=0.1, atol=0)
        torch.testing.assert_close(posterior.mean, linear / precision, rtol=0, atol=0.04)


def test_without_news_nothing_changes():
    data = conjugate(n=8, d=4)
    mean, std = torch.linspace(-1, 1, 4).double(), torch.linspace(0.1, 0.4, 4).double()
    prior = Factorised(data.problem.network, mean, std)
    engine = Online(prior, lr=1e-2)
    problem = Problem(linear_model(4), Gaussian(1e6), (data.x, data.y))
    run = fit(problem, engine, steps=200, batch_size=8)
    torch.testing.assert_close(run.posterior.mean, mean, atol=0.01, rtol=0)
    torch.testing.assert_close(run.posterior.std, std, atol=0, rtol=0.05)
    assert float(engine.kl(run.state)) == pytest.approx(0, abs=0.02)


def line(n, seed):
    return simulated(n, 2, lambda X: 2 * X[:, 0], seed=seed)


def test_more_rows_help_and_narrow():
    model = SieveRegressor(hidden=(10,), epochs=60, folds=0, lr=0.02, random_state=0)
    X, y = line(1000, seed=9)
    model.partial_fit(*line(30, seed=0))
    before = model.score(X, y), model.predict_uncertainty(X)[1].mean()
    scale = model.x_scale_
    for seed in (1, 2, 3):
        model.partial_fit(*line(60, seed=seed))
    assert model.n_seen_ == 30 + 3 * 60
    assert model.x_scale_ is scale
    assert model.score(X, y) > before[0]
    assert model.predict_uncertainty(X)[1].mean() < before[1]
    assert model.feature_importances_.shape == (2,)


def test_pruned_weights_stay_pruned():
    X, y = line(60, seed=0)
    model = SieveRegressor(**{**QUICK, "epochs": 10}, zeros=0.5).fit(X, y)
    keep = model.sparse_.keep
    model.partial_fit(*line(40, seed=1))
    assert torch.equal(model.sparse_.keep, keep)
    assert bool((model.posterior_.mean[~keep] == 0).all())


def test_classes_may_arrive_later():
    X, y = line(60, seed=0)
    labels = np.array(["low", "high"])[(y > 0).astype(int)]
    first = labels == "low"
    model = SieveClassifier(**QUICK)
    model.partial_fit(X[first], labels[first], classes=["low", "high"])
    model.partial_fit(X, labels)
    assert model.classes_.tolist() == ["high", "low"]
    assert model.predict_proba(X).shape == (60, 2)
    with pytest.raises(ValueError, match="those of the first call"):
        model.partial_fit(X, labels, classes=["low", "high", "other"])
    with pytest.raises(ValueError, match="none of the classes"):
        SieveClassifier(**QUICK).partial_fit(X[first], labels[first]).partial_fit(X, labels)


def test_engines_without_spread_cannot_go_on():
    X, y = line(40, seed=0)
    with pytest.raises(TypeError, match="partial_fit needs a posterior"):
        SieveRegressor(**QUICK, engine="map").fit(X, y).partial_fit(X, y)
