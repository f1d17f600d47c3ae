"""The selector: rules, names, pipelines."""

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.linear_model import LinearRegression
from sklearn.pipeline import make_pipeline

from bayesieve.estimators import SieveClassifier, SieveRegressor, SieveSelector
from bayesieve.fast import backend
from problems import simulated

MODEL = SieveRegressor(hidden=(10,), epochs=25, lr=0.06, folds=0, random_state=0)


def table(n=200):
    return simulated(n, 8, lambda X: 2 * X[:, 1] - 2 * np.maximum(X[:, 4], 0))


TRUE = [False, True, False, False, True, False, False, False]


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {"rule": "fraction", "fraction": 0.25},
        {"rule": "cross-validated", "folds": 3, "proportions": (0.25, 1.0)},
        {"rule": "fdr", "level": 0.2},
    ],
    ids=lambda settings: settings["rule"],
)
def test_rules_find_the_columns_that_matter(settings):
    X, y = table()
    selector = SieveSelector(estimator=MODEL, random_state=0, **settings).fit(X, y)
    assert selector.get_support().tolist() == TRUE
    assert selector.transform(X).shape == (200, 2)
    assert selector.feature_importances_.shape == (8,)


@pytest.mark.slow
def test_probable_columns_reach_the_threshold():
    X, y = table()
    selector = SieveSelector(estimator=MODEL, rule="probable", threshold=1.0).fit(X, y)
    assert selector.get_support().sum() >= 1
    expected = 1 - selector.inclusion_[selector.get_support()].mean()
    assert selector.expected_fdr_ == pytest.approx(expected, abs=1e-6)
    everything = clone(selector).set_params(threshold=0.0, estimator__epochs=2).fit(X, y)
    assert everything.get_support().all()


@pytest.mark.slow
def test_additive_networks_rank_unless_an_estimator_is_given(monkeypatch):
    monkeypatch.setattr(backend, "compiler_missing", lambda device: "it takes longer than the run")
    X, y = table()
    selector = SieveSelector(rule="probable", random_state=0).fit(X, y)
    assert selector.get_support().tolist() == TRUE
    assert not hasattr(selector, "estimator_")
    assert selector.expected_fdr_ < 0.1
    short = clone(MODEL).set_params(epochs=2)
    hidden = SieveSelector(estimator=short, fraction=0.25).fit(X, y)
    assert isinstance(hidden.estimator_, SieveRegressor)
    for name in ("inclusion_", "inclusion_error_", "expected_fdr_"):
        assert hasattr(selector, name)
        assert not hasattr(hidden, name)
    additive = SieveSelector(estimator=short, network="additive", rule="fdr").fit(X, y)
    assert not hasattr(additive, "estimator_")


@pytest.mark.slow
def test_choices_on_samples_of_the_rows_tell_their_stability():
    X, y = table()
    for model, network in ((SieveRegressor(), "additive"), (MODEL, None)):
        selector = SieveSelector(
            estimator=model, network=network, fraction=0.25, bootstrap=2, random_state=0
        ).fit(X, y)
        assert selector.frequency_[TRUE].min() > 0.6
        assert selector.frequency_.sum() == pytest.approx(2)
        assert selector.stability_ > 0.5
    again = selector.set_params(network="additive", bootstrap=0).fit(X, y)
    assert not hasattr(again, "frequency_")


@pytest.mark.slow
def test_held_out_errors_are_in_the_unit_of_the_targets():
    X, y = table(300)
    rows, rest = slice(0, 200), slice(200, 300)
    short = SieveRegressor(epochs=30)
    selector = SieveSelector(
        estimator=short, network="additive", fraction=0.25, random_state=0
    ).fit(X[rows], 100 * y[rows])
    whole, kept = selector.held_out_errors(X[rows], 100 * y[rows], X[rest], 100 * y[rest])
    assert 20 < kept < 60  # the noise is 30
    assert kept < 1.2 * whole
    labels = np.where(y > 0, "up", "down")
    classes = SieveSelector(
        estimator=SieveClassifier(epochs=30), network="additive", fraction=0.25, random_state=0
    ).fit(X[rows], labels[rows])
    errors = classes.held_out_errors(X[rows], labels[rows], X[rest], labels[rest])
    assert max(errors) < np.log(2)


def test_names_come_out():
    pandas = pytest.importorskip("pandas")
    X, y = table()
    frame = pandas.DataFrame(X, columns=list("abcdefgh"))
    selector = SieveSelector(estimator=MODEL, fraction=0.25).fit(frame, y)
    assert selector.get_feature_names_out().tolist() == ["b", "e"]
    assert selector.set_output(transform="pandas").transform(frame).columns.tolist() == ["b", "e"]


def test_a_pipeline_selects_and_refits():
    X, y = table()
    pipeline = make_pipeline(SieveSelector(estimator=MODEL, fraction=0.25), LinearRegression())
    assert pipeline.fit(X, y)[-1].coef_.shape == (2,)


def test_the_estimator_suits_the_targets():
    _, y = table(60)
    kinds = SieveRegressor, SieveClassifier
    for targets, kind in ((y, 0), (y > 0, 1), (np.array(["a", "b"] * 30), 1),
                          (np.arange(100.0), 0), (np.arange(100.0) % 3, 1)):  # fmt: skip
        assert isinstance(SieveSelector()._model(targets), kinds[kind])


def test_classes_can_select():
    X, _ = table(300)
    model = SieveClassifier(hidden=(10,), epochs=40, folds=0, random_state=0)
    labels = np.where(X[:, 1] + X[:, 4] > 0, "up", "down")
    selector = SieveSelector(estimator=model, fraction=0.25).fit(X, labels)
    assert selector.get_support().tolist() == TRUE


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"rule": "best"}, ValueError, "rule must be one of"),
        ({"fraction": 2.0}, ValueError, "fraction must be between"),
        ({"level": 0.0}, ValueError, "level must be strictly"),
        ({"bootstrap": 1}, ValueError, "bootstrap must be 0, or 2 or more"),
        ({"network": "deep"}, ValueError, "network must be one of"),
        ({"network": "hidden", "rule": "fdr"}, ValueError, "network='additive'"),
        ({"estimator": LinearRegression()}, TypeError, "SieveRegressor or SieveClassifier"),
        ({"network": "hidden", "rule": "probable"}, ValueError, "a hidden network has none"),
    ],
)
def test_bad_settings_are_refused(settings, error, message):
    X, y = table(40)
    with pytest.raises(error, match=message):
        SieveSelector(**settings).fit(X, y)


@pytest.mark.slow
def test_noise_is_no_discovery_in_a_small_table_of_classes():
    # Evidence of mean-field networks kept six of these seven columns of noise.
    source = torch.Generator().manual_seed(2)
    X = torch.randn(700, 10, generator=source)
    effect = 2 * X[:, 0] - 1.5 * X[:, 1].abs() + 1 + X[:, 2]
    y = torch.rand(700, generator=source) < effect.sigmoid()
    selector = SieveSelector(rule="fdr", level=0.1, random_state=0)
    kept = selector.fit(X[:200].numpy(), y[:200].numpy()).get_support()
    assert kept[:3].any()
    assert not kept[3:].any()


def test_columns_of_noise_have_no_probability():
    # The chance of an open path through a hidden network was .96 to .98 here, and all were kept.
    source = np.random.default_rng(0)
    X, y = source.normal(size=(200, 10)), source.normal(size=200)
    selector = SieveSelector(rule="fdr", level=0.1, random_state=0).fit(X, y)
    assert not selector.get_support().any()
    assert selector.inclusion_.max() < 0.5
