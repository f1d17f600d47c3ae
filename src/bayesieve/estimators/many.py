"""Fits of one estimator or of many, as few populations of networks."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import clone
from sklearn.utils import _safe_indexing, indexable
from sklearn.utils.validation import (
    _num_samples,
)

from bayesieve.checks import check_positive
from bayesieve.data.frames import Frame
from bayesieve.estimators.groups import Form, fold_members, train_groups
from bayesieve.estimators.pace import Pace
from bayesieve.estimators.population import Table
from bayesieve.nets.embedding import PiecewiseLinear, has_more_than_two

if TYPE_CHECKING:
    from bayesieve.estimators.base import SieveEstimator

RowSets = Sequence[NDArray[np.int64]]  # the row numbers of each fit
Columns = Sequence[Any]  # X, y and sample weights or None
E = TypeVar("E", bound="SieveEstimator")
_CONFORMAL_FOLDS = 5  # also what part of the rows split conformal takes
# Networks that lose other weights in each fold disagree more, which makes sets of CV+ too wide.
_PRUNED_FOLDS, _PRUNED_ROWS = 10, 20
_AT_ONCE = 240  # networks of one population


def fit_tables(
    estimators: Sequence["SieveEstimator"],
    tables: Sequence[Table],
    n_rows: int,
    deadline: float | None = None,
) -> None:
    """Fit each estimator to its table, all as one population with settings for `n_rows` rows.

    With a deadline, a time on the first estimator's clock, training ends by it.
    """
    first = estimators[0]
    pace = Pace(first._who, bool(first.verbose), deadline, first._clock)
    settings = [estimator._settings(n_rows) for estimator in estimators]
    training = replace(settings[0], seed=first._seed(), device=first.device, pace=pace)
    plain, forms = Form(tables, first._module(tables[0], settings[0])), list[Form]()
    embeddings: list[PiecewiseLinear] = []
    if bins := settings[0].bins:
        rows = [table.x[table.counts() > 0] for table in tables]
        binned = torch.stack([has_more_than_two(x) for x in rows]).any(0)  # one width for all
        embeddings = [PiecewiseLinear.of(x, bins, binned) for x in rows]
        embedded = [
            replace(table, x=embedding(table.x))
            for table, embedding in zip(tables, embeddings, strict=True)
        ]
        forms = [Form(embedded, first._module(embedded[0], settings[0], embedded=True))]
    starts = settings[0].starts
    forms += [plain] * (len(starts) - len(forms))
    forms = [replace(form, start=start) for form, start in zip(forms, starts, strict=True)]
    groups = train_groups(
        forms,
        [each.engine for each in settings],
        first._likelihood(learned_noise=settings[0].learned_noise),
        training,
    )
    for i, estimator in enumerate(estimators):
        group, each = groups[i], settings[i]
        each = replace(each, engine=forms[group.form].engine(each.engine))
        if embeddings and group.form == 0:
            group = group.behind(embeddings[i])
        else:
            each = replace(each, bins=0)
        estimator._absorb(tables[i], each, group)


def fit_many(
    estimator: E | Sequence[E],
    X: ArrayLike,
    y: ArrayLike,
    rows: RowSets | None = None,
    *,
    sample_weight: ArrayLike | None = None,
    at_once: int = _AT_ONCE,
) -> list[E]:
    """Fit clones of an estimator on several sets of rows, trained as one problem.

    Every fit standardises, watches and stops by itself, as `fit` on its rows would; only the
    steps are shared. On one core twenty small networks cost little more than two. All networks
    draw from one stream of random numbers, so that several fits differ by chance from `fit` with
    the same seed; a single one is the same.

    Args:
        estimator: one for all sets of rows, or one for each; these may differ in the numbers of
            their engines, in `lr` and in `random_state`.
        X: (n, p), shared by all.
        y: (n,) or (n, m).
        rows: row numbers of each fit, of about the same length; None takes all rows for each of
            the estimators.
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
        >>> [half.predict(X[:3]).shape for half in halves]
        [(3,), (3,)]
    """
    X, y, sample_weight = _indexable(X, y, sample_weight)
    if isinstance(estimator, Sequence):
        if not estimator or (rows is not None and len(rows) != len(estimator)):
            raise ValueError(
                f"fit_many: give one estimator, or one for each set of rows; got {len(estimator)} "
                f"for {None if rows is None else len(rows)}."
            )
        clones = [clone(each) for each in estimator]
    elif rows is None or not len(rows):
        raise ValueError("fit_many: give the rows of each fit, or several estimators.")
    else:
        clones = [clone(estimator) for _ in rows]
    columns: Columns = (X, y, sample_weight)
    each = [columns if rows is None else _taken(columns, rows[i]) for i in range(len(clones))]
    fit_all(clones, each, at_once)
    return clones


def fit_all(
    models: Sequence["SieveEstimator"], columns: Sequence[Columns], at_once: int = _AT_ONCE
) -> None:
    """Fit each model to its columns; where they are conformal, the models of their folds too."""
    first = models[0]
    if first.max_seconds is not None:
        check_positive(first._who, max_seconds=first.max_seconds)
    began = first._clock()

    def deadline(part: float) -> float | None:
        return None if first.max_seconds is None else began + part * first.max_seconds

    least = min(_num_samples(given[0]) for given in columns)
    kind = first._conformal_kind(least)
    if kind is None:
        _train(models, columns, at_once, deadline(1.0))
        return
    columns = [_indexable(*given) for given in columns]
    pairs = list(zip(models, columns, strict=True))
    pruned = kind == "cv+" and bool(models[0].zeros) and least >= _PRUNED_ROWS
    n_folds = _PRUNED_FOLDS if pruned else _CONFORMAL_FOLDS
    folds = [
        model._conformal_folds(n_folds, _num_samples(given[0]), given[2]) for model, given in pairs
    ]
    if kind == "split":
        folds = [fold[:1] for fold in folds]
    left = [
        [_left(given, rows) for rows in fold] for given, fold in zip(columns, folds, strict=True)
    ]
    n_runs = 1 if kind == "split" else 1 + n_folds
    learned = [rest for rest, *_ in left] if kind == "split" else columns
    n_rows = _train(models, learned, at_once, deadline(1 / n_runs))
    for model in models:
        model.fold_models_ = [] if kind == "split" else [model._fold_model() for _ in folds[0]]
    # Fold by fold: equal seeds then give equal starts, so that folds differ in their rows alone.
    for k in range(0 if kind == "split" else n_folds):
        fold_models, rest = [m.fold_models_[k] for m in models], [given[k] for given in left]
        _train(fold_models, rest, at_once, deadline((k + 2) / n_runs), n_rows)
    for (model, given), fold in zip(pairs, folds, strict=True):
        scorers = zip(model.fold_models_ or [model], fold, strict=True)
        model.conformity_ = [one._scores(*_taken(given, rows)[:2]) for one, rows in scorers]


def _train(
    models: Sequence["SieveEstimator"],
    columns: Sequence[Columns],
    at_once: int,
    deadline: float | None,
    n_rows: int | None = None,
) -> int:
    """Train models as populations, with settings for `n_rows` rows, or else those of the longest.

    Returns:
        The number of rows that the settings are for.
    """
    pairs = zip(models, columns, strict=True)
    tables = [model._prepare(*given, n_rows=n_rows) for model, given in pairs]
    if len(models) > 1:
        _check_alike(models, tables)
    n_rows = n_rows or max(len(table) for table in tables)
    settings = models[0]._settings(n_rows)
    n_folds = max(len(table.held_out) for table in tables)
    n_networks = settings.n_members + fold_members(settings.n_members) * n_folds
    size = max(1, at_once // n_networks) if settings.takes_weights else 1
    starts = range(0, len(tables), size)
    for i, start in enumerate(starts):
        block, end = slice(start, start + size), deadline
        if deadline is not None:  # the time left is shared out among the blocks left
            now = models[0]._clock()
            end = now + (deadline - now) / (len(starts) - i)
        fit_tables(models[block], tables[block], n_rows, end)
    return n_rows


def _indexable(X: Any, y: Any, sample_weight: Any) -> Any:
    """X, y and weights of equal length, of which rows can be taken."""
    if isinstance(X, Frame):
        return X, *indexable(y, sample_weight)
    return indexable(X, y, sample_weight)


def _taken(columns: Columns, rows: NDArray[np.int64]) -> Columns:
    """Some rows of X, y and weights."""
    index = np.asarray(rows)
    return [
        c.take(index) if isinstance(c, Frame) else None if c is None else _safe_indexing(c, index)
        for c in columns
    ]


def _left(columns: Columns, rows: NDArray[np.int64]) -> Columns:
    """All rows but some."""
    return _taken(columns, np.setdiff1d(np.arange(_num_samples(columns[0])), rows))


def _check_alike(clones: Sequence["SieveEstimator"], tables: Sequence[Table]) -> None:
    """Raise unless all fits have one architecture and one course of training."""
    first = clones[0]
    if any(type(model) is not type(first) for model in clones):
        raise ValueError("fit_many: all estimators must be of one class.")
    free = ("engine", "lr", "random_state")
    for name, value in first.get_params(deep=False).items():
        if name not in free and any(getattr(model, name) != value for model in clones):
            raise ValueError(
                f"fit_many: estimators may differ in {', '.join(free)}, not in {name}."
            )
    outputs = {model._n_outputs(table.y) for model, table in zip(clones, tables, strict=True)}
    if len(outputs) > 1:
        raise ValueError(
            "fit_many: every set of rows must hold all classes; some lack one. Draw them "
            "stratified by class."
        )
