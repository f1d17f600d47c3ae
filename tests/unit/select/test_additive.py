"""Additive models in closed form, against a normal density and against least squares."""

import math

import pytest
import torch

from bayesieve.select import AdditiveFits, HingeBasis
from bayesieve.select.additive import _PENALTIES, ridge_path
from problems import seeded

X = torch.randn(90, 3, generator=seeded(0))
Y = X[:, 0].abs() - X[:, 2] + 0.3 * torch.randn(90, generator=seeded(1))
TRAIN, TEST = torch.arange(70), torch.arange(70, 90)


def fits(x=X, y=Y, **settings):
    return AdditiveFits(x, y, **settings)


def test_the_most_probable_penalty_is_that_of_the_normal_density():
    phi = torch.randn(30, 4, generator=seeded(2), dtype=torch.float64)
    noise = torch.randn(30, 2, generator=seeded(3), dtype=torch.float64)
    both = phi[:, :1] - 0.5 * phi[:, 2:3] + 0.5 * noise
    for size, y in ((2, both[:, :1]), (4, both[:, :1]), (4, both)):
        columns, o = phi[:, :size], y.shape[1]
        densities = []
        for penalty in _PENALTIES:
            shape = torch.eye(30, dtype=torch.float64) + columns @ columns.T / penalty
            # the variance that fits best
            unit = float((y * torch.linalg.solve(shape, y)).sum()) / (30 * o)
            zero = torch.zeros(30, dtype=torch.float64)
            density = torch.distributions.MultivariateNormal(zero, unit * shape)
            densities.append(float(density.log_prob(y.T).sum()))
        best = _PENALTIES[densities.index(max(densities))]
        expected = torch.linalg.solve(columns.T @ columns + best * torch.eye(size), columns.T @ y)
        (weights,) = ridge_path(phi.T @ phi, phi.T @ y, float(y.square().sum()), 30, [size])
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
    (w,) = ridge_path(inner.T @ inner, inner.T @ target[:, None], square, 70, [12])
    guess = (values[TEST] - values[TRAIN].mean(0)) @ w[:, 0] + Y[TRAIN].double().mean()
    assert together[0].item() == pytest.approx((guess - Y[TEST]).square().mean().item(), rel=1e-4)
    assert together[0] < together[1] < together[2]


def test_a_row_of_weight_two_counts_as_two():
    weight = torch.ones(90)
    weight[:20] = 2.0
    keep = torch.tensor([[True, False, True]])
    weighted = fits(weight=weight).errors([TRAIN], [TEST], keep)
    repeated = fits().errors([torch.cat([TRAIN, TRAIN[:20]])], [TEST], keep)
    torch.testing.assert_close(weighted, repeated)


def test_importance_ranks_the_effects():
    rows = [TRAIN, torch.arange(20, 90)]
    for phi in fits().importance(rows):
        assert phi.argsort().tolist() in ([1, 0, 2], [1, 2, 0])
        assert phi[1] == 0.0
        assert phi.max() == 1.0


def test_a_constant_input_is_worth_nothing():
    x = X.clone()
    x[:, 1] = 0.0
    keep = torch.tensor([[True, True, True], [True, False, True], [False, True, False]])
    errors = fits(x).errors([TRAIN] * 3, [TEST] * 3, keep)
    assert errors[0].item() == pytest.approx(errors[1].item())
    nothing = (Y[TEST] - Y[TRAIN].mean()).square().mean()
    assert errors[2].item() == pytest.approx(nothing.item(), rel=1e-5)
    assert math.isclose(float(fits(x).importance([TRAIN])[0, 1]), 0.0)


def test_classes_have_brier_scores():
    labels = (Y.median() < Y).long()
    keep = torch.tensor([[True, False, True], [False, False, False]])
    score, nothing = fits(y=labels).errors([TRAIN] * 2, [TEST] * 2, keep).tolist()
    share = labels[TRAIN].double().mean()
    constant = 2 * (labels[TEST] - share).square().mean()
    assert nothing == pytest.approx(constant.item(), rel=1e-5)
    assert score < 0.6 * nothing
