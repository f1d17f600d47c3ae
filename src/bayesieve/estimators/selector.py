"""Which columns of a table matter: a selector for pipelines."""

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, clone
from sklearn.feature_selection import SelectorMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import type_of_target
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from bayesieve.checks import check_choice, check_fraction
from bayesieve.core.likelihoods import Gaussian
from bayesieve.core.posterior import Posterior
from bayesieve.core.priors import SpikeSlab
from bayesieve.engines.sbnn import SBNN
from bayesieve.estimators.base import SieveEstimator, column_importance, fit_tables
from bayesieve.estimators.classifier import SieveClassifier
from bayesieve.estimators.population import AdditiveFits, PopulationFits, Table, Training
from bayesieve.estimators.regressor import SieveRegressor
from bayesieve.select import (
    PROPORTIONS,
    TableFits,
    additive_network,
    best_source,
    bootstrap_rows,
    cross_validate_proportion,
    expected_fdr,
    feature_importance,
    feature_inclusion,
    select_fdr,
    select_fraction,
    select_threshold,
    selection_stability,
)
from bayesieve.training.schedule import Schedule

Rule = Literal["fraction", "probable", "cross-validated", "fdr"]
RULES = ("fraction", "probable", "cross-validated", "fdr")
NetworkName = Literal["additive", "hidden"]
# Under which the evidence for a column of the additive network is calibrated: docs/tables.md.
ADDITIVE_ENGINE = SBNN(SpikeSlab(math.exp(-1), math.exp(-4)), lr=1e-2, init_std=0.01, local=True)
_FEW_PROPORTIONS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0)  # each costs one network per fold


@dataclass(kw_only=True, eq=False, repr=False)
class SieveSelector(SelectorMixin, BaseEstimator):  # type: ignore[misc]
    """Feature selection by the posterior of a Bayesian network.

    Args:
        estimator: `SieveRegressor` or `SieveClassifier` with the settings to train with; None
            takes the one that suits the targets, with its defaults.
        network: "additive" ranks the columns by an additive network (each column through hinges,
            then one linear layer), whose probabilities are calibrated; "hidden" by the network of
            the estimator, which also sees columns that act only together. None takes "hidden"
            where an estimator is given, but always "additive" for rule "fdr".
        rule: "fraction" keeps that share of the columns, "probable" those whose probability
            reaches `threshold`, "cross-validated" the smallest share that is not clearly worse
            than the best under cross-validation, "fdr" as many as keep the expected share of
            false discoveries below `level`.
        fraction: of the columns, for "fraction".
        threshold: for "probable"; the likeliest column is kept whatever its probability.
        level: for "fdr"; possibly no column is kept.
        folds: of the cross-validation.
        proportions: candidates of the cross-validation, ascending; None takes a grid.
        bootstrap: samples of the rows on which the choice is repeated; 0 for none.
        random_state: seed; used for the estimator as well unless it has one.

    Attributes:
        support_: which columns are kept, (p,).
        estimator_: the fitted estimator, for the network "hidden".
        feature_importances_: φ of each column, (p,).
        inclusion_: probability that each column matters, (p,), where the engine has one.
        expected_fdr_: expected share of false discoveries, where there are probabilities.
        path_: error of each proportion, for "cross-validated".
        frequency_: how often each column was kept, (p,), with `bootstrap`.
        stability_: agreement of these choices: 1 always the same, 0 chance.

    Example:
        >>> import numpy as np
        >>> X = np.random.default_rng(0).normal(size=(100, 4))
        >>> selector = SieveSelector(rule="fraction", fraction=0.25, random_state=0)
        >>> selector.fit(X, X[:, 2]).get_support().tolist()
        [False, False, True, False]
    """

    estimator: SieveEstimator | None = None
    network: NetworkName | None = None
    rule: Rule = "fraction"
    fraction: float = 0.2
    threshold: float = 0.5
    level: float = 0.1
    folds: int = 10
    proportions: tuple[float, ...] | None = None
    bootstrap: int = 0
    random_state: Any = None

    def fit(
        self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None
    ) -> "SieveSelector":
        """Find the columns of X, (n, p), that matter for y."""
        additive = self._check() == "additive"
        model = self._model(y)
        table = model._prepare(X, y, sample_weight)
        for name in [name for name in vars(self) if name.endswith("_")]:
            delattr(self, name)  # what an earlier fit has set, and this one may not
        self.n_features_in_ = model.n_features_in_
        if hasattr(model, "feature_names_in_"):
            self.feature_names_in_ = model.feature_names_in_
        probability: Tensor | None
        if additive:
            fits = _fits(model, table, additive=True)
            ((posterior,),) = fits.posteriors([torch.arange(len(table))])
            phi, evidence = _evidence(posterior)
            phi, probability = phi.double(), evidence.double()
        else:
            fit_tables([model], [table], len(table))
            self.estimator_ = model
            source = best_source(model.posterior_)
            fits = replace(_fits(model, table, additive=False), source=source)
            phi, probability = model._importance()
        if self.rule == "cross-validated":
            self._cross_validate(fits, additive)
        keep = self._choose(phi, probability)
        if self.bootstrap:
            self._repeat(fits, model, additive)
        self.support_: NDArray[np.bool_] = keep.numpy()
        self.feature_importances_: NDArray[np.float64] = phi.double().numpy()
        if probability is not None:
            self.inclusion_: NDArray[np.float64] = probability.double().numpy()
            self.expected_fdr_ = expected_fdr(probability, keep)
        return self

    def held_out_errors(
        self, X: ArrayLike, y: ArrayLike, X_test: ArrayLike, y_test: ArrayLike
    ) -> tuple[float, float]:
        """Test error of networks on all columns, and on the kept ones; of a constant if none is.

        Args:
            X: (n, p), the rows of `fit`.
            y: their targets.
            X_test: (m, p), further rows.
            y_test: their targets.

        Returns:
            Root mean squared errors in the unit of y, or negative log-likelihoods of classes.
        """
        check_is_fitted(self)
        model = self._model(y)
        table = model._prepare(X, y, None)
        fits = _fits(model, table, additive=self._check() == "additive")
        columns, targets = model._validated(X_test, y_test, reset=False)
        test_y = model._targets(targets, None, reset=False)
        x = torch.cat([table.x, model.x_scale_.apply(columns)])
        weight = None
        if table.weight is not None:
            weight = torch.cat([table.weight, torch.ones(len(test_y))])
        whole = replace(fits, x=x, y=torch.cat([table.y, test_y]), weight=weight)
        train, test = torch.arange(len(table)), torch.arange(len(table), len(x))
        keep = torch.as_tensor(self.support_)
        masks = torch.stack([torch.ones_like(keep), keep])
        errors = whole.errors([train, train], [test, test], masks)
        if model.y_scale_ is not None:
            errors = errors.sqrt() * float(model.y_scale_.std.mean())
        return float(errors[0]), float(errors[1])

    def _get_support_mask(self) -> NDArray[np.bool_]:
        check_is_fitted(self)
        return self.support_

    def _check(self) -> NetworkName:
        """Check the parameters; returns the network that ranks the columns."""
        who = "SieveSelector"
        check_choice(who, "rule", self.rule, RULES)
        check_fraction(who, fraction=self.fraction, threshold=self.threshold)
        check_fraction(who, open_ends=True, level=self.level)
        if self.bootstrap < 0 or self.bootstrap == 1:
            raise ValueError(f"{who}: bootstrap must be 0, or 2 or more, got {self.bootstrap}.")
        if self.network is not None:
            check_choice(who, "network", self.network, ("additive", "hidden"))
            if self.network == "hidden" and self.rule == "fdr":
                raise ValueError(
                    f"{who}: rule='fdr' needs the calibrated probabilities of network='additive'."
                )
            return self.network
        return "additive" if self.estimator is None or self.rule == "fdr" else "hidden"

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

    def _choose(self, phi: Tensor, probability: Tensor | None) -> Tensor:
        """The columns that the rule keeps, (p,) bool."""
        if self.rule == "fraction":
            return select_fraction(phi, self.fraction)
        if self.rule == "cross-validated":
            return select_fraction(phi, self.path_.proportion)
        if probability is None:
            raise ValueError(
                "SieveSelector: rule='probable' needs inclusion probabilities, which this engine's "
                "posterior lacks. Use engine='sbnn', or rule='fraction'."
            )
        if self.rule == "fdr":
            return select_fdr(probability, self.level)
        keep = select_threshold(probability, self.threshold)
        keep[probability.argmax()] = True
        return keep

    def _cross_validate(self, fits: PopulationFits, additive: bool) -> None:
        closed_form = additive and fits.weight is None and fits.y.is_floating_point()
        tried: TableFits = fits
        if closed_form and fits.y.shape[1] == 1:  # errors without training: many times faster
            tried = AdditiveFits(fits.x, fits.y[:, 0], ADDITIVE_ENGINE, fits.training)
        proportions = self.proportions
        if proportions is None:
            grid = PROPORTIONS if additive else _FEW_PROPORTIONS
            # Of shares that keep the same number of columns the smallest.
            counts = {max(1, round(s * fits.x.shape[1])): s for s in reversed(grid)}
            proportions = tuple(sorted(counts.values()))
        self.path_ = cross_validate_proportion(
            tried,
            len(fits.x),
            torch.Generator().manual_seed(self._seed()),
            proportions=proportions,
            n_folds=self.folds,
            rule="paired",
        )

    def _repeat(self, fits: PopulationFits, model: SieveEstimator, additive: bool) -> None:
        """Choose again on bootstrap samples of the rows."""
        source = torch.Generator().manual_seed(self._seed() + 1)
        samples = bootstrap_rows(len(fits.x), self.bootstrap, source)
        varies = torch.as_tensor(model.x_scale_.varies)
        choices = []
        for (posterior,) in fits.posteriors(samples):
            read = _evidence(posterior) if additive else column_importance(posterior, varies)
            choices.append(self._choose(*read))
        frequency, self.stability_ = selection_stability(torch.stack(choices))
        self.frequency_: NDArray[np.float64] = frequency.double().numpy()

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


def _fits(model: SieveEstimator, table: Table, *, additive: bool) -> PopulationFits:
    """Additive networks or those of an estimator, with its length of run and no inner folds."""
    settings = model._settings(len(table))
    likelihood = model._likelihood(learned_noise=additive or settings.learned_noise)
    engine, schedule = settings.engine, settings.schedule
    if additive:
        n_outputs = model._n_outputs(table.y)
        if likelihood.task == "regression":
            likelihood, n_outputs = Gaussian(0.5, learned=True), table.y.shape[1]
        network: nn.Module = additive_network(table.x, n_outputs)
        engine, schedule = ADDITIVE_ENGINE, evidence_schedule(likelihood.task, settings.epochs)
    else:
        network = model._module(table, settings)
    training = Training(
        settings.epochs, settings.batch_size, schedule, seed=model._seed(), device=model.device
    )
    return PopulationFits(
        table.x, table.y, network, likelihood, engine, training, weight=table.weight
    )


def _evidence(posterior: Posterior) -> tuple[Tensor, Tensor]:
    """φ and probability of the columns of an additive network."""
    posterior = posterior.to("cpu")
    phi = feature_importance(posterior).phi
    return phi, feature_inclusion(posterior, source="evidence")
