"""The classifier: labels of any kind, weights of classes, uncertainty, label sets."""

import json

import numpy as np
import pytest
import torch
from sklearn.datasets import load_breast_cancer
from sklearn.metrics import recall_score

from bayesieve.core.likelihoods import Bernoulli
from bayesieve.deliver.bundle import read_bundle
from bayesieve.estimators import SieveClassifier
from problems import QUICK


def clouds(n=120, seed=0, sizes=(1, 1, 1)):
    source = np.random.default_rng(seed)
    y = source.choice(3, size=n, p=np.array(sizes) / sum(sizes))
    centres = np.array([[0, 0], [3, 0], [0, 3]])
    return centres[y] * 10 + 10 * source.normal(size=(n, 2)), np.array(["no", "maybe", "yes"])[y]


@pytest.fixture(scope="module")
def fitted():
    X, y = clouds(300)
    return SieveClassifier(hidden=(10,), epochs=30, conformal=True, random_state=0).fit(X, y)


def test_labels_are_words(fitted):
    X, y = clouds(500, seed=1)
    assert fitted.classes_.tolist() == ["maybe", "no", "yes"]
    assert fitted.score(X, y) > 0.8
    probs = fitted.predict_proba(X)
    np.testing.assert_allclose(probs.sum(1), 1)
    np.testing.assert_array_equal(fitted.classes_[probs.argmax(1)], fitted.predict(X))
    np.testing.assert_allclose(np.exp(fitted.predict_log_proba(X)), probs, atol=1e-9)


def test_log_likelihood_is_the_mean_log_probability_of_the_labels(fitted):
    X, y = clouds(50, seed=2)
    picked = fitted.predict_proba(X)[np.arange(50), np.searchsorted(fitted.classes_, y)]
    assert fitted.log_likelihood(X, y) == pytest.approx(np.log(picked).mean())


def test_uncertainty_adds_up_to_the_entropy(fitted):
    X, _ = clouds(50, seed=3)
    probs = fitted.predict_proba(X)
    entropy = -(probs * np.log(probs)).sum(1)
    total = sum(fitted.predict_uncertainty(X))
    assert (total >= entropy - 1e-9).all()  # the entropy of few draws is too small
    np.testing.assert_allclose(total, entropy, rtol=1e-3)


def test_label_sets_cover_what_they_say(fitted):
    X, y = clouds(1000, seed=4)
    for alpha in (0.05, 0.1):
        sets = fitted.predict_set(X, alpha)
        share = sets[np.arange(1000), np.searchsorted(fitted.classes_, y)].mean()
        assert share == pytest.approx(1 - alpha, abs=0.05)
        assert sets.any(1).all()
    with pytest.raises(ValueError, match="conformal=True"):
        SieveClassifier(**QUICK).fit(X, y).predict_set(X)


def test_samples_follow_the_probabilities(fitted):
    X, _ = clouds(3, seed=5)
    drawn = fitted.sample_y(X, 4000, random_state=0)
    shares = (drawn[..., None] == fitted.classes_).mean(1)
    np.testing.assert_allclose(shares, fitted.predict_proba(X), atol=0.04)


def test_rare_classes_are_heard_when_weights_are_balanced():
    X, y = clouds(400, seed=6, sizes=(30, 1, 1))
    settings = {"hidden": (8,), "epochs": 20, "folds": 0, "random_state": 0}
    recalls = [
        recall_score(y, SieveClassifier(class_weight=w, **settings).fit(X, y).predict(X),
                     average="macro")
        for w in (None, "balanced")
    ]  # fmt: skip
    assert recalls[1] > recalls[0] + 0.05


def test_class_weights_are_row_weights():
    X, y = clouds(60)
    by_class = {"no": 2.0, "maybe": 1.0, "yes": 0.5}
    rows = np.array([by_class[label] for label in y])
    first = SieveClassifier(**QUICK, class_weight=by_class).fit(X, y)
    second = SieveClassifier(**QUICK).fit(X, y, sample_weight=rows)
    # The scale of columns knows of row weights, not of class weights: compare what was counted.
    assert torch.allclose(first.posterior_.mean, second.posterior_.mean, atol=0.5)
    table = first._read(X, y, None)
    np.testing.assert_allclose(table.weight.numpy(), rows)


def test_unknown_labels_are_named(fitted):
    X, _ = clouds(2)
    with pytest.raises(ValueError, match="'perhaps', which is none of the classes"):
        fitted.log_likelihood(X, ["no", "perhaps"])


def test_defaults_are_good_on_a_real_table():
    X, y = load_breast_cancer(return_X_y=True)
    model = SieveClassifier(epochs=20, random_state=0).fit(X[::2], y[::2])
    assert model.score(X[1::2], y[1::2]) > 0.94
    assert model.log_likelihood(X[1::2], y[1::2]) > -0.2


@pytest.mark.parametrize("engine", ["flat-vi", "map", "bmr", "horseshoe", "sghmc", "tdamp"])
def test_every_engine_has_a_name(engine):
    X, y = clouds(40)
    model = SieveClassifier(**QUICK, engine=engine).fit(X, y)
    np.testing.assert_allclose(model.predict_proba(X).sum(1), 1)


def test_a_bundle_names_its_classes(tmp_path, fitted):
    folder = fitted.export(tmp_path / "bundle")
    assert json.loads((folder / "config.json").read_text())["classes"] == ["maybe", "no", "yes"]


def several(n=300):
    source = np.random.default_rng(0)
    X, noise = source.normal(size=(n, 3)), source.logistic(size=(n, 2))
    return X, (X[:, :2] * [2.0, 3.0] + noise > 0).astype(int)


def test_several_labels_of_a_row_are_answered_by_one_network(tmp_path):
    X, y = several()
    model = SieveClassifier(hidden=(8,), bins=0, epochs=40, kl=0.1, n_samples=8, random_state=0)
    model.fit(X[:200], y[:200])
    probs = model.predict_proba(X[200:])
    truth = 1 / (1 + np.exp(-X[200:, :2] * [2.0, 3.0]))
    assert np.abs(probs - truth).mean() < 0.1
    np.testing.assert_array_equal(model.predict(X[200:]), probs > 0.5)
    right = np.where(y[200:] == 1, probs, 1 - probs)
    np.testing.assert_allclose(model.log_likelihood(X[200:], y[200:]), np.log(right).sum(1).mean())
    assert model.sample_y(X[:4], 5).shape == (4, 2, 5)
    assert [part.shape for part in model.predict_uncertainty(X[:4])] == [(4, 2)] * 2
    assert model.feature_importances_.argmin() == 2
    bundle = read_bundle(model.export(tmp_path / "bundle"))
    assert bundle.likelihood == Bernoulli()
    assert model.partial_fit(X[200:], y[200:]).n_seen_ == 300


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"class_weight": "balanced"}, "class_weight is for one label"),
     ({"conformal": True}, "conformal is for one label")],
)  # fmt: skip
def test_what_needs_one_label_a_row_says_so(settings, message):
    with pytest.raises(ValueError, match=message):
        SieveClassifier(**settings).fit(*several(60))


def test_columns_of_several_classes_are_refused():
    X, y = several(60)
    with pytest.raises(ValueError, match="must hold 0 and 1 alone"):
        SieveClassifier().fit(X, y + np.arange(60)[:, None] % 2)
