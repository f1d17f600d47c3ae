"""Reading csv, parquet and npz files into named columns and a target.

Numbers come as float64 with NaN for missing, bools without missing values as bool, and text as
objects: str, or None for missing.
"""

import csv
import io
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bayesieve.checks import did_you_mean
from bayesieve.data.columns import Column
from bayesieve.data.files import read_npz
from bayesieve.errors import DataError

MISSING_WORDS = frozenset({"", "NA", "N/A", "NaN", "nan", "null", "NULL", "None", "?"})
_LISTED = 12  # columns named in an error
_BOOL_WORDS = frozenset({"True", "False", "true", "false", "TRUE", "FALSE"})


def read_columns(
    kind: str, path: Path, target: str | None
) -> tuple[dict[str, Column], Column, str]:
    """Return the input columns, the target, shape (n,) or (n, m), and the target's name.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "t.csv"
        >>> _ = path.write_text("a;y" + chr(10) + "1;no" + chr(10) + "NA;yes")
        >>> columns, y, name = read_columns("csv", path, "y")
        >>> columns["a"].tolist(), y.tolist(), name
        ([1.0, nan], ['no', 'yes'], 'y')
    """
    if kind == "npz":
        return _read_npz_table(path, target)
    columns = read_csv(path) if kind == "csv" else read_parquet(path)
    name = _check_target(kind, path, target, columns)
    return columns, columns.pop(name), name


def _check_target(kind: str, path: Path, target: str | None, columns: dict[str, Column]) -> str:
    if target is None or target not in columns:
        hint = did_you_mean(target, columns) if target else ""
        got = "none was given" if target is None else f"got {target!r}"
        first = ", ".join(list(columns)[:_LISTED])
        more = f" and {len(columns) - _LISTED} more" if len(columns) > _LISTED else ""
        raise ValueError(
            f"{kind}: target must name a column of {path} ({first}{more}); {got}.{hint}"
        )
    return target


def read_csv(path: Path) -> dict[str, Column]:
    """Columns of a comma, semicolon or tab separated file by name."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(
            f"csv: {path} must be UTF-8 text, but byte offset {error.start} is not. "
            "Save it again as UTF-8."
        ) from error
    first_line = text.partition("\n")[0]
    if not first_line.strip():
        raise DataError(f"csv: {path} must begin with a line of column names, got nothing.")
    delimiter = max(",;\t", key=first_line.count)  # the first of equals
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    rows: list[list[str]] = []
    try:
        header = [name.strip() for name in next(reader)]
        for row in reader:
            if row and len(row) != len(header):
                raise DataError(
                    f"csv: line {reader.line_num} of {path} must have {len(header)} fields like "
                    f"the first, got {len(row)}. Correct the line."
                )
            if row:
                rows.append(row)
    except csv.Error as error:
        raise DataError(f"csv: line {reader.line_num} of {path} is malformed: {error}.") from error
    _check_names("csv", path, header)
    if not rows:
        raise DataError(f"csv: {path} must have rows below the column names, got none.")
    return {
        name: _parse_words(words)
        for name, words in zip(header, zip(*rows, strict=True), strict=True)
    }


def _check_names(kind: str, path: Path, names: list[str]) -> None:
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated or "" in names:
        what = f"{', '.join(repeated)} more than once" if repeated else "an empty name"
        raise DataError(f"{kind}: columns of {path} must have distinct names, got {what}.")


def _parse_words(words: tuple[str, ...]) -> Column:
    stripped = [word.strip() for word in words]
    known = [word for word in stripped if word not in MISSING_WORDS]
    if known and _BOOL_WORDS.issuperset(known):
        bools = [np.nan if w in MISSING_WORDS else float(w.lower() == "true") for w in stripped]
        values = np.array(bools)
        return values if len(known) < len(stripped) else values.astype(bool)
    if all(_is_number(word) for word in known):
        return np.array([np.nan if word in MISSING_WORDS else float(word) for word in stripped])
    texts = [None if word in MISSING_WORDS else word for word in stripped]
    return np.array(texts, dtype=object)


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return "_" not in word  # Python reads 1_2 as 12


def read_parquet(path: Path) -> dict[str, Column]:
    """Columns of a parquet file by name."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ImportError(
            "parquet: reading needs pyarrow. Run `pip install 'bayesieve[tables]'`."
        ) from error
    try:
        table = pyarrow.parquet.read_table(path)
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"parquet: {path} must be an intact parquet file: {error}.") from error
    if not table.num_rows:
        raise DataError(f"parquet: {path} must have rows, got none.")
    _check_names("parquet", path, list(table.column_names))
    return {
        name: _from_python(path, name, table.column(name).to_pylist())
        for name in table.column_names
    }


def _from_python(path: Path, name: str, values: list[Any]) -> Column:
    known = [value for value in values if value is not None]
    if known and all(isinstance(value, bool) for value in known) and len(known) == len(values):
        return np.array(values, dtype=bool)
    if all(isinstance(value, bool | int | float) for value in known):
        return np.array([np.nan if value is None else float(value) for value in values])
    if all(isinstance(value, str) for value in known):
        return np.array(values, dtype=object)
    kinds = ", ".join(sorted({type(value).__name__ for value in known}))
    raise DataError(
        f"parquet: column {name!r} of {path} must hold numbers, bools or text, got {kinds}. "
        "Convert or drop it."
    )


def _read_npz_table(path: Path, target: str | None) -> tuple[dict[str, Column], Column, str]:
    arrays = {name: _plain(values) for name, values in read_npz(path).items()}
    if target in (None, "y") and {"x", "y"} <= arrays.keys() and arrays["x"].ndim != 1:
        x, y = arrays["x"], arrays["y"]
        names = [str(name) for name in arrays.get("feature_names", np.empty(0))]
        if x.ndim != 2 or y.ndim not in (1, 2) or len(x) != len(y) or not len(x):
            images = " For images take a folder, images:PATH." if x.ndim > 2 else ""
            raise DataError(
                f"npz: {path} must hold x of shape (n, p) and y of shape (n,) or (n, m), got "
                f"{x.shape} and {y.shape}.{images}"
            )
        names = names or [f"x{j}" for j in range(1, x.shape[1] + 1)]
        if len(names) != x.shape[1]:
            raise DataError(
                f"npz: {path} must name each of {x.shape[1]} columns in feature_names, "
                f"got {len(names)} names."
            )
        _check_names("npz", path, names)
        return dict(zip(names, x.T, strict=True)), y, "y"
    name = _check_target("npz", path, target, arrays)
    shapes = {column: values.shape for column, values in arrays.items()}
    if len(set(shapes.values())) > 1 or arrays[name].ndim != 1 or not len(arrays[name]):
        raise DataError(f"npz: columns of {path} must be 1-D and equally long, got {shapes}.")
    return arrays, arrays.pop(name), name


def _plain(values: NDArray[Any]) -> Column:
    if values.dtype.kind in "biuf":
        return values if values.dtype.kind == "b" else values.astype(np.float64)
    if values.dtype.kind == "U":
        texts = [None if str(v) in MISSING_WORDS else str(v) for v in values.ravel()]
        return np.array(texts, dtype=object).reshape(values.shape)
    raise DataError(f"npz: arrays must hold numbers, bools or text, got type {values.dtype}.")
