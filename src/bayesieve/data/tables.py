"""Tables: columns read from csv, parquet and npz files, turned into network inputs and a target.

The columns of a file are those of `frames`; `encoding` makes inputs of them. The recipe of a data
set has its "target" too: {"name", "classes"}, or {"name", "mean", "std"} of standardised numbers.
All statistics are of the training part.
"""

import csv
import io
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bayesieve.checks import check_choice, did_you_mean
from bayesieve.data.encoding import (
    Missing,
    Problems,
    check_column,
    encode,
    feature_names,
    fit_encoding,
)
from bayesieve.data.examples import DataSet, Examples, Preprocessing, Recipe, Task, split_index
from bayesieve.data.files import read_npz
from bayesieve.data.frames import Column, Frame, column_moments, column_of, kind_of
from bayesieve.errors import DataError
from bayesieve.files import check_growth, check_limit

MAX_GUESSED_CLASSES = 20
MISSING_WORDS = frozenset({"", "NA", "N/A", "NaN", "nan", "null", "NULL", "None", "?"})
_LISTED = 12  # columns named in an error
_BOOL_WORDS = frozenset({"True", "False", "true", "false", "TRUE", "FALSE"})


def read_columns(
    kind: str, path: Path, target: str | None, drop: Sequence[str] = ()
) -> tuple[dict[str, Column], Column, str]:
    """Return the input columns, the target, shape (n,) or (n, m), and the target's name.

    Args:
        kind: "csv", "parquet" or "npz".
        path: the file.
        target: name of the column to predict.
        drop: columns to leave out.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "t.csv"
        >>> _ = path.write_text("a;y" + chr(10) + "1;no" + chr(10) + "NA;yes")
        >>> columns, y, name = read_columns("csv", path, "y")
        >>> columns["a"].tolist(), y.tolist(), name
        ([1.0, nan], ['no', 'yes'], 'y')
    """
    if kind == "npz":
        columns, y, name = _read_npz_table(path, target)
    else:
        columns = read_csv(path) if kind == "csv" else read_parquet(path)
        name = _check_target(kind, path, target, columns)
        y = columns.pop(name)
    for unwanted in drop:
        if unwanted not in columns:
            what = "is the target" if unwanted == name else "is no column of it"
            hint = did_you_mean(unwanted, columns)
            raise ValueError(f"{kind}: {path}: drop: {unwanted!r} {what}.{hint}")
    return {key: column for key, column in columns.items() if key not in drop}, y, name


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
    if not path.is_file():
        raise DataError(f"csv: {path} must be a file. Check the path.")
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
    uneven: list[tuple[int, int]] = []
    try:
        check_limit(path, "columns", first_line.count(delimiter) + 1, "columns")
        header = [name.strip() for name in next(reader)]
        for row in reader:
            if row and len(row) != len(header):
                uneven.append((reader.line_num, len(row)))
            elif row:
                rows.append(row)
    except csv.Error as error:
        raise DataError(f"csv: line {reader.line_num} of {path} is malformed: {error}.") from error
    _check_names("csv", path, header)
    if len(uneven) == 1:
        number, fields = uneven[0]
        raise DataError(
            f"csv: line {number} of {path} must have {len(header)} fields like the first, got "
            f"{fields}. Correct the line."
        )
    if uneven:
        listed = ", ".join(f"{number} ({fields})" for number, fields in uneven[:_LISTED])
        more = f" and {len(uneven) - _LISTED} more" if len(uneven) > _LISTED else ""
        raise DataError(
            f"csv: lines of {path} must have {len(header)} fields like the first; these (fields) "
            f"have not: {listed}{more}. Correct them."
        )
    if not rows:
        raise DataError(f"csv: {path} must have rows below the column names, got none.")
    return {
        name: column_of(_parse_words(words), f"csv: {path}", name)
        for name, words in zip(header, zip(*rows, strict=True), strict=True)
    }


def _check_names(kind: str, path: Path, names: list[str]) -> None:
    repeated = sorted(name for name, n in Counter(names).items() if n > 1)
    if repeated or "" in names:
        what = f"{', '.join(repeated)} more than once" if repeated else "an empty name"
        raise DataError(f"{kind}: columns of {path} must have distinct names, got {what[:200]}.")


def _parse_words(words: Sequence[str]) -> list[object]:
    """Bools, numbers or text from the words of a column; None where a word says missing."""
    stripped = [word.strip() for word in words]
    known = {word for word in stripped if word not in MISSING_WORDS}
    if known and known <= _BOOL_WORDS:
        return [None if word in MISSING_WORDS else word.lower() == "true" for word in stripped]
    if all(_is_number(word) for word in known):
        return [None if word in MISSING_WORDS else float(word) for word in stripped]
    return [None if word in MISSING_WORDS else word for word in stripped]


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
        with pyarrow.parquet.ParquetFile(path) as file:
            about = file.metadata
            check_limit(path, "columns", about.num_columns, "columns")
            check_growth(path, 8 * about.num_rows * about.num_columns)
            table = file.read()
    except DataError:
        raise
    except Exception as error:  # pyarrow has an error for each thing that can be wrong
        reason = " ".join(str(error).split())[:200]
        raise DataError(f"parquet: {path} must be an intact parquet file: {reason}.") from error
    if not table.num_rows:
        raise DataError(f"parquet: {path} must have rows, got none.")
    _check_names("parquet", path, list(table.column_names))
    return {
        name: column_of(table.column(name).to_pylist(), f"parquet: {path}", name)
        for name in table.column_names
    }


def _read_npz_table(path: Path, target: str | None) -> tuple[dict[str, Column], Column, str]:
    arrays = {name: _plain(name, values) for name, values in read_npz(path).items()}
    if target in (None, "y") and {"x", "y"} <= arrays.keys() and arrays["x"].ndim != 1:
        x, y = arrays["x"], arrays["y"]
        names = [str(name) for name in arrays.get("feature_names", np.empty(0))]
        if x.ndim != 2 or y.ndim not in (1, 2) or len(x) != len(y) or not (x.size and y.size):
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


def _plain(name: str, values: Column) -> Column:
    if values.dtype.kind not in "biufUM":
        raise DataError(f"npz: arrays must hold numbers, bools or text, got type {values.dtype}.")
    flat = values.ravel()
    if values.dtype.kind == "U":
        flat = np.array([None if str(v) in MISSING_WORDS else str(v) for v in flat], dtype=object)
        return flat.reshape(values.shape)
    return column_of(flat, "npz", name).reshape(values.shape)


def prepare_table(table: Mapping[str, object], recipe: Recipe) -> Tensor:
    """Turn columns of raw values into inputs, shape (N, number of feature names), float32.

    Args:
        table: a sequence of N values per column name; columns the recipe lacks are ignored.
        recipe: `DataSet.preprocessing` of a table.

    Example:
        >>> age = {"name": "age", "kind": "numeric", "mean": 40.0, "std": 10.0, "fill": None}
        >>> color = {"name": "color", "kind": "category", "levels": ["blue", "red"], "fill": None}
        >>> recipe = {"kind": "table", "columns": [age, color]}
        >>> prepare_table({"age": [30, 60], "color": ["red", "blue"]}, recipe).tolist()
        [[-1.0, 0.0, 1.0], [2.0, 1.0, 0.0]]
    """
    return torch.from_numpy(encode(table, recipe["columns"]).astype(np.float32))


@dataclass(frozen=True, eq=False)
class RawTable:
    """A table as its file has it.

    Args:
        name: of the data set.
        who: the file, for errors.
        frame: the inputs.
        target: name of the target.
        y: the target, (n,) or (n, m).
        task: "classification" or "regression".
        train: training rows.
        test: the others.
    """

    name: str
    who: str
    frame: Frame
    target: str
    y: Column
    task: Task
    train: NDArray[np.int64]
    test: NDArray[np.int64]


def read_table(
    kind: str,
    path: Path,
    *,
    target: str | None = None,
    task: Task | None = None,
    drop: Sequence[str] = (),
    test_fraction: float = 0.2,
    seed: int = 0,
) -> RawTable:
    """Read a .csv, .parquet or .npz file and divide its rows; see `load_data`."""
    if task is not None:
        check_choice("load_data", "task", task, ("classification", "regression"))
    if not path.is_file():
        raise DataError(f"{kind}: the file must exist, {path} does not. Check the path.")
    columns, y, target_name = read_columns(kind, path, target, drop)
    if not columns:
        raise DataError(f"{kind}: {path} must have a column besides the target, got none.")
    rest, held_out = split_index(len(y), test_fraction, seed, who=str(path))
    rows = (rest.numpy(), held_out.numpy())
    about = (path.stem, str(path), Frame(columns), target_name, y, task or guess_task(y))
    return RawTable(*about, *rows)


def encode_table(
    raw: RawTable,
    *,
    missing: Missing = "refuse",
    dates: bool = False,
    counts: bool = False,
    n_splits: int = 1,
) -> DataSet:
    """The data set of raw columns, in which all that is wrong is named in one error.

    Args:
        raw: the table; all statistics are of its training rows.
        missing: "refuse" names row and column; "impute" fills in and says so to the network.
        dates: whether dates become time, season, weekday and hour; else they are refused.
        counts: whether a regression's targets stay as they are; else they are standardised.
        n_splits: how many published splits the set has.
    """
    check_choice("load_data", "missing", missing, ("refuse", "impute"))
    problems, task, columns = Problems(), raw.task, raw.frame.columns
    with problems.noted():
        classes, y, about, unit = _target(raw.target, raw.y, task, raw.train, counts=counts)
    entries = fit_encoding(
        raw.who, columns, raw.train, missing=missing, dates=dates, problems=problems
    )
    x = torch.from_numpy(encode(columns, entries, raw.who).astype(np.float32))
    examples, names = Examples(x, y, *unit), feature_names(entries)
    train, test = (examples.subset(torch.from_numpy(rows)) for rows in (raw.train, raw.test))
    recipe = {"kind": "table", "columns": entries, "target": about}
    return DataSet(raw.name, train, test, task, classes, names, recipe, n_splits)


def _target(
    name: str, y: Column, task: Task, train: NDArray[np.int64], *, counts: bool
) -> tuple[tuple[str, ...] | None, Tensor, Preprocessing, tuple[Tensor, ...]]:
    """Classes or None, targets of all rows, the recipe's words about them, their mean and std."""
    for column in (y,) if y.ndim == 1 else tuple(y.T):
        advice = "Targets are never imputed: drop these rows."
        check_column(name, column, refused=True, advice=advice)
    if task == "classification":
        classes, labels = _class_labels(name, y)
        return classes, torch.from_numpy(labels), {"name": name, "classes": list(classes)}, ()
    targets, mean, std = _real_target(name, y, train, counts=counts)
    about = {"name": name, "mean": mean.tolist(), "std": std.tolist()}
    return None, targets, about, (mean, std)


def _real_target(
    name: str, y: Column, train: NDArray[np.int64], *, counts: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Targets, standardised on the rows `train` unless they are counts; their mean and std.

    Mean and std have shape () or (m,).
    """
    if kind_of(y) in ("text", "date"):
        raise DataError(
            f"target {name!r} must be numbers for regression, got {str(y[0])!r}. "
            'Use task="classification" or another target.'
        )
    numbers = y.astype(np.float64)
    flat = numbers[:, None] if numbers.ndim == 1 else numbers
    wrong = np.flatnonzero(((flat < 0) | (flat != np.round(flat))).any(1))
    if counts and len(wrong):
        raise DataError(
            f"target {name!r} must be counts, whole numbers >= 0, but row {wrong[0] + 1} "
            f"(of data, from 1) is {y[wrong[0]]}. Use another likelihood."
        )
    moments = [(0.0, 1.0) if counts else column_moments(column) for column in flat[train].T]
    pairs = np.array(moments)
    shape = () if numbers.ndim == 1 else (numbers.shape[1],)
    mean, std = pairs[:, 0].reshape(shape), pairs[:, 1].reshape(shape)
    values = torch.from_numpy(((numbers - mean) / std).astype(np.float32))
    return values, torch.tensor(mean).float(), torch.tensor(std).float()


def guess_task(y: Column) -> Task:
    """Classification for text, bools and few whole numbers (`load_data`), else regression."""
    if y.ndim == 2:
        return "regression"
    if y.dtype.kind not in "iuf":
        return "classification"
    n_distinct = len(np.unique(y))
    few = n_distinct <= min(MAX_GUESSED_CLASSES, len(y) // 2)
    return "classification" if few and bool((y == np.round(y)).all()) else "regression"


def _class_labels(name: str, y: Column) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    if y.ndim == 2:
        raise DataError(f"classification needs a target of shape (n,), got {y.shape}.")
    if y.dtype.kind == "f":
        if not (y == np.round(y)).all():
            raise DataError(
                f"target {name!r} must be text, bools or whole numbers for classification, "
                'got fractions. Use task="regression".'
            )
        y = y.astype(np.int64)
    distinct, labels = np.unique(y if y.dtype.kind in "bi" else y.astype(str), return_inverse=True)
    if len(distinct) < 2:
        raise DataError(
            f"target {name!r} must have two classes or more, got one: {str(distinct[0])!r}."
        )
    return tuple(str(value) for value in distinct), labels.astype(np.int64)
