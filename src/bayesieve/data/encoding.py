"""The one encoder: raw columns to inputs of a network, learned from training rows.

`fit_encoding` makes a recipe, plain JSON, and `encode` applies it; estimators, `load_data`, bundles
and run folders share both. A recipe is {"kind": "table", "columns": [...]} with one entry for each
number or category that the network reads:

- numeric {"name", "kind", "mean", "std", "fill"} is one input, (value - mean) / std. Where a
  training value is far from its column's mean, all numeric entries have "limit" too: inputs end at
  ± this many stds (`frames.cut_moments`).
- category {"name", "kind", "levels", "fill"} is one input for each level, 0 or 1. "other", if
  there, is the level of all values that have none.

`fill` replaces missing values; null refuses them. An entry reads the raw column of its name, or
with "column" and "part" something of another: "missing" (1 where that column has no value) or a
part of a date.

**Categories.** One input per level is an embedding: the first layer has a vector for every level,
as wide as the layer, with the prior of its weights, so that a level of few rows stays near 0. Of
more than 256 levels (or where every row has another) the most frequent 255 with at least two rows
have inputs and all others share "(other)". Targets play no part in it, so nothing leaks. A value
that training never saw is "(other)" where there is one, else none of the levels, and is said.
Estimators then average over the levels it might have been (`with_known_levels`).

**Missing values**, where they are imputed: the median of a number, and an input of its own that
says so; a level "(missing)". Both only where training rows lack values; else the median, or the
most frequent level.

**Dates**: days since 1970, the place in the year and in the day as sine and cosine, the weekday;
those that vary.
"""

import math
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Literal, Required, TypeAlias, TypedDict

import numpy as np
from numpy.typing import NDArray

from bayesieve.data.frames import (
    Column,
    Frame,
    array_names,
    as_text,
    column_of,
    cut_moments,
    dates_of,
    is_missing,
    kind_of,
)
from bayesieve.errors import DataError

Missing: TypeAlias = Literal["refuse", "impute"]
MAX_LEVELS = 256
OTHER, NO_VALUE = "(other)", "(missing)"
_LEAST_ROWS = 2  # of a level among too many, to have an input of its own
_IDENTIFIER = 20  # rows from which a column of which every value is different names the rows
_LARGEST = 1e30  # of a number: networks compute in single precision
_SHOWN = 3  # values named in a remark
_PROBLEMS = 10  # named in an error
_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_DATE_PARTS = ("time", "season sin", "season cos", "weekday", "hour sin", "hour cos")
IMPUTE = "Fill them, drop the rows, or use `missing=impute`."
_NEW_ROWS = "Fill them or drop the rows; a model trained with missing values imputed would."


class Entry(TypedDict, total=False):
    """One number or category that the network reads, in plain JSON; see the top of this file."""

    name: Required[str]
    kind: Required[Literal["numeric", "category"]]
    fill: float | str | None
    mean: float
    std: float
    limit: float
    levels: list[str]
    other: str
    column: str
    part: str


class Problems(list[str]):
    """Errors of a table, noted one by one and raised as one.

    Example:
        >>> problems = Problems()
        >>> with problems.noted():
        ...     raise DataError("column 'a' must be finite.")
        >>> problems.refuse("t.csv")
        Traceback (most recent call last):
        bayesieve.errors.DataError: t.csv: column 'a' must be finite.
    """

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Note a `DataError` and go on."""
        try:
            yield
        except DataError as error:
            self.append(str(error))

    def refuse(self, who: str) -> None:
        """Raise one error for all that was noted."""
        if len(self) == 1:
            raise DataError(f"{who}: {self[0]}")
        if self:
            listed = " ".join(f"({i}) {text}" for i, text in enumerate(self[:_PROBLEMS], 1))
            rest = f" And {len(self) - _PROBLEMS} more." if len(self) > _PROBLEMS else ""
            raise DataError(f"{who}: {len(self)} problems. {listed}{rest}")


def fit_encoding(
    who: str,
    columns: Mapping[str, Column],
    rows: NDArray[np.int64] | None = None,
    *,
    missing: Missing = "impute",
    dates: bool = True,
    standardise: bool = True,
    problems: Problems | None = None,
) -> list[Entry]:
    """Entries of a recipe, learned from some of the rows; all problems are named in one error.

    Args:
        who: named in errors and remarks.
        columns: raw columns by name.
        rows: training rows; None takes all.
        missing: whether missing values are refused or imputed.
        dates: whether dates become their parts; else they are refused.
        standardise: False leaves numbers in their unit, with mean 0 and std 1.
        problems: others of this table, to be raised with those of its columns.

    Example:
        >>> entries = fit_encoding("t", {"age": np.array([30.0, np.nan, 50.0])}, standardise=False)
        >>> [(entry["name"], entry["fill"]) for entry in entries]
        [('age', 40.0), ('age missing', None)]
    """
    problems = Problems() if problems is None else problems
    remarks: list[str] = []
    entries: list[Entry] = []
    train, impute = slice(None) if rows is None else rows, missing == "impute"
    for name, column in columns.items():
        with problems.noted():
            check_column(name, column, refused=not impute, advice=IMPUTE)
            known = _with_dates(name, column, dates=dates)[train]
            entries += _fit_column(name, known, remarks, impute=impute, standardise=standardise)
    problems.refuse(who)
    _say(who, remarks)
    limits = [entry["limit"] for entry in entries if "limit" in entry]
    if limits:
        entries = [e | {"limit": limits[0]} if e["kind"] == "numeric" else e for e in entries]
    return entries


def _say(who: str, remarks: Sequence[str]) -> None:
    if remarks:
        warnings.warn(f"{who}: {' '.join(remarks)}", UserWarning, stacklevel=4)


def check_column(name: str, column: Column, *, refused: bool, advice: str) -> None:
    """Raise if a value is infinite, or missing where it must not be; rows count from 1."""
    gone = np.flatnonzero(is_missing(column))
    if refused and len(gone):
        others = f"and {len(gone) - 1} more do" if len(gone) > 1 else "does"
        raise DataError(
            f"column {name!r} must have no missing value, but row {gone[0] + 1} (of data, from 1) "
            f"{others}. {advice}"
        )
    if kind_of(column) == "number":
        beyond = np.flatnonzero(np.abs(column) > _LARGEST)
        if len(beyond):
            value = column[beyond[0]]
            must = f"be within ±{_LARGEST:g}" if np.isfinite(value) else "be finite"
            raise DataError(
                f"column {name!r} must {must}, but row {beyond[0] + 1} (of data, from 1) is "
                f"{value}. Correct or drop it."
            )


def _with_dates(name: str, column: Column, *, dates: bool) -> Column:
    """A column, of dates if all its words are; raises where dates are not asked for."""
    dated = dates_of(column)
    if dated is not None and not dates:
        raise DataError(
            f"column {name!r} holds dates. Use `date_parts`, or drop it (`drop={name}`)."
        )
    return column if dated is None else dated


def _fit_column(
    name: str, seen: Column, remarks: list[str], *, impute: bool, standardise: bool
) -> list[Entry]:
    """Entries of one column from its training values."""
    if is_missing(seen).all():
        raise DataError(
            f"column {name!r} must have a value in the training part, but all are missing. Drop "
            f"it (`drop={name}`)."
        )
    if kind_of(seen) == "text":
        return [_fit_category(name, seen, remarks, impute=impute)]
    if kind_of(seen) != "date":
        entries = [_fit_number(name, seen, impute=impute, standardise=standardise)]
    else:
        entries = []
        for part in _DATE_PARTS:
            values = _part(seen, part)
            known = values[~is_missing(values)]
            if part != "time" and (known == known[0]).all():
                continue
            label = f"{name} {part}"
            if part == "weekday":
                entry = _fit_category(label, values, remarks, impute=impute)
                entry["levels"] = sorted(entry["levels"], key=(*_DAYS, NO_VALUE).index)
            else:
                entry = _fit_number(label, values, impute=impute, standardise=standardise)
            entries.append(entry | {"column": name, "part": part})
    if impute and is_missing(seen).any():
        gone = _part(seen, "missing")  # 0 or 1, as a level is
        entry = _fit_number(f"{name} missing", gone, impute=False, standardise=False)
        entries.append(entry | {"column": name, "part": "missing"})
    return entries


def _fit_number(name: str, seen: Column, *, impute: bool, standardise: bool) -> Entry:
    values = seen.astype(np.float64)
    absent = np.isnan(values)
    fill = float(np.median(values[~absent])) if impute else None
    entry: Entry = {"name": name, "kind": "numeric", "mean": 0.0, "std": 1.0, "fill": fill}
    if not standardise:
        return entry
    mean, std, limit = cut_moments(values if fill is None else np.where(absent, fill, values))
    entry |= {"mean": mean, "std": std}
    return entry if limit == np.inf else entry | {"limit": limit}


def _fit_category(name: str, seen: Column, remarks: list[str], *, impute: bool) -> Entry:
    counts = Counter(str(value) for value in seen if value is not None)
    levels, other = sorted(counts), None
    names_rows = len(levels) == len(seen) >= _IDENTIFIER
    if len(levels) > MAX_LEVELS or names_rows:
        if all(re.fullmatch(r"[-+]?\d*,\d+", level) for level in levels):
            raise DataError(
                f"column {name!r} must hold numbers with a decimal point, got {levels[0]!r}. Write "
                "its numbers with a decimal point."
            )
        frequent = [level for level in levels if counts[level] >= _LEAST_ROWS]
        frequent.sort(key=lambda level: -counts[level])
        levels, other = sorted(frequent[: MAX_LEVELS - 1]), OTHER
        kept = f"the {len(levels)} most frequent have an input each and the others" if levels else (
            f"none occurs in {_LEAST_ROWS} rows or more, so all of them"
        )  # fmt: skip
        remarks.append(
            f"column {name!r} has {len(counts)} different values: {kept} share one input. Drop it "
            "if it is a name or number of the row."
        )
    fill = max(counts, key=lambda level: (counts[level], level)) if impute else None
    if other is not None:
        fill = fill if fill in levels or not impute else other
        levels.append(other)
    if impute and any(value is None for value in seen):
        fill = NO_VALUE
        levels.append(NO_VALUE)
    entry: Entry = {"name": name, "kind": "category", "levels": levels, "fill": fill}
    return entry if other is None else entry | {"other": other}


def _part(column: Column, part: str | None) -> Column:
    """The part of a column that an entry reads: all of it, its gaps, or a part of a date."""
    if part is None:
        return column
    absent = is_missing(column)
    if part == "missing":
        return absent.astype(np.float64)
    if part == "weekday":
        days = column.astype("datetime64[D]").astype(np.int64)  # 1970-01-01 was a Thursday
        return np.array(
            [
                None if gone else _DAYS[(day + 3) % 7]
                for day, gone in zip(days, absent, strict=True)
            ],
            dtype=object,
        )
    days = np.asarray((column - np.datetime64(0, "us")) / np.timedelta64(1, "D"), dtype=np.float64)
    if part == "time":
        return days
    if part.startswith("hour"):
        turn = np.mod(days, 1.0)
    else:
        year = column.astype("datetime64[Y]")
        length = ((year + 1).astype("datetime64[D]") - year.astype("datetime64[D]")).astype(float)
        turn = (column - year.astype("datetime64[us]")) / np.timedelta64(1, "D") / length
    wave = np.sin if part.endswith("sin") else np.cos
    return np.asarray(wave(2 * math.pi * turn), dtype=np.float64)


def raw_column(entry: Entry) -> str:
    """The name of the raw column that an entry reads."""
    return str(entry.get("column", entry["name"]))


def raw_columns(entries: Iterable[Entry]) -> list[str]:
    """Names of the raw columns that a recipe reads, in order.

    Example:
        >>> raw_columns([{"name": "day time", "column": "day"}, {"name": "age"}])
        ['day', 'age']
    """
    return list(dict.fromkeys(raw_column(entry) for entry in entries))


def feature_names(entries: Sequence[Entry]) -> tuple[str, ...]:
    """Name every input; those of a category are called like color=red.

    Example:
        >>> feature_names([{"name": "color", "kind": "category", "levels": ["blue", "red"]}])
        ('color=blue', 'color=red')
    """
    return tuple(name for entry in entries for name in _inputs(entry))


def _inputs(entry: Entry) -> list[str]:
    """Names of the inputs of an entry."""
    if entry["kind"] == "numeric":
        return [entry["name"]]
    return [f"{entry['name']}={level}" for level in entry["levels"]]


def column_of_input(entries: Sequence[Entry]) -> list[int]:
    """The number of the raw column, as in `raw_columns`, of every input.

    Example:
        >>> color = {"name": "color", "kind": "category", "levels": ["blue", "red"]}
        >>> column_of_input([{"name": "age", "kind": "numeric"}, color])
        [0, 1, 1]
    """
    place = {name: i for i, name in enumerate(raw_columns(entries))}
    return [place[raw_column(entry)] for entry in entries for _ in _inputs(entry)]


def switches(entries: Sequence[Entry]) -> NDArray[np.bool_]:
    """Mark inputs that are 0 or 1, (q,): levels, and indicators of missing values.

    They are not standardised: that would make an input of 30 of a level with a thousandth of the
    rows, and its weights would be too small for their prior.

    Example:
        >>> color = {"name": "color", "kind": "category", "levels": ["blue", "red"]}
        >>> switches([{"name": "age", "kind": "numeric"}, color]).tolist()
        [False, True, True]
    """
    found = [
        entry["kind"] == "category" or entry.get("part") == "missing"
        for entry in entries
        for _ in _inputs(entry)
    ]
    return np.array(found, dtype=bool)


def plain_encoding(values: NDArray[np.float64], names: Sequence[str]) -> list[Entry]:
    """Entries of numbers that lack none, (n, p), in their unit; later gaps take the median.

    Example:
        >>> plain_encoding(np.array([[1.0], [3.0]]), ["age"])
        [{'name': 'age', 'kind': 'numeric', 'mean': 0.0, 'std': 1.0, 'fill': 2.0}]
    """
    return [
        {"name": name, "kind": "numeric", "mean": 0.0, "std": 1.0, "fill": fill}
        for name, fill in zip(names, np.median(values, 0).tolist(), strict=True)
    ]


def encoding_of(table: NDArray[np.float64] | Frame, who: str) -> list[Entry]:
    """The recipe of a table that was checked, in the units of its columns.

    Numbers without gaps, of which there may be thousands of columns, stay as they are.
    """
    numbers = _gapless(table)
    if numbers is None:
        frame = table if isinstance(table, Frame) else Frame.of_array(table)
        return fit_encoding(who, frame.columns, standardise=False)
    names = table.columns if isinstance(table, Frame) else array_names(table)
    return plain_encoding(numbers, list(names))


def inputs_of(
    table: NDArray[np.float64] | Frame, entries: Sequence[Entry], who: str
) -> NDArray[np.float64]:
    """Inputs, (n, q), of a table by a recipe; columns go by their place, not their name."""
    if (numbers := _gapless(table)) is not None and is_plain(entries):
        return numbers
    frame = table if isinstance(table, Frame) else Frame.of_array(table)
    named = dict(zip(raw_columns(entries), frame.columns.values(), strict=True))
    return encode(named, entries, who)


def _gapless(table: NDArray[np.float64] | Frame) -> NDArray[np.float64] | None:
    """A table of numbers that are all there, (n, p); None for any other."""
    numbers = table.numbers() if isinstance(table, Frame) else table
    return None if numbers is None or not np.isfinite(numbers).all() else numbers


def is_plain(entries: Sequence[Entry]) -> bool:
    """Return whether every input is a raw number, in its unit."""
    return all(
        entry["kind"] == "numeric"
        and "part" not in entry
        and (entry["mean"], entry["std"]) == (0, 1)
        for entry in entries
    )


def encode(
    columns: Mapping[str, object], entries: Sequence[Entry], who: str = "prepare_table"
) -> NDArray[np.float64]:
    """Inputs, (n, number of feature names), of raw columns; all problems are named in one error.

    Args:
        columns: raw values by column name; columns the recipe does not read are ignored.
        entries: of the recipe.
        who: named in errors and remarks.

    Example:
        >>> color = {"name": "color", "kind": "category", "levels": ["blue", "red"], "fill": None}
        >>> encode({"color": ["red", "blue"]}, [color]).tolist()
        [[0.0, 1.0], [1.0, 0.0]]
    """
    lacking = [name for name in raw_columns(entries) if name not in columns]
    if lacking:
        raise DataError(
            f"{who}: column {lacking[0]!r} must be given, got {', '.join(map(repr, columns))}."
        )
    problems = Problems()
    remarks: list[str] = []
    raw: dict[str, Column] = {}
    blocks = []
    for entry in entries:
        name = raw_column(entry)
        if name not in raw:
            raw[name] = column_of(columns[name], who, name)
        with problems.noted():
            blocks.append(_apply(entry, raw[name], remarks))
    Problems(dict.fromkeys(problems)).refuse(who)  # one of a column of several entries is one
    _say(who, remarks)
    return np.concatenate(blocks, axis=1)


def _without_level(
    inputs: NDArray[np.float64], entries: Sequence[Entry]
) -> Iterator[tuple[slice, int, NDArray[np.bool_]]]:
    """Categories with values that are no level: their inputs, number of levels, and rows, (n,)."""
    start = 0
    for entry in entries:
        place = slice(start, start + len(_inputs(entry)))
        start = place.stop
        if entry["kind"] == "category":
            levels = entry["levels"]
            known = len(levels) - ("other" in entry) - (NO_VALUE in levels)
            rows = inputs[:, place].sum(1) == 0
            if "other" in entry:
                rows = rows | (inputs[:, place.start + known] > 0)
            if known and rows.any():
                yield place, known, rows


def without_level(inputs: NDArray[np.float64], entries: Sequence[Entry]) -> NDArray[np.bool_]:
    """Rows, (n,), in which a category has a value that is no level of its own."""
    found = [rows for _, _, rows in _without_level(inputs, entries)]
    return np.any(found, axis=0) if found else np.zeros(len(inputs), dtype=bool)


def with_known_levels(
    inputs: NDArray[np.float64], entries: Sequence[Entry], rng: np.random.Generator
) -> NDArray[np.float64]:
    """The inputs, (n, q), with a known level drawn at random where a value has none of its own.

    A new level is one more draw of what the known ones are draws of. So its prediction is the
    mixture of theirs, and its uncertainty includes the differences between levels.

    Example:
        >>> color = {"name": "color", "kind": "category", "levels": ["blue", "red"], "fill": None}
        >>> with_known_levels(np.zeros((9, 2)), [color], np.random.default_rng(0)).sum(1).tolist()
        [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    """
    chosen = inputs.copy()
    for place, known, rows in _without_level(inputs, entries):
        index = np.flatnonzero(rows)
        chosen[rows, place] = 0.0
        chosen[index, place.start + rng.integers(known, size=len(index))] = 1.0
    return chosen


def _apply(entry: Entry, column: Column, remarks: list[str]) -> NDArray[np.float64]:
    """The inputs of one entry, (n, 1) or (n, levels)."""
    name, part = raw_column(entry), entry.get("part")
    if part in _DATE_PARTS:
        dated = dates_of(column)
        if dated is None and not is_missing(column).all():
            raise DataError(f"column {name!r} must hold dates such as 2024-05-31.")
        column = np.full(len(column), "NaT", dtype="datetime64[us]") if dated is None else dated
    column = _part(column, part)
    refused = entry["fill"] is None
    if entry["kind"] == "category":
        if kind_of(column) != "text":
            column = as_text(column)
    elif kind_of(column) in ("text", "date") and not is_missing(column).all():
        wrong = column[~is_missing(column)][0]
        raise DataError(f"column {name!r} must hold numbers, got {str(wrong)!r}.")
    check_column(name, column, refused=refused, advice=_NEW_ROWS)
    if entry["kind"] == "numeric":
        absent = is_missing(column)
        values = np.full(len(column), np.nan) if absent.all() else column.astype(np.float64)
        values = np.where(absent, float(entry["fill"] or 0.0), values)
        standardised = (values - entry["mean"]) / entry["std"]
        limit = entry.get("limit", np.inf)
        return np.asarray(standardised.clip(-limit, limit)[:, None])
    texts = column.copy()
    texts[is_missing(column)] = entry["fill"]
    levels = {level: j for j, level in enumerate(entry["levels"])}
    place = np.array([levels.get(text, -1) for text in texts], dtype=np.int64)
    unknown = place < 0
    if "other" in entry:
        place[unknown] = levels[entry["other"]]
    elif unknown.any():
        some = ", ".join(map(repr, sorted(set(texts[unknown]))[:_SHOWN]))
        rows = f"{unknown.sum()} row{'s' if unknown.sum() > 1 else ''}"
        remarks.append(
            f"column {entry['name']!r} has values that training never saw in {rows} ({some}): they "
            "have no level of their own."
        )
    inputs = np.zeros((len(place), len(levels)))
    inputs[np.flatnonzero(place >= 0), place[place >= 0]] = 1.0
    return inputs
