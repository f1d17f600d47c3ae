"""A Bayesian network for tables with real targets."""

from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import RegressorMixin
from sklearn.utils.validation import validate_data
from torch import Tensor

from bayesieve.assess.conformal import conformal_interval, residual_scores
from bayesieve.assess.predict import RealPrediction
from bayesieve.checks import check_choice, check_fraction
from bayesieve.core.likelihoods import (
    NAMES,
    Likelihood,
    RealLikelihood,
    likelihood_class,
)
from bayesieve.estimators.base import FloatArray, Scale, SieveEstimator
from bayesieve.estimators.population import (
    Group,
    Table,
    held_out_noise,
    is_point,
    log_density,
    predict_members,
    with_noise,
)

LEVELS = (0.5, 0.8, 0.9, 0.95)
NOISES = sorted(name for name in NAMES if likelihood_class(name).task == "regression")
_NOISE_STD = 0.3  # of standardised targets, where learning it starts


@dataclass(kw_only=True, eq=False, repr=False)
class SieveRegressor(RegressorMixin, SieveEstimator):  # type: ignore[misc]
    """Bayesian neural network regression with intervals, importances and sparse export.

    Columns and targets are standardised inside. None stands for an automatic choice.

    Args:
        likelihood: the noise: "gaussian" (one level, learned), "heteroscedastic" (the network
            predicts it), "student-t" (wild targets count little), "poisson" or "negative-binomial"
            (counts, which are not standardised), or an object such as `Gaussian(0.1)` of
            standardised targets.
        engine, hidden, ...: see `SieveEstimator`.

    Attributes:
        coverage_: share of targets inside the interval of each level, with the mean and doubt of
            networks of the inner folds, which have not seen them, and the noise that is delivered;
            None without folds. Conformal intervals are not counted here.
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
    y_scale_: Scale = field(init=False)

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

        The second is the doubt of 1 / `kl_` times the rows; with kl=1 it is Bayes' rule.
        """
        _, aleatoric, epistemic = self._moments(X)
        return self._shaped(aleatoric), self._shaped(epistemic)

    def predict_interval(self, X: ArrayLike, alpha: float = 0.1) -> NDArray[np.float64]:
        """Lower and upper end of the interval that holds 1 - alpha, (n, 2) or (n, m, 2).

        With `conformal` they come from residuals of rows that were not learned from, in units of
        the predicted standard deviation; `assess.conformal` says what is proved.
        """
        check_fraction(self._who, open_ends=True, alpha=alpha)
        if self.conformal:
            return self._shaped(self._conformal_interval(X, alpha))
        ends = self._family.interval(*self._mean_and_std(X), 1 - alpha)
        return self._shaped(np.asarray(torch.stack(ends, -1).numpy()))

    def sample_y(
        self, X: ArrayLike, n_samples: int = 1, random_state: Any = 0
    ) -> NDArray[np.float64]:
        """Draws from the predictive distribution, (n, n_samples) or (n, m, n_samples)."""
        targets = self._samples(X, n_samples, random_state)
        return self._shaped(np.moveaxis(self.y_scale_.undo(targets), 0, -1))

    def log_likelihood(self, X: ArrayLike, y: ArrayLike) -> float:
        """Mean log density of the targets under the predictive mixture, nats per row."""
        x, y = self._inputs(X), np.asarray(y, dtype=np.float64)
        targets = self.y_scale_.apply(y.reshape(len(x), -1)).double()
        inside = log_density(self.sparse_models_, x, targets, self.n_samples_)
        return float(inside.mean()) - float(np.log(self.y_scale_.std).sum())

    def _moments(self, X: ArrayLike) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Mean, aleatoric and epistemic standard deviation in the targets' units, each (n, m)."""
        prediction = self._prediction(X)
        std = self.y_scale_.std
        aleatoric, epistemic = prediction.aleatoric_std.numpy(), prediction.epistemic_std.numpy()
        return self.y_scale_.undo(prediction.mean), aleatoric * std, epistemic * std

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

    def _scores(self, X: Any, y: Any) -> Tensor:
        """|y - mean| / std, (n, m)."""
        mean, std = self._mean_and_std(X)
        targets = torch.as_tensor(np.asarray(y, dtype=np.float64).reshape(len(mean), -1))
        return residual_scores(mean, std, targets)

    @property
    def _family(self) -> RealLikelihood:
        """The family of the noise."""
        return cast(RealLikelihood, self._likelihood(learned_noise=True))

    def _shaped(self, values: FloatArray) -> FloatArray:
        """Values (n, m, ...) without the axis of targets where y has none."""
        return values[:, 0] if self._y_ndim == 1 else values

    def _likelihood(self, *, learned_noise: bool) -> Likelihood:
        noise = self.likelihood
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

    def _validated(self, X: ArrayLike, y: ArrayLike, *, reset: bool) -> tuple[Any, Any]:
        X, y = validate_data(
            self, X, y, dtype=np.float64, multi_output=True, y_numeric=True, reset=reset
        )
        return X, y

    def _targets(self, y: Any, weight: FloatArray | None, *, reset: bool) -> Tensor:
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

    def _n_outputs(self, y: Tensor) -> int:
        return self._likelihood(learned_noise=True).n_outputs(y.shape[1])

    def _calibrate(self, table: Table, group: Group) -> None:
        self.coverage_ = None
        pairs = [(m, rows) for m, rows in zip(group.folds, table.held_out, strict=True) if m]
        if not pairs:
            return
        real = [
            cast(RealPrediction, predict_members(models, table.x[rows], self.n_samples_))
            for models, rows in pairs
        ]
        targets = [table.y[rows] for _, rows in pairs]
        counts = [table.counts()[rows].double() for _, rows in pairs]
        one_level = bool(self._family.numbers_for(1.0))
        if one_level and all(is_point(model) for model in self.sparse_models_):
            noise = held_out_noise(real, targets, counts)
            self.sparse_models_ = [with_noise(model, noise) for model in self.sparse_models_]
        delivered = predict_members(self.sparse_models_, table.x[:2], self.n_samples_)
        level = cast(RealPrediction, delivered).noise_std
        stds = [p.std for p in real]
        if level.shape[1] == 1:  # one level of noise: that of what is delivered, not the fold's
            stds = [torch.hypot(p.epistemic_std, level.square().mean().sqrt()) for p in real]
        mean, std, target = torch.cat([p.mean for p in real]), torch.cat(stds), torch.cat(targets)
        weight = torch.cat(counts) / torch.cat(counts).sum()
        ends = {level: self._family.interval(mean, std, level) for level in LEVELS}
        self.coverage_ = {
            level: float(weight @ ((low <= target) & (target <= high)).double().mean(1))
            for level, (low, high) in ends.items()
        }

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        tags.target_tags.single_output = True
        return tags
