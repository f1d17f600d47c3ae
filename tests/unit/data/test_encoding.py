"""The encoder of tables: frames of every kind, categories, dates and missing values."""

import datetime
import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayesieve.data.encoding import (
    MAX_LEVELS,
    column_of_input,
    encode,
    feature_names,
    fit_encoding,
    plain_encoding,
    raw_columns,
    with_known_levels,
    without_level,
)
from bayesieve.data.frames import Frame, as_frame, column_of, dates_of
from bayesieve.errors import DataError

DAY = datetime.date(2024, 5, 31)


class Series:
    def __init__(self, values, dtype):
        self.values, self.dtype = values, dtype

    def to_numpy(self):
        return self.values


class Polars:
    """A frame with the methods of polars that are used."""

    def __init__(self, columns):
        self.columns, self._columns = list(columns), columns
        self.shape = (len(next(iter(columns.values()))), len(columns))

    def __getitem__(self, name):
        return Series(self._columns[name], "String")


class Streamed:
    """A frame that has nothing but an Arrow stream."""

    def __init__(self, table):
        self.table = table

    def __arrow_c_stream__(self, requested_schema=None):
        return self.table.__arrow_c_stream__(requested_schema)


VALUES = {
    "count": [1, 2, None],
    "color": ["red", None, "blue"],
    "member": [True, False, True],
    "day": [DAY, None, DAY + datetime.timedelta(1)],
    "code": [3, 4, 3],
}


def frames():
    yield Frame.of({**VALUES, "code": ["3", "4", "3"]})
    pandas, pyarrow = pytest.importorskip("pandas"), pytest.importorskip("pyarrow")
    table = pyarrow.table({**VALUES, "code": pyarrow.array([3, 4, 3]).dictionary_encode()})
    yield table
    yield Streamed(table)
    yield pandas.DataFrame(
        {
            "count": pandas.array([1, 2, None], dtype="Int64"),
            "color": VALUES["color"],
            "member": VALUES["member"],
            "day": pandas.to_datetime(VALUES["day"]),
            "code": pandas.Categorical([3, 4, 3]),
        }
    )
    days = np.array(["2024-05-31", "NaT", "2024-06-01"], dtype="datetime64[D]")
    yield Polars(
        {
            "count": np.array([1, 2, np.nan]),
            "color": np.array(["red", None, "blue"], dtype=object),
            "member": np.array([True, False, True]),
            "day": days,
            "code": np.array(["3", "4", "3"], dtype=object),
        }
    )


def test_all_frames_are_the_same_columns():
    first, *others = [as_frame(frame).columns for frame in frames()]
    assert [column.dtype.kind for column in first.values()] == ["f", "O", "b", "M", "O"]
    for columns in others:
        assert list(columns) == list(first)
        for name, column in columns.items():
            np.testing.assert_array_equal(column, first[name])
            assert column.dtype == first[name].dtype


def test_arrays_of_text_are_columns_and_those_of_numbers_none():
    mixed = as_frame([["a", 1.5], ["b", 2.5]])
    assert mixed.columns["x1"].tolist() == ["a", "b"]
    assert mixed.columns["x2"].tolist() == [1.5, 2.5]
    for numbers in (np.zeros((2, 2)), [[1, 2]], np.array([["1", 2]], dtype=object), [[1], [1, 2]]):
        assert as_frame(numbers) is None


def test_strange_columns_are_refused_by_name():
    with pytest.raises(DataError, match=r"column 'a' must hold numbers, .* got dict"):
        Frame.of({"a": [{}, 1]})
    with pytest.raises(DataError, match="equally long"):
        Frame.of({"a": [1], "b": [1, 2]})
    pandas = pytest.importorskip("pandas")
    with pytest.raises(DataError, match="'a' more than once"):
        as_frame(pandas.DataFrame([[1, 2]], columns=["a", "a"]))


def test_moments_are_in_utc():
    zone = datetime.timezone(datetime.timedelta(hours=2))
    moments = column_of([datetime.datetime(2024, 1, 1, 1, tzinfo=zone)], "t", "a")
    assert moments[0] == np.datetime64("2023-12-31T23:00")
    assert dates_of(np.array(["2024-01-01T01:00+02:00"], dtype=object))[0] == moments[0]


def test_every_kind_of_column_enumerated():
    """Three rows, written out."""
    frame = Frame.of({**VALUES, "code": ["3", "4", "3"]})
    entries = json.loads(json.dumps(fit_encoding("t", frame.columns, standardise=False)))
    x = encode(frame.columns, entries)
    days = (DAY - datetime.date(1970, 1, 1)).days
    turns = [2 * math.pi * ((DAY - datetime.date(2024, 1, 1)).days + k) / 366 for k in (0, 1)]
    middle = [sum(f(t) for t in turns) / 2 for f in (math.sin, math.cos)]
    expected = {
        "count": [1, 2, 1.5],
        "count missing": [0, 0, 1],
        "color=blue": [0, 0, 1],
        "color=red": [1, 0, 0],
        "color=(missing)": [0, 1, 0],
        "member": [1, 0, 1],
        "day time": [days, days + 0.5, days + 1],
        "day season sin": [math.sin(turns[0]), middle[0], math.sin(turns[1])],
        "day season cos": [math.cos(turns[0]), middle[1], math.cos(turns[1])],
        "day weekday=Fri": [1, 0, 0],
        "day weekday=Sat": [0, 0, 1],
        "day weekday=(missing)": [0, 1, 0],
        "day missing": [0, 1, 0],
        "code=3": [1, 0, 1],
        "code=4": [0, 1, 0],
    }
    assert feature_names(entries) == tuple(expected)
    np.testing.assert_allclose(x, np.array(list(expected.values())).T, atol=1e-12)
    assert raw_columns(entries) == list(VALUES)
    assert column_of_input(entries) == [0, 0, 1, 1, 1, 2, 3, 3, 3, 3, 3, 3, 3, 4, 4]


def test_gaps_that_training_had_not_take_the_median_and_the_most_frequent_level():
    columns = {"a": np.array([1.0, 2.0, 6.0]), "c": np.array(["u", "v", "v"], dtype=object)}
    entries = fit_encoding("t", columns, standardise=False)
    assert encode({"a": [None], "c": [None]}, entries).tolist() == [[2, 0, 1]]
    assert plain_encoding(columns["a"][:, None], ["a"])[0]["fill"] == 2


def test_hours_count_where_they_differ():
    day = np.datetime64("2024-05-31")
    entries = fit_encoding("t", {"t": np.array([day, day + np.timedelta64(6, "h")])})
    assert [entry["part"] for entry in entries] == [
        "time", "season sin", "season cos", "hour sin", "hour cos",
    ]  # fmt: skip
    plain = fit_encoding("t", {"t": np.array([day, day])})
    assert [entry["part"] for entry in plain] == ["time"]


def test_of_many_levels_the_frequent_have_inputs_and_the_others_share_one():
    levels = [f"often{k:03}" for k in range(300)]
    column = np.array([*(levels * 3), *(f"once{k}" for k in range(40))], dtype=object)
    with pytest.warns(UserWarning, match=r"340 different values: the 255 most frequent have"):
        (entry,) = fit_encoding("t", {"city": column})
    assert len(entry["levels"]) == MAX_LEVELS
    x = encode({"city": column}, [entry])
    assert x.sum(1).tolist() == [1.0] * len(column)
    assert x[:, -1].sum() == 3 * 45 + 40
    new = encode({"city": ["never seen", "once3"]}, [entry])
    assert new[:, -1].tolist() == [1, 1]


def test_values_without_a_level_may_be_any_of_them():
    """Of 4,000 rows each of three levels has a third, 5 standard errors apart at most."""
    column = np.array(["u", "v", "w"] * 3, dtype=object)
    (plain,) = fit_encoding("t", {"c": column})
    gaps = {"name": "g", "kind": "category", "levels": ["a", "(other)", "(missing)"],
            "fill": "(missing)", "other": "(other)"}  # fmt: skip
    entries = [{"name": "n", "kind": "numeric", "mean": 0, "std": 1, "fill": None}, plain, gaps]
    rows = [[7, 0, 0, 0, 0, 0, 1], [7, 0, 1, 0, 1, 0, 0], [7, 0, 1, 0, 0, 1, 0]]
    assert without_level(np.array(rows), entries).tolist() == [True, False, True]
    many = np.tile(np.array(rows, dtype=float), (4000, 1))
    drawn = with_known_levels(many, entries, np.random.default_rng(0))
    np.testing.assert_array_equal(drawn[1::3], many[1::3])
    np.testing.assert_array_equal(drawn[2::3, 4:], np.tile([1, 0, 0], (4000, 1)))
    np.testing.assert_array_equal(drawn[::3, [0, 4, 5, 6]], np.tile([7, 0, 0, 1], (4000, 1)))
    assert (drawn[::3, 1:4].sum(1) == 1).all()
    assert np.abs(drawn[::3, 1:4].mean(0) - 1 / 3).max() < 5 * (2 / 9 / 4000) ** 0.5


def test_a_column_that_names_the_rows_is_one_constant_and_said():
    names = np.array([f"row{k}" for k in range(30)], dtype=object)
    with pytest.warns(UserWarning, match="none occurs in 2 rows or more.*Drop it if"):
        (entry,) = fit_encoding("t", {"id": names})
    assert entry["levels"] == ["(other)"]
    assert (encode({"id": names}, [entry]) == 1).all()


def test_values_never_seen_are_none_of_the_levels_and_said():
    (entry,) = fit_encoding("t", {"c": np.array(["u", "v"] * 3, dtype=object)})
    with pytest.warns(UserWarning, match=r"'c' has values that training never saw in 2 rows \('w'"):
        x = encode({"c": ["w", "u", "w"]}, [entry])
    assert x.tolist() == [[0, 0], [1, 0], [0, 0]]


def test_numbers_in_a_column_of_words_are_words():
    (entry,) = fit_encoding("t", {"c": np.array(["1", "2", "x"] * 2, dtype=object)})
    assert encode({"c": [1.0, 2]}, [entry]).tolist() == [[1, 0, 0], [0, 1, 0]]


def test_all_problems_are_named_at_once():
    columns = {
        "a": np.array([1.0, np.nan, 3.0]),
        "b": np.array([1.0, np.inf, 3.0]),
        "c": np.array(["2024-01-01"] * 3, dtype=object),
        "d": np.array([1.0, 2.0, 3.0]),
    }
    with pytest.raises(DataError) as caught:
        fit_encoding("t.csv", columns, missing="refuse", dates=False)
    text = str(caught.value)
    assert text.startswith(
        "t.csv: 3 problems. (1) column 'a' must have no missing value, but row 2"
    )
    assert "(2) column 'b' must be finite, but row 2" in text
    assert "(3) column 'c' holds dates. Use `date_parts`, or drop" in text
    entries = fit_encoding("t", {"a": columns["d"], "b": columns["d"]}, missing="refuse")
    with pytest.raises(DataError, match=r"2 problems.*'a' must have no .*'b' must hold"):
        encode({"a": [None], "b": ["old"]}, entries)


WORDS = st.sampled_from(["red", "blue", "green", "", "(x)", "1"])
FRAMES = st.integers(2, 12).flatmap(
    lambda n: st.fixed_dictionaries(
        {
            "number": st.lists(st.none() | st.floats(-1e6, 1e6), min_size=n, max_size=n),
            "word": st.lists(st.none() | WORDS, min_size=n, max_size=n),
            "flag": st.lists(st.none() | st.booleans(), min_size=n, max_size=n),
            "day": st.lists(
                st.none() | st.dates(datetime.date(1900, 1, 1), datetime.date(2100, 1, 1)),
                min_size=n,
                max_size=n,
            ),
        }
    )
)


@given(FRAMES)
def test_whatever_the_frame_inputs_are_finite_and_do_not_depend_on_other_rows(values):
    """Of every frame whose columns have a value: all finite, levels exclusive, row by row."""
    known = {name: v for name, v in values.items() if any(item is not None for item in v)}
    if not known:
        return
    frame = Frame.of(known)
    entries = json.loads(json.dumps(fit_encoding("t", frame.columns)))
    x = encode(frame.columns, entries)
    assert x.shape == (len(frame), len(feature_names(entries)))
    assert np.isfinite(x).all()
    rows = [encode(frame.take([i]).columns, entries) for i in range(len(frame))]
    np.testing.assert_array_equal(np.concatenate(rows), x)
    start = 0
    for entry in entries:
        width = len(entry["levels"]) if entry["kind"] == "category" else 1
        if entry["kind"] == "category":
            assert (x[:, start : start + width].sum(1) == 1).all()
        start += width
    assert set(column_of_input(entries)) == set(range(len(known)))
