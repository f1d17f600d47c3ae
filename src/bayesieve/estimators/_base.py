"""What classifier and regressor share: parameters, training, prediction, importance, delivery."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
from torch import Tensor, fx, nn

from bayesieve.assess.predict import Prediction
from bayesieve.checks import check_positive
from bayesieve.core.likelihoods import Likelihood
from bayesieve.core.posterior import Posterior, SparseModel
from bayesieve.engines import Engine
from bayesieve.estimators import _defaults as defaults
from bayesieve.estimators._delivery import export_module, raw_likelihood, raw_module
from bayesieve.estimators._online import Online
from bayesieve.estimators._predicting import importance_source, predict_members
from bayesieve.estimators._tables import DTYPE, FloatArray, Scale, Table, inner_folds, usable_folds
from bayesieve.estimators._training import Group, Recipe, train
from bayesieve.nets import mlp
from bayesieve.nets.mlp import Activation
from bayesieve.select import feature_importance, feature_inclusion, normalised_among
from bayesieve.sieve.compact import compact
from bayesieve.sieve.prune import prune
from bayesieve.sieve.rules import keep_zeros
from bayesieve.sieve.schedule import GradualPruning
from bayesieve.training.schedule import Schedule


class SieveEstimator(BaseEstimator):  # type: ignore[misc]
    """The common part of `SieveClassifier` and `SieveRegressor`; not to be used by itself."""

    # Set by subclasses in __init__; listed here for the type checker.
    engine: str | Engine[Any]
    hidden: Sequence[int] | None
    activation: Activation
    epochs: int | None
    batch_size: int | None
    lr: float | None
    schedule: Schedule | None
    kl: float | None
    folds: int | None
    patience: int | None
    zeros: float | None
    n_members: int
    n_samples: int
    conformal: bool
    random_state: Any
    device: str | None
    y_scale_: Scale | None
    sparse_models_: list[SparseModel]
    n_seen_: int

    # What a subclass brings.

    def _likelihood(self, *, learned_noise: bool) -> Likelihood:
        raise NotImplementedError

    def _targets(self, y: Any, weight: FloatArray | None, *, reset: bool) -> Tensor:
        """Targets as the network sees them; with `reset` classes and scale are learned."""
        raise NotImplementedError

    def _row_weights(self, y: Tensor, given: FloatArray | None) -> FloatArray | None:
        """What each row counts: sample weights, and class weights where there are any."""
        return given

    def _n_outputs(self, y: Tensor) -> int:
        raise NotImplementedError

    def _calibrate(
        self, y: Tensor, held_out: Sequence[Tensor], found: Sequence[Prediction]
    ) -> None:
        """Learn from predictions of the inner folds on rows they have not seen."""
        raise NotImplementedError

    # Training.

    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Any:
        """Learn from a table.

        Args:
            X: (n, p), numbers; arrays and data frames alike.
            y: targets, (n,), or (n, m) for a regression of m outputs.
            sample_weight: (n,), what each row counts: 2 counts as if the row stood there twice.

        Returns:
            The estimator itself.
        """
        job = self._prepare(X, y, sample_weight)
        (group,) = self._train([job], [self._engine(len(job))], job)
        self._absorb(job, group)
        return self

    def _fit_more(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None) -> None:
        """Replace the posterior by that given these rows too."""
        job = self._prepare(X, y, sample_weight, reset=False)
        n, size = len(job), defaults.batch_size_of(self._who, self.batch_size, len(job))
        epochs = defaults.epochs_of(self._who, self.epochs, n, size)
        recipe = Recipe(epochs, size, Schedule(lr="cosine"), None, seed=self._seed())
        renewed = []
        for model in self.sparse_models_:
            engine = Online.after(self._who, model, lr=self.lr or 5e-3)
            (group,) = train(
                [Table(job.x, job.y, job.weight)],
                [engine],
                self._module(job),
                self._likelihood(learned_noise=self._entry().learned_noise),
                recipe,
                start_from=model,
            )
            renewed.append(SparseModel(engine.named(group.members[0].posterior), model.keep))
        self.sparse_models_, self.n_seen_ = renewed, self.n_seen_ + n

    @property
    def _who(self) -> str:
        return type(self).__name__

    def _entry(self) -> defaults.EngineEntry:
        return defaults.entry_of(self._who, self.engine)

    def _seed(self) -> int:
        return int(check_random_state(self.random_state).randint(2**31 - 2))

    def _prepare(
        self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None, *, reset: bool = True
    ) -> Table:
        """Check the input, learn the scales, deal out the folds."""
        columns, y = self._validated(X, y, reset=reset)
        weight = None
        if sample_weight is not None:
            weight = _check_sample_weight(
                sample_weight, columns, dtype=np.float64, ensure_non_negative=True
            )
            if not np.any(weight > 0):
                raise ValueError(f"{self._who}: at least one sample weight must be > 0.")
        if reset:
            self.x_scale_ = Scale.of(columns, weight)
        targets = self._targets(y, weight, reset=reset)
        counts = self._row_weights(targets, weight)
        own = None if counts is None else torch.as_tensor(counts).to(DTYPE)
        table = Table(self.x_scale_.apply(columns), targets, own)
        if not reset:
            return table
        n_folds = defaults.folds_of(self._who, self.folds, len(table), self._entry())
        if own is not None and not self._entry().takes_weights:
            raise ValueError(f"{self._who}: this engine counts every row once; remove the weights.")
        parts = inner_folds(targets, n_folds, self._seed())
        return Table(table.x, targets, own, usable_folds(targets, own, parts))

    def _validated(self, X: ArrayLike, y: ArrayLike, *, reset: bool) -> tuple[Any, Any]:
        raise NotImplementedError

    def _engine(self, n_rows: int) -> Engine[Any]:
        entry = self._entry()
        if self.lr is not None and not isinstance(self.engine, str):
            raise ValueError(f"{self._who}: lr is for engines given by name; set it in the engine.")
        recipe = self._recipe(n_rows)
        per_epoch = -(-n_rows // recipe.batch_size)
        classes = self._likelihood(learned_noise=True).task == "classification"
        return entry.build(defaults.Length(recipe.epochs * per_epoch, per_epoch, self.lr, classes))

    def _recipe(self, n_rows: int) -> Recipe:
        who, entry = self._who, self._entry()
        check_positive(who, n_members=self.n_members, n_samples=self.n_samples)
        defaults.check_zeros(who, self.zeros)
        batch_size = defaults.batch_size_of(who, self.batch_size, n_rows)
        epochs = defaults.epochs_of(who, self.epochs, n_rows, batch_size)
        if self.schedule is not None and self.kl is not None:
            raise ValueError(f"{who}: kl stands in the schedule too; give one of them.")
        n_folds = defaults.folds_of(who, self.folds, n_rows, entry)
        kls = (1.0,) if self.schedule else defaults.kls_of(who, self.kl, entry, n_folds)
        pruning = None
        if self.zeros and entry.gradual:
            pruning = GradualPruning(self.zeros, 0.2, 0.6, entry.score)
        return Recipe(
            epochs=epochs,
            batch_size=batch_size,
            schedule=self.schedule or defaults.schedule_of(entry, epochs, kls),
            patience=defaults.patience_of(who, self.patience, entry, epochs),
            n_members=self.n_members,
            kls=kls if len(kls) > 1 else (1.0,),
            pruning=pruning,
            seed=self._seed(),
            device=self.device,
        )

    def _module(self, job: Table) -> nn.Module:
        widths = defaults.widths_of(self._who, self.hidden, len(job))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self._seed())
            return mlp((job.x.shape[1],), self._n_outputs(job.y), widths, self.activation)

    def _train(
        self, jobs: Sequence[Table], engines: Sequence[Engine[Any]], like: Table
    ) -> list[Group]:
        likelihood = self._likelihood(learned_noise=self._entry().learned_noise)
        return train(jobs, engines, self._module(like), likelihood, self._recipe(len(like)))

    def _absorb(self, job: Table, group: Group) -> None:
        """Take over what training found."""
        models = group.members
        if self.zeros and not self._entry().gradual:
            rule = keep_zeros(self.zeros, score=self._entry().score)
            models = [prune(own, rule) for own in models]
        self.sparse_models_, self.history_ = models, group.history
        self.n_epochs_, self.kl_, self.n_seen_ = group.n_epochs, group.kl, len(job)
        found = [
            self._predictions([own], job.x[part])
            for own, part in zip(group.folds, job.held_out, strict=True)
        ]
        if self.conformal and not found:
            raise ValueError(f"{self._who}: conformal=True needs inner folds; set folds=5.")
        self._calibrate(job.y, job.held_out, found)

    # Prediction.

    def _inputs(self, X: ArrayLike) -> Tensor:
        check_is_fitted(self)
        return self.x_scale_.apply(validate_data(self, X, dtype=np.float64, reset=False))

    def _predictions(self, models: Sequence[Posterior | SparseModel], x: Tensor) -> Prediction:
        return predict_members(models, x, self.n_samples)

    # What was learned.

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
    def feature_importances_(self) -> NDArray[np.float64]:
        """Importance φ of each column, (p,), from 0 to 1, averaged over the members.

        It rests on inclusion probabilities where the engine has them, else on the evidence for
        each weight, else on the size of the weights. A column that never varied has 0.
        """
        check_is_fitted(self)
        varies = torch.as_tensor(self.x_scale_.varies)
        found = []
        for own in self.sparse_models_:
            source = importance_source(own.posterior)
            psi = feature_importance(own.posterior, source=source).psi.cpu()
            found.append(normalised_among(psi, varies))
        return np.asarray(torch.stack(found).double().mean(0).numpy())

    @property
    def inclusion_(self) -> NDArray[np.float64]:
        """Posterior probability that each column matters, (p,), averaged over the members.

        It is 0 for a column that never varied.
        """
        check_is_fitted(self)
        found = []
        for own in self.sparse_models_:
            source = importance_source(own.posterior)
            if source == "magnitude":
                raise AttributeError(
                    f"{self._who}: this engine's posterior has no inclusion probabilities; use "
                    "engine='sbnn' or 'flat-vi'."
                )
            found.append(feature_inclusion(own.posterior, source=source))
        mean = torch.stack(found).double().mean(0).cpu().numpy()
        return np.asarray(mean * self.x_scale_.varies)

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

        It takes columns in their own units and returns predictions in theirs (scores before the
        softmax for a classifier). Bundles and ONNX files also hold the noise of a single target,
        for intervals; not that of a heteroscedastic network, whose mean alone is delivered.
        """
        names = getattr(self, "feature_names_in_", None)
        return export_module(
            self.compact_,
            Path(path),
            self._example(),
            likelihood=raw_likelihood(self.sparse_, self.y_scale_),
            classes=None if not hasattr(self, "classes_") else [str(c) for c in self.classes_],
            feature_names=None if names is None else [str(name) for name in names],
        )

    def _example(self) -> Tensor:
        mean = torch.as_tensor(self.x_scale_.mean).to(DTYPE)
        std = torch.as_tensor(self.x_scale_.std).to(DTYPE)
        return torch.stack([mean, mean + std, mean - std])
