"""Selection of the columns of a table that matter, for pipelines."""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, clone
from sklearn.feature_selection import SelectorMixin
from sklearn.utils import Tags, check_random_state
from sklearn.utils.multiclass import type_of_target
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from bayesieve.checks import check_choice, check_fraction
from bayesieve.data.tables import guess_task
from bayesieve.estimators.base import SieveEstimator, train_models
from bayesieve.estimators.classifier import SieveClassifier
from bayesieve.estimators.importance import PopulationFits, by_column, column_importance
from bayesieve.estimators.population import Table, Training
from bayesieve.estimators.regressor import SieveRegressor
from bayesieve.estimators.scale import Seed
from bayesieve.select import (
    PROPORTIONS,
    AdditiveFits,
    JointPosterior,
    best_source,
    bootstrap_rows,
    cross_validate_proportion,
    expected_fdr,
    normalised,
    select_fdr,
    select_fraction,
    select_threshold,
    selection_stability,
)

Rule = Literal["fraction", "probable", "cross-validated", "fdr"]
RULES = ("fraction", "probable", "cross-validated", "fdr")
NetworkName = Literal["additive", "hidden"]
_FEW_PROPORTIONS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0)  # each costs one network per fold


@dataclass(kw_only=True, eq=False, repr=False)
class SieveSelector(SelectorMixin, BaseEstimator):  # type: ignore[misc]
    """Feature selection by a posterior.

    Args:
        estimator: `SieveRegressor` or `SieveClassifier` with the settings to train with; None
            takes the one that suits the targets, with its defaults: classes are text, bools or at
            most 20 whole numbers.
        network: "additive" reads the joint posterior of an additive model (each column through
            hinges), which has a probability for every column and needs no training; "hidden" ranks
            the columns by the network of the estimator, which also sees columns that act only
            together, but has no such probability. None takes "hidden" where an estimator is given,
            but always "additive" for the rules "probable" and "fdr", which need probabilities.
        rule: "fraction" keeps that share of the columns, "probable" those whose probability
            reaches `threshold`, "cross-validated" the smallest share that is not clearly worse
            than the best under cross-validation, "fdr" as many as keep the expected share of
            false discoveries below `level`, but none that is less probable than ½.
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
        feature_importances_: φ of each column, (p,), 1 for the most important and 0 for the least:
            by the size of its effect, or by the paths of a hidden network.
        inclusion_: probability that each column matters, (p,), for the network "additive".
        inclusion_error_: Monte-Carlo standard error of these probabilities, (p,).
        expected_fdr_: expected share of false discoveries, for the network "additive".
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
    random_state: Seed = None

    def fit(
        self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None
    ) -> "SieveSelector":
        """Find the columns of X, (n, p), an array or a frame, that matter for y."""
        additive = self._check() == "additive"
        model = self._model(y)
        table = model._read(X, y, sample_weight)
        if table.y.dim() > 1 and not table.y.is_floating_point():
            raise ValueError(
                "SieveSelector: y must hold one label a row; fit a selector for each of several."
            )
        for name in [name for name in vars(self) if name.endswith("_")]:
            delattr(self, name)  # what an earlier fit has set, and this one may not
        self.n_features_in_ = model.n_features_in_
        if hasattr(model, "feature_names_in_"):
            self.feature_names_in_ = model.feature_names_in_
        fits: AdditiveFits | PopulationFits
        joint: JointPosterior | None = None
        if additive:
            fits = self._additive_fits(model, table)
            joint = fits.posterior(torch.arange(len(table)))
            phi = normalised(joint.effect)
        else:
            train_models([model], [table], [model._settings(len(table))])
            self.estimator_ = model
            fits = replace(_network_fits(model, table), source=best_source(model.posterior_))
            varies = torch.as_tensor(model.x_scale_.varies)
            each = [column_importance(one.posterior, varies) for one in model.sparse_models_]
            phi = by_column(torch.stack(each).double().mean(0), fits.groups)
        if self.rule == "cross-validated":
            self._cross_validate(fits)
        keep = self._choose(phi, joint)
        if self.bootstrap:
            self._repeat(fits, model)
        self.support_: NDArray[np.bool_] = keep.numpy()
        self.feature_importances_: NDArray[np.float64] = phi.double().numpy()
        if joint is not None:
            self.inclusion_: NDArray[np.float64] = joint.inclusion.numpy()
            self.inclusion_error_: NDArray[np.float64] = joint.error.numpy()
            self.expected_fdr_ = expected_fdr(joint.inclusion, keep)
        return self

    def held_out_errors(
        self, X: ArrayLike, y: ArrayLike, X_test: ArrayLike, y_test: ArrayLike
    ) -> tuple[float, float]:
        """Test error of a fit on all columns, and on the kept ones; of a constant if none is.

        The fits are additive models or hidden networks, as `network` says.

        Args:
            X: (n, p), the rows of `fit`.
            y: their targets.
            X_test: (m, p), further rows.
            y_test: their targets.

        Returns:
            Root mean squared errors in the unit of y. Of classes the Brier scores of additive
            models, or the negative log-likelihoods of networks.
        """
        check_is_fitted(self)
        model = self._model(y)
        table = model._read(X, y, None)
        held_out = model._read(X_test, y_test, None, reset=False)
        x, both = torch.cat([table.x, held_out.x]), torch.cat([table.y, held_out.y])
        weight = None
        if table.weight is not None:
            weight = torch.cat([table.weight, torch.ones(len(held_out))])
        hidden = self._check() == "hidden"
        fits = _network_fits(model, table) if hidden else self._additive_fits(model, table)
        train, test = torch.arange(len(table)), torch.arange(len(table), len(x))
        keep = torch.as_tensor(self.support_)
        masks = torch.stack([torch.ones_like(keep), keep])
        whole = replace(fits, x=x, y=both, weight=weight)
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
        probable = self.rule in ("probable", "fdr")
        if self.network is None:
            return "additive" if self.estimator is None or probable else "hidden"
        check_choice(who, "network", self.network, ("additive", "hidden"))
        if self.network == "hidden" and probable:
            raise ValueError(
                f"{who}: rule={self.rule!r} needs the probabilities of network='additive'; a "
                "hidden network has none for a column. With it use 'fraction' or 'cross-validated'."
            )
        return self.network

    def _model(self, y: ArrayLike) -> SieveEstimator:
        if self.estimator is not None:
            if not isinstance(self.estimator, SieveEstimator):
                raise TypeError(
                    "SieveSelector: estimator must be a SieveRegressor or SieveClassifier, got "
                    f"{type(self.estimator).__name__}."
                )
            model: SieveEstimator = clone(self.estimator)
        else:
            type_of_target(y, input_name="y")  # raises where y is no target at all
            kind = SieveRegressor if guess_task(np.asarray(y)) == "regression" else SieveClassifier
            model = kind()
        if model.bins is None:
            model.set_params(bins=0)  # paths lead from columns; bins would share their importance
        if model.random_state is None:
            model.set_params(random_state=self.random_state)
        return model

    def _additive_fits(self, model: SieveEstimator, table: Table) -> AdditiveFits:
        return AdditiveFits(table.x, table.y, table.weight, self._seed(), model._groups)

    def _choose(self, phi: Tensor, joint: JointPosterior | None) -> Tensor:
        """The columns that the rule keeps, (p,) bool."""
        if self.rule == "fraction":
            return select_fraction(phi, self.fraction)
        if self.rule == "cross-validated":
            return select_fraction(phi, self.path_.proportion)
        assert joint is not None  # _check lets no other network pass
        if self.rule == "fdr":
            return select_fdr(joint.inclusion, self.level)
        keep = select_threshold(joint.inclusion, self.threshold)
        keep[joint.inclusion.argmax()] = True
        return keep

    def _cross_validate(self, fits: AdditiveFits | PopulationFits) -> None:
        proportions = self.proportions
        if proportions is None:
            grid = PROPORTIONS if isinstance(fits, AdditiveFits) else _FEW_PROPORTIONS
            # Of shares that keep the same number of columns the smallest.
            counts = {max(1, round(s * self.n_features_in_)): s for s in reversed(grid)}
            proportions = tuple(sorted(counts.values()))
        self.path_ = cross_validate_proportion(
            fits,
            len(fits.x),
            torch.Generator().manual_seed(self._seed()),
            proportions=proportions,
            n_folds=self.folds,
            rule="paired",
        )

    def _repeat(self, fits: AdditiveFits | PopulationFits, model: SieveEstimator) -> None:
        """Choose again on bootstrap samples of the rows."""
        source = torch.Generator().manual_seed(self._seed() + 1)
        samples = bootstrap_rows(len(fits.x), self.bootstrap, source)
        if isinstance(fits, AdditiveFits):
            joints = [fits.posterior(rows, tolerance=1.0) for rows in samples]
            choices = [self._choose(normalised(joint.effect), joint) for joint in joints]
        else:
            varies = torch.as_tensor(model.x_scale_.varies)
            phis = [column_importance(q, varies) for (q,) in fits.posteriors(samples)]
            choices = [self._choose(by_column(phi, fits.groups), None) for phi in phis]
        frequency, self.stability_ = selection_stability(torch.stack(choices))
        self.frequency_: NDArray[np.float64] = frequency.double().numpy()

    def _seed(self) -> int:
        return int(check_random_state(self.random_state).randint(2**31 - 2))

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.input_tags.allow_nan = True
        return tags


def _network_fits(model: SieveEstimator, table: Table) -> PopulationFits:
    """Networks of an estimator, with its length of run and no inner folds."""
    settings = model._settings(len(table))
    training = Training(
        settings.epochs, settings.batch_size, settings.schedule, seed=model._seed(),
        device=model.device,
    )  # fmt: skip
    likelihood = model._likelihood(learned_noise=settings.learned_noise)
    network = model._network(table.x.shape[1], settings.widths[1])
    return PopulationFits(
        table.x, table.y, network, likelihood, settings.engine, training, weight=table.weight,
        groups=model._groups,
    )  # fmt: skip
