"""From the columns of a table to network inputs: one-hot, imputation, standardisation.

A table recipe is {"kind": "table", "columns": [...], "target": {...}} with one entry per column:
numeric {"name", "kind", "mean", "std", "fill"}, categorical {"name", "kind", "levels", "fill"}.
`fill` replaces missing values; null refuses them. All statistics are of the training part.
"""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bayesieve.errors import DataError

Column: TypeAlias = NDArray[Any]  # numbers with NaN for missing, bools, or objects: str and None
Missing: TypeAlias = Literal["refuse", "impute"]
MAX_LEVELS = 100
_WHO = "prepare_table"
_NEW_ROWS = "Fill them or drop the rows; a model trained with missing values imputed would."


def is_text(values: Column) -> bool:
    """Tell whether a column holds text, so that it is one-hot encoded.

    Example:
        >>> is_text(np.array(["a", None], dtype=object)), is_text(np.array([1.0, 2.0]))
        (True, False)
    """
    return values.dtype.kind not in "buif"


def missing_mask(values: Column) -> NDArray[np.bool_]:
    """Return True where a value is missing: None in text, NaN in numbers.

    Example:
        >>> missing_mask(np.array([1.0, float("nan")])).tolist()
        [False, True]
    """
    if is_text(values):
        return np.array([value is None for value in values], dtype=bool)
    return np.isnan(values.astype(np.float64))


def check_column(
    who: str,
    name: str,
    values: Column,
    *,
    allow_missing: bool,
    advice: str = 'Fill them, drop the rows, or use missing="impute" (--missing impute).',
) -> None:
    """Raise if a value is infinite, or missing where it must not be; rows count from 1.

    Example:
        >>> check_column("t.csv", "age", np.array([1.0, float("nan")]), allow_missing=False)
        Traceback (most recent call last):
        bayesieve.errors.DataError: t.csv: column 'age' must have no missing value, but row 2 (of \
data, from 1) does. Fill them, drop the rows, or use missing="impute" (--missing impute).
    """
    missing = np.flatnonzero(missing_mask(values))
    if len(missing) and not allow_missing:
        raise DataError(
            f"{who}: column {name!r} must have no missing value, but row {missing[0] + 1} (of "
            f"data, from 1) {_and_more(len(missing) - 1)}. {advice}"
        )
    if not is_text(values):
        infinite = np.flatnonzero(np.isinf(values.astype(np.float64)))
        if len(infinite):
            raise DataError(
                f"{who}: column {name!r} must be finite, but row {infinite[0] + 1} (of data, "
                f"from 1) is {values[infinite[0]]}. Correct or drop it."
            )


def _and_more(n: int) -> str:
    return f"and {n} more do" if n else "does"


def fit_column(
    who: str, name: str, values: Column, train: NDArray[np.int64], missing: Missing
) -> dict[str, Any]:
    """Work out the recipe of one column from the rows `train`.

    Example:
        >>> column = np.array([1.0, 3.0, 100.0])
        >>> fit_column("t.csv", "age", column, np.array([0, 1]), "refuse")
        {'name': 'age', 'kind': 'numeric', 'mean': 2.0, 'std': 1.0, 'fill': None}
    """
    check_column(who, name, values, allow_missing=missing == "impute")
    absent = missing_mask(values)
    seen = values[train][~absent[train]]
    if not len(seen):
        raise DataError(
            f"{who}: column {name!r} must have a value in the training part, but all are missing. "
            "Drop the column."
        )
    if not is_text(values):
        numbers = values.astype(np.float64)
        fill = float(np.median(numbers[train][~absent[train]])) if missing == "impute" else None
        filled = np.where(absent, 0.0 if fill is None else fill, numbers)[train]
        mean, std = standardisation(filled)
        return {"name": name, "kind": "numeric", "mean": mean, "std": std, "fill": fill}
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


def standardisation(values: NDArray[np.float64]) -> tuple[float, float]:
    """Return mean and population std; a column that is constant up to rounding gets std 1.

    Example:
        >>> standardisation(np.array([1.0, 3.0])), standardisation(np.array([0.1, 0.1, 0.1]))
        ((2.0, 1.0), (0.1, 1.0))
    """
    mean, std = float(values.mean()), float(values.std())
    if std <= 1e-12 * abs(mean):
        # The value itself: of a huge one the mean's rounding, in units of 1, would be an input.
        return float(values[0]), 1.0
    return mean, std


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
        check_column(_WHO, name, values, allow_missing=fill is not None, advice=_NEW_ROWS)
        values = np.where(np.isnan(values), 0.0 if fill is None else fill, values)
        standardised: NDArray[np.float64] = (values - column["mean"]) / column["std"]
        return standardised[:, None]
    texts = np.array([None if _is_missing(value) else str(value) for value in raw], dtype=object)
    check_column(_WHO, name, texts, allow_missing=fill is not None, advice=_NEW_ROWS)
    texts[missing_mask(texts)] = fill
    levels = np.array(column["levels"], dtype=object)
    one_hot: NDArray[np.bool_] = texts[:, None] == levels[None, :]
    unknown = np.flatnonzero(~one_hot.any(axis=1))
    if len(unknown):
        raise DataError(
            f"prepare_table: column {name!r} must be one of {', '.join(levels)}, but row "
            f"{unknown[0] + 1} (of data, from 1) is {texts[unknown[0]]!r}."
        )
    return one_hot.astype(np.float64)


def _is_missing(value: object) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))
