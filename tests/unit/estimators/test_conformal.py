"""Conformal intervals of the estimators: from models that are made as what is delivered is made."""

import numpy as np
import pytest
import torch
from sklearn.base import clone

from bayesieve.estimators import SieveClassifier, SieveRegressor, fit_many
from bayesieve.uncertainty.conformal import conformal_interval
from problems import QUICK, simulated

CHEAP = {"hidden": (20,), "folds": 0, "n_samples": 32, "random_state": 0}


def line(n=60, seed=0):
    return simulated(n, 3, lambda X: 5 + 20 * X[:, 0], 10, seed)


def coverage(estimator, n, sets, n_test=200):
    """Mean share of new targets in 90 % intervals, over simulated sets."""
    both = [line(n, seed) for seed in range(sets)]
    X, y = (np.concatenate(values) for values in zip(*both, strict=True))
    models = fit_many(estimator, X, y, np.split(np.arange(sets * n), sets))
    shares = []
    for seed, model in enumerate(models):
        X, y = line(n_test, 10_000 + seed)
        low, high = model.predict_interval(X).T
        shares.append(np.mean((low <= y) & (y <= high)))
    return np.mean(shares)


def test_a_pruned_model_covers_what_it_says():
    """Networks that lose 90 % of their weights after training; scores of whole ones gave .61."""
    model = SieveRegressor(engine="bmr", zeros=0.9, **CHEAP, epochs=30, conformal=True)
    assert 0.84 <= coverage(model, 60, 8) <= 0.99  # standard error near .02


def test_small_tables_are_covered():
    """The standard error over 12 sets of 40 rows is near .015; `studies.conformal` has 300."""
    model = SieveRegressor(**CHEAP | {"hidden": (4,)}, epochs=100, kl=1.0, conformal=True)
    assert 0.86 <= coverage(model, 40, 12) <= 0.97


def test_fold_models_are_the_estimator_without_their_rows():
    X, y = line(50)
    settings = {**QUICK, "n_members": 2, "zeros": 0.5, "folds": 2}
    model = SieveRegressor(**settings, conformal="cv+").fit(X, y)
    assert len(model.fold_models_) == len(model.conformity_) == 10  # pruned: a tenth each
    for fold, scores in zip(model.fold_models_, model.conformity_, strict=True):
        assert fold.n_seen_ == 45
        assert scores.shape == (5, 1)
        assert len(fold.sparse_models_) == 2
        assert fold.zeros_ == pytest.approx(0.5, abs=0.05)
        assert fold.settings_.epochs == model.settings_.epochs
    plain = SieveRegressor(**settings).fit(X, y)  # conformal adds fits, and changes none
    np.testing.assert_array_equal(model.predict(X), plain.predict(X))


def test_the_interval_is_that_of_the_fold_models():
    X, y = line(50)
    model = SieveRegressor(**QUICK, conformal="cv+").fit(X, y)
    new = line(7, seed=1)[0]
    assert len(model.fold_models_) == 5  # nothing is pruned
    moments = [fold._mean_and_std(new) for fold in model.fold_models_]
    mean, std = (np.stack([np.asarray(v[i][:, 0]) for v in moments]) for i in (0, 1))
    low, high = conformal_interval(
        torch.as_tensor(mean), torch.as_tensor(std), [s[:, 0] for s in model.conformity_], 0.2
    )
    np.testing.assert_allclose(model.predict_interval(new, 0.2), np.stack([low, high], 1))


def test_split_keeps_a_fifth_of_the_rows_for_its_scores():
    X, y = line(100)
    model = SieveRegressor(**QUICK, conformal="split").fit(X, y)
    assert model.n_seen_ == 80
    assert model.fold_models_ == []
    (scores,) = model.conformity_
    bound = scores[:, 0].sort().values[18]  # the 19th of 20
    mean, std = model.predict(X, return_std=True)
    low, high = model.predict_interval(X, 0.1).T
    np.testing.assert_allclose(high - mean, bound.item() * std)
    np.testing.assert_allclose(mean - low, bound.item() * std)


def test_the_kind_follows_the_number_of_rows():
    model = SieveRegressor(**QUICK, conformal=True)
    assert model._conformal_kind(3000) == "cv+"
    assert model._conformal_kind(3001) == "split"
    assert clone(model).set_params(conformal=False)._conformal_kind(5) is None


def test_rows_that_do_not_count_are_not_scored():
    X, y = line(60)
    weight = np.where(np.arange(60) < 50, 1.0, 0.0)
    model = SieveRegressor(**QUICK, conformal="cv+").fit(X, y, sample_weight=weight)
    assert sum(len(scores) for scores in model.conformity_) == 50


def test_several_targets_have_scores_of_their_own():
    X, y = line(60)
    model = SieveRegressor(**QUICK, conformal=True).fit(X, np.c_[y, -3 * y])
    assert model.predict_interval(X).shape == (60, 2, 2)
    assert model.conformity_[0].shape == (12, 2)


def test_an_engine_that_counts_rows_once_trains_its_folds_one_by_one():
    X, y = line(40)
    model = SieveRegressor(engine="tdamp", hidden=(4,), epochs=2, conformal=True, random_state=0)
    assert np.isfinite(model.fit(X, y).predict_interval(X)).all()


@pytest.mark.parametrize("kind", ["cv+", "split"])
def test_a_rare_label_may_be_missing_from_a_fold(kind):
    X, _ = line(60)
    y = np.where(np.arange(60) == 7, "rare", np.where(X[:, 0] > 0, "yes", "no"))
    model = SieveClassifier(**QUICK, conformal=kind).fit(X, y)
    sets = model.predict_set(X, 0.1)
    assert sets.shape == (60, len(model.classes_))
    assert sets.any(1).all()


def test_few_rows_are_refused():
    with pytest.raises(ValueError, match="needs at least 10 rows"):
        SieveRegressor(**QUICK, conformal=True).fit(*line(9))


def test_scores_belong_to_one_fit():
    X, y = line(60)
    model = SieveRegressor(**QUICK, conformal=True).partial_fit(X, y)
    with pytest.raises(ValueError, match="Use fit on all rows again"):
        model.partial_fit(X, y)
    late = SieveRegressor(**QUICK).fit(X, y).set_params(conformal=True)
    with pytest.raises(ValueError, match="fit with it"):
        late.predict_interval(X)
