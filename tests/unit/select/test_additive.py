"""Additive networks in closed form, against a normal density and against trained networks."""

import math

import pytest
import torch

from bayesieve.core.likelihoods import Gaussian
from bayesieve.core.priors import SpikeSlab
from bayesieve.engines.sbnn import SBNN
from bayesieve.estimators.population import AdditiveFits, PopulationFits, Training
from bayesieve.select import HingeBasis, additive_network
from bayesieve.select.additive import _PENALTIES, ridge_path
from problems import seeded

ENGINE = SBNN(SpikeSlab(0.37, 0.018), lr=1e-2, init_std=0.01, local=True)
X = torch.randn(90, 3, generator=seeded(0))
Y = X[:, 0].abs() - X[:, 2] + 0.3 * torch.randn(90, generator=seeded(1))
TRAIN, TEST = torch.arange(70), torch.arange(70, 90)


def fits(x=X, **training):
    return AdditiveFits(x, Y, ENGINE, Training(**{"epochs": 5, "batch_size": 35} | training))


def test_the_most_probable_penalty_is_that_of_the_normal_density():
    phi = torch.randn(30, 4, generator=seeded(2), dtype=torch.float64)
    y = phi[:, 0] - 0.5 * phi[:, 2] + 0.5 * torch.randn(30, generator=seeded(3)).double()
    for size in (2, 4):
        columns = phi[:, :size]
        densities = []
        for penalty in _PENALTIES:
            shape = torch.eye(30, dtype=torch.float64) + columns @ columns.T / penalty
            unit = float(y @ torch.linalg.solve(shape, y)) / 30  # the variance that fits best
            cov = unit * shape
            density = torch.distributions.MultivariateNormal(torch.zeros(30).double(), cov)
            densities.append(float(density.log_prob(y)))
        best = _PENALTIES[densities.index(max(densities))]
        expected = torch.linalg.solve(columns.T @ columns + best * torch.eye(size), columns.T @ y)
        (weights,) = ridge_path(phi.T @ phi, phi.T @ y, float(y @ y), 30, [size])
        torch.testing.assert_close(weights, expected)


def test_errors_are_those_of_the_inputs_kept():
    keep = torch.tensor([[True, False, True], [True, False, False], [False, True, False]])
    together = fits().errors([TRAIN] * 3, [TEST] * 3, keep)
    alone = torch.cat([fits().errors([TRAIN], [TEST], line[None]) for line in keep])
    torch.testing.assert_close(together, alone)
    basis = HingeBasis(X)
    values = basis(X).double().view(90, 3, 6)[:, [0, 2]].flatten(1)
    inner, target = values[TRAIN] - values[TRAIN].mean(0), Y[TRAIN].double() - Y[TRAIN].mean()
    square = float(target @ target)
    (w,) = ridge_path(inner.T @ inner, inner.T @ target, square, 70, [12])
    guess = (values[TEST] - values[TRAIN].mean(0)) @ w + Y[TRAIN].double().mean()
    assert together[0].item() == pytest.approx((guess - Y[TEST]).square().mean().item(), rel=1e-4)
    assert together[0] < together[1] < together[2]


def test_importance_is_that_of_the_additive_network():
    training = Training(epochs=30, batch_size=35, seed=1)
    slow = PopulationFits(X, Y, additive_network(X), Gaussian(0.5, learned=True), ENGINE, training)
    fast = AdditiveFits(X, Y, ENGINE, training)
    rows = [TRAIN, torch.arange(20, 90)]
    torch.testing.assert_close(fast.importance(rows), slow.importance(rows), rtol=1e-3, atol=1e-3)


def test_a_constant_input_is_worth_nothing():
    x = X.clone()
    x[:, 1] = 0.0
    keep = torch.tensor([[True, True, True], [True, False, True], [False, True, False]])
    errors = fits(x).errors([TRAIN] * 3, [TEST] * 3, keep)
    assert errors[0].item() == pytest.approx(errors[1].item())
    nothing = (Y[TEST] - Y[TRAIN].mean()).square().mean()
    assert errors[2].item() == pytest.approx(nothing.item(), rel=1e-5)
    assert math.isclose(float(fits(x).importance([TRAIN])[0, 1]), 0.0)


def test_classes_are_refused():
    with pytest.raises(ValueError, match="Use PopulationFits"):
        AdditiveFits(X, torch.zeros(90, dtype=torch.int64), ENGINE)
