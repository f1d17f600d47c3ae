"""Base of classifier and regressor: parameters, units, training, prediction, delivery."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar, cast

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, clone
from sklearn.utils import _safe_indexing, check_random_state, indexable
from sklearn.utils.validation import (
    _check_sample_weight,
    _num_samples,
    check_is_fitted,
    check_X_y,
    validate_data,
)
from torch import Tensor, fx, nn

from bayesieve.assess.diagnostics import diagnose_models
from bayesieve.assess.familiarity import Familiarity, unavailable
from bayesieve.assess.predict import ClassPrediction, Prediction, predict
from bayesieve.checks import check_choice, check_positive
from bayesieve.core.likelihoods import Likelihood
from bayesieve.core.posterior import Posterior, SparseModel
from bayesieve.core.turns import own_stream
from bayesieve.data.encoding import (
    Entry,
    column_of_input,
    encode,
    feature_names,
    fit_encoding,
    is_plain,
    plain_encoding,
    raw_columns,
    switches,
)
from bayesieve.data.frames import Frame, array_names, as_frame
from bayesieve.data.preprocessing import cut_moments
from bayesieve.deliver.bundle import save_bundle
from bayesieve.deliver.c import export_c
from bayesieve.deliver.onnx import export_onnx
from bayesieve.deliver.pt2 import export_pt2
from bayesieve.engines import Engine
from bayesieve.engines.recipes import MANY_ROWS
from bayesieve.estimators.defaults import TableSettings, table_settings
from bayesieve.estimators.online import Online
from bayesieve.estimators.pace import Pace
from bayesieve.estimators.population import (
    DTYPE,
    Form,
    Group,
    Table,
    Training,
    fold_members,
    needed_draws,
    predict_members,
    train_groups,
    train_networks,
    with_unknown_levels,
)
from bayesieve.nets import PiecewiseLinear, mlp
from bayesieve.nets.mlp import Activation
from bayesieve.select import (
    best_source,
    feature_importance,
    normalised,
)
from bayesieve.sieve.compact import compact
from bayesieve.training.schedule import Schedule

FloatArray = NDArray[np.float64]
RowSets = Sequence[NDArray[np.int64]]  # the row numbers of each fit
Columns = Sequence[Any]  # X, y and sample weights or None
_CONFORMAL_FOLDS = 5  # also what part of the rows split conformal takes
# Networks that lose other weights in each fold disagree more, which makes sets of CV+ too wide.
_PRUNED_FOLDS, _PRUNED_ROWS = 10, 20
_LEAST_CONFORMAL = 10  # rows, so that each of five folds has two
_SHUFFLED_ROWS = 20_000  # rows times columns that importance reads
_AT_ONCE = 240  # networks of one population
_KNOWN = ("pandas", "polars", "pyarrow", "numpy", "builtins")  # whose names scikit-learn reads
_CHOICES = (
    "hidden", "bins", "epochs", "batch_size", "lr", "schedule", "kl", "folds", "patience", "zeros",
    "n_members",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Scale:
    """Mean and standard deviation of columns, (p,); those that never vary have std 1.

    Standardised values end at ± limit, which is infinite unless the rows hold values far out
    (`data.preprocessing.cut_moments`).

    Example:
        >>> scale = Scale.of(np.array([[0.0, 5.0], [2.0, 5.0]]))
        >>> scale.mean.tolist(), scale.std.tolist(), scale.varies.tolist()
        ([1.0, 5.0], [1.0, 1.0], [True, False])
    """

    mean: FloatArray
    std: FloatArray
    varies: NDArray[np.bool_]
    limit: float = np.inf

    @classmethod
    def of(
        cls,
        values: NDArray[Any],
        weight: FloatArray | None = None,
        *,
        neutral: bool = False,
        cut: bool = False,
        switches: NDArray[np.bool_] | None = None,
    ) -> "Scale":
        """Of the rows of (n, p), each counting as its weight says; a neutral one does nothing.

        With `cut` values far out do not decide the scale of their column. Columns of `switches`,
        (p,), which are 0 or 1, are centred and keep their unit.
        """
        values = values.astype(np.float64)
        mean = np.average(values, axis=0, weights=weight)
        std = np.sqrt(np.average((values - mean) ** 2, axis=0, weights=weight))
        varies = std > 1e-12 * np.abs(mean)  # else constant up to rounding
        if neutral:
            return cls(np.zeros_like(mean), np.ones_like(std), varies)
        limit = np.inf
        if switches is not None:
            std = np.where(switches, 1.0, std)
        numbers = varies if switches is None else varies & ~switches
        for j in np.flatnonzero(numbers) if cut else ():
            *moments, end = cut_moments(values[:, j], weight)
            if end < np.inf:
                (mean[j], std[j]), limit = moments, end
        # The value itself for a constant: of a huge one the mean's rounding would be an input.
        mean, std = np.where(varies, mean, values[0]), np.where(varies, std, 1.0)
        return cls(mean, std, varies, limit)

    def apply(self, values: NDArray[Any]) -> Tensor:
        """(n, p) in units of the standard deviation."""
        units = (values.astype(np.float64) - self.mean) / self.std
        return torch.as_tensor(units.clip(-self.limit, self.limit)).to(DTYPE)

    def undo(self, values: Tensor) -> FloatArray:
        """(..., p) back in the unit of the column."""
        raw: FloatArray = values.double().cpu().numpy() * self.std + self.mean
        return raw


@dataclass(kw_only=True, eq=False, repr=False)
class SieveEstimator(BaseEstimator):  # type: ignore[misc]
    """Common base of `SieveClassifier` and `SieveRegressor`; not to be used by itself.

    None stands for an automatic choice.

    Args:
        engine: how the posterior is found: "sbnn", "flat-vi", "map", "bmr", "horseshoe", "sghmc",
            "tdamp", or an engine such as `SBNN(...)`.
        hidden: units of each hidden layer.
        bins: of the piecewise linear embedding of every column (`nets.PiecewiseLinear`), which lets
            a network learn steps; 0 feeds the columns as they are. None lets the inner folds
            choose between none and the recommended number.
        activation: "relu", "tanh" or "swish".
        epochs: passes over the rows, at most.
        batch_size: rows per step.
        lr: learning rate of an engine given by name.
        schedule: course of learning rate and prior weight.
        kl: weight of the prior against the rows; 1 is Bayes' rule, less trusts the rows more.
            None lets the inner folds choose.
        folds: inner folds whose predictions choose the weight of the prior and, with patience,
            the epoch; 0 does without.
        patience: epochs without a better score of the folds before stopping; None is half of the
            run for "map" and "bmr", and never for variational engines, which their prior holds
            back.
        zeros: fraction of the parameters to remove while training.
        n_members: networks that are averaged, or chains; None is 2 for samplers, which are then
            compared, and 1 for others.
        n_samples: posterior draws of each that a prediction averages. None takes as many as bring
            the Monte-Carlo error of the likelihood below 2 % on rows that inner folds held out
            (of the rows themselves without folds), 32 to 256.
        conformal: how `predict_interval` and `predict_set` are made to cover what they say,
            whatever the model (`assess.conformal` states what is proved): "cv+" by five more fits,
            each without a fifth of the rows, whose predictions make the interval (ten without a
            tenth each where weights are removed); "split" by a fifth of the rows, which the network
            then does not learn from; True takes "cv+" up to 3,000 rows and "split" beyond.
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
        kl_: the weight of the prior that was kept.
        n_samples_: the posterior draws of each network that a prediction averages.
        chains_: how well the chains of a sampler agree (`ChainReport`): R-hat and effective draws
            of predictions and log-likelihood; None for other engines.
        fold_models_: estimators of the folds, with conformal "cv+".
        conformity_: scores of the rows that each of them (or, with "split", the estimator) has not
            seen.
    """

    engine: str | Engine[Any] = "sbnn"
    hidden: Sequence[int] | None = None
    bins: int | None = None
    activation: Activation = "relu"
    epochs: int | None = None
    batch_size: int | None = None
    lr: float | None = None
    schedule: Schedule | None = None
    kl: float | None = None
    folds: int | None = None
    patience: int | None = None
    zeros: float | None = None
    n_members: int | None = None
    n_samples: int | None = None
    conformal: bool | Literal["cv+", "split"] = False
    max_seconds: float | None = None
    verbose: int = 0
    standardise: bool = True
    random_state: Any = None
    device: str | None = None
    _y_checks: ClassVar[dict[str, Any]] = {}  # how scikit-learn is to check targets
    y_scale_: Scale | None = field(init=False)
    encoding_: list[Entry] = field(init=False)
    sparse_models_: list[SparseModel] = field(init=False)
    feature_importances_: NDArray[np.float64] = field(init=False)
    n_seen_: int = field(init=False)

    _clock = staticmethod(time.perf_counter)

    # Defined by subclasses.

    def _likelihood(self, *, learned_noise: bool) -> Likelihood:
        raise NotImplementedError

    def _targets(self, y: Any, weight: FloatArray | None, *, reset: bool) -> Tensor:
        """Targets as the network sees them; with `reset` classes and scale are learned."""
        raise NotImplementedError

    def _row_weights(self, y: Tensor, sample_weight: FloatArray | None) -> FloatArray | None:
        """How much each row counts: sample weights, times class weights where there are any."""
        return sample_weight

    def _without_base(self, X: Any, y: Any, weight: FloatArray | None, *, reset: bool) -> Any:
        """Targets less what another model says of them, where there is one."""
        return y

    def _n_outputs(self, y: Tensor) -> int:
        raise NotImplementedError

    def _calibrate(self, table: Table, group: Group) -> None:
        """Learn from predictions of the inner folds on rows they have not seen."""

    def _scores(self, X: Any, y: Any) -> Tensor:
        """Conformal scores of rows the estimator has not seen, (n,) or (n, m)."""
        raise NotImplementedError

    # Training.

    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Any:
        """Learn from a table.

        Args:
            X: (n, p): an array, or a frame of pandas, polars or Arrow. Columns may hold numbers,
                bools, text, categories and dates, and lack values: see `data.encoding`.
            y: targets, (n,), or (n, m) for a regression of m outputs.
            sample_weight: (n,), what each row counts: 2 counts as if the row stood there twice.

        Returns:
            The estimator itself.
        """
        _fit_all([self], [(X, y, sample_weight)])
        return self

    def _fit_more(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None) -> None:
        """Replace the posterior by the one that has these rows too."""
        if self.conformal:
            raise ValueError(
                f"{self._who}: conformal scores belong to the first posterior. Use fit on all rows "
                "again, or conformal=False."
            )
        table = self._prepare(X, y, sample_weight, reset=False)
        settings = self._settings(len(table), online=True)
        training = Training(
            settings.epochs, settings.batch_size, Schedule(lr="cosine"), seed=self._seed()
        )
        renewed = []
        for model in self.sparse_models_:
            engine = Online.after(self._who, model, lr=self.lr or 5e-3)
            likelihood = self._likelihood(learned_noise=settings.learned_noise)
            run = train_networks(
                model.to_module(), likelihood, table, None, engine, training, start_from=model
            )
            renewed.append(SparseModel(engine.named(run.posterior), model.keep))
        self.sparse_models_, self.n_seen_ = renewed, self.n_seen_ + len(table)
        self.feature_importances_ = shuffled_change(renewed, table.x, self._groups)

    @property
    def _who(self) -> str:
        return type(self).__name__

    def _seed(self) -> int:
        return int(check_random_state(self.random_state).randint(2**31 - 2))

    def _settings(self, n_rows: int, *, online: bool = False) -> TableSettings:
        """Every setting for a table: the estimator's parameters, and recommendations for None."""
        check_positive(self._who, n_samples=1 if self.n_samples is None else self.n_samples)
        choices = {name: getattr(self, name) for name in _CHOICES}
        if online:
            choices["folds"] = 0
        task = self._likelihood(learned_noise=True).task
        return table_settings(
            self.engine, task, n_rows, self.n_features_in_, who=self._who, **choices
        )

    def _prepare(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None,
        *,
        reset: bool = True,
        n_rows: int | None = None,
    ) -> Table:
        """Check the input, learn the scales, deal out the folds as for `n_rows` rows."""
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
        table = Table(self.x_scale_.apply(columns), targets, row_weight)
        if not reset:
            return table
        settings = self._settings(n_rows or len(table))
        if row_weight is not None and not settings.takes_weights:
            raise ValueError(f"{self._who}: this engine counts every row once; remove the weights.")
        return table.with_folds(settings.folds, settings.parts, self._seed())

    def _validated(self, X: ArrayLike, y: ArrayLike, *, reset: bool) -> tuple[FloatArray, Any]:
        """Inputs as numbers, (n, q), and targets; with `reset` the encoding is learned."""
        frame = as_frame(X, self._who)
        if frame is None:
            values, y = validate_data(
                self, X, y, dtype=np.float64, ensure_all_finite="allow-nan", reset=reset,
                **self._y_checks,
            )  # fmt: skip
            return self._encoded(values, reset=reset), y
        self._check_names(X, frame, y, reset=reset)
        _, y = check_X_y(np.zeros((len(frame), 1)), y, estimator=self, **self._y_checks)
        return self._encoded(frame, reset=reset), y

    def _numbers(self, X: ArrayLike) -> FloatArray:
        """Inputs of new rows as numbers, (n, q)."""
        check_is_fitted(self)
        frame = as_frame(X, self._who)
        if frame is not None:
            self._check_names(X, frame, "no_validation", reset=False)
            return self._encoded(frame, reset=False)
        values = validate_data(
            self, X, dtype=np.float64, ensure_all_finite="allow-nan", reset=False
        )
        return self._encoded(values, reset=False)

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

    def _encoded(self, values: FloatArray | Frame, *, reset: bool) -> FloatArray:
        """Numbers of a checked table, (n, q); columns go by their place, not their name."""
        numbers = values if isinstance(values, np.ndarray) else values.numbers()
        gapless = numbers is not None and bool(np.isfinite(numbers).all())
        if numbers is not None and gapless:  # perhaps thousands of columns
            if reset:
                names = values.columns if isinstance(values, Frame) else array_names(values)
                self.encoding_ = plain_encoding(numbers, list(names))
            if is_plain(self.encoding_):
                return numbers
        frame = values if isinstance(values, Frame) else Frame.of_array(values)
        if reset and not gapless:
            self.encoding_ = fit_encoding(self._who, frame.columns, standardise=False)
        named = dict(zip(raw_columns(self.encoding_), frame.columns.values(), strict=True))
        return encode(named, self.encoding_, self._who)

    @property
    def _groups(self) -> Tensor:
        """The number of the column that each input of the network belongs to, (q,)."""
        return torch.tensor(column_of_input(self.encoding_))

    def _module(
        self, table: Table, settings: TableSettings, *, embedded: bool = False
    ) -> nn.Module:
        with own_stream(self._who, self._seed()):
            outputs, widths = self._n_outputs(table.y), settings.widths[0 if embedded else 1]
            return mlp((table.x.shape[1],), outputs, widths, self.activation)

    def _absorb(self, table: Table, settings: TableSettings, group: Group) -> None:
        """Take over the trained networks and calibrate on the rows the folds held out."""
        self.sparse_models_, self.history_, self.settings_ = group.members, group.history, settings
        self.n_epochs_, self.kl_, self.n_seen_ = group.n_epochs, group.kl, len(table)
        kinds = (self._settings(len(table)).bins, 0)
        self.candidate_scores_ = {(c.kl, kinds[c.form]): s for c, s in group.scores.items()}
        self.familiarity_ = None if unavailable(table.x) else Familiarity.of(table.x)
        scored = [(m[0], r) for m, r in zip(group.folds, table.held_out, strict=True) if m]
        networks, rows = zip(*scored or [(group.members[0], torch.arange(len(table)))], strict=True)
        self.n_samples_ = self.n_samples or needed_draws(networks, table, rows)
        self.chains_ = diagnose_models(group.members, (table.x, table.y))
        self._calibrate(table, group)
        self.feature_importances_ = shuffled_change(self.sparse_models_, table.x, self._groups)

    # Conformal calibration.

    def _conformal_kind(self, n_rows: int) -> Literal["cv+", "split"] | None:
        """How scores are made on so many rows; None where they are not asked for."""
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

    def _conformal_folds(
        self, n_folds: int, n_rows: int, weight: ArrayLike | None
    ) -> list[NDArray[np.int64]]:
        """Rows that each model of the folds is scored on; those that do not count are in none."""
        counted = np.arange(n_rows) if weight is None else np.flatnonzero(np.asarray(weight) > 0)
        order = np.random.default_rng(self._seed()).permutation(counted)
        return [np.sort(order[i::n_folds]) for i in range(n_folds)]

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

    def _inputs(self, X: ArrayLike) -> Tensor:
        numbers = self._numbers(X)  # first: it raises unless the estimator is fitted
        return self.x_scale_.apply(numbers)

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
        """Share of held-out rows that are at least as strange as each row, (n,).

        1 is ordinary. Of new rows like those of `fit` about 5 % have less than .05; rows unlike
        all of them come near 0, and the prediction is a guess there.
        """
        values = self._numbers(X)
        scale = replace(self.x_scale_, limit=np.inf)  # farther out is stranger, as in deliveries
        x = scale.apply(values)
        if self.familiarity_ is None:
            raise ValueError(f"{self._who}: familiarity needs at least 20 rows in fit.")
        return np.asarray(self.familiarity_.score(x).double().numpy())

    def _samples(self, X: ArrayLike, n: int, random_state: Any) -> Tensor:
        """Targets drawn from the mixture, as the network sees them, (n, rows, ...)."""
        check_positive(self._who, n_samples=n)
        seed = int(check_random_state(random_state).randint(2**31))
        return self._prediction(X).sample(n, torch.Generator().manual_seed(seed))

    def __sklearn_tags__(self) -> Any:
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


def fit_tables(
    estimators: Sequence[SieveEstimator],
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
        embeddings = [PiecewiseLinear.of(table.x[table.counts() > 0], bins) for table in tables]
        embedded = [
            replace(table, x=embedding(table.x))
            for table, embedding in zip(tables, embeddings, strict=True)
        ]
        forms = [Form(embedded, first._module(embedded[0], settings[0], embedded=True))]
    if not forms or settings[0].optional_bins:
        forms.append(plain)
    groups = train_groups(
        forms,
        [each.engine for each in settings],
        first._likelihood(learned_noise=settings[0].learned_noise),
        training,
    )
    for i, estimator in enumerate(estimators):
        group, each = groups[i], settings[i]
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
    _fit_all(clones, each, at_once)
    return clones


def _fit_all(
    models: Sequence[SieveEstimator], columns: Sequence[Columns], at_once: int = _AT_ONCE
) -> None:
    """Fit each model to its columns; where they are conformal, the models of their folds too."""
    first = models[0]
    if first.max_seconds is not None:
        check_positive(first._who, max_seconds=first.max_seconds)
    began = first._clock()

    def deadline(part: float) -> float | None:
        return None if first.max_seconds is None else began + part * first.max_seconds

    least = min(_num_samples(own[0]) for own in columns)
    kind = first._conformal_kind(least)
    if kind is None:
        _train(models, columns, at_once, deadline(1.0))
        return
    columns = [_indexable(*own) for own in columns]
    pairs = list(zip(models, columns, strict=True))
    pruned = kind == "cv+" and bool(models[0].zeros) and least >= _PRUNED_ROWS
    n_folds = _PRUNED_FOLDS if pruned else _CONFORMAL_FOLDS
    folds = [model._conformal_folds(n_folds, _num_samples(own[0]), own[2]) for model, own in pairs]
    if kind == "split":
        folds = [fold[:1] for fold in folds]
    left = [[_left(own, rows) for rows in fold] for own, fold in zip(columns, folds, strict=True)]
    n_runs = 1 if kind == "split" else 1 + n_folds
    learned = [rest for rest, *_ in left] if kind == "split" else columns
    n_rows = _train(models, learned, at_once, deadline(1 / n_runs))
    for model in models:
        model.fold_models_ = [] if kind == "split" else [model._fold_model() for _ in folds[0]]
    # Fold by fold: equal seeds then give equal starts, so that folds differ in their rows alone.
    for k in range(0 if kind == "split" else n_folds):
        fold_models, rest = [m.fold_models_[k] for m in models], [own[k] for own in left]
        _train(fold_models, rest, at_once, deadline((k + 2) / n_runs), n_rows)
    for (model, own), fold in zip(pairs, folds, strict=True):
        scorers = zip(model.fold_models_ or [model], fold, strict=True)
        model.conformity_ = [one._scores(*_taken(own, rows)[:2]) for one, rows in scorers]


def _train(
    models: Sequence[SieveEstimator],
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
    tables = [model._prepare(*own, n_rows=n_rows) for model, own in pairs]
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


def _check_alike(clones: Sequence[SieveEstimator], tables: Sequence[Table]) -> None:
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


def column_importance(posterior: Posterior, varies: Tensor) -> Tensor:
    """φ of the columns, (p,), from the best that the posterior says about its weights."""
    posterior = posterior.to("cpu")
    psi = feature_importance(posterior, source=best_source(posterior)).psi
    return normalised(psi, varies)


def shuffled_change(
    models: Sequence[SparseModel], x: Tensor, groups: Tensor
) -> NDArray[np.float64]:
    """How much predictions change when a column is shuffled, (p,), largest 1.

    It is the root mean square over models of `shuffled_changes` at the posterior mean. A column
    that never varies has 0.
    """
    change = shuffled_changes(models, x, groups).square().mean(0).sqrt()
    return np.asarray((change / change.max().clamp_min(1e-300)).numpy())


def shuffled_changes(
    models: Sequence[SparseModel], x: Tensor, groups: Tensor, n_samples: int = 0
) -> Tensor:
    """Root mean square change of predictions when a column is shuffled over rows, (S, p).

    Predictions are means, or class probabilities, under the posterior mean of each model, or
    under `n_samples` draws of each.

    Args:
        models: networks of one table.
        x: its standardised inputs, (n, q).
        groups: the column that each input belongs to, (q,), from 0; the inputs of a column are
            shuffled together.
        n_samples: draws of each model; 0 takes its mean.
    """
    n, p = len(x), int(groups.max()) + 1
    rows = min(n, max(_SHUFFLED_ROWS // max(p, 1), 50), 500)
    source = torch.Generator().manual_seed(0)
    x = x[torch.randperm(n, generator=source)[:rows]].double()
    order = torch.randperm(rows, generator=source)
    posteriors = [model.posterior.to("cpu", torch.float64) for model in models]

    def outputs(values: Tensor) -> Tensor:
        found = [predict(posterior, values, n_samples=n_samples) for posterior in posteriors]
        return torch.cat(
            [
                f.sample_log_probs.exp() if isinstance(f, ClassPrediction) else f.sample_means
                for f in found
            ]
        ).flatten(1)

    before = outputs(x)
    changes = torch.zeros(len(before), p, dtype=torch.float64)
    for j in range(p):
        shuffled, inputs = x.clone(), (groups == j).nonzero()[:, 0]
        shuffled[:, inputs] = x[order][:, inputs]
        changes[:, j] = (outputs(shuffled) - before).square().mean(1).sqrt()
    return changes


def raw_module(sparse: SparseModel, x_scale: Scale, y_scale: Scale | None) -> nn.Module:
    """The posterior mean's network with standardisation folded into its first and last layer.

    W (x - μ) / s + b is (W / s) x + (b - W μ / s); zeros stay zeros. Inputs z that end at ±l pass
    through two layers of one unit each before: z + l = ReLU(2l - ReLU(l - z)) is exact however far
    out z is, and every form of delivery knows ReLU. The second half of a heteroscedastic network's
    outputs (log standard deviations) is left out.
    """
    module = sparse.to_module()
    if isinstance(embedding := next(iter(module.children()), None), PiecewiseLinear):
        layers = list(module.children())[1:]
        place = next(i for i, layer in enumerate(layers) if isinstance(layer, nn.Linear))
        layers[place : place + 1] = embedding.as_layers(cast(nn.Linear, layers[place]))
        module = nn.Sequential(*layers)
    linear = [layer for layer in module.modules() if isinstance(layer, nn.Linear)]
    first, last = linear[0], linear[-1]
    with torch.no_grad():
        mean, std = torch.as_tensor(x_scale.mean), torch.as_tensor(x_scale.std)
        if (limit := x_scale.limit) < np.inf:
            ones = torch.ones_like(std)
            cut = [_diagonal(-1 / std, limit + mean / std), nn.ReLU()]
            cut += [_diagonal(-ones, 2 * limit * ones), nn.ReLU()]
            module = nn.Sequential(*cut, module)
            mean, std = limit * ones, ones
        weight = first.weight.double() / std
        first.bias.copy_(first.bias.double() - weight @ mean)
        first.weight.copy_(weight)
        if y_scale is not None:
            m = len(y_scale.std)
            mean, std = torch.as_tensor(y_scale.mean), torch.as_tensor(y_scale.std)
            weight, bias = last.weight[:m].double(), last.bias[:m].double()
            last.weight = nn.Parameter((weight * std[:, None]).to(last.weight.dtype))
            last.bias = nn.Parameter((bias * std + mean).to(last.weight.dtype))
            last.out_features = m
    return module


def _diagonal(factor: Tensor, shift: Tensor) -> nn.Linear:
    """A layer that multiplies each column by a factor and adds a shift, (p,) both."""
    layer = nn.Linear(len(factor), len(factor))
    layer.weight.copy_(factor.diag())
    layer.bias.copy_(shift)
    return layer


def raw_likelihood(sparse: SparseModel, y_scale: Scale | None) -> Likelihood | None:
    """The noise in the units of the target; None for classes, and where one number cannot say it.

    Targets of different spread share a noise level only once standardised, and the log standard
    deviations of a heteroscedastic network are not among the outputs of `raw_module`.
    """
    if y_scale is None or (y_scale.std != y_scale.std[0]).any():
        return None
    return sparse.network.likelihood_at(sparse.posterior.mean).scaled(float(y_scale.std[0]))
