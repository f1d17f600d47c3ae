"""Partial dependence: exact for lines, with bands that are those of the draws."""

import numpy as np
import pandas as pd
import pytest
import torch

from bayesieve.estimators import SieveClassifier, SieveRegressor
from bayesieve.estimators.dependence import dependence, rows_along

QUICK = {"hidden": (), "epochs": 20, "folds": 0, "n_samples": 16, "random_state": 0}


def frame(n=120):
    source = np.random.default_rng(0)
    city = source.choice(["Bergen", "Lund", "Oslo"], n)
    day = np.datetime64("2024-01-01") + source.integers(0, 300, n).astype("timedelta64[D]")
    return pd.DataFrame({"area": source.normal(100, 20, n), "city": city, "day": day})


def test_ends_are_quantiles_over_draws():
    """Draw s is s times the column plus the other one: everything is known."""
    x = np.random.default_rng(0).normal(size=(50, 2))
    slopes = torch.arange(5.0, dtype=torch.float64)

    def answers(values):
        v = torch.as_tensor(values)
        return (slopes[:, None] * v[:, 0] + v[:, 1])[..., None]

    rows, band = dependence(answers, x, np.array([0]), points=7, level=0.5)
    at = torch.as_tensor(x[rows, 0])
    assert len(rows) == 7
    assert bool((at.diff() > 0).all())
    ends = torch.stack([1 * at, 3 * at]).sort(0).values  # the middle half of 0, 1, 2, 3, 4
    expected = torch.stack([2 * at, *ends]) + x[:, 1].mean()
    torch.testing.assert_close(band[..., 0], expected)


def test_levels_are_each_a_point_and_many_values_are_spread():
    levels = np.eye(3)[np.random.default_rng(0).integers(0, 3, 40)]
    assert len(rows_along(levels, 20)) == 3
    values = np.random.default_rng(0).normal(size=(500, 1))
    chosen = values[rows_along(values, 9), 0]
    np.testing.assert_allclose(chosen, np.quantile(values, np.linspace(0, 1, 9)), atol=0.05)


def test_a_line_has_its_slope_in_the_unit_of_the_target():
    rows = frame()
    y = 1000 + 30 * rows["area"]
    model = SieveRegressor(**QUICK, lr=0.05).fit(rows, y)
    found = model.partial_dependence(rows, "area", points=5)
    slopes = np.diff(found.mean[:, 0]) / np.diff(found.at.astype(float))
    np.testing.assert_allclose(slopes, slopes[0], rtol=1e-3)
    assert slopes[0] == pytest.approx(30, rel=0.3)
    assert (found.low < found.high).all()


def test_levels_dates_and_classes_have_curves():
    rows = frame()
    model = SieveClassifier(**QUICK).fit(rows, rows["city"] == "Oslo")
    by_city = model.partial_dependence(rows, "city")
    assert by_city.at.tolist() == ["Oslo", "Lund", "Bergen"]  # in the order of their inputs
    assert by_city.mean.shape == (3, 2)
    np.testing.assert_allclose(by_city.mean.sum(1), 1)
    assert by_city.mean[0, 1] > by_city.mean[1:, 1].max()
    by_day = model.partial_dependence(rows, 2, points=4)
    assert str(by_day.at[0]).startswith("2024-01")
    with pytest.raises(ValueError, match="column must be one of area, city, day"):
        model.partial_dependence(rows, "price")


def test_trees_are_part_of_the_curve():
    source = np.random.default_rng(0)
    X = source.uniform(-1, 1, size=(80, 2))
    model = SieveRegressor(**QUICK, base="boosting").fit(X, np.floor(2 * X[:, 0]))
    found = model.partial_dependence(X, 0, points=3)
    assert found.mean[-1, 0] - found.mean[0, 0] > 2
