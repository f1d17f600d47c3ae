"""Raw columns by name, from frames of pandas, polars and Arrow, arrays and sequences.

A column is an array of one of four kinds: numbers (float64, NaN for missing), bools, dates
(datetime64[us] in UTC, NaT for missing) and text (objects: str, or None for missing). Frames are
read by the methods they share, so none of these packages is needed.

Standardised columns are (value - mean) / std. One value far out would take most of the std for
itself and pull on every weight that reads the column, so inputs end at ±20: where a column has
values further out, its mean and std are those of the column cut at 20 stds. In n rows no value is
more than √n stds away, so in less than 1,600 rows the end is √n / 2, but at least 5. A table
without such values is not cut at all, in training and after.
"""

import datetime
import numbers
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from bayesieve.errors import DataError

Column: TypeAlias = NDArray[Any]  # numbers with NaN, bools, dates with NaT, or objects: str, None
Kind = Literal["number", "bool", "date", "text"]
_DATES = "datetime64[us]"
_KINDS: dict[str, Kind] = {"f": "number", "b": "bool", "M": "date", "O": "text"}
_MISSING_TYPES = ("NAType", "NaTType")  # of pandas
_MOST_LISTED = 3
_LIMITS = (5.0, 20.0)  # standard deviations at which inputs end, in small and in large tables
_ROUNDS = 100  # of cutting; each needs the std of the one before


@dataclass(frozen=True, eq=False)
class Frame:
    """Named columns of equal length.

    Args:
        columns: by name.

    Example:
        >>> frame = Frame.of({"age": [30, None], "color": ["red", "blue"]})
        >>> frame.shape, frame.columns["age"].tolist(), frame.take([1]).columns["color"].tolist()
        ((2, 2), [30.0, nan], ['blue'])
    """

    columns: Mapping[str, Column]

    @classmethod
    def of(cls, columns: Mapping[str, object], who: str = "Frame") -> "Frame":
        """A frame of sequences, one for each column."""
        frame = cls({name: column_of(values, who, name) for name, values in columns.items()})
        lengths = {name: len(column) for name, column in frame.columns.items()}
        if len(set(lengths.values())) > 1:
            raise DataError(f"{who}: columns must be equally long, got {lengths}.")
        return frame

    @classmethod
    def of_array(cls, values: Column, who: str = "Frame") -> "Frame":
        """The columns x1, x2, ... of an array, (n, p)."""
        return cls.of(dict(zip(array_names(values), values.T, strict=True)), who)

    def numbers(self) -> NDArray[np.float64] | None:
        """Columns of numbers and bools as one array, (n, p); None if there are others."""
        if any(kind_of(column) not in ("number", "bool") for column in self.columns.values()):
            return None
        return np.stack(list(self.columns.values()), 1).astype(np.float64)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return len(self), len(self.columns)

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Column:
        values = np.stack([column.astype(object) for column in self.columns.values()], 1)
        return values if dtype is None else values.astype(dtype)

    def take(self, rows: Sequence[int] | NDArray[np.int64]) -> "Frame":
        """Some of the rows."""
        index = np.asarray(rows)
        return Frame({name: column[index] for name, column in self.columns.items()})


def array_names(values: Column) -> list[str]:
    """Names of the columns of an array, (n, p): x1, x2, ..."""
    return [f"x{j + 1}" for j in range(values.shape[1])]


def as_frame(table: Any, who: str = "Frame") -> Frame | None:
    """The columns of a frame, or of an array of text; None for an array of numbers.

    Args:
        table: a frame of pandas, polars or Arrow, an object with an Arrow stream, a `Frame`, or
            an array, (n, p); the columns of an array are called x1, x2, ...
        who: named in errors.

    Example:
        >>> as_frame(np.array([["a", 1.5], ["b", 2]], dtype=object)).columns["x2"].tolist()
        [1.5, 2.0]
        >>> as_frame(np.zeros((2, 3))) is None
        True
    """
    if isinstance(table, Frame):
        return table
    if hasattr(table, "column_names") and hasattr(table, "schema"):  # Arrow
        values: Iterable[object] = (_of_arrow(table.column(i)) for i in range(table.num_columns))
        return _named(list(table.column_names), values, who)
    if hasattr(table, "columns") and hasattr(table, "__getitem__"):  # pandas, polars
        names = list(table.columns)
        _check_distinct([str(name) for name in names], who)
        return _named(names, (_of_series(table[name]) for name in names), who)
    if hasattr(table, "__arrow_c_stream__"):
        import pyarrow

        return as_frame(pyarrow.table(table), who)
    return _of_array(table, who)


def _named(names: Sequence[object], values: Iterable[object], who: str) -> Frame:
    texts = [str(name) for name in names]
    _check_distinct(texts, who)
    return Frame.of(dict(zip(texts, values, strict=True)), who)


def _check_distinct(names: Sequence[str], who: str) -> None:
    repeated = sorted(name for name, n in Counter(names).items() if n > 1)
    if repeated:
        raise DataError(
            f"{who}: columns must have distinct names, got {repeated[0]!r} more than once."
        )


def _of_series(series: Any) -> Any:
    """Values of a column of pandas or polars; categories are text whatever they hold."""
    values = series.to_numpy()
    return as_text(values) if str(series.dtype) == "category" else values


def _of_arrow(column: Any) -> Any:
    """Values of an Arrow column; dictionaries are text whatever they hold."""
    kind = str(column.type)
    if kind.startswith("dictionary"):
        return as_text(column.to_pylist())
    if kind.startswith(("int", "uint", "float", "double", "halffloat")):
        return column.to_numpy(zero_copy_only=False)
    return column.to_pylist()


def _of_array(table: object, who: str) -> Frame | None:
    """Columns of an array of text, None for one of numbers or of no shape that a table has."""
    if isinstance(table, list | tuple):
        try:
            table = np.asarray(table)
        except ValueError:  # rows of different length: scikit-learn says so
            return None
        if table.dtype.kind == "U" and table.ndim == 2:
            columns = map(_numbers_of, table.T)
            return Frame.of(dict(zip(array_names(table), columns, strict=True)), who)
    if not isinstance(table, np.ndarray) or table.dtype.kind not in "OUT" or table.ndim != 2:
        return None
    if not any(isinstance(value, str) for value in table.flat):
        return None
    try:
        table.astype(np.float64)
    except ValueError:
        return Frame.of_array(table, who)
    except TypeError:
        pass
    return None


def _numbers_of(words: Column) -> Column:
    """A column of numbers that became words beside text, as numbers."""
    try:
        return words.astype(np.float64)
    except ValueError:
        return words


def kind_of(column: Column) -> Kind:
    """Return whether a column holds numbers, bools, dates or text."""
    return _KINDS[column.dtype.kind]


def is_missing(column: Column) -> NDArray[np.bool_]:
    """True where a value is missing."""
    kind = kind_of(column)
    if kind == "text":
        return np.array([value is None for value in column], dtype=bool)
    if kind == "bool":
        return np.zeros(len(column), dtype=bool)
    return np.isnat(column) if kind == "date" else np.isnan(column)


def column_of(values: Any, who: str, name: str) -> Column:
    """One column of values of any of the four kinds, or of times apart, which become days.

    Example:
        >>> column_of(["2", None, 3], "t", "a").tolist(), column_of([True, None], "t", "a").tolist()
        (['2', None, '3'], [1.0, nan])
    """
    if isinstance(values, np.ndarray):
        kind = values.dtype.kind
        if kind == "b":
            return values
        if kind in "iuf":
            return values.astype(np.float64)
        if kind == "M":
            return values.astype(_DATES)
        if kind == "m":
            return values / np.timedelta64(1, "D")
        if kind not in "OUT":
            must = "must hold numbers, bools, dates or text"
            raise DataError(f"{who}: column {name!r} {must}: {kind}.")
    items = [None if _is_missing(value) else value for value in values]
    known = [value for value in items if value is not None]
    if all(isinstance(value, bool | np.bool_) for value in known) and known:
        if len(known) == len(items):
            return np.array(items, dtype=bool)
        return _floats(items)
    if all(isinstance(value, numbers.Real | Decimal | bool | np.bool_) for value in known):
        return _floats(items)
    if all(isinstance(value, datetime.date | np.datetime64) for value in known):
        return np.array([_in_utc(value) for value in items], dtype=_DATES)
    if all(isinstance(value, datetime.timedelta) for value in known):
        return _floats([None if v is None else v.total_seconds() / 86400 for v in items])
    strange = {type(v).__name__ for v in known if not isinstance(v, str | numbers.Real | bool)}
    if strange:
        raise DataError(
            f"{who}: column {name!r} must hold numbers, bools, dates or text, got "
            f"{', '.join(sorted(strange)[:_MOST_LISTED])}. Convert or drop it."
        )
    return as_text(items)


def _floats(items: Sequence[Any]) -> Column:
    return np.array([np.nan if value is None else float(value) for value in items])


def as_text(values: Iterable[object]) -> Column:
    """Values as words, None where they are missing; 1.0 is '1'.

    Example:
        >>> as_text([1.0, 2.5, True, float("nan"), "x"]).tolist()
        ['1', '2.5', 'True', None, 'x']
    """
    return np.array([None if _is_missing(v) else _word(v) for v in values], dtype=object)


def _word(value: object) -> str:
    if isinstance(value, numbers.Real) and not isinstance(value, bool | numbers.Integral):
        number = float(value)
        return str(int(number)) if number.is_integer() else repr(number)
    return str(value)


def _is_missing(value: object) -> bool:
    if value is None or type(value).__name__ in _MISSING_TYPES:
        return True
    if isinstance(value, float | np.floating):
        return bool(value != value)
    return isinstance(value, np.datetime64) and bool(np.isnat(value))


def _in_utc(value: Any) -> Any:
    """A moment without its time zone."""
    if getattr(value, "tzinfo", None) is not None:
        value = value.astimezone(datetime.UTC).replace(tzinfo=None)
    return np.datetime64(value, "us") if isinstance(value, datetime.datetime) else value


def dates_of(column: Column) -> Column | None:
    """Text of which every word is a date, as dates; None for any other column.

    Example:
        >>> dates_of(np.array(["2024-05-01", None], dtype=object)).tolist()[0].year
        2024
        >>> dates_of(np.array(["2024-05-01", "soon"], dtype=object)) is None
        True
    """
    if kind_of(column) != "text":
        return column if kind_of(column) == "date" else None
    moments: list[Any] = []
    for word in column:
        try:
            moments.append(None if word is None else datetime.datetime.fromisoformat(word))
        except ValueError:
            return None
    if all(moment is None for moment in moments):
        return None
    return np.array([_in_utc(moment) for moment in moments], dtype=_DATES)


def column_moments(
    values: NDArray[np.float64], weight: NDArray[np.float64] | None = None
) -> tuple[float, float]:
    """Mean and population std of a column, (n,); one that is constant up to rounding has std 1.

    Example:
        >>> column_moments(np.array([1.0, 3.0])), column_moments(np.array([0.1, 0.1, 0.1]))
        ((2.0, 1.0), (0.1, 1.0))
    """
    mean = float(np.average(values, weights=weight))
    std = float(np.sqrt(np.average((values - mean) ** 2, weights=weight)))
    if std <= 1e-12 * abs(mean):
        # The value itself: of a huge one the mean's rounding, in units of 1, would be an input.
        return float(values[0]), 1.0
    return mean, std


def cut_moments(
    values: NDArray[np.float64], weight: NDArray[np.float64] | None = None
) -> tuple[float, float, float]:
    """Mean and std of a column, and the limit in stds at which they were cut; inf if nothing was.

    A column of one value with few exceptions has no spread besides these: nothing is cut from its
    mean and std.

    Example:
        >>> column = np.append(np.tile([-1.0, 1.0], 5000), 1e6)
        >>> [round(number, 2) for number in cut_moments(column)]
        [0.0, 1.02, 20.0]
        >>> cut_moments(np.array([1.0, 3.0]))
        (2.0, 1.0, inf)
    """
    mean, std = column_moments(values, weight)
    limit = float(np.clip(np.sqrt(len(values)) / 2, *_LIMITS))
    if np.abs(values - mean).max() <= limit * std:
        return mean, std, np.inf
    exceptions = np.average(values != np.median(values), weights=weight)
    low, high = -np.inf, np.inf
    for _ in range(_ROUNDS if exceptions * (1 + limit**2) > 1 else 0):
        low, high = max(low, mean - limit * std), min(high, mean + limit * std)
        before, (mean, std) = std, column_moments(values.clip(low, high), weight)
        if std > 0.999 * before:
            break
    return mean, std, limit
