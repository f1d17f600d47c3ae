"""Base of classifier and regressor: parameters, what is read, prediction, delivery."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, clone
from sklearn.utils import check_random_state
from sklearn.utils.validation import (
    _check_sample_weight,
    check_is_fitted,
    check_X_y,
    validate_data,
)
from torch import Tensor, fx, nn

from bayesieve.assess.dependence import Dependence, answers, bands, spread_rows, with_values
from bayesieve.assess.diagnostics import diagnose_models
from bayesieve.assess.familiarity import Familiarity, unavailable
from bayesieve.assess.predict import Prediction
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
from bayesieve.deliver.bundle import save_bundle
from bayesieve.deliver.c import export_c
from bayesieve.deliver.onnx import export_onnx
from bayesieve.deliver.pt2 import export_pt2
from bayesieve.engines import Engine
from bayesieve.engines.recipes import MANY_ROWS
from bayesieve.estimators.defaults import TableSettings, table_settings
from bayesieve.estimators.groups import Group
from bayesieve.estimators.importance import shuffled_change
from bayesieve.estimators.many import fit_all
from bayesieve.estimators.mixture import needed_draws, predict_members, with_unknown_levels
from bayesieve.estimators.online import Online
from bayesieve.estimators.population import DTYPE, Table, Training, train_networks
from bayesieve.estimators.scale import FloatArray, Scale, raw_likelihood, raw_module
from bayesieve.nets import mlp
from bayesieve.nets.mlp import Activation
from bayesieve.sieve.compact import compact
from bayesieve.training.schedule import Schedule

_AVERAGED = 100  # rows over which a partial dependence is averaged
_LEAST_CONFORMAL = 10  # rows, so that each of five folds has two
_KNOWN = ("pandas", "polars", "pyarrow", "numpy", "builtins")  # whose names scikit-learn reads
_CHOICES = (
    "hidden", "bins", "epochs", "batch_size", "lr", "schedule", "kl", "folds", "patience", "zeros",
    "n_members",
)  # fmt: skip


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
            y: targets, (n,), or (n, m) for a regression of m outputs or m labels of 0 and 1.
            sample_weight: (n,), what each row counts: 2 counts as if the row stood there twice.

        Returns:
            The estimator itself.
        """
        fit_all([self], [(X, y, sample_weight)])
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
        bins = self._settings(len(table)).bins
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

    def partial_dependence(
        self, X: ArrayLike, column: str | int, *, points: int = 20, level: float = 0.9
    ) -> tuple[NDArray[Any], Dependence]:
        """How predictions depend on a column, with the band of `level` of the posterior draws.

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
