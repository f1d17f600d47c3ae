"""The regressor: predictions with uncertainty, weights, frames, pipelines, delivery."""

import multiprocessing
import pickle
from concurrent.futures import ProcessPoolExecutor
from statistics import NormalDist

import joblib
import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.datasets import make_friedman1
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from bayesieve import SBNN, Schedule
from bayesieve.assess.predict import predict
from bayesieve.core.likelihoods import Gaussian
from bayesieve.core.priors import Normal
from bayesieve.deliver.bundle import read_bundle
from bayesieve.engines.flat_vi import FlatVI
from bayesieve.estimators import SieveRegressor
from problems import QUICK, simulated


def line(n=80, noise=0.2, seed=0):
    X, y = simulated(n, 3, lambda X: 20 * X[:, 0] - 20 * X[:, 1], 20 * noise, seed)
    return X * [1.0, 10.0, 0.1] + [0.0, 50.0, 3.0], y


@pytest.fixture(scope="module")
def fitted():
    X, y = line(200)
    return SieveRegressor(hidden=(20,), epochs=160, random_state=0).fit(X, y)


def test_it_learns_whatever_the_units(fitted):
    X, y = line(500, seed=1)
    assert fitted.score(X, y) > 0.95


def coverage_slack(level, n_test, n_train=200, n_weights=21):
    """How far from its level an honest interval may cover: three standard errors and a bias.

    The std of the noise, learned from n rows, has a relative error of 1 / √(2n), and is by
    n_weights / 2n too small where so many weights follow the noise; the slope of the coverage over
    the log of the std is 2 z φ(z). The share of the test rows has the error of a binomial.
    """
    z = NormalDist().inv_cdf((1 + level) / 2)
    slope = 2 * z * NormalDist().pdf(z)
    error = np.hypot(slope / np.sqrt(2 * n_train), np.sqrt(level * (1 - level) / n_test))
    return 3 * error + slope * n_weights / (2 * n_train)


def test_intervals_cover_what_they_say(fitted):
    X, y = line(1000, seed=2)
    for level in (0.9, 0.5):
        low, high = fitted.predict_interval(X, 1 - level).T
        share = np.mean((low <= y) & (y <= high))
        assert share == pytest.approx(level, abs=coverage_slack(level, 1000))
    assert set(fitted.coverage_) == {0.5, 0.8, 0.9, 0.95}
    for level, share in fitted.coverage_.items():
        assert share == pytest.approx(level, abs=coverage_slack(level, 200))


def test_uncertainty_has_two_parts(fitted):
    X, _ = line(20, seed=3)
    mean, std = fitted.predict(X, return_std=True)
    aleatoric, epistemic = fitted.predict_uncertainty(X)
    np.testing.assert_allclose(std**2, aleatoric**2 + epistemic**2)
    np.testing.assert_array_equal(mean, fitted.predict(X))
    far = X + np.array([100.0, 0.0, 0.0])
    assert fitted.predict_uncertainty(far)[1].mean() > 5 * epistemic.mean()


def test_samples_have_the_predictive_moments(fitted):
    X, _ = line(5, seed=4)
    mean, std = fitted.predict(X, return_std=True)
    drawn = fitted.sample_y(X, n_samples=4000, random_state=1)
    assert drawn.shape == (5, 4000)
    np.testing.assert_allclose(drawn.mean(1), mean, atol=(4 * std / np.sqrt(4000)).max())
    np.testing.assert_allclose(drawn.std(1), std, rtol=0.1)


def test_the_log_likelihood_is_that_of_the_mixture(fitted):
    X, y = line(6, seed=5)
    whole = fitted.log_likelihood(X, y)
    shifted = SieveRegressor.log_likelihood(fitted, X, y + 1000)
    assert shifted < whole < 0
    prediction = fitted._prediction(X)
    std = float(fitted.y_scale_.std[0])
    centre = prediction.sample_means[..., 0] * std + float(fitted.y_scale_.mean[0])
    density = torch.distributions.Normal(centre, prediction.noise_std[..., 0] * std)
    exact = torch.logsumexp(density.log_prob(torch.as_tensor(y)), 0) - np.log(len(centre))
    assert whole == pytest.approx(exact.mean().item(), rel=1e-6)


def test_importance_finds_the_columns_that_matter(fitted):
    importance = fitted.feature_importances_
    assert importance.shape == (3,)
    assert importance.argmin() == 2
    assert not hasattr(fitted, "inclusion_")  # a hidden network has no probability for a column


@pytest.mark.parametrize("unit", [1e-30, 1.0, 1e30])
def test_units_and_constant_columns_make_no_difference(unit):
    X, y = line(40)
    plain = SieveRegressor(**QUICK).fit(np.insert(X, 1, 0.0, axis=1), y)
    constant = np.insert(X * unit, 1, 3.0 * unit, axis=1)
    model = SieveRegressor(**QUICK).fit(constant, y * unit)
    expected = plain.predict(np.insert(X, 1, 0.0, axis=1))
    np.testing.assert_allclose(model.predict(constant) / unit, expected, rtol=1e-3)
    assert model.feature_importances_[1] == 0.0
    assert model.feature_importances_.max() == 1.0


def test_conformal_intervals_are_of_the_right_width():
    X, y = line(300)
    model = SieveRegressor(
        hidden=(4,), epochs=40, folds=3, likelihood=Gaussian(3.0), conformal=True, random_state=0
    ).fit(X, y)
    X, y = line(2000, seed=6)
    ends = model.predict_interval(X, 0.2)
    assert np.mean((ends[:, 0] <= y) & (y <= ends[:, 1])) == pytest.approx(0.8, abs=0.08)
    plain = (
        SieveRegressor(**QUICK, likelihood=Gaussian(3.0)).fit(*line(300)).predict_interval(X, 0.2)
    )
    assert np.mean((plain[:, 0] <= y) & (y <= plain[:, 1])) > 0.95  # it claims far too much noise


@pytest.mark.slow
def test_heteroscedastic_noise_follows_the_input():
    source = np.random.default_rng(0)
    X = source.uniform(-1, 1, size=(600, 1))
    y = np.where(X[:, 0] > 0, 2.0, 0.1) * source.normal(size=600)
    model = SieveRegressor(
        likelihood="heteroscedastic", hidden=(20,), epochs=60, folds=0, random_state=0
    ).fit(X, y)
    quiet, loud = model.predict_uncertainty([[-0.6], [0.6]])[0]
    assert quiet < 0.5 < 1.4 < loud < 2.8
    assert model.compact_(torch.zeros(2, 1)).shape == (2, 1)


@pytest.mark.slow
def test_student_noise_is_not_bent_by_wild_targets():
    X, y = line(300, noise=0.05)
    spoilt = y.copy()
    spoilt[::10] += 2000
    settings = {"hidden": (), "epochs": 50, "folds": 0, "lr": 0.1, "random_state": 0}
    errors = {
        noise: np.median(
            np.abs(SieveRegressor(likelihood=noise, **settings).fit(X, spoilt).predict(X) - y)
        )
        for noise in ("gaussian", "student-t")
    }
    assert errors["student-t"] < 0.3 * errors["gaussian"]


def test_several_targets_at_once():
    X, y = line(60)
    both = np.stack([y, -3 * y], 1)
    model = SieveRegressor(**QUICK).fit(X, both)
    assert model.predict(X).shape == (60, 2)
    assert model.predict_interval(X).shape == (60, 2, 2)
    assert model.sample_y(X, 5).shape == (60, 2, 5)
    assert np.isfinite(model.log_likelihood(X, both))
    assert model.score(X, both) < 1
    column = SieveRegressor(**QUICK).fit(X, y[:, None])
    assert column.predict(X).shape == (60, 1)


def test_weights_count_rows():
    X, y = line(100)
    other = np.where(np.arange(100) < 50, y, y + 1000)
    weight = np.where(np.arange(100) < 50, 1.0, 0.0)
    settings = {"hidden": (), "epochs": 60, "folds": 2, "lr": 0.05, "random_state": 0}
    model = SieveRegressor(**settings).fit(X, other, sample_weight=weight)
    assert np.abs(model.predict(X) - y).mean() < 20
    with pytest.raises(ValueError, match="at least one"):
        SieveRegressor(**QUICK).fit(X, y, sample_weight=np.zeros(100))


def test_equal_seeds_give_equal_models_and_the_global_state_is_untouched():
    X, y = line(50)
    state = torch.get_rng_state()
    first, second = (SieveRegressor(**{**QUICK, "folds": 2}).fit(X, y) for _ in range(2))
    np.testing.assert_array_equal(first.predict(X), second.predict(X))
    assert torch.equal(torch.get_rng_state(), state)
    other = clone(first).set_params(random_state=1).fit(X, y)
    assert np.any(other.predict(X) != first.predict(X))


def test_frames_give_names(fitted):
    pandas = pytest.importorskip("pandas")
    X, y = line(40)
    frame = pandas.DataFrame(X, columns=["a", "b", "c"])
    model = SieveRegressor(**QUICK).fit(frame, pandas.Series(y))
    assert model.feature_names_in_.tolist() == ["a", "b", "c"]
    np.testing.assert_array_equal(
        model.predict(frame), SieveRegressor(**QUICK).fit(X, y).predict(X)
    )
    with pytest.raises(ValueError, match="feature names"):
        model.predict(frame[["b", "a", "c"]])


def test_polars_frames_are_tables_too():
    polars = pytest.importorskip("polars")
    X, y = line(40)
    frame = polars.DataFrame({"a": X[:, 0], "b": X[:, 1], "c": X[:, 2]})
    model = SieveRegressor(**QUICK).fit(frame, polars.Series(y))
    assert model.predict(frame).shape == (40,)


@pytest.mark.slow
def test_pipelines_column_transformers_and_searches():
    pandas = pytest.importorskip("pandas")
    X, y = line(60)
    frame = pandas.DataFrame({"a": X[:, 0], "b": X[:, 1], "kind": ["red", "blue", "green"] * 20})
    prepare = ColumnTransformer(
        [("numbers", StandardScaler(), ["a", "b"]), ("kind", OneHotEncoder(), ["kind"])]
    )
    pipeline = make_pipeline(prepare, SieveRegressor(**QUICK))
    assert pipeline.fit(frame, y).predict(frame).shape == (60,)
    assert cross_val_score(pipeline, frame, y, cv=2).shape == (2,)
    grid = {"engine": [SBNN(lr=0.01), FlatVI(Normal(1.0), lr=0.01)]}
    with joblib.parallel_config("threading"):
        search = GridSearchCV(SieveRegressor(**QUICK), grid, cv=2, n_jobs=2).fit(X, y)
    assert search.best_params_["engine"] in grid["engine"]
    assert search.predict(X).shape == (60,)
    # and in another process, as joblib would have it: one, since each takes seconds to start
    task = (cross_val_score, search.best_estimator_, X, y)
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        np.testing.assert_array_equal(pool.submit(*task).result(), cross_val_score(*task[1:]))


def test_fitted_models_go_through_joblib(tmp_path, fitted):
    X, _ = line(10, seed=7)
    joblib.dump(fitted, tmp_path / "model.joblib")
    again = joblib.load(tmp_path / "model.joblib")
    np.testing.assert_array_equal(again.predict(X), fitted.predict(X))
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(fitted)).predict(X), fitted.predict(X))


def test_zeros_are_zeros_and_the_compact_model_is_small():
    X, y = line(120)
    model = SieveRegressor(
        hidden=(10,), epochs=20, zeros=0.7, folds=2, n_samples=64, random_state=0
    ).fit(X, y)
    assert model.zeros_ == pytest.approx(0.7, abs=0.05)
    small = model.compact_
    assert sum(p.numel() for p in small.parameters()) < 0.5 * model.posterior_.layout.size
    from bayesieve.assess.predict import predict

    inside = predict(model.sparse_, model.x_scale_.apply(X)).mean
    raw = small(torch.as_tensor(X, dtype=torch.float32)).detach().double().numpy()
    np.testing.assert_allclose(raw, model.y_scale_.undo(inside), rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize("name", ["model.pt2", "model.h", "bundle"])
def test_export_writes_a_file_or_folder(tmp_path, fitted, name):
    assert fitted.export(tmp_path / name).exists()


@pytest.mark.parametrize("noise", ["gaussian", "student-t", "heteroscedastic"])
def test_a_bundle_states_the_noise_in_the_unit_of_the_target(tmp_path, noise):
    X, y = line(60)
    model = SieveRegressor(**QUICK, likelihood=noise).fit(X, y)
    kept = read_bundle(model.export(tmp_path / "bundle"))
    if noise == "heteroscedastic":  # the mean alone is delivered
        assert kept.config["likelihood"] is None
        return
    std = kept.likelihood.noise_std if noise == "gaussian" else student_std(kept.likelihood)
    assert std == pytest.approx(model.predict_uncertainty(X[:1])[0][0], rel=0.02)


def test_targets_of_different_spread_have_no_single_noise(tmp_path):
    X, y = line(60)
    model = SieveRegressor(**QUICK).fit(X, np.c_[y, 100 * y])
    assert read_bundle(model.export(tmp_path / "bundle")).config["likelihood"] is None


def student_std(likelihood):
    return likelihood.scale * (likelihood.df / (likelihood.df - 2)) ** 0.5


def test_export_refuses_other_endings(tmp_path, fitted):
    with pytest.raises(ValueError, match=r"\.onnx, \.pt2 or \.h"):
        fitted.export(tmp_path / "model.txt")


@pytest.mark.filterwarnings("ignore:diagnose. chains have not mixed")  # after six epochs
@pytest.mark.parametrize("engine", ["flat-vi", "map", "bmr", "horseshoe", "sghmc", "tdamp"])
def test_every_engine_has_a_name(engine):
    X, y = line(40)
    model = SieveRegressor(**{**QUICK, "epochs": 6}, engine=engine, zeros=0.3).fit(X, y)
    assert np.isfinite(model.predict(X)).all()
    assert model.feature_importances_.shape == (3,)
    assert model.zeros_ >= 0.25


def test_a_sampler_runs_two_chains_and_says_that_they_have_not_mixed():
    X, y = line(60)
    with pytest.warns(
        UserWarning, match=r"chains have not mixed: R-hat is .* run longer \(`epochs`"
    ):
        model = SieveRegressor(**{**QUICK, "epochs": 12}, engine="sghmc").fit(X, y)
    assert len(model.sparse_models_) == model.chains_.n_chains == 2
    assert model.chains_.log_lik_ess > 0
    assert model.settings_.engine.preconditioned
    assert SieveRegressor(**QUICK).fit(X, y).chains_ is None


@pytest.mark.filterwarnings("ignore:diagnose")
def test_all_kept_draws_of_a_chain_count():
    X, y = line(60)
    model = SieveRegressor(**{**QUICK, "n_samples": 1}, engine="sghmc").fit(X, y)
    inside = (y - model.y_scale_.mean) / model.y_scale_.std
    densities = []
    for chain in model.sparse_models_:
        found = predict(chain, model.x_scale_.apply(X), n_samples=len(chain.posterior.draws))
        normal = torch.distributions.Normal(found.sample_means[..., 0], found.noise_std[..., 0])
        densities.append(normal.log_prob(torch.tensor(inside, dtype=torch.float32)))
    each = torch.cat(densities)
    assert len(each) == 4
    exact = torch.logsumexp(each, 0).mean() - np.log(len(each)) - np.log(model.y_scale_.std[0])
    assert model.log_likelihood(X, y) == pytest.approx(exact.item(), rel=1e-4)


@pytest.mark.filterwarnings("ignore:diagnose")
@pytest.mark.parametrize("engine", ["sghmc", "sgld"])
def test_neither_many_rows_nor_little_noise_throw_a_chain_off(engine):
    source = np.random.default_rng(0)
    X = source.normal(size=(5000, 4))
    y = 2 * np.sin(X[:, 0]) + X[:, 1] + 0.05 * source.normal(size=5000)
    model = SieveRegressor(engine=engine, hidden=(20,), epochs=40, folds=0, random_state=0)
    mean, std = model.fit(X, y).predict(X[:1000], return_std=True)
    assert np.sqrt(np.mean((mean - y[:1000]) ** 2)) < 0.3  # the targets' std is 1.7
    assert np.median(std) < 0.5


def test_members_are_averaged():
    X, y = line(60)
    one = SieveRegressor(**QUICK).fit(X, y)
    three = SieveRegressor(**QUICK, n_members=3).fit(X, y)
    assert len(three.sparse_models_) == 3
    means = [p.mean for p in (model.posterior for model in three.sparse_models_)]
    assert not torch.equal(means[0], means[1])
    assert len(three._prediction(X).sample_means) == 3 * 4
    assert len(one.sparse_models_) == 1


@pytest.mark.slow
def test_the_folds_choose_the_weight_of_the_prior():
    source = np.random.default_rng(0)
    X = source.normal(size=(60, 10))
    y = source.normal(size=60)  # nothing to learn: the prior is all there is
    settings = {"hidden": (30,), "epochs": 40, "lr": 0.05, "folds": 4, "patience": 40}
    model = SieveRegressor(**settings, bins=0, random_state=0).fit(X, y)
    assert model.kl_ > 0.1
    assert model.n_epochs_ < 40


@pytest.mark.slow
def test_defaults_beat_a_linear_model_on_friedman():
    X, y = make_friedman1(500, 10, noise=1.0, random_state=0)
    model = SieveRegressor(epochs=60, random_state=0).fit(X[:300], y[:300])
    linear = LinearRegression().fit(X[:300], y[:300])
    assert model.score(X[300:], y[300:]) > linear.score(X[300:], y[300:]) + 0.05


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"engine": "sbn"}, ValueError, "Did you mean 'sbnn'"),
        ({"engine": SBNN}, TypeError, "an engine such as"),
        ({"engine": SBNN(), "lr": 0.1}, ValueError, "set it in the engine"),
        ({"likelihood": "cauchy"}, ValueError, "likelihood must be one of"),
        ({"hidden": (0,)}, ValueError, "widths > 0"),
        ({"zeros": 1.0}, ValueError, "below 1"),
        ({"folds": 1000}, ValueError, "folds must be 0 to"),
        ({"engine": "tdamp", "folds": 3}, ValueError, "set folds=0"),
        ({"schedule": Schedule(), "kl": 0.5}, ValueError, "give one of them"),
        ({"n_members": 0}, ValueError, "n_members must be > 0"),
        ({"epochs": 0}, ValueError, "epochs must be > 0"),
        ({"epochs": 2.5}, TypeError, "epochs must be a whole number"),
        ({"bins": -1}, ValueError, "bins must be >= 0"),
        ({"base": "forest"}, ValueError, "base must be one of"),
        ({"base": "auto"}, ValueError, "needs inner folds"),
        ({"base": "boosting", "likelihood": "poisson"}, ValueError, "not for counts"),
        ({"conformal": "jackknife"}, ValueError, "conformal must be one of"),
        ({"max_seconds": 0}, ValueError, "max_seconds must be > 0"),
    ],
)
def test_bad_settings_are_refused_before_training(settings, error, message):
    X, y = line(30)
    with pytest.raises(error, match=message):
        SieveRegressor(**{**QUICK, **settings}).fit(X, y)


def test_counts_are_learned_with_their_dispersion():
    """Counts of mean exp(3 + x/2) and dispersion ¼, of 300 rows; a Poisson covers too little."""
    source = np.random.default_rng(0)
    X = source.normal(size=(500, 3))
    mean = np.exp(3 + 0.5 * X[:, 0])
    y = source.poisson(mean * source.gamma(4, 1 / 4, len(X)))
    model = SieveRegressor(likelihood="negative-binomial", hidden=(8,), epochs=60, random_state=0)
    model.fit(X[:300], y[:300])
    learned = model.sparse_.network.likelihood_at(model.posterior_.mean)
    assert learned.dispersion == pytest.approx(0.25, abs=0.08)
    assert learned.rate == y[:300].mean()
    low, high = model.predict_interval(X[300:], alpha=0.1).T
    assert np.array_equal(low, low.round())
    assert np.mean((low <= y[300:]) & (y[300:] <= high)) == pytest.approx(0.9, abs=0.06)
    assert model.coverage_[0.9] == pytest.approx(0.9, abs=0.06)
    best = stats.nbinom.logpmf(y[300:], 4, 4 / (4 + mean[300:])).mean()
    assert model.log_likelihood(X[300:], y[300:]) == pytest.approx(best, abs=0.1)
    draws = model.sample_y(X[:5], 10)
    assert np.array_equal(draws, draws.round())
    with pytest.raises(ValueError, match="whole numbers >= 0"):
        SieveRegressor(likelihood="poisson", epochs=1).fit(X[:50], X[:50, 0])
