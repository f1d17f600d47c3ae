"""What users of estimators expect: quantiles, draws, time limits, progress, trees as the mean."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.inspection import permutation_importance

from bayesieve import SBNN
from bayesieve.assess.predict import predict
from bayesieve.estimators import SieveClassifier, SieveRegressor, fit_many
from problems import simulated

QUICK = {"hidden": (8,), "epochs": 6, "n_samples": 8, "random_state": 0}


def steps(n=150, seed=0):
    """A target that is a staircase of the first column."""
    source = np.random.default_rng(seed)
    X = source.uniform(-1, 1, size=(n, 3))
    return X, np.floor(3 * X[:, 0]) + 0.1 * source.normal(size=n)


@pytest.fixture(scope="module")
def fitted():
    return SieveRegressor(**QUICK, folds=2, kl=0.3).fit(*steps())


def test_quantiles_are_the_ends_of_intervals(fitted):
    X, _ = steps(7, seed=1)
    ends = fitted.predict_quantiles(X, [0.05, 0.5, 0.95])
    assert ends.shape == (7, 3)
    np.testing.assert_allclose(ends[:, [0, 2]], fitted.predict_interval(X, level=0.9))
    np.testing.assert_array_equal(fitted.predict_interval(X, 0.1), fitted.predict_interval(X))
    np.testing.assert_allclose(ends[:, 1], fitted.predict(X), atol=1e-6)
    with pytest.raises(ValueError, match="quantiles"):
        fitted.predict_quantiles(X, [1.5])


def test_draws_have_the_quantiles(fitted):
    X, _ = steps(2, seed=1)
    drawn = fitted.sample(X, 4000, random_state=1)
    assert drawn.shape == (2, 4000)
    share = np.mean(drawn < fitted.predict_quantiles(X, [0.8]), 1)
    np.testing.assert_allclose(share, 0.8, atol=0.05)


def test_held_out_rows_are_scored_in_the_unit_of_the_target():
    X, y = steps()
    models = [SieveRegressor(**QUICK, folds=2, kl=0.3).fit(X, unit * y) for unit in (1.0, 10.0)]
    assert models[1].crps_ == pytest.approx(10 * models[0].crps_, rel=1e-3)
    found = [model.held_out_log_likelihood_ for model in models]
    assert found[0] - found[1] == pytest.approx(np.log(10), abs=1e-3)
    assert SieveRegressor(**QUICK, folds=0).fit(X, y).crps_ is None


def test_the_folds_choose_bins_where_targets_have_steps():
    """Twelve steps of one column: bends everywhere, which plain columns learn late."""
    source = np.random.default_rng(0)
    X = source.uniform(-1, 1, size=(400, 2))
    y = np.floor(6 * X[:, 0]) % 2 + 0.05 * source.normal(size=400)
    model = SieveRegressor(kl=0.1, epochs=40, random_state=0).fit(X, y)
    assert model.settings_.bins == 8
    assert set(model.candidate_scores_) == {(1.0, 8), (1.0, 0)}


def test_delivered_networks_contain_the_bins(tmp_path):
    X, y = steps()
    model = SieveRegressor(**QUICK, bins=4, folds=0, n_members=1).fit(X, y)
    raw = model.compact_(torch.as_tensor(X, dtype=torch.float32)).detach().double().numpy()
    inside = predict(model.sparse_, model.x_scale_.apply(X)).mean
    np.testing.assert_allclose(raw, model.y_scale_.undo(inside), rtol=1e-3, atol=1e-3)
    assert model.export(tmp_path / "bundle").exists()


@pytest.fixture
def clock(monkeypatch):
    """A clock on which a step takes a tenth of a second, and a whole one after `slow` steps."""
    passed = SimpleNamespace(seconds=0.0, steps=0, slow=10**9)
    step = SBNN.step

    def timed(engine, problem, state, batch):
        passed.steps += 1
        passed.seconds += 0.1 if passed.steps <= passed.slow else 1.0
        return step(engine, problem, state, batch)

    monkeypatch.setattr(SBNN, "step", timed)
    monkeypatch.setattr(SieveRegressor, "_clock", staticmethod(lambda: passed.seconds))
    return passed


LONG = {"hidden": (8,), "epochs": 400, "n_samples": 8, "random_state": 0, "folds": 2}


@pytest.mark.parametrize("settings", [{}, {"kl": 0.3, "bins": 0}, {"conformal": "cv+"}])
def test_a_time_limit_is_kept_and_used(settings, clock):
    model = SieveRegressor(**LONG, max_seconds=30, **settings).fit(*steps(60))
    assert 15 < clock.seconds <= 30
    assert np.isfinite(model.predict(steps(5)[0])).all()
    assert model.history_[-1]["lr_scale"] < 0.05  # the whole course of rates is in it


def test_a_machine_that_becomes_slower_ends_within_an_epoch_of_the_limit(clock):
    clock.slow = 100
    SieveRegressor(**LONG, max_seconds=30, kl=0.3, bins=0).fit(*steps(60))
    assert clock.seconds <= 32  # an epoch has two steps


def test_populations_one_after_the_other_share_the_time(clock):
    model = SieveRegressor(**LONG, max_seconds=30, kl=0.3, bins=0)
    fitted = fit_many(model, *steps(60), np.split(np.arange(60), 2), at_once=1)
    lengths = [len(one.history_) for one in fitted]
    assert min(lengths) > 0.7 * max(lengths)
    assert clock.seconds <= 32


def test_a_limit_that_is_not_reached_changes_nothing(clock):
    X, y = steps(60)
    limited = SieveRegressor(**QUICK, folds=0, max_seconds=1000).fit(X, y)
    np.testing.assert_array_equal(
        limited.predict(X), SieveRegressor(**QUICK, folds=0).fit(X, y).predict(X)
    )


def test_progress_says_how_long_it_takes(capsys):
    SieveRegressor(**QUICK, folds=2, verbose=1).fit(*steps(60))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("SieveRegressor: compare (1 of 2): ")
    assert lines[-1].startswith("SieveRegressor: train")
    assert lines[-1].endswith("s left")
    SieveClassifier(**QUICK, folds=0).fit(steps(60)[0], steps(60)[1] > 0)
    assert capsys.readouterr().out == ""


def test_the_network_learns_what_boosting_leaves():
    X, y = steps(200)
    model = SieveRegressor(**QUICK, folds=2, kl=0.3, bins=0, base="boosting").fit(X, y)
    X_new, y_new = steps(300, seed=1)
    assert model.base_ == "boosting"
    plain = SieveRegressor(**QUICK, folds=2, kl=0.3, bins=0).fit(X, y)
    assert plain.base_ is None
    assert model.score(X_new, y_new) > plain.score(X_new, y_new) + 0.02
    low, high = model.predict_interval(X_new).T
    assert np.mean((low <= y_new) & (y_new <= high)) == pytest.approx(0.9, abs=0.07)
    assert model.log_likelihood(X_new, y_new) > plain.log_likelihood(X_new, y_new)
    np.testing.assert_allclose(
        model.sample(X_new[:3], 2000).mean(1), model.predict(X_new[:3]), atol=0.1
    )
    with pytest.raises(ValueError, match="only what the trees leave"):
        model.export("model.onnx")


def test_validation_decides_about_the_base():
    X, y = steps(200)
    model = SieveRegressor(**QUICK, folds=2, kl=0.3, bins=0, base="auto").fit(X, y)
    assert model.base_ == "boosting"
    scores = model.auto_scores_
    assert scores["boosting", "gaussian"] > scores["none", "gaussian"]
    line = SieveRegressor(hidden=(), epochs=60, lr=0.05, folds=2, base="auto", random_state=0)
    assert line.fit(X, X @ [1.0, -2.0, 0.5]).base_ is None


def test_validation_decides_about_the_noise():
    source = np.random.default_rng(0)
    X = source.uniform(-1, 1, size=(200, 1))
    wide = 0.02 + (X[:, 0] > 0)
    settings = {"hidden": (8,), "bins": 0, "epochs": 40, "folds": 2, "kl": 0.1, "random_state": 0}
    model = SieveRegressor(likelihood="auto", **settings).fit(X, wide * source.normal(size=200))
    assert model.likelihood_ == "heteroscedastic"
    spread = model.predict([[-0.5], [0.5]], return_std=True)[1]
    assert spread[1] > 3 * spread[0]
    with pytest.raises(ValueError, match="only `fit` decides 'auto'"):
        fit_many(SieveRegressor(likelihood="auto"), X, X[:, 0], [np.arange(50)])


def test_importance_agrees_with_permutation_importance():
    effects = np.array([3.0, 2.0, 1.3, 0.8, 0.4, 0.0])
    X, y = simulated(400, 6, lambda X: np.sin(X) @ effects, 0.2)
    model = SieveRegressor(hidden=(20,), epochs=60, folds=0, n_samples=8, random_state=0).fit(X, y)
    theirs = permutation_importance(model, X[:150], y[:150], n_repeats=2, random_state=0)
    order = np.argsort(np.argsort(theirs.importances_mean))
    ours = np.argsort(np.argsort(model.feature_importances_))
    assert np.corrcoef(order, ours)[0, 1] >= 0.9
