"""Frames straight into `fit`: text, dates, bools and missing values, by the names of columns."""

import csv
import pickle

import numpy as np
import pytest
from sklearn.model_selection import cross_val_score

from bayesieve.data.frames import Frame
from bayesieve.estimators import SieveClassifier, SieveRegressor, SieveSelector, fit_many
from commands import ok

pandas = pytest.importorskip("pandas")
pyarrow = pytest.importorskip("pyarrow")
QUICK = {"hidden": (16,), "epochs": 60, "folds": 0, "random_state": 0}
N = 240
NAMES = ["age", "color", "member", "day", "noise", "job"]


@pytest.fixture(scope="module")
def table():
    """Age, color, membership and the season matter; noise and job do not. A tenth has gaps."""
    r = np.random.default_rng(0)
    frame = pandas.DataFrame(
        {
            "age": r.normal(50, 10, N),
            "color": r.choice(["red", "blue", "green"], N),
            "member": r.random(N) < 0.5,
            "day": np.datetime64("2023-01-01") + r.integers(0, 730, N).astype("timedelta64[D]"),
            "noise": r.normal(size=N),
            "job": pandas.Categorical(r.choice([1, 2, 3, 4], N)),
        }
    )
    season = np.sin(2 * np.pi * frame["day"].dt.day_of_year / 365)
    y = 0.1 * frame["age"] + 2 * (frame["color"] == "red") + frame["member"] + 1.5 * season
    frame.loc[r.random(N) < 0.1, "age"] = np.nan
    frame.loc[r.random(N) < 0.1, "color"] = None
    return frame, (y + 0.2 * r.normal(size=N)).to_numpy()


@pytest.fixture(scope="module")
def fitted(table):
    frame, y = table
    return SieveRegressor(**QUICK).fit(frame[:180], y[:180])


def test_a_frame_is_learned_with_importance_by_column(fitted, table):
    frame, y = table
    assert fitted.feature_names_in_.tolist() == NAMES
    assert fitted.n_features_in_ == len(fitted.feature_importances_) == 6
    assert fitted.score(frame[180:], y[180:]) > 0.75
    best = np.argsort(-fitted.feature_importances_)[:4]
    assert {NAMES[j] for j in best} == {"age", "color", "member", "day"}


def test_every_frame_gives_the_same_predictions(fitted, table):
    frame, _ = table
    expected = fitted.predict(frame)
    np.testing.assert_array_equal(fitted.predict(pyarrow.Table.from_pandas(frame)), expected)
    columns = {name: frame[name].to_numpy() for name in NAMES}
    own = Frame.of(columns | {"job": [str(job) for job in columns["job"]]})
    np.testing.assert_array_equal(fitted.predict(own), expected)
    with pytest.raises(ValueError, match="feature names"):
        fitted.predict(frame[NAMES[::-1]])
    with pytest.raises(ValueError, match="must be those of fit, in order"):
        fitted.predict(Frame({name: own.columns[name] for name in NAMES[::-1]}))
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(again.predict(frame), expected)


def test_gaps_and_unseen_values_in_new_rows_have_answers(fitted, table):
    new = table[0][:3].copy()
    new["color"] = ["pink", None, "red"]
    new["noise"] = np.nan
    with pytest.warns(UserWarning, match="SieveRegressor: column 'color' has values .*'pink'"):
        mean, std = fitted.predict(new, return_std=True)
    assert np.isfinite(mean).all()
    assert (std > 0).all()
    assert fitted.familiarity(new[1:]).shape == (2,)


def test_a_level_never_seen_has_the_doubt_of_a_level():
    """Ten levels 2 apart in the mean: a new one may be any of them, and the estimator says so."""
    r = np.random.default_rng(0)
    level, effects = r.integers(10, size=300), 2 * np.arange(10.0)
    frame = Frame.of({"c": [f"level {k}" for k in level], "x": r.normal(size=300)})
    y = effects[level] + 0.2 * r.normal(size=300)
    model = SieveRegressor(**QUICK).fit(frame, y)
    new = Frame.of({"c": ["level 3", "another"], "x": [0.0, 0.0]})
    with pytest.warns(UserWarning, match="never saw"):
        mean, std = model.predict(new, return_std=True)
    with pytest.warns(UserWarning, match="never saw"):
        densities = [model.log_likelihood(new, [6.0, effect]) for effect in effects[::3]]
    assert std[0] < 1
    assert std[1] == pytest.approx(effects.std(), rel=0.25)  # of 32 draws of a level
    assert mean[1] == pytest.approx(effects.mean(), abs=2.5)
    assert max(densities) - min(densities) < 2  # any level is likely; one normal would say 100
    classifier = SieveClassifier(**QUICK).fit(frame, level // 5)
    with pytest.warns(UserWarning, match="never saw"):
        known, other = classifier.predict_proba(new).max(1)
    assert known > 0.9
    assert other < 0.85


def test_levels_are_centred_and_keep_their_unit():
    """A level of one row in 400 is no value far out, and no input of 20."""
    level = np.where(np.arange(400) == 7, "rare", "usual")
    frame = Frame.of({"c": level, "x": np.arange(400.0)})
    model = SieveRegressor(**QUICK | {"epochs": 1}).fit(frame, np.arange(400.0))
    assert model.x_scale_.limit == np.inf
    assert model.x_scale_.std[:2].tolist() == [1, 1]
    assert model.x_scale_.mean[:2].tolist() == [1 / 400, 399 / 400]
    assert model.x_scale_.std[2] == pytest.approx(np.arange(400.0).std())


def test_arrays_with_gaps_and_text():
    r = np.random.default_rng(0)
    X = r.normal(size=(120, 3))
    y = 2 * X[:, 0] + 3 * np.isnan(np.where(X[:, 1] > 0.5, np.nan, 1.0))
    X[:, 1] = np.where(X[:, 1] > 0.5, np.nan, X[:, 1])  # that it is missing says much
    model = SieveRegressor(**QUICK).fit(X, y)
    assert model.score(X, y) > 0.9
    assert model.feature_importances_.shape == (3,)
    mixed = X.astype(object)
    mixed[:, 2] = r.choice(["a", "b"], 120)
    assert SieveRegressor(**QUICK).fit(mixed, y).predict(mixed).shape == (120,)
    plain = SieveRegressor(**QUICK).fit(X[:, [0]], y)
    assert plain.predict([[np.nan]]) == pytest.approx(plain.predict([[np.median(X[:, 0])]]))
    with pytest.raises(ValueError, match="infinity"):
        model.fit(np.where(np.isnan(X), np.inf, X), y)


def test_labels_of_text_and_frames_in_folds(table):
    frame, y = table
    labels = pandas.Series(np.where(y > np.median(y), "high", "low"))
    model = SieveClassifier(**QUICK | {"epochs": 10}, conformal="split", class_weight="balanced")
    model.fit(frame, labels)
    assert set(model.predict(frame)) == {"high", "low"}
    assert model.predict_set(frame).shape == (N, 2)
    arrow = pyarrow.Table.from_pandas(frame)
    halves = [np.arange(N // 2), np.arange(N // 2, N)]
    short = SieveRegressor(**QUICK | {"epochs": 2})
    assert len(fit_many(short, frame, y, halves)) == len(fit_many(short, arrow, y, halves)) == 2
    assert cross_val_score(short, frame, y, cv=2).shape == (2,)


def test_selection_is_of_columns(table):
    frame, y = table
    selector = SieveSelector(rule="fdr", random_state=0).fit(frame, y)
    assert selector.get_feature_names_out().tolist() == ["age", "color", "member", "day"]
    assert selector.inclusion_.shape == (6,)
    assert selector.set_output(transform="pandas").transform(frame).shape == (N, 4)
    errors = selector.held_out_errors(frame[:180], y[:180], frame[180:], y[180:])
    assert errors[1] < 1.1 * errors[0]
    hidden = SieveSelector(estimator=SieveRegressor(**QUICK), fraction=0.5, random_state=0)
    assert hidden.fit(frame, y).get_support().sum() == 3


def test_bundles_carry_the_encoding(fitted, table, tmp_path):
    """The command line reads a file of raw columns, gaps and dates and all."""
    frame, _ = table
    fitted.export(tmp_path / "bundle")
    with (tmp_path / "new.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(NAMES)
        for row in frame[:20].astype(object).to_numpy():
            day = row[3].date().isoformat()
            writer.writerow(["" if v is None or v != v else v for v in (*row[:3], day, *row[4:])])
    ok("predict", tmp_path / "bundle", tmp_path / "new.csv", "--out", tmp_path / "p.csv")
    with (tmp_path / "p.csv").open() as file:
        means = [float(row["mean"]) for row in csv.DictReader(file)]
    # the bundle computes with mean weights, the estimator with draws
    assert np.corrcoef(means, fitted.predict(frame[:20]))[0, 1] > 0.99
