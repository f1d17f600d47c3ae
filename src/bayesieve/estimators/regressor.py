"""A Bayesian network for tables with real targets."""

import statistics
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, cast

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import RegressorMixin, clone
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.model_selection import cross_val_predict
from sklearn.utils import Tags, check_random_state
from torch import Tensor

from bayesieve.assess.predict import RealPrediction
from bayesieve.checks import check_choice, check_fraction, check_positive
from bayesieve.core.likelihoods import (
    NAMES,
    Likelihood,
    RealLikelihood,
    likelihood_class,
)
from bayesieve.data.encoding import without_level
from bayesieve.estimators.base import SieveEstimator
from bayesieve.estimators.groups import Group
from bayesieve.estimators.mixture import (
    log_density,
    noise_level,
    predict_members,
    with_noise_factor,
)
from bayesieve.estimators.population import Table
from bayesieve.estimators.scale import Array, FloatArray, Scale, Seed
from bayesieve.estimators.tails import Tails, likeliest_tails
from bayesieve.uncertainty.conformal import conformal_interval, residual_scores

LEVELS = (0.5, 0.8, 0.9, 0.95)
NOISES = sorted(name for name in NAMES if likelihood_class(name).task == "regression")
_COUNTS = tuple(name for name in NOISES if not likelihood_class(name).standardised)
_BASE_FOLDS, _TREES, _LEAST_BOOSTED = 5, 200, 50
_NOISE_KINDS = ("gaussian", "heteroscedastic")  # that "auto" tries
_NOISE_STD = 0.3  # of standardised targets, where learning it starts


@dataclass(kw_only=True, eq=False, repr=False)
class SieveRegressor(RegressorMixin, SieveEstimator):  # type: ignore[misc]
    """Bayesian neural network regression with intervals, importances and sparse export.

    Columns and targets are standardised inside. None is an automatic choice.

    Args:
        likelihood: the noise: "gaussian" (one level, learned), "heteroscedastic" (the network
            predicts it), "student-t" (wild targets count little), "poisson" or "negative-binomial"
            (counts, which are not standardised), or an object such as `Gaussian(0.1)` of
            standardised targets. "auto" takes "gaussian" or "heteroscedastic", under whichever
            rows held out by the inner folds are likelier; it takes twice the time.
        base: "boosting" lets the network learn what gradient boosting leaves: its targets are the
            residuals of boosted trees on rows they have not seen. "auto" does so where held-out
            rows are likelier under it; it takes twice the time.
        engine, hidden, ...: see `SieveEstimator`.

    Attributes:
        noise_factor_: what the learned noise was multiplied with, so that rows held out by the
            inner folds are likeliest; 1 without folds, and for noise that is not learned.
        degrees_of_freedom_: of the density of the targets, chosen by the same rows; None is that of
            the likelihood.
        coverage_: share of held-out targets inside the interval of each level; the mean is that of
            a network of the inner folds, which has not seen them, and noise and tails are
            corrected as those that are delivered. None without folds. Conformal intervals are not
            counted here.
        crps_: continuous ranked probability score of the same rows, in the unit of y; None without
            folds.
        held_out_log_likelihood_: mean log density of the same rows, nats per row; None without.
        base_: "boosting" where boosted trees give the mean that the network corrects, else None.
        likelihood_: the noise that was kept, with "auto".
        auto_scores_: held-out log density per row of everything that "auto" tried, by base ("none"
            or "boosting") and likelihood.
        sparse_models_, ...: see `SieveEstimator`.

    Example:
        >>> import numpy as np
        >>> X = np.linspace(-1, 1, 64)[:, None]
        >>> model = SieveRegressor(hidden=(8,), epochs=60, folds=0, random_state=0)
        >>> mean, std = model.fit(X, 3 * X[:, 0] + 5).predict([[0.5]], return_std=True)
        >>> bool(abs(mean[0] - 6.5) < 0.5), std.shape
        (True, (1,))
    """

    likelihood: str | Likelihood = "gaussian"
    base: Literal["boosting", "auto"] | None = None
    _y_checks: ClassVar[dict[str, bool]] = {"multi_output": True, "y_numeric": True}
    y_scale_: Scale = field(init=False)
    base_: str | None = field(init=False)
    likelihood_: str | Likelihood = field(init=False)
    base_model_: HistGradientBoostingRegressor = field(init=False)

    def partial_fit(
        self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None
    ) -> "SieveRegressor":
        """Learn from more rows: what the rows before have taught is the prior of these.

        The first call is `fit` and fixes how columns are standardised. Later calls need a
        posterior of means and standard deviations (engines sbnn, flat-vi, bmr, tdamp).
        """
        if hasattr(self, "sparse_models_"):
            self._fit_more(X, y, sample_weight)
        else:
            self.fit(X, y, sample_weight)
        return self

    def predict(
        self, X: ArrayLike, return_std: bool = False
    ) -> NDArray[np.float64] | tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The predictive mean, (n,) or (n, m); with `return_std` also the standard deviation."""
        mean, aleatoric, epistemic = self._moments(X)
        if return_std:
            return self._shaped(mean), self._shaped(np.hypot(aleatoric, epistemic))
        return self._shaped(mean)

    def predict_uncertainty(self, X: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Standard deviations of the noise and of what more rows could tell, as `predict`.

        The second is that of 1 / `kl_` times as many rows; with kl=1 it is Bayes' rule.
        """
        _, aleatoric, epistemic = self._moments(X)
        return self._shaped(aleatoric), self._shaped(epistemic)

    def predict_interval(
        self, X: ArrayLike, alpha: float = 0.1, *, level: float | None = None
    ) -> NDArray[np.float64]:
        """Lower and upper end of the interval that holds 1 - alpha, (n, 2) or (n, m, 2).

        Args:
            X: (n, p).
            alpha: share of targets that may be outside.
            level: share inside, in place of alpha.

        With `conformal` they come from residuals of rows that were not learned from, in units of
        the predicted standard deviation; `uncertainty.conformal` says what is proved.
        """
        if level is not None:
            check_fraction(self._who, open_ends=True, level=level)
            alpha = 1 - level
        check_fraction(self._who, open_ends=True, alpha=alpha)
        if self.conformal:
            return self._shaped(self._conformal_interval(X, alpha))
        ends = self._tails.interval(self._family, *self._mean_and_std(X), 1 - alpha)
        return self._shaped(np.asarray(torch.stack(ends, -1).numpy()))

    def predict_quantiles(
        self, X: ArrayLike, quantiles: ArrayLike = (0.05, 0.5, 0.95)
    ) -> NDArray[np.float64]:
        """Quantiles of the targets, (n, q) or (n, m, q), of the law that intervals have.

        Example:
            >>> X = np.linspace(-1, 1, 40)[:, None]
            >>> model = SieveRegressor(hidden=(4,), epochs=5, folds=0, random_state=0)
            >>> ends = model.fit(X, X[:, 0]).predict_quantiles(X, [0.05, 0.95])
            >>> bool(np.allclose(ends, model.predict_interval(X, level=0.9)))
            True
        """
        levels = np.atleast_1d(np.asarray(quantiles, dtype=np.float64))
        check_fraction(self._who, open_ends=True, quantiles=tuple(levels.tolist()))
        mean, std = self._mean_and_std(X)
        found = []
        for q in levels:
            side = max(abs(2 * q - 1), 1e-9)  # the median is in the narrowest interval
            found.append(self._tails.interval(self._family, mean, std, side)[int(q > 0.5)])
        return self._shaped(np.asarray(torch.stack(found, -1).numpy()))

    def sample_y(
        self, X: ArrayLike, n_samples: int = 1, random_state: Seed = 0
    ) -> NDArray[np.float64]:
        """Draws from the predictive distribution, (n, n_samples) or (n, m, n_samples)."""
        check_positive(self._who, n_samples=n_samples)
        seed = int(check_random_state(random_state).randint(2**31))
        generator = torch.Generator().manual_seed(seed)
        targets = self._tails.sample(self._prediction(X), n_samples, generator)
        drawn = np.moveaxis(self.y_scale_.undo(targets) + self._base_mean(X), 0, -1)
        return self._shaped(drawn)

    def sample(self, X: ArrayLike, n: int = 1, random_state: Seed = 0) -> NDArray[np.float64]:
        """Draw n targets for each row; see `sample_y`."""
        return self.sample_y(X, n, random_state)

    def log_likelihood(self, X: ArrayLike, y: ArrayLike) -> float:
        """Mean log density of the targets under the predictive mixture, nats per row."""
        numbers, y = self._numbers(X), np.asarray(y, dtype=np.float64)
        rest = y.reshape(len(numbers), -1) - self._base_mean(X)
        targets = torch.as_tensor((rest - self.y_scale_.mean) / self.y_scale_.std)
        if self._tails.df is None and not without_level(numbers, self.encoding_).any():
            x = self.x_scale_.apply(numbers)
            inside = log_density(self.sparse_models_, x, targets, self.n_samples_)
        else:
            inside = self._tails.log_density(self._prediction(X), targets)
        return float(inside.mean()) - float(np.log(self.y_scale_.std).sum())

    def _moments(self, X: ArrayLike) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Mean, aleatoric and epistemic standard deviation in the targets' units, each (n, m)."""
        prediction = self._prediction(X)
        std = self.y_scale_.std
        aleatoric, epistemic = prediction.aleatoric_std.numpy(), prediction.epistemic_std.numpy()
        mean = self.y_scale_.undo(prediction.mean) + self._base_mean(X)
        return mean, aleatoric * std, epistemic * std

    def _answers(self, numbers: FloatArray) -> Tensor:
        means = self.y_scale_.undo(super()._answers(numbers))
        if getattr(self, "base_", None) is not None:
            means = means + self.base_model_.predict(numbers)[:, None]
        return torch.as_tensor(means)

    def _conformal_interval(self, X: ArrayLike, alpha: float) -> FloatArray:
        """Ends of the intervals of every target, (n, m, 2)."""
        models, scores = self._scored()
        moments = [cast(SieveRegressor, model)._mean_and_std(X) for model in models]
        mean, std = (torch.stack(values) for values in zip(*moments, strict=True))
        ends = []
        for j in range(mean.shape[-1]):
            of_target = [held_out[:, j] for held_out in scores]
            both = conformal_interval(mean[..., j], std[..., j], of_target, alpha)
            ends.append(torch.stack(both, -1))
        return np.asarray(torch.stack(ends, 1).numpy())

    def _mean_and_std(self, X: ArrayLike) -> tuple[Tensor, Tensor]:
        """Predictive mean and standard deviation in the targets' units, (n, m) each."""
        mean, aleatoric, epistemic = self._moments(X)
        return torch.as_tensor(mean), torch.as_tensor(np.hypot(aleatoric, epistemic))

    def _scores(self, X: ArrayLike, y: ArrayLike) -> Tensor:
        """|y - mean| / std, (n, m)."""
        mean, std = self._mean_and_std(X)
        targets = torch.as_tensor(np.asarray(y, dtype=np.float64).reshape(len(mean), -1))
        return residual_scores(mean, std, targets)

    @property
    def _family(self) -> RealLikelihood:
        """The family of the noise."""
        return cast(RealLikelihood, self._likelihood(learned_noise=True))

    @property
    def _tails(self) -> Tails:
        """Tails of the delivered density; the noise factor is in the networks already."""
        return Tails(df=getattr(self, "degrees_of_freedom_", None))  # old pickles have none

    def _shaped(self, values: FloatArray) -> FloatArray:
        """Values (n, m, ...) without the axis of targets where y has none."""
        return values[:, 0] if self._y_ndim == 1 else values

    def _likelihood(self, *, learned_noise: bool) -> Likelihood:
        noise = self.likelihood
        if noise == "auto":
            if not hasattr(self, "likelihood_"):
                raise ValueError(f"{self._who}: only `fit` decides 'auto'; name a likelihood here.")
            noise = self.likelihood_
        if not isinstance(noise, str):
            if getattr(noise, "task", None) != "regression":
                raise TypeError(
                    f"{self._who}: likelihood must be one of {', '.join(NOISES)} or an object such "
                    f"as Gaussian(0.5), got {noise!r}."
                )
            return noise
        check_choice(self._who, "likelihood", noise, NOISES)
        kind = likelihood_class(noise)
        if not kind.standardised:
            counts = kind.configured(learned=learned_noise) if kind.noise else kind()
            return counts.around(self._counts)
        if "learned" not in kind.noise:
            return kind()
        return kind.configured(_NOISE_STD, learned_noise)

    def _targets(self, y: Array, weight: FloatArray | None, *, reset: bool) -> Tensor:
        columns = y.reshape(len(y), -1)
        if reset:
            self._y_ndim = y.ndim
            self._counts = torch.tensor(columns.mean(dtype=np.float64))
            neutral = not (self.standardise and self._family.standardised)
            self.y_scale_ = Scale.of(columns, weight, neutral=neutral)
        elif columns.shape[1] != len(self.y_scale_.std):
            raise ValueError(
                f"{self._who}: y must have {len(self.y_scale_.std)} columns as before, got "
                f"{columns.shape[1]}."
            )
        return self.y_scale_.apply(columns)

    def _n_outputs(self) -> int:
        return self._likelihood(learned_noise=True).n_outputs(len(self.y_scale_.std))

    def _calibrate(self, table: Table, group: Group) -> None:
        """Correct noise and tails by rows that the folds held out; then measure on these rows."""
        self.coverage_ = self.crps_ = self.held_out_log_likelihood_ = None
        self.noise_factor_, self.degrees_of_freedom_ = 1.0, None
        pairs = [(m, rows) for m, rows in zip(group.folds, table.held_out, strict=True) if m]
        if not pairs:
            return
        real = [
            cast(RealPrediction, predict_members(models, table.x[rows], self.n_samples_))
            for models, rows in pairs
        ]
        targets = [table.y[rows] for _, rows in pairs]
        counts = [table.counts()[rows].double() for _, rows in pairs]
        tails = Tails()
        likelihood = cast(RealLikelihood, group.members[0].network.likelihood)
        of_inputs = likelihood.log_noise_outputs(2).stop > 0  # the noise is an output
        if likelihood.numbers_for(1.0) or of_inputs:
            tails, _ = likeliest_tails(real, targets, counts)
            # The level that suits held-out rows is that of the folds.
            of_folds = statistics.fmean(noise_level(m) for models, _ in pairs for m in models)
            of_members = statistics.fmean(noise_level(m) for m in group.members)
            factor = tails.factor * of_folds / of_members
            self.noise_factor_, self.degrees_of_freedom_ = factor, tails.df
            self.sparse_models_ = [with_noise_factor(m, factor) for m in group.members]
            real = [tails.noise_of(prediction) for prediction in real]
        weight = torch.cat(counts) / torch.cat(counts).sum()
        mean, std, target = (
            torch.cat(values) for values in ([p.mean for p in real], [p.std for p in real], targets)
        )
        ends = {level: self._tails.interval(likelihood, mean, std, level) for level in LEVELS}
        self.coverage_ = {
            level: float(weight @ ((low <= target) & (target <= high)).double().mean(1))
            for level, (low, high) in ends.items()
        }
        each = list(zip(real, targets, strict=True))
        unit = torch.as_tensor(self.y_scale_.std)
        ranked = torch.cat([self._tails.crps(p, y) for p, y in each]) * unit
        self.crps_ = float(weight @ ranked.mean(1))
        density = torch.cat([self._tails.log_density(p, y) for p, y in each])
        self.held_out_log_likelihood_ = float(weight @ density) - float(unit.log().sum())

    # Boosted trees as the mean.

    def fit(
        self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None
    ) -> "SieveRegressor":
        """Learn from a table; see `SieveEstimator.fit`."""
        if self.base is not None:
            check_choice(self._who, "base", self.base, ("boosting", "auto"))
        bases = (None, "boosting") if self.base == "auto" else (self.base,)
        kinds = _NOISE_KINDS if self.likelihood == "auto" else (self.likelihood,)
        choices: list[dict[str, Any]] = [
            {"base": base, "likelihood": kind} for base in bases for kind in kinds
        ]
        if len(choices) == 1:
            super().fit(X, y, sample_weight)
            return self
        if self.folds == 0:
            raise ValueError(f"{self._who}: 'auto' needs inner folds to decide; give folds.")
        part = None if self.max_seconds is None else self.max_seconds / len(choices)
        tried = [
            clone(self).set_params(**choice, max_seconds=part).fit(X, y, sample_weight)
            for choice in choices
        ]
        scores = [cast(float, model.held_out_log_likelihood_) for model in tried]
        best = int(np.argmax(scores))
        given = self.get_params()
        for name, value in vars(tried[best]).items():
            if name not in given:
                setattr(self, name, value)
        self.likelihood_ = choices[best]["likelihood"]
        self.auto_scores_ = {
            (choice["base"] or "none", choice["likelihood"]): score
            for choice, score in zip(choices, scores, strict=True)
        }
        return self

    def _base_mean(self, X: ArrayLike) -> FloatArray:
        """Predictions of the trees, (n, 1); 0 without them."""
        if getattr(self, "base_", None) is None:
            return np.zeros((1, 1))
        mean: FloatArray = self.base_model_.predict(self._numbers(X))[:, None]
        return mean

    def _without_base(
        self, X: FloatArray, y: Array, weight: FloatArray | None, *, reset: bool
    ) -> Array:
        """Targets less what boosted trees say of rows that they have not seen."""
        if not reset:
            return y if self.base_ is None else y - self.base_model_.predict(X)
        self.base_ = None
        if self.base is None:
            return y
        if self.base == "auto":
            raise ValueError(f"{self._who}: only `fit` decides 'auto'; name a base here.")
        if y.ndim > 1 and y.shape[1] > 1:
            raise ValueError(f"{self._who}: base='boosting' is for one target, got {y.shape[1]}.")
        if isinstance(self.likelihood, str) and self.likelihood in _COUNTS:
            raise ValueError(f"{self._who}: base='boosting' is for real targets, not for counts.")
        if len(y) < _LEAST_BOOSTED:
            raise ValueError(
                f"{self._who}: base='boosting' needs {_LEAST_BOOSTED} rows, got {len(y)}."
            )
        targets = y.reshape(-1)
        trees = HistGradientBoostingRegressor(
            max_iter=_TREES, learning_rate=0.06, random_state=self._seed()
        )
        order = np.random.default_rng(self._seed()).permutation(len(y))
        held_out = [order[start::_BASE_FOLDS] for start in range(_BASE_FOLDS)]
        folds = [(np.setdiff1d(order, rows), rows) for rows in held_out]
        params = None if weight is None else {"sample_weight": weight}
        unseen = cross_val_predict(trees, X, targets, cv=folds, params=params)
        self.base_model_, self.base_ = trees.fit(X, targets, weight), "boosting"
        return (targets - unseen).reshape(y.shape)

    def export(self, path: str | Path) -> Path:
        """Write the compact model; see `SieveEstimator.export`. Boosted trees cannot be written."""
        if getattr(self, "base_", None) is not None:
            raise ValueError(
                f"{self._who}: export writes the network alone, and with base='boosting' that is "
                "only what the trees leave. Fit with base=None to export."
            )
        return super().export(path)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        tags.target_tags.single_output = True
        return tags
