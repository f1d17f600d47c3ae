"""Partial dependence of a column of a frame: values, units, levels, dates, classes and trees."""

import numpy as np
import pandas as pd
import pytest
import torch

from bayesieve.estimators import SieveClassifier, SieveRegressor
from bayesieve.uncertainty.dependence import spread_rows

QUICK = {"hidden": (), "epochs": 20, "folds": 0, "n_samples": 16, "random_state": 0}


def frame(n=120):
    source = np.random.default_rng(0)
    city = source.choice(["Bergen", "Lund", "Oslo"], n)
    day = np.datetime64("2024-01-01") + source.integers(0, 300, n).astype("timedelta64[D]")
    return pd.DataFrame({"area": source.normal(100, 20, n), "city": city, "day": day})


def test_levels_are_each_a_point_and_many_values_are_spread():
    source = torch.Generator().manual_seed(0)
    levels = torch.eye(3)[torch.randint(3, (40,), generator=source)]
    assert len(spread_rows(levels, 20)) == 3
    values = torch.randn(500, 1, generator=source)
    chosen = values[spread_rows(values, 9), 0]
    torch.testing.assert_close(
        chosen, values[:, 0].quantile(torch.linspace(0, 1, 9)), atol=0.05, rtol=0
    )


def test_a_line_has_its_slope_in_the_unit_of_the_target():
    rows = frame()
    y = 1000 + 30 * rows["area"]
    model = SieveRegressor(**QUICK, lr=0.05).fit(rows, y)
    at, found = model.partial_dependence(rows, "area", points=5)
    slopes = np.diff(found.mean[:, 0].numpy()) / np.diff(at.astype(float))
    np.testing.assert_allclose(slopes, slopes[0], rtol=1e-3)
    assert slopes[0] == pytest.approx(30, rel=0.3)
    assert (found.low < found.high).all()


def test_levels_dates_and_classes_have_curves():
    rows = frame()
    model = SieveClassifier(**QUICK).fit(rows, rows["city"] == "Oslo")
    cities, by_city = model.partial_dependence(rows, "city")
    assert cities.tolist() == ["Oslo", "Lund", "Bergen"]  # in the order of their inputs
    assert by_city.mean.shape == (3, 2)
    torch.testing.assert_close(by_city.mean.sum(1), torch.ones(3).double())
    assert by_city.mean[0, 1] > by_city.mean[1:, 1].max()
    days, _ = model.partial_dependence(rows, 2, points=4)
    assert str(days[0]).startswith("2024-01")
    with pytest.raises(ValueError, match="column must be one of area, city, day"):
        model.partial_dependence(rows, "price")


def test_trees_are_part_of_the_curve():
    source = np.random.default_rng(0)
    X = source.uniform(-1, 1, size=(80, 2))
    model = SieveRegressor(**QUICK, base="boosting").fit(X, np.floor(2 * X[:, 0]))
    _, found = model.partial_dependence(X, 0, points=3)
    assert found.mean[-1, 0] - found.mean[0, 0] > 2
