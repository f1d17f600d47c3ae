"""Tables: columns read from csv, parquet and npz files, turned into network inputs and a target.

Numbers are read as float64 with NaN for missing, bools without missing values as bool, and text as
objects: str, or None for missing.

A table recipe is {"kind": "table", "columns": [...], "target": {...}} with one entry per column:
numeric {"name", "kind", "mean", "std", "fill"}, categorical {"name", "kind", "levels", "fill"}.
`fill` replaces missing values; null refuses them. Where a training value is far from its column's
mean, all numeric columns have "limit" too: inputs end at ± this many stds
(`preprocessing.cut_moments`). All statistics are of the training part.
"""

import csv
import io
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bayesieve.checks import check_choice, did_you_mean
from bayesieve.data.examples import DataSet, Examples, Task, split_index
from bayesieve.data.files import read_npz
from bayesieve.data.preprocessing import column_moments, cut_moments
from bayesieve.errors import DataError
from bayesieve.files import check_growth, check_limit

Column: TypeAlias = NDArray[Any]  # numbers with NaN for missing, bools, or objects: str and None
Missing: TypeAlias = Literal["refuse", "impute"]
MAX_LEVELS = 100
_WHO = "prepare_table"
_NEW_ROWS = "Fill them or drop the rows; a model trained with missing values imputed would."
MAX_GUESSED_CLASSES = 20
MISSING_WORDS = frozenset({"", "NA", "N/A", "NaN", "nan", "null", "NULL", "None", "?"})
_LARGEST = 1e30  # of a number: networks compute in single precision
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
    try:
        check_limit(path, "columns", first_line.count(delimiter) + 1, "columns")
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
        name: _column("csv", path, name, _parse_words(words))
        for name, words in zip(header, zip(*rows, strict=True), strict=True)
    }


def _check_names(kind: str, path: Path, names: list[str]) -> None:
    repeated = sorted(name for name, n in Counter(names).items() if n > 1)
    if repeated or "" in names:
        what = f"{', '.join(repeated)} more than once" if repeated else "an empty name"
        raise DataError(f"{kind}: columns of {path} must have distinct names, got {what[:200]}.")


def _parse_words(words: Sequence[str]) -> list[Any]:
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
        name: _column("parquet", path, name, table.column(name).to_pylist())
        for name in table.column_names
    }


def _column(kind: str, path: Path, name: str, values: list[Any]) -> Column:
    """A column of Python values, with None for missing."""
    known = [value for value in values if value is not None]
    if known and len(known) == len(values) and all(isinstance(value, bool) for value in known):
        return np.array(values, dtype=bool)
    if all(isinstance(value, bool | int | float) for value in known):
        return np.array([np.nan if value is None else float(value) for value in values])
    if all(isinstance(value, str) for value in known):
        return np.array(values, dtype=object)
    types = ", ".join(sorted({type(value).__name__ for value in known}))
    raise DataError(
        f"{kind}: column {name!r} of {path} must hold numbers, bools or text, got {types}. "
        "Convert or drop it."
    )


def _read_npz_table(path: Path, target: str | None) -> tuple[dict[str, Column], Column, str]:
    arrays = {name: _plain(values) for name, values in read_npz(path).items()}
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


def _plain(values: NDArray[Any]) -> Column:
    if values.dtype.kind in "biuf":
        return values if values.dtype.kind == "b" else values.astype(np.float64)
    if values.dtype.kind == "U":
        texts = [None if str(v) in MISSING_WORDS else str(v) for v in values.ravel()]
        return np.array(texts, dtype=object).reshape(values.shape)
    raise DataError(f"npz: arrays must hold numbers, bools or text, got type {values.dtype}.")


def _is_text(values: Column) -> bool:
    """Whether a column holds text, so that it is one-hot encoded."""
    return values.dtype.kind not in "buif"


def _missing_mask(values: Column) -> NDArray[np.bool_]:
    """True where a value is missing: None in text, NaN in numbers."""
    if _is_text(values):
        return np.array([value is None for value in values], dtype=bool)
    return np.isnan(values.astype(np.float64))


def _check_column(
    who: str,
    name: str,
    values: Column,
    *,
    allow_missing: bool,
    advice: str = 'Fill them, drop the rows, or use missing="impute" (--missing impute).',
) -> None:
    """Raise if a value is infinite, or missing where it must not be; rows count from 1."""
    missing = np.flatnonzero(_missing_mask(values))
    if len(missing) and not allow_missing:
        others = f"and {len(missing) - 1} more do" if len(missing) > 1 else "does"
        raise DataError(
            f"{who}: column {name!r} must have no missing value, but row {missing[0] + 1} (of "
            f"data, from 1) {others}. {advice}"
        )
    if not _is_text(values):
        beyond = np.flatnonzero(np.abs(values.astype(np.float64)) > _LARGEST)
        if len(beyond):
            value = values[beyond[0]]
            must = f"be within ±{_LARGEST:g}" if np.isfinite(value) else "be finite"
            raise DataError(
                f"{who}: column {name!r} must {must}, but row {beyond[0] + 1} (of data, from 1) is "
                f"{value}. Correct or drop it."
            )


def _fit_column(
    who: str, name: str, values: Column, train: NDArray[np.int64], missing: Missing
) -> dict[str, Any]:
    """The recipe of one column, from the rows `train`."""
    _check_column(who, name, values, allow_missing=missing == "impute")
    absent = _missing_mask(values)
    seen = values[train][~absent[train]]
    if not len(seen):
        raise DataError(
            f"{who}: column {name!r} must have a value in the training part, but all are missing. "
            "Drop the column."
        )
    if not _is_text(values):
        fill = float(np.median(seen.astype(np.float64))) if missing == "impute" else None
        numbers = values.astype(np.float64)
        filled = numbers if fill is None else np.where(absent, fill, numbers)
        mean, std, limit = cut_moments(filled[train])
        column = {"name": name, "kind": "numeric", "mean": mean, "std": std, "fill": fill}
        return column if limit == np.inf else column | {"limit": limit}
    levels = sorted({str(value) for value in values[~absent]})
    if len(levels) > MAX_LEVELS:
        commas = all(re.fullmatch(r"[-+]?\d*,\d+", level) for level in levels)
        raise DataError(
            f"{who}: text column {name!r} must have at most {MAX_LEVELS} distinct values to be "
            f"one-hot encoded, got {len(levels)}. "
            + ("Write its numbers with a decimal point." if commas else "Drop or group it.")
        )
    counts = Counter(str(value) for value in seen)
    mode = max(levels, key=lambda level: counts[level]) if missing == "impute" else None
    return {"name": name, "kind": "category", "levels": levels, "fill": mode}


def feature_names(columns: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Name every input column; one-hot columns are called like color=red.

    Example:
        >>> feature_names([{"name": "color", "kind": "category", "levels": ["blue", "red"]}])
        ('color=blue', 'color=red')
    """
    names: list[str] = []
    for column in columns:
        if column["kind"] == "numeric":
            names.append(column["name"])
        else:
            names.extend(f"{column['name']}={level}" for level in column["levels"])
    return tuple(names)


def prepare_table(table: Mapping[str, Any], recipe: Mapping[str, Any]) -> Tensor:
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
    blocks = []
    for column in recipe["columns"]:
        if column["name"] not in table:
            raise DataError(
                f"prepare_table: column {column['name']!r} must be given, got "
                f"{', '.join(map(repr, table))}."
            )
        blocks.append(_apply_column(column, table[column["name"]]))
    return torch.from_numpy(np.concatenate(blocks, axis=1).astype(np.float32))


def _apply_column(column: Mapping[str, Any], raw: Any) -> NDArray[np.float64]:
    name, fill = column["name"], column["fill"]
    if column["kind"] == "numeric":
        try:
            values = np.asarray(raw, dtype=np.float64)
        except (ValueError, TypeError) as error:
            raise DataError(
                f"prepare_table: column {name!r} must hold numbers: {error}."
            ) from error
        _check_column(_WHO, name, values, allow_missing=fill is not None, advice=_NEW_ROWS)
        values = np.where(np.isnan(values), 0.0 if fill is None else fill, values)
        standardised: NDArray[np.float64] = (values - column["mean"]) / column["std"]
        limit = column.get("limit", np.inf)
        return standardised.clip(-limit, limit)[:, None]
    gone = [v is None or (isinstance(v, float) and math.isnan(v)) for v in raw]
    words = (None if missing else str(v) for v, missing in zip(raw, gone, strict=True))
    texts = np.array(list(words), dtype=object)
    _check_column(_WHO, name, texts, allow_missing=fill is not None, advice=_NEW_ROWS)
    texts[_missing_mask(texts)] = fill
    levels = np.array(column["levels"], dtype=object)
    one_hot: NDArray[np.bool_] = texts[:, None] == levels[None, :]
    unknown = np.flatnonzero(~one_hot.any(axis=1))
    if len(unknown):
        raise DataError(
            f"prepare_table: column {name!r} must be one of {', '.join(levels)}, but row "
            f"{unknown[0] + 1} (of data, from 1) is {texts[unknown[0]]!r}."
        )
    return one_hot.astype(np.float64)


def load_table(
    kind: str,
    path: Path,
    *,
    target: str | None = None,
    task: Task | None = None,
    missing: Missing = "refuse",
    counts: bool = False,
    test_fraction: float = 0.2,
    seed: int = 0,
) -> DataSet:
    """Load a table; text columns become one-hot, numbers are standardised on the training part.

    Args:
        kind: "csv", "parquet" or "npz".
        path: the file.
        target: the column to predict; an npz file may hold arrays x (n, p) and y instead.
        task: None guesses: classification if the target is text, bool, or whole numbers with at
            most 20 distinct values.
        missing: "refuse" names row and column; "impute" takes the training median or mode.
        counts: whether a regression's targets stay as they are; else they are standardised.
        test_fraction: part set aside at random for testing.
        seed: of that choice.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "people.csv"
        >>> rows = ["age,color,income", "30,red,1.5", "40,blue,2.5", "50,red,3", "60,red,4"]
        >>> _ = path.write_text(chr(10).join(rows))
        >>> data = load_table("csv", path, target="income", test_fraction=0.25)
        >>> data.task, data.feature_names
        ('regression', ('age', 'color=blue', 'color=red'))
    """
    check_choice("load_table", "kind", kind, ("csv", "parquet", "npz"))
    check_choice("load_table", "missing", missing, ("refuse", "impute"))
    if task is not None:
        check_choice("load_table", "task", task, ("classification", "regression"))
    if not path.is_file():
        raise DataError(f"{kind}: the file must exist, {path} does not. Check the path.")
    columns, y, target_name = read_columns(kind, path, target)
    if not columns:
        raise DataError(f"{kind}: {path} must have a column besides the target, got none.")
    for column in (y,) if y.ndim == 1 else tuple(y.T):
        advice = "Targets are never imputed: drop these rows."
        _check_column(str(path), target_name, column, allow_missing=False, advice=advice)
    rest, held_out = split_index(len(y), test_fraction, seed, who=str(path))
    return encode_table(
        path.stem,
        str(path),
        columns,
        (target_name, y),
        task or guess_task(y),
        (rest.numpy(), held_out.numpy()),
        missing=missing,
        counts=counts,
    )


def encode_table(
    name: str,
    who: str,
    columns: Mapping[str, Column],
    target: tuple[str, Column],
    task: Task,
    rows: tuple[NDArray[np.int64], NDArray[np.int64]],
    *,
    missing: Missing = "refuse",
    counts: bool = False,
    n_splits: int = 1,
) -> DataSet:
    """The data set of raw columns; all statistics are of the first of two sets of rows."""
    train, test = rows
    target_name, y = target
    fitted = [_fit_column(who, key, column, train, missing) for key, column in columns.items()]
    limits = [column["limit"] for column in fitted if "limit" in column]
    if limits:
        fitted = [c | {"limit": limits[0]} if c["kind"] == "numeric" else c for c in fitted]
    recipe: dict[str, Any] = {"kind": "table", "columns": fitted}
    x = prepare_table(columns, recipe)
    classes: tuple[str, ...] | None = None
    if task == "classification":
        classes, labels = _class_labels(who, target_name, y)
        recipe["target"] = {"name": target_name, "classes": list(classes)}
        examples = Examples(x, torch.from_numpy(labels))
    else:
        targets, mean, std = _real_target(who, target_name, y, train, counts=counts)
        recipe["target"] = {"name": target_name, "mean": mean.tolist(), "std": std.tolist()}
        examples = Examples(x, targets, mean, std)
    first, second = (examples.subset(torch.from_numpy(index)) for index in (train, test))
    return DataSet(name, first, second, task, classes, feature_names(fitted), recipe, n_splits)


def _real_target(
    who: str, name: str, y: Column, train: NDArray[np.int64], *, counts: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Targets, standardised on the rows `train` unless they are counts; their mean and std.

    Mean and std have shape () or (m,).
    """
    if _is_text(y):
        raise DataError(
            f"{who}: target {name!r} must be numbers for regression, got text such as {y[0]!r}. "
            'Use task="classification" or another target.'
        )
    numbers = y.astype(np.float64)
    flat = numbers[:, None] if numbers.ndim == 1 else numbers
    wrong = np.flatnonzero(((flat < 0) | (flat != np.round(flat))).any(1))
    if counts and len(wrong):
        raise DataError(
            f"{who}: target {name!r} must be counts, whole numbers >= 0, but row {wrong[0] + 1} "
            f"(of data, from 1) is {y[wrong[0]]}. Use another likelihood."
        )
    moments = [(0.0, 1.0) if counts else column_moments(column) for column in flat[train].T]
    pairs = np.array(moments)
    shape = () if numbers.ndim == 1 else (numbers.shape[1],)
    mean, std = pairs[:, 0].reshape(shape), pairs[:, 1].reshape(shape)
    values = torch.from_numpy(((numbers - mean) / std).astype(np.float32))
    return values, torch.tensor(mean).float(), torch.tensor(std).float()


def guess_task(y: Column) -> Task:
    """Classification for text, bools and few whole numbers (`load_table`), else regression."""
    if y.ndim == 2:
        return "regression"
    if _is_text(y) or y.dtype.kind == "b":
        return "classification"
    n_distinct = len(np.unique(y))
    few = n_distinct <= min(MAX_GUESSED_CLASSES, len(y) // 2)
    return "classification" if few and bool((y == np.round(y)).all()) else "regression"


def _class_labels(who: str, name: str, y: Column) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    if y.ndim == 2:
        raise DataError(f"{who}: classification needs a target of shape (n,), got {y.shape}.")
    if y.dtype.kind == "f":
        if not (y == np.round(y)).all():
            raise DataError(
                f"{who}: target {name!r} must be text, bools or whole numbers for classification, "
                'got fractions. Use task="regression".'
            )
        y = y.astype(np.int64)
    distinct, labels = np.unique(y.astype(str) if _is_text(y) else y, return_inverse=True)
    if len(distinct) < 2:
        raise DataError(
            f"{who}: target {name!r} must have two classes or more, got one: {str(distinct[0])!r}."
        )
    return tuple(str(value) for value in distinct), labels.astype(np.int64)
