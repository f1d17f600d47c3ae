"""Many fits as one population: each as if it were alone."""

import numpy as np
import pytest

from bayesieve.core.priors import SpikeSlab
from bayesieve.engines.sbnn import SBNN
from bayesieve.estimators import SieveClassifier, SieveRegressor, fit_many
from bayesieve.training.launch import fit
from problems import QUICK, simulated


def table():
    return simulated(90, 3, lambda X: X @ [1.0, -2.0, 0.0])


def test_every_fit_is_good_on_its_own_rows():
    X, y = table()
    y = np.where(np.arange(90) < 45, y, 100 - 5 * y)  # two laws, each in half of the rows
    model = SieveRegressor(hidden=(10,), epochs=60, folds=2, random_state=0)
    halves = [np.arange(45), np.arange(45, 90)]
    first, second = fit_many(model, X, y, halves)
    for model, other, rows in ((first, second, halves[0]), (second, first, halves[1])):
        assert model.score(X[rows], y[rows]) > 0.8
        assert other.score(X[rows], y[rows]) < 0
        assert model.coverage_ is not None
        assert model.n_seen_ == 45


def test_one_set_of_rows_is_the_single_fit_and_several_say_why_they_are_not():
    X, y = table()
    alone = SieveRegressor(**QUICK).fit(X, y)
    (same,) = fit_many(SieveRegressor(**QUICK), X, y, [np.arange(90)])
    np.testing.assert_array_equal(same.predict(X), alone.predict(X))
    first = fit_many(SieveRegressor(**QUICK), X, y, [np.arange(90), np.arange(45)])[0]
    assert (first.predict(X) != alone.predict(X)).any()
    for documented in (fit_many, fit):
        assert "one stream" in documented.__doc__


def test_standardisation_is_each_fits_own():
    X, y = table()
    X[45:] += 1000
    models = fit_many(SieveRegressor(**QUICK), X, y, [np.arange(45), np.arange(45, 90)])
    assert models[1].x_scale_.mean[0] - models[0].x_scale_.mean[0] == pytest.approx(1000, abs=1)


def test_lengths_may_differ_and_memory_may_be_bounded():
    X, y = table()
    rows = [np.arange(40), np.arange(41, 90), np.arange(0, 90, 2), np.arange(30)]
    models = fit_many(SieveRegressor(**QUICK), X, y, rows, at_once=2)
    assert [model.n_seen_ for model in models] == [40, 49, 45, 30]
    assert all(np.isfinite(model.predict(X)).all() for model in models)


def test_settings_may_differ_in_numbers():
    X, y = table()
    models = [
        SieveRegressor(**QUICK, engine=SBNN(SpikeSlab(1.0, spike), lr=lr, init_std=0.02))
        for spike, lr in ((0.1, 0.01), (0.3, 1e-9))
    ]
    first, second = fit_many(models, X, y)
    moved = np.ptp(first.predict(X)), np.ptp(second.predict(X))
    assert moved[0] != moved[1]
    assert second.posterior_.prior.spike_std == 0.3


def test_classes_are_those_of_all_fits():
    X, y = table()
    labels = np.where(y > 0, "up", "down")
    models = fit_many(SieveClassifier(**QUICK), X, labels, [np.arange(60), np.arange(30, 90)])
    assert [model.classes_.tolist() for model in models] == [["down", "up"]] * 2
    with pytest.raises(ValueError, match="every set of rows must hold all classes"):
        fit_many(SieveClassifier(**QUICK), X, labels, [np.arange(60), np.flatnonzero(y > 0)])


def test_sample_weights_go_along():
    X, y = table()
    weight = np.linspace(0.5, 2, 90)
    rows = [np.arange(50), np.arange(40, 90)]
    models = fit_many(SieveRegressor(**QUICK), X, y, rows, sample_weight=weight)
    exact = np.average(X[:50, 0], weights=weight[:50])
    assert models[0].x_scale_.mean[0] == pytest.approx(exact)


@pytest.mark.parametrize(
    ("models", "rows", "message"),
    [
        (SieveRegressor(**QUICK), None, "give the rows of each fit"),
        ([SieveRegressor(**QUICK)] * 2, [np.arange(9)], "got 2 for 1"),
        ([SieveRegressor(**QUICK), SieveRegressor(**QUICK, zeros=0.5)], None, "not in zeros"),
        ([SieveRegressor(), SieveClassifier()], None, "of one class"),
    ],
)
def test_what_cannot_be_one_population_is_refused(models, rows, message):
    X, y = table()
    with pytest.raises(ValueError, match=message):
        fit_many(models, X, (y > 0).astype(int), rows)
