"""Base of classifier and regressor: parameters, reading, training of one or many, prediction."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, clone
from sklearn.utils import Tags, _safe_indexing, check_random_state, indexable
from sklearn.utils.validation import (
    _check_sample_weight,
    _num_samples,
    check_is_fitted,
    check_X_y,
    validate_data,
)
from torch import Tensor, fx, nn

from bayesieve.assess.diagnostics import diagnose_models
from bayesieve.assess.predict import Prediction
from bayesieve.checks import check_choice, check_positive
from bayesieve.core.likelihoods import Likelihood
from bayesieve.core.posterior import Posterior, SparseModel
from bayesieve.core.random import own_stream
from bayesieve.data.encoding import (
    Entry,
    column_of_input,
    encoding_of,
    feature_names,
    inputs_of,
    is_plain,
    raw_columns,
    switches,
)
from bayesieve.data.examples import Task
from bayesieve.data.frames import Frame, as_frame
from bayesieve.deliver.bundle import save_bundle
from bayesieve.deliver.c import export_c
from bayesieve.deliver.export import export_pt2
from bayesieve.deliver.onnx import export_onnx
from bayesieve.engines.recipes import MANY_ROWS
from bayesieve.estimators.defaults import Choices, TableSettings, table_settings
from bayesieve.estimators.groups import Group, fold_members, train_tables
from bayesieve.estimators.importance import shuffled_change
from bayesieve.estimators.mixture import needed_draws, predict_members, with_unknown_levels
from bayesieve.estimators.online import continued
from bayesieve.estimators.population import DTYPE, Pace, Table, Training
from bayesieve.estimators.scale import (
    Array,
    FloatArray,
    Scale,
    Seed,
    raw_likelihood,
    raw_module,
)
from bayesieve.nets import mlp
from bayesieve.nets.mlp import Activation
from bayesieve.sieve.compact import compact
from bayesieve.training.schedule import Schedule
from bayesieve.uncertainty.dependence import Dependence, answers, bands, spread_rows, with_values
from bayesieve.uncertainty.familiarity import Familiarity, unavailable

RowSets = Sequence[NDArray[np.int64]]  # the row numbers of each fit
Columns = Sequence[Any]  # X, y and sample weights or None
_AVERAGED = 100  # rows over which a partial dependence is averaged
_LEAST_CONFORMAL = 10  # rows, so that each of five folds has two
_CONFORMAL_FOLDS = 5  # also what part of the rows split conformal takes
# Networks that lose other weights in each fold disagree more, which makes sets of CV+ too wide.
_PRUNED_FOLDS, _PRUNED_ROWS = 10, 20
_AT_ONCE = 240  # networks of one population
_KNOWN = ("pandas", "polars", "pyarrow", "numpy", "builtins")  # whose names scikit-learn reads


@dataclass(kw_only=True, eq=False, repr=False)
class SieveEstimator(Choices, BaseEstimator):  # type: ignore[misc]
    """Common base of `SieveClassifier` and `SieveRegressor`; do not use it directly.

    None is an automatic choice.

    Args:
        engine, hidden, ... n_members: see `defaults.Choices`.
        activation: "relu", "tanh" or "swish".
        n_samples: posterior draws of each that a prediction averages. None takes as many as bring
            the Monte-Carlo error of the likelihood below 2 % on rows that inner folds held out
            (of the rows themselves without folds), 32 to 256.
        conformal: how `predict_interval` and `predict_set` are made to cover what they say,
            whatever the model (`uncertainty.conformal` states what is proved): "cv+" by five more
            fits, each without a fifth of the rows, whose predictions make the interval (ten
            without a tenth each where weights are removed); "split" by a fifth of the rows, which
            the network then does not learn from; True takes "cv+" up to 3,000 rows and "split"
            beyond.
        max_seconds: time that `fit` may take; it then plans fewer steps, and stops where even these
            take too long. None takes all steps that are recommended.
        verbose: 1 prints how far training is and how long it will take.
        standardise: whether columns and targets are standardised inside; False takes them as they
            are, for tables that are standardised already.
        random_state: seed.
        device: where to train, such as "cuda"; predictions are made on the CPU.

    Attributes:
        encoding_: how columns become inputs of the network (`data.encoding`), plain JSON.
        sparse_models_: one per member: posterior and mask in standardised units.
        history_: metrics of each epoch, of the first network.
        settings_: every setting of the fit (`TableSettings`); `bins` is 0 where the plain columns
            predicted held-out rows better.
        candidate_scores_: log density per held-out row of every choice that was tried, by (weight
            of the prior, bins), in standardised units.
        feature_importances_: how much predictions change when the values of a column are shuffled
            over the rows, (p,): the root mean square over rows and members, 1 for the column with
            the largest. A ranking, no probability (`SieveSelector` has those).
        familiarity_: what the training rows look like (`Familiarity`); None below 20 rows.
        n_epochs_: the epoch that was kept.
        kl_: the KL weight that was kept.
        n_samples_: the posterior draws of each network that a prediction averages.
        chains_: how well the chains of a sampler agree (`ChainReport`): R-hat and effective draws
            of predictions and log-likelihood; None for other engines.
        fold_models_: estimators of the folds, with conformal "cv+".
        conformity_: scores of the rows that each of them (or, with "split", the estimator) has not
            seen.
    """

    activation: Activation = "relu"
    n_samples: int | None = None
    conformal: bool | Literal["cv+", "split"] = False
    max_seconds: float | None = None
    verbose: int = 0
    standardise: bool = True
    random_state: Seed = None
    device: str | None = None
    _y_checks: ClassVar[dict[str, bool]] = {}  # how scikit-learn is to check targets
    y_scale_: Scale | None = field(init=False)
    encoding_: list[Entry] = field(init=False)
    sparse_models_: list[SparseModel] = field(init=False)
    feature_importances_: NDArray[np.float64] = field(init=False)
    n_seen_: int = field(init=False)

    _clock = staticmethod(time.perf_counter)

    # Defined by subclasses.

    def _likelihood(self, *, learned_noise: bool) -> Likelihood:
        raise NotImplementedError

    def _targets(self, y: Array, weight: FloatArray | None, *, reset: bool) -> Tensor:
        """Targets as the network sees them; with `reset` classes and scale are learned."""
        raise NotImplementedError

    def _row_weights(self, y: Tensor, sample_weight: FloatArray | None) -> FloatArray | None:
        """Weight of each row: its sample weight, times the weight of its class if there is one."""
        return sample_weight

    def _without_base(
        self, X: FloatArray, y: Array, weight: FloatArray | None, *, reset: bool
    ) -> Array:
        """Targets less what another model says of them, where there is one."""
        return y

    def _n_outputs(self) -> int:
        raise NotImplementedError

    def _calibrate(self, table: Table, group: Group) -> None:
        """Learn from predictions of the inner folds on rows they have not seen."""

    def _scores(self, X: ArrayLike, y: ArrayLike) -> Tensor:
        """Conformal scores of rows the estimator has not seen, (n,) or (n, m)."""
        raise NotImplementedError

    # Training.

    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Any:
        """Learn from a table.

        Args:
            X: (n, p): an array, or a frame of pandas, polars or Arrow. Columns may hold numbers,
                bools, text, categories and dates, and lack values: see `data.encoding`.
            y: targets, (n,), or (n, m) for a regression of m outputs or m labels of 0 and 1.
            sample_weight: (n,), what each row counts: 2 counts as if the row stood there twice.

        Returns:
            The estimator itself.
        """
        _fit_together([self], [(X, y, sample_weight)])
        return self

    def _fit_more(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None) -> None:
        """Replace the posterior by the one that has these rows too."""
        if self.conformal:
            raise ValueError(
                f"{self._who}: conformal scores belong to the first posterior. Use fit on all rows "
                "again, or conformal=False."
            )
        table = self._read(X, y, sample_weight, reset=False)
        asked = clone(self).set_params(folds=0)
        settings = table_settings(asked, self._task, len(table), self.n_features_in_, self._who)
        training = Training(
            settings.epochs, settings.batch_size, Schedule(lr="cosine"), seed=self._seed()
        )
        likelihood = self._likelihood(learned_noise=settings.learned_noise)
        self.sparse_models_ = [
            continued(self._who, model, table, likelihood, training, lr=self.lr or 5e-3)
            for model in self.sparse_models_
        ]
        self.n_seen_ += len(table)
        self.feature_importances_ = shuffled_change(self.sparse_models_, table.x, self._groups)

    @property
    def _who(self) -> str:
        return type(self).__name__

    @property
    def _task(self) -> Task:
        return self._likelihood(learned_noise=True).task

    def _seed(self) -> int:
        return int(check_random_state(self.random_state).randint(2**31 - 2))

    def _settings(self, n_rows: int) -> TableSettings:
        """Every setting for a table that was read: what was asked, recommendations for None."""
        return table_settings(self, self._task, n_rows, self.n_features_in_, self._who)

    def _read(self, X: Any, y: Any, sample_weight: Any, *, reset: bool = True) -> Table:
        """The rows as the network sees them; with `reset` encoding and scales are learned."""
        columns, y = self._validated(X, y, reset=reset)
        weight = None
        if sample_weight is not None:
            weight = _check_sample_weight(
                sample_weight, columns, dtype=np.float64, ensure_non_negative=True
            )
            if not np.any(weight > 0):
                raise ValueError(f"{self._who}: at least one sample weight must be > 0.")
        if reset:
            self.x_scale_ = Scale.of(
                columns, weight, neutral=not self.standardise, cut=True,
                switches=switches(self.encoding_),
            )  # fmt: skip
        targets = self._targets(
            self._without_base(columns, y, weight, reset=reset), weight, reset=reset
        )
        counts = self._row_weights(targets, weight)
        row_weight = None if counts is None else torch.as_tensor(counts).to(DTYPE)
        return Table(self.x_scale_.apply(columns), targets, row_weight)

    def _validated(self, X: ArrayLike, y: ArrayLike, *, reset: bool) -> tuple[FloatArray, Array]:
        """Inputs as numbers, (n, q), and targets; with `reset` the encoding is learned."""
        frame = as_frame(X, self._who)
        if frame is None:
            values, targets = validate_data(
                self, X, y, dtype=np.float64, ensure_all_finite="allow-nan", reset=reset,
                **self._y_checks,
            )  # fmt: skip
        else:
            values = frame
            self._check_names(X, frame, y, reset=reset)
            rows = np.zeros((len(frame), 1))
            _, targets = check_X_y(rows, y, estimator=self, **self._y_checks)
        if reset:
            self.encoding_ = encoding_of(values, self._who)
        return inputs_of(values, self.encoding_, self._who), targets

    def _numbers(self, X: ArrayLike) -> FloatArray:
        """Inputs of new rows as numbers, (n, q)."""
        check_is_fitted(self)
        values = as_frame(X, self._who)
        if values is None:
            values = validate_data(
                self, X, dtype=np.float64, ensure_all_finite="allow-nan", reset=False
            )
        else:
            self._check_names(X, values, "no_validation", reset=False)
        return inputs_of(values, self.encoding_, self._who)

    def _check_names(self, X: Any, frame: Frame, y: Any, *, reset: bool) -> None:
        """Keep the names of the columns, or compare them with those of `fit`."""
        if type(X).__module__.partition(".")[0] in _KNOWN:
            validate_data(self, X, y, skip_check_array=True, reset=reset)
            return
        names = np.array(list(frame.columns), dtype=object)
        if reset:
            self.feature_names_in_, self.n_features_in_ = names, len(names)
        elif list(names) != list(getattr(self, "feature_names_in_", names)):
            raise ValueError(
                f"{self._who}: the columns must be those of fit, in order: "
                f"{', '.join(map(str, self.feature_names_in_[:12]))}; got "
                f"{', '.join(map(str, names[:12]))}."
            )

    @property
    def _groups(self) -> Tensor:
        """The number of the column that each input of the network belongs to, (q,)."""
        return torch.tensor(column_of_input(self.encoding_))

    def _network(self, n_inputs: int, widths: tuple[int, ...]) -> nn.Module:
        with own_stream(self._who, self._seed()):
            return mlp((n_inputs,), self._n_outputs(), widths, self.activation)

    def _absorb(self, table: Table, group: Group, kept: TableSettings, bins: int) -> None:
        """Take over the trained networks and calibrate on the rows the folds held out."""
        self.sparse_models_, self.history_, self.settings_ = group.members, group.history, kept
        self.n_epochs_, self.kl_, self.n_seen_ = group.n_epochs, group.kl, len(table)
        self.candidate_scores_ = {}
        for tried, score in sorted(group.scores.items(), key=lambda item: item[1]):
            self.candidate_scores_[tried.kl, 0 if tried.form else bins] = score  # best start last
        self.familiarity_ = None if unavailable(table.x) else Familiarity.of(table.x)
        scored = [(m[0], r) for m, r in zip(group.folds, table.held_out, strict=True) if m]
        networks, rows = zip(*scored or [(group.members[0], torch.arange(len(table)))], strict=True)
        self.n_samples_ = self.n_samples or needed_draws(networks, table, rows)
        self.chains_ = diagnose_models(group.members, (table.x, table.y))
        self._calibrate(table, group)
        self.feature_importances_ = shuffled_change(self.sparse_models_, table.x, self._groups)

    # Conformal calibration.

    def _conformal_kind(self, n_rows: int) -> Literal["cv+", "split"] | None:
        """Choose how scores are made on so many rows; None where they are not asked for."""
        if self.conformal is False:
            return None
        if self.conformal is not True:
            check_choice(self._who, "conformal", self.conformal, ("cv+", "split"))
        if n_rows < _LEAST_CONFORMAL:
            raise ValueError(
                f"{self._who}: conformal needs at least {_LEAST_CONFORMAL} rows, got {n_rows}."
            )
        if self.conformal is True:
            return "cv+" if n_rows <= MANY_ROWS else "split"
        return self.conformal

    def _fold_model(self) -> "SieveEstimator":
        """An estimator of the same settings for the rows of a fold; targets are known by now."""
        model: SieveEstimator = clone(self)
        model.conformal = False
        return model

    def _scored(self) -> tuple[list["SieveEstimator"], list[Tensor]]:
        """The estimators whose predictions make a conformal set, and the scores of each."""
        check_is_fitted(self)
        if not self.conformal or not hasattr(self, "conformity_"):
            raise ValueError(f"{self._who}: conformal sets need conformal=True; fit with it.")
        return self.fold_models_ or [self], self.conformity_

    # Prediction.

    def _prediction(self, X: ArrayLike) -> Any:
        """The mixture over members and draws: a `ClassPrediction` or a `RealPrediction`.

        Rows with a category of which `fit` has no level are mixtures over its levels as well.
        """
        numbers = self._numbers(X)

        def predicted(values: FloatArray) -> Prediction:
            x = self.x_scale_.apply(values)
            return predict_members(self.sparse_models_, x, self.n_samples_)

        return with_unknown_levels(predicted(numbers), numbers, self.encoding_, predicted)

    def familiarity(self, X: ArrayLike) -> NDArray[np.float64]:
        """OOD score, (n,): the share of held-out rows that are at least as unusual as each row.

        It is a conformal p-value: 1 is ordinary, and about 5 % of new rows like those of `fit` have
        less than .05. Rows unlike all of them are near 0; predictions are a guess there.
        """
        values = self._numbers(X)
        scale = replace(self.x_scale_, limit=np.inf)  # as in deliveries
        x = scale.apply(values)
        if self.familiarity_ is None:
            raise ValueError(f"{self._who}: familiarity needs at least 20 rows in fit.")
        return np.asarray(self.familiarity_.score(x).double().numpy())

    def _samples(self, X: ArrayLike, n: int, random_state: Seed) -> Tensor:
        """Targets drawn from the mixture, as the network sees them, (n, rows, ...)."""
        check_positive(self._who, n_samples=n)
        seed = int(check_random_state(random_state).randint(2**31))
        return self._prediction(X).sample(n, torch.Generator().manual_seed(seed))

    def partial_dependence(
        self, X: ArrayLike, column: str | int, *, points: int = 20, level: float = 0.9
    ) -> tuple[Array, Dependence]:
        """Mean prediction over the values of a column, with a band of `level` of posterior samples.

        Args:
            X: rows over which predictions are averaged, (n, p); those of `fit`, say.
            column: its name or number.
            points: values of the column at most, spread as those of X.
            level: share of the draws in the band.

        Returns:
            The values, (g,), and the mean prediction there with its band, (g, m) each: means in
            the unit of y, or probabilities of the classes.
        """
        numbers, names = torch.as_tensor(self._numbers(X)), raw_columns(self.encoding_)
        place = names.index(column) if column in names else column
        if not isinstance(place, int) or not 0 <= place < len(names):
            raise ValueError(
                f"{self._who}: column must be one of {', '.join(names[:12])}, or its number; got "
                f"{column!r}."
            )
        inputs = (self._groups == place).nonzero()[:, 0]
        rows = spread_rows(numbers[:, inputs], points)
        averaged = numbers[torch.linspace(0, len(numbers) - 1, _AVERAGED).round().long().unique()]
        everywhere = with_values(averaged, inputs, numbers[rows][:, inputs])
        frame = as_frame(X, self._who)
        raw = np.asarray(X)[:, place] if frame is None else [*frame.columns.values()][place]
        return raw[rows.numpy()], bands(self._answers(everywhere.numpy()), len(rows), level)

    def _answers(self, numbers: FloatArray) -> Tensor:
        """Means or probabilities by every draw of every network, (S, n, m)."""
        x = self.x_scale_.apply(numbers)
        return answers(predict_members(self.sparse_models_, x, self.n_samples_))

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags

    # Results of training.

    @property
    def sparse_(self) -> SparseModel:
        """The posterior of the first network and the mask of what is kept of it."""
        check_is_fitted(self)
        return self.sparse_models_[0]

    @property
    def posterior_(self) -> Posterior:
        """The posterior of the first network, in standardised units."""
        return self.sparse_.posterior

    @property
    def zeros_(self) -> float:
        """Fraction of the parameters that are exactly 0."""
        return self.sparse_.zeros

    # Delivery.

    @property
    def compact_(self) -> fx.GraphModule:
        """A plain module from raw columns to raw predictions, with pruned parts cut out.

        It computes with the posterior mean of the first member's weights.
        """
        module = raw_module(self.sparse_, self.x_scale_, self.y_scale_)
        return compact(module, self._example())

    def export(self, path: str | Path) -> Path:
        """Write the compact model: `.onnx`, `.pt2`, `.h` (C), or a bundle folder without an ending.

        It takes columns in their units and returns predictions in those of the target (scores
        before the softmax for a classifier). Where columns are text, dates or lack values, the
        network takes the inputs of `encoding_`, which bundles and ONNX files carry. They also
        contain the noise of a single target, for intervals; of a heteroscedastic network only the
        mean is delivered.
        """
        path, example, module = Path(path), self._example(), self.compact_
        if path.suffix == ".pt2":
            return export_pt2(module, path, example)
        known = getattr(self, "familiarity_", None)  # old pickles have none
        if known is not None:  # of standardised rows
            known = known.in_units(*map(torch.as_tensor, (self.x_scale_.mean, self.x_scale_.std)))
        if path.suffix == ".h":
            return export_c(module, path, example, familiarity=known)
        likelihood = raw_likelihood(self.sparse_, self.y_scale_)
        classes = [str(label) for label in self.classes_] if hasattr(self, "classes_") else None
        recipe = {"kind": "table", "columns": self.encoding_}
        preprocessing = None if is_plain(self.encoding_) else recipe
        if path.suffix == ".onnx":
            return export_onnx(
                module, path, example, classes=classes, likelihood=likelihood, familiarity=known,
                preprocessing=preprocessing,
            )  # fmt: skip
        if path.suffix:
            raise ValueError(
                "export: the file must end in .onnx, .pt2 or .h, or be a folder, got "
                f"{path.name!r}."
            )
        named = preprocessing is not None or hasattr(self, "feature_names_in_")
        return save_bundle(
            module, path, example=example, classes=classes, likelihood=likelihood,
            familiarity=known, preprocessing=preprocessing,
            feature_names=list(feature_names(self.encoding_)) if named else None,
        )  # fmt: skip

    def _example(self) -> Tensor:
        mean = torch.as_tensor(self.x_scale_.mean).to(DTYPE)
        std = torch.as_tensor(self.x_scale_.std).to(DTYPE)
        return torch.stack([mean, mean + std, mean - std])


E = TypeVar("E", bound=SieveEstimator)


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
    _fit_together(clones, each, at_once)
    return clones


def _fit_together(
    models: Sequence[SieveEstimator], columns: Sequence[Columns], at_once: int = _AT_ONCE
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
    pruned = kind == "cv+" and bool(first.zeros) and least >= _PRUNED_ROWS
    n_folds = _PRUNED_FOLDS if pruned else _CONFORMAL_FOLDS
    folds = [
        _scored_rows(model._seed(), n_folds, _num_samples(given[0]), given[2])
        for model, given in zip(models, columns, strict=True)
    ]
    if kind == "split":
        folds = [fold[:1] for fold in folds]
    left = [
        [_taken(given, np.setdiff1d(np.arange(_num_samples(given[0])), rows)) for rows in fold]
        for given, fold in zip(columns, folds, strict=True)
    ]
    n_runs = 1 if kind == "split" else 1 + n_folds
    learned = [rest for rest, *_ in left] if kind == "split" else columns
    settings = _train(models, learned, at_once, deadline(1 / n_runs))
    for model in models:
        model.fold_models_ = [] if kind == "split" else [model._fold_model() for _ in folds[0]]
    # Fold by fold: equal seeds then give equal starts, so that folds differ in their rows alone.
    for k in range(n_runs - 1):
        fold_models, rest = [m.fold_models_[k] for m in models], [given[k] for given in left]
        _train(fold_models, rest, at_once, deadline((k + 2) / n_runs), settings)
    for model, given, fold in zip(models, columns, folds, strict=True):
        scorers = zip(model.fold_models_ or [model], fold, strict=True)
        model.conformity_ = [one._scores(*_taken(given, rows)[:2]) for one, rows in scorers]


def _scored_rows(
    seed: int, n_folds: int, n_rows: int, weight: ArrayLike | None
) -> list[NDArray[np.int64]]:
    """Rows that each model of the folds is scored on; those that do not count are in none."""
    counted = np.arange(n_rows) if weight is None else np.flatnonzero(np.asarray(weight) > 0)
    order = np.random.default_rng(seed).permutation(counted)
    return [np.sort(order[i::n_folds]) for i in range(n_folds)]


def _train(
    models: Sequence[SieveEstimator],
    columns: Sequence[Columns],
    at_once: int,
    deadline: float | None,
    settings: Sequence[TableSettings] | None = None,
) -> Sequence[TableSettings]:
    """Train models as populations with these settings, or else with those for the longest table.

    With a deadline, a time on the first estimator's clock, training ends by it.

    Returns:
        The settings of each model.
    """
    tables = [model._read(*given) for model, given in zip(models, columns, strict=True)]
    if len(models) > 1:
        _check_alike(models)
    if settings is None:
        n_rows = max(map(len, tables))
        settings = [model._settings(n_rows) for model in models]
    first = models[0]
    n_networks = settings[0].n_members
    n_networks += fold_members(n_networks) * settings[0].folds
    size = max(1, at_once // n_networks) if settings[0].takes_weights else 1
    starts = range(0, len(tables), size)
    for i, start in enumerate(starts):
        block, end = slice(start, start + size), deadline
        if deadline is not None:  # the time left is shared out among the blocks left
            now = first._clock()
            end = now + (deadline - now) / (len(starts) - i)
        train_models(models[block], tables[block], settings[block], end)
    return settings


def train_models(
    models: Sequence[SieveEstimator],
    tables: Sequence[Table],
    settings: Sequence[TableSettings],
    deadline: float | None = None,
) -> None:
    """Train each model on its table, as one population, and give it its networks."""
    first = models[0]
    dealt = []
    for model, table, each in zip(models, tables, settings, strict=True):
        if table.weight is not None and not each.takes_weights:
            raise ValueError(
                f"{first._who}: this engine counts every row once; remove the weights."
            )
        dealt.append(table.with_folds(each.folds, each.parts, model._seed()))
    found = train_tables(
        dealt,
        settings,
        first._network,
        first._likelihood(learned_noise=settings[0].learned_noise),
        seed=first._seed(),
        device=first.device,
        pace=Pace(first._who, bool(first.verbose), deadline, first._clock),
    )
    for model, table, asked, (group, kept) in zip(models, dealt, settings, found, strict=True):
        model._absorb(table, group, kept, asked.bins)


def _indexable(X: Any, y: Any, sample_weight: Any) -> Columns:
    """X, y and weights of equal length, of which rows can be taken."""
    if isinstance(X, Frame):
        return X, *indexable(y, sample_weight)
    return tuple(indexable(X, y, sample_weight))


def _taken(columns: Columns, rows: NDArray[np.int64]) -> Columns:
    """Some rows of X, y and weights."""
    index = np.asarray(rows)
    return [
        c.take(index) if isinstance(c, Frame) else None if c is None else _safe_indexing(c, index)
        for c in columns
    ]


def _check_alike(models: Sequence[SieveEstimator]) -> None:
    """Raise unless all fits have one architecture and one course of training."""
    first = models[0]
    if any(type(model) is not type(first) for model in models):
        raise ValueError("fit_many: all estimators must be of one class.")
    free = ("engine", "lr", "random_state")
    for name, value in first.get_params(deep=False).items():
        if name not in free and any(getattr(model, name) != value for model in models):
            raise ValueError(
                f"fit_many: estimators may differ in {', '.join(free)}, not in {name}."
            )
    if len({model._n_outputs() for model in models}) > 1:
        raise ValueError(
            "fit_many: every set of rows must hold all classes; some lack one. Draw them "
            "stratified by class."
        )
