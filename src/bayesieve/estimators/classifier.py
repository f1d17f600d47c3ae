"""A Bayesian network for tables with classes as targets."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import ClassifierMixin
from sklearn.utils import Tags
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import column_or_1d
from torch import Tensor

from bayesieve.checks import check_fraction
from bayesieve.core.likelihoods import Bernoulli, Categorical, Likelihood
from bayesieve.estimators.base import SieveEstimator
from bayesieve.estimators.scale import Array, FloatArray, Seed
from bayesieve.uncertainty.conformal import conformal_labels, label_scores


@dataclass(kw_only=True, eq=False, repr=False)
class SieveClassifier(ClassifierMixin, SieveEstimator):  # type: ignore[misc]
    """Bayesian neural network classification with honest probabilities and sparse export.

    Columns are standardised inside. None is an automatic choice. With targets of m columns
    of 0 and 1 (multi-label) every column is a question of its own, answered by one network.

    Args:
        class_weight: what a row of each class counts, by class, or "balanced" for the inverse of
            its frequency.
        engine, hidden, ...: see `SieveEstimator`.

    Attributes:
        classes_: labels in the order of `predict_proba`'s columns; numbers of the targets' columns
            where there are several.
        sparse_models_, ...: see `SieveEstimator`.

    Example:
        >>> import numpy as np
        >>> X = np.linspace(-1, 1, 64)[:, None]
        >>> y = np.where(X[:, 0] > 0, "yes", "no")
        >>> model = SieveClassifier(hidden=(8,), epochs=40, folds=0, random_state=0).fit(X, y)
        >>> model.predict([[-0.9], [0.9]]).tolist()
        ['no', 'yes']
    """

    class_weight: Mapping[Any, float] | str | None = None
    _y_checks: ClassVar[dict[str, bool]] = {"multi_output": True}

    def partial_fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        classes: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> "SieveClassifier":
        """Learn from more rows: what the rows before have taught is the prior of these.

        Args:
            X: (n, p).
            y: labels, (n,), or 0 and 1, (n, m).
            classes: all labels there will ever be; needed by the first call if it lacks some.
            sample_weight: (n,), what each row counts.

        The first call is `fit` and fixes how columns are standardised. Later calls need a
        posterior of means and standard deviations (engines sbnn, flat-vi, bmr, tdamp).
        """
        known = None if classes is None else np.unique(np.asarray(classes))
        if hasattr(self, "sparse_models_"):
            if known is not None and not np.array_equal(known, self.classes_):
                raise ValueError(f"{self._who}: classes must be those of the first call.")
            self._fit_more(X, y, sample_weight)
            return self
        self._all_classes = known
        try:
            return cast(SieveClassifier, self.fit(X, y, sample_weight))
        finally:
            del self._all_classes

    def predict(self, X: ArrayLike) -> Array:
        """The likeliest label of each row, (n,); 0 and 1, (n, m), of several targets."""
        probs = self.predict_proba(X)
        if self._several:
            return (probs > 0.5).astype(np.int64)
        return np.asarray(self.classes_[probs.argmax(1)])

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """Class probabilities, (n, C), averaged over the posterior; of 1, (n, m), for several."""
        probs: NDArray[np.float64] = self._prediction(X).probs.numpy()
        return probs[..., 1] if self._several else probs / probs.sum(1, keepdims=True)

    def predict_log_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """Logs of the class probabilities, as `predict_proba`."""
        logs: NDArray[np.float64] = self._prediction(X).log_probs.numpy()
        return logs[..., 1] if self._several else logs

    def predict_uncertainty(self, X: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Entropy that stays whatever is learned, and what more rows could resolve, in nats.

        Both are (n,), or (n, m) of several targets.

        The second is that of 1 / `kl_` times as many rows; with kl=1 it is Bayes' rule.
        """
        prediction = self._prediction(X)
        return prediction.aleatoric.numpy(), prediction.epistemic.numpy()

    def predict_set(self, X: ArrayLike, alpha: float = 0.1) -> NDArray[np.bool_]:
        """Labels that together hold the true one with probability 1 - alpha, (n, C) bool.

        The likeliest label is always among them. `uncertainty.conformal` says what is proved.
        """
        check_fraction(self._who, open_ends=True, alpha=alpha)
        models, scores = self._scored()
        probs = np.stack([cast(SieveClassifier, model).predict_proba(X) for model in models])
        inside = conformal_labels(torch.as_tensor(probs), scores, alpha)
        likeliest = self.predict_proba(X).argmax(1)
        inside[torch.arange(len(inside)), torch.as_tensor(likeliest)] = True
        return np.asarray(inside.numpy())

    def sample_y(self, X: ArrayLike, n_samples: int = 1, random_state: Seed = 0) -> Array:
        """Labels drawn from the predictive distribution, (n, n_samples) or (n, m, n_samples)."""
        drawn = self._samples(X, n_samples, random_state).movedim(0, -1).numpy()
        return np.asarray(drawn if self._several else self.classes_[drawn])

    def log_likelihood(self, X: ArrayLike, y: ArrayLike) -> float:
        """Mean log probability of the labels, nats per row; several labels of a row are summed."""
        logs = self._prediction(X).log_probs
        labels = self._labels(np.asarray(y) if self._several else column_or_1d(y))
        return float(logs.gather(-1, labels[..., None]).sum() / len(logs))

    @property
    def _several(self) -> bool:
        """Return whether every row has several targets of 0 and 1."""
        return getattr(self, "_n_labels", 0) > 0  # old pickles have none

    def _labels(self, y: Array) -> Tensor:
        """Class numbers as the network sees them, (n,), or (n, m) of several targets."""
        if self._several:
            if y.ndim != 2 or y.shape[1] != self._n_labels or not np.isin(y, (0, 1)).all():
                raise ValueError(
                    f"{self._who}: y must hold 0 and 1 in {self._n_labels} columns, as before."
                )
            return torch.as_tensor(y.astype(np.int64))
        places = np.searchsorted(self.classes_, y).clip(max=len(self.classes_) - 1)
        unknown = self.classes_[places] != y
        if np.any(unknown):
            raise ValueError(
                f"{self._who}: y holds the label {str(y[unknown][0])!r}, which is none of the "
                f"classes {', '.join(str(label) for label in self.classes_)}."
            )
        return torch.as_tensor(places)

    def _likelihood(self, *, learned_noise: bool) -> Likelihood:
        return Bernoulli() if self._several else Categorical()

    def _validated(self, X: ArrayLike, y: ArrayLike, *, reset: bool) -> tuple[FloatArray, Array]:
        X, y = super()._validated(X, y, reset=reset)
        check_classification_targets(y)
        kind = type_of_target(y)
        if kind == "multiclass-multioutput":
            raise ValueError(
                f"{self._who}: several columns of targets must hold 0 and 1 alone. Fit a model for "
                "each column, or give 0/1 columns."
            )
        return X, y if kind == "multilabel-indicator" else column_or_1d(y, warn=True)

    def _targets(self, y: Array, weight: FloatArray | None, *, reset: bool) -> Tensor:
        if reset:
            known = getattr(self, "_all_classes", None)
            self._n_labels = y.shape[1] if y.ndim == 2 else 0
            if self._several:
                self._refuse_for_several(known)
                known = np.arange(self._n_labels)
            self.classes_ = np.unique(y) if known is None else known
            self.y_scale_ = None
        return self._labels(y)

    def _refuse_for_several(self, classes: Array | None) -> None:
        """Raise for what has a meaning for one label a row only."""
        asked = {"class_weight": self.class_weight, "conformal": self.conformal or None,
                 "classes": classes}  # fmt: skip
        for name, value in asked.items():
            if value is not None:
                raise ValueError(
                    f"{self._who}: {name} is for one label a row; leave it out for several."
                )

    def _row_weights(self, y: Tensor, sample_weight: FloatArray | None) -> FloatArray | None:
        if self.class_weight is None:
            return sample_weight
        labels = self.classes_[y.numpy()]
        present = np.unique(labels)
        weights = compute_class_weight(self.class_weight, classes=present, y=labels)
        counts: FloatArray = weights[np.searchsorted(present, labels)]
        return counts if sample_weight is None else counts * sample_weight

    def _n_outputs(self) -> int:
        return len(self.classes_)

    def _fold_model(self) -> SieveEstimator:
        model = super()._fold_model()
        model._all_classes = self.classes_
        return model

    def _scores(self, X: ArrayLike, y: ArrayLike) -> Tensor:
        """1 - p(label); 1 for a label that the rows to learn from lack."""
        labels = column_or_1d(y)
        known = np.isin(labels, self.classes_)
        scores = torch.ones(len(labels), dtype=torch.float64)
        probs = torch.as_tensor(self.predict_proba(X))[known]
        scores[known] = label_scores(probs, self._labels(labels[known]))
        return scores

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags
