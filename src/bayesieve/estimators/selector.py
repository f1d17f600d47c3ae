"""Which columns of a table matter: a selector for pipelines."""

import math
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, clone
from sklearn.feature_selection import SelectorMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import type_of_target
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from bayesieve.checks import check_choice, check_fraction
from bayesieve.core.likelihoods import Gaussian
from bayesieve.core.priors import SpikeSlab
from bayesieve.engines.sbnn import SBNN
from bayesieve.estimators.base import SieveEstimator, fit_tables, importance_source
from bayesieve.estimators.classifier import SieveClassifier
from bayesieve.estimators.population import PopulationFits, Table, Training, train_groups
from bayesieve.estimators.regressor import SieveRegressor
from bayesieve.select import (
    additive_network,
    cross_validate_proportion,
    expected_fdr,
    feature_inclusion,
    select_fdr,
    select_fraction,
    select_threshold,
)
from bayesieve.training.schedule import Schedule

Rule = Literal["fraction", "probable", "cross-validated", "fdr"]
RULES = ("fraction", "probable", "cross-validated", "fdr")
# Under which the evidence for a column of the additive network is calibrated: docs/tables.md.
_FDR_ENGINE = SBNN(SpikeSlab(math.exp(-1), math.exp(-4)), lr=1e-2, init_std=0.01, local=True)


class SieveSelector(SelectorMixin, BaseEstimator):  # type: ignore[misc]
    """Feature selection by the posterior of a Bayesian network.

    Args:
        estimator: `SieveRegressor` or `SieveClassifier` whose network ranks the columns; None
            takes the one that suits the targets, with its own defaults.
        rule: "fraction" keeps that share of the columns, "probable" those whose inclusion
            probability reaches `threshold`, "cross-validated" the share with the least error
            under cross-validation, "fdr" as many as keep the expected share of false
            discoveries below `level`.
        fraction: of the columns, for "fraction".
        threshold: for "probable"; the likeliest column is kept whatever its probability.
        level: for "fdr"; possibly no column is kept.
        folds: of the cross-validation.
        proportions: candidates of the cross-validation, ascending.
        random_state: seed; given to the estimator as well unless it has its own.

    Attributes:
        estimator_: the fitted estimator; for "fdr" there is none.
        feature_importances_: φ of each column, (p,); for "fdr" its probability.
        inclusion_: probability that each column matters, (p,), where the engine has one.
        path_: error of each proportion, for "cross-validated".
        expected_fdr_: expected share of false discoveries, for "probable" and "fdr".

    Example:
        >>> import numpy as np
        >>> X = np.random.default_rng(0).normal(size=(100, 4))
        >>> model = SieveRegressor(hidden=(8,), epochs=60, folds=0, random_state=0)
        >>> selector = SieveSelector(estimator=model, rule="fraction", fraction=0.25)
        >>> selector.fit(X, X[:, 2]).get_support().tolist()
        [False, False, True, False]
    """

    def __init__(
        self,
        *,
        estimator: SieveEstimator | None = None,
        rule: Rule = "fraction",
        fraction: float = 0.2,
        threshold: float = 0.5,
        level: float = 0.1,
        folds: int = 10,
        proportions: tuple[float, ...] = (0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0),
        random_state: Any = None,
    ) -> None:
        self.estimator = estimator
        self.rule = rule
        self.fraction = fraction
        self.threshold = threshold
        self.level = level
        self.folds = folds
        self.proportions = proportions
        self.random_state = random_state

    def fit(
        self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None
    ) -> "SieveSelector":
        """Find the columns of X, (n, p), that matter for y."""
        check_choice("SieveSelector", "rule", self.rule, RULES)
        check_fraction("SieveSelector", fraction=self.fraction, threshold=self.threshold)
        check_fraction("SieveSelector", open_ends=True, level=self.level)
        model = self._model(y)
        job = model._prepare(X, y, sample_weight)
        self.n_features_in_ = model.n_features_in_
        if hasattr(model, "feature_names_in_"):
            self.feature_names_in_ = model.feature_names_in_
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_
        if self.rule == "fdr":
            keep = self._by_fdr(model, job)
        else:
            fit_tables([model], [job], len(job))
            self.estimator_ = model
            self.feature_importances_ = model.feature_importances_
            if importance_source(model.posterior_) != "magnitude":
                self.inclusion_ = model.inclusion_
            keep = self._by_estimator(model, job)
        self.support_: NDArray[np.bool_] = keep.numpy()
        return self

    def _get_support_mask(self) -> NDArray[np.bool_]:
        check_is_fitted(self)
        return self.support_

    def _model(self, y: ArrayLike) -> SieveEstimator:
        if self.estimator is not None:
            if not isinstance(self.estimator, SieveEstimator):
                raise TypeError(
                    "SieveSelector: estimator must be a SieveRegressor or SieveClassifier, got "
                    f"{type(self.estimator).__name__}."
                )
            model: SieveEstimator = clone(self.estimator)
        elif type_of_target(y, input_name="y").startswith("continuous"):
            model = SieveRegressor()
        else:
            model = SieveClassifier()
        if model.random_state is None:
            model.set_params(random_state=self.random_state)
        return model

    def _by_estimator(self, model: SieveEstimator, job: Table) -> Tensor:
        importance = torch.as_tensor(self.feature_importances_)
        if self.rule == "fraction":
            return select_fraction(importance, self.fraction)
        if self.rule == "cross-validated":
            settings = model._settings(len(job))
            training = Training(
                settings.epochs, settings.batch_size, settings.schedule, seed=model._seed()
            )
            fits = PopulationFits(
                job.x,
                job.y,
                model._module(job, settings),
                model._likelihood(learned_noise=settings.entry.learned_noise),
                settings.engine,
                training,
                importance_source(model.posterior_),
            )
            self.path_ = cross_validate_proportion(
                fits,
                len(job),
                torch.Generator().manual_seed(self._seed()),
                proportions=self.proportions,
                n_folds=self.folds,
            )
            return select_fraction(importance, self.path_.proportion)
        if not hasattr(self, "inclusion_"):
            raise ValueError(
                "SieveSelector: rule='probable' needs inclusion probabilities, which this engine's "
                "posterior lacks. Use engine='sbnn', or rule='fraction'."
            )
        inclusion = torch.as_tensor(self.inclusion_)
        keep = select_threshold(inclusion, self.threshold)
        keep[inclusion.argmax()] = True
        self.expected_fdr_ = expected_fdr(inclusion, keep)
        return keep

    def _by_fdr(self, model: SieveEstimator, job: Table) -> Tensor:
        """Posterior probabilities from the evidence for each column of an additive network."""
        likelihood = model._likelihood(learned_noise=True)
        if likelihood.task == "regression":
            likelihood = Gaussian(0.5, learned=True)
        network = additive_network(job.x, model._n_outputs(job.y))
        settings = model._settings(len(job))
        schedule = evidence_schedule(likelihood.task, settings.epochs)
        training = Training(settings.epochs, settings.batch_size, schedule, seed=model._seed())
        table = Table(job.x, job.y, job.weight)
        (group,) = train_groups([table], [_FDR_ENGINE], network, likelihood, training)
        inclusion = feature_inclusion(group.members[0].posterior, source="evidence")
        self.inclusion_ = inclusion.double().numpy()
        self.feature_importances_ = self.inclusion_
        keep = select_fdr(inclusion, self.level)
        self.expected_fdr_ = expected_fdr(inclusion, keep)
        return keep

    def _seed(self) -> int:
        return int(check_random_state(self.random_state).randint(2**31 - 2))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        return tags


def evidence_schedule(task: str, epochs: float) -> Schedule:
    """Learning rate and prior weight under which an additive network's probabilities are right.

    From weights 0 and under all of the prior, a small table of classes never leaves the spike, and
    evidence taken there calls noise a discovery. For classes the prior therefore rises over the
    first fifth of the run; a target of numbers needs no such help, and would overfit.

    Example:
        >>> evidence_schedule("classification", 100).kl_warmup_epochs
        20.0
    """
    rise = 0.2 * epochs if task == "classification" else 0.0
    return Schedule(lr="cosine", kl_warmup_epochs=rise)
