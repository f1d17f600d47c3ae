"""Data and sizes as the network wants them, or one clear error."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from bayesieve.scratch.arrays import Array, Labels
from bayesieve.scratch.losses import CrossEntropy, Loss


def check_counts(who: str, **counts: int) -> None:
    """Raise unless every count is a whole number >= 1.

    Example:
        >>> check_counts("Plan", epochs=0)
        Traceback (most recent call last):
        ValueError: Plan: epochs must be a whole number >= 1, got 0.
    """
    for name, count in counts.items():
        if not isinstance(count, int | np.integer) or count < 1:
            raise ValueError(f"{who}: {name} must be a whole number >= 1, got {count!r}.")


def check_inputs(who: str, x: ArrayLike, n_inputs: int, dtype: DTypeLike) -> Array:
    """Inputs as a contiguous array of the net's dtype, shape (N, n_inputs), N >= 1, all finite.

    Example:
        >>> check_inputs("example", [[1, float("nan")]], 2, np.float32)
        Traceback (most recent call last):
        ValueError: example: x must be finite, got nan at row 0, column 1.
    """
    array = _real_array(who, "x", x)
    if array.ndim != 2 or array.shape[1] != n_inputs:
        raise ValueError(f"{who}: x must have shape (N, {n_inputs}), got {array.shape}.")
    if len(array) == 0:
        raise ValueError(f"{who}: x must hold at least one example, got none.")
    array = np.ascontiguousarray(array, dtype=dtype)
    _check_finite(who, "x", array)
    return array


def check_targets(
    who: str, y: ArrayLike, n_rows: int, n_outputs: int, loss: Loss, dtype: DTypeLike
) -> Array:
    """Targets of shape (n_rows, n_outputs); class numbers become one-hot rows.

    Example:
        >>> check_targets("example", [2, 0], 2, 3, CrossEntropy(), np.float64).tolist()
        [[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]
        >>> check_targets("example", [3, 0], 2, 3, CrossEntropy(), np.float64)
        Traceback (most recent call last):
        ValueError: example: labels must be 0 to 2, got 3 at row 0.
    """
    array = _real_array(who, "y", y)
    if array.ndim == 0 or len(array) != n_rows:
        raise ValueError(
            f"{who}: y must have one row per row of x, got shape {array.shape} for {n_rows} rows."
        )
    if array.ndim == 1 and np.issubdtype(array.dtype, np.integer):
        return one_hot(array, n_outputs, dtype, who=who)
    if array.shape != (n_rows, n_outputs):
        raise ValueError(
            f"{who}: y must be whole-numbered labels of shape ({n_rows},) or targets of shape "
            f"({n_rows}, {n_outputs}), got {array.dtype} of shape {array.shape}."
        )
    array = np.ascontiguousarray(array, dtype=dtype)
    _check_finite(who, "y", array)
    if isinstance(loss, CrossEntropy):
        _check_probabilities(who, array)
    return array


def one_hot(
    labels: Labels, n_classes: int, dtype: DTypeLike = np.float64, *, who: str = "one_hot"
) -> Array:
    """Labels of shape (N,) as rows with a single 1, shape (N, n_classes).

    Example:
        >>> one_hot(np.array([1, 0]), 2).tolist()
        [[0.0, 1.0], [1.0, 0.0]]
    """
    wrong = np.flatnonzero((labels < 0) | (labels >= n_classes))
    if len(wrong):
        raise ValueError(
            f"{who}: labels must be 0 to {n_classes - 1}, got {labels[wrong[0]]} at row {wrong[0]}."
        )
    rows: Array = np.zeros((len(labels), n_classes), dtype)
    rows[np.arange(len(labels)), labels] = 1
    return rows


def _real_array(who: str, name: str, values: ArrayLike) -> np.ndarray[Any, np.dtype[Any]]:
    array = np.asarray(values)
    if array.dtype == bool or not np.issubdtype(array.dtype, np.number) or np.iscomplexobj(array):
        raise TypeError(f"{who}: {name} must hold real numbers, got dtype {array.dtype}.")
    return array


def _check_finite(who: str, name: str, array: Array) -> None:
    # the extremes are NaN or infinite if anything is, and need no copy of the array
    if np.isfinite(array.min()) and np.isfinite(array.max()):
        return
    row, column = np.argwhere(~np.isfinite(array))[0]
    raise ValueError(
        f"{who}: {name} must be finite, got {array[row, column]} at row {row}, column {column}."
    )


def _check_probabilities(who: str, target: Array) -> None:
    sums = target.sum(axis=1)
    wrong = np.flatnonzero((target.min(axis=1) < 0) | (np.abs(sums - 1) > 1e-4))
    if len(wrong):
        raise ValueError(
            f"{who}: with CrossEntropy each row of y must be >= 0 and sum to 1, got "
            f"{target[wrong[0]].tolist()} at row {wrong[0]}."
        )
