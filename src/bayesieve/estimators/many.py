"""Many fits at once: folds, bootstrap samples, splits, seeds and settings as one population."""

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import clone
from sklearn.utils import _safe_indexing, indexable

from bayesieve.estimators._base import SieveEstimator
from bayesieve.estimators._tables import Table

E = TypeVar("E", bound=SieveEstimator)
Rows = Sequence[NDArray[np.int64]]  # the row numbers of each fit


def fit_many(
    estimator: E | Sequence[E],
    X: ArrayLike,
    y: ArrayLike,
    rows: Rows | None = None,
    *,
    sample_weight: ArrayLike | None = None,
    at_once: int = 240,
) -> list[E]:
    """Fit clones of an estimator on several sets of rows, trained as one problem.

    Every fit standardises, watches and stops by itself, as `fit` on its rows would; only the
    steps are shared. On one core twenty small networks cost little more than two.

    Args:
        estimator: one for all sets of rows, or one for each; these may differ in the numbers of
            their engines, in `lr` and in `random_state`.
        X: (n, p), shared by all.
        y: (n,) or (n, m).
        rows: row numbers of each fit, of about the same length; None takes all rows for each of
            the given estimators.
        sample_weight: (n,), what each row counts.
        at_once: networks trained as one population at most, inner folds included.

    Returns:
        The fitted clones, in order.

    Example:
        >>> import numpy as np
        >>> from bayesieve.estimators import SieveRegressor
        >>> X = np.random.default_rng(0).normal(size=(60, 2))
        >>> model = SieveRegressor(hidden=(4,), epochs=2, folds=0, random_state=0)
        >>> halves = fit_many(model, X, X[:, 0], [np.arange(30), np.arange(30, 60)])
        >>> [own.predict(X[:3]).shape for own in halves]
        [(3,), (3,)]
    """
    X, y, sample_weight = indexable(X, y, sample_weight)
    clones = _clones(estimator, rows)
    places = [None] * len(clones) if rows is None else [np.asarray(own) for own in rows]
    jobs = []
    for own, index in zip(clones, places, strict=True):
        picked = [part if index is None or part is None else _safe_indexing(part, index)
                  for part in (X, y, sample_weight)]  # fmt: skip
        jobs.append(own._prepare(*picked))
    _check_alike(clones, jobs)
    like = max(jobs, key=len)
    size = max(1, at_once // (clones[0].n_members + max(len(job.held_out) for job in jobs)))
    for start in range(0, len(jobs), size):
        part = slice(start, start + size)
        engines = [own._engine(len(like)) for own in clones[part]]
        groups = clones[start]._train(jobs[part], engines, like)
        for own, job, group in zip(clones[part], jobs[part], groups, strict=True):
            own._absorb(job, group)
    return clones


def _clones(estimator: E | Sequence[E], rows: Rows | None) -> list[E]:
    if isinstance(estimator, Sequence):
        if not estimator or (rows is not None and len(rows) != len(estimator)):
            raise ValueError(
                f"fit_many: give one estimator, or one for each set of rows; got {len(estimator)} "
                f"for {None if rows is None else len(rows)}."
            )
        return [clone(own) for own in estimator]
    if rows is None or not len(rows):
        raise ValueError("fit_many: give the rows of each fit, or several estimators.")
    return [clone(estimator) for _ in rows]


def _check_alike(clones: Sequence[SieveEstimator], jobs: Sequence[Table]) -> None:
    """Raise unless all fits have one architecture and one course of training."""
    first = clones[0]
    if any(type(own) is not type(first) for own in clones):
        raise ValueError("fit_many: all estimators must be of one class.")
    free = ("engine", "lr", "random_state")
    settings = {k: v for k, v in first.get_params(deep=False).items() if k not in free}
    for own in clones:
        for name, value in settings.items():
            if own.get_params(deep=False)[name] != value:
                raise ValueError(
                    f"fit_many: estimators may differ in {', '.join(free)}, not in {name}."
                )
    outputs = {own._n_outputs(job.y) for own, job in zip(clones, jobs, strict=True)}
    if len(outputs) > 1:
        raise ValueError(
            "fit_many: every set of rows must hold all classes; some lack one. Draw them "
            "stratified by class."
        )
