"""Your own tables: csv, parquet and npz, with one target column."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bayesieve.checks import check_choice
from bayesieve.data.columns import (
    Column,
    Missing,
    check_column,
    feature_names,
    fit_column,
    is_text,
    prepare_table,
    standardisation,
)
from bayesieve.data.examples import DataSet, Examples, Task, split_index
from bayesieve.data.table_files import read_columns
from bayesieve.errors import DataError

MAX_GUESSED_CLASSES = 20


def load_table(
    kind: str,
    path: Path,
    *,
    target: str | None = None,
    task: Task | None = None,
    missing: Missing = "refuse",
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
    return _encode(path, columns, y, target_name, task, missing, test_fraction, seed)


def _encode(
    path: Path,
    columns: dict[str, Column],
    y: Column,
    target_name: str,
    task: Task | None,
    missing: Missing,
    test_fraction: float,
    seed: int,
) -> DataSet:
    who = str(path)
    for column in (y,) if y.ndim == 1 else tuple(y.T):
        advice = "Targets are never imputed: drop these rows."
        check_column(who, target_name, column, allow_missing=False, advice=advice)
    if task is None:
        task = _guess_task(y)
    rest, held_out = split_index(len(y), test_fraction, seed, who=who)
    train = rest.numpy()
    fitted = [fit_column(who, name, column, train, missing) for name, column in columns.items()]
    recipe: dict[str, Any] = {"kind": "table", "columns": fitted}
    x = prepare_table(columns, recipe)
    classes: tuple[str, ...] | None
    if task == "classification":
        classes, labels = _class_labels(who, target_name, y)
        recipe["target"] = {"name": target_name, "classes": list(classes)}
        examples = Examples(x, torch.from_numpy(labels))
    else:
        classes = None
        targets, mean, std = standardised_target(who, target_name, y, train)
        recipe["target"] = {"name": target_name, "mean": mean.tolist(), "std": std.tolist()}
        examples = Examples(x, targets, mean, std)
    parts = examples.subset(rest), examples.subset(held_out)
    return DataSet(path.stem, *parts, task, classes, feature_names(fitted), recipe)


def standardised_target(
    who: str, name: str, y: Column, train: NDArray[np.int64]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return targets standardised on the rows `train`, with mean and std of shape () or (m,).

    Example:
        >>> y, mean, std = standardised_target("t", "y", np.array([1.0, 3.0]), np.array([0, 1]))
        >>> y.tolist(), mean.item(), std.item()
        ([-1.0, 1.0], 2.0, 1.0)
    """
    if is_text(y):
        raise DataError(
            f"{who}: target {name!r} must be numbers for regression, got text such as {y[0]!r}. "
            'Use task="classification" or another target.'
        )
    numbers = y.astype(np.float64)
    flat = numbers[:, None] if numbers.ndim == 1 else numbers
    pairs = np.array([standardisation(column) for column in flat[train].T])
    shape = () if numbers.ndim == 1 else (numbers.shape[1],)
    mean, std = pairs[:, 0].reshape(shape), pairs[:, 1].reshape(shape)
    values = torch.from_numpy(((numbers - mean) / std).astype(np.float32))
    return values, torch.tensor(mean).float(), torch.tensor(std).float()


def _guess_task(y: Column) -> Task:
    if y.ndim == 2:
        return "regression"
    if is_text(y) or y.dtype.kind == "b":
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
    distinct, labels = np.unique(y.astype(str) if is_text(y) else y, return_inverse=True)
    if len(distinct) < 2:
        raise DataError(
            f"{who}: target {name!r} must have two classes or more, got one: {str(distinct[0])!r}."
        )
    return tuple(str(value) for value in distinct), labels.astype(np.int64)
