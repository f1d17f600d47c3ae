"""Precision, recall and F1 of each class, printed as the source prints them.

    precision   right / predicted as this class
    recall      right / truly this class
    F1          2 right / (predicted + true)

A class nobody predicted or nobody belongs to scores 0 where its denominator is 0.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bayesieve.scratch.functions import Labels


@dataclass(frozen=True)
class Scores:
    """One line of the report."""

    precision: float
    recall: float
    f1: float
    support: int


@dataclass(frozen=True)
class ClassificationReport:
    """All lines; `str()` of it is the table.

    Args:
        classes: one entry per class, in label order.
        accuracy: share of right predictions.
        macro: plain mean over classes.
        weighted: mean over classes weighted by support.
    """

    classes: tuple[Scores, ...]
    accuracy: float
    macro: Scores
    weighted: Scores

    def __str__(self) -> str:
        width = len("weighted avg")
        n = self.macro.support
        lines = [f"{'':>{width}}  precision    recall  f1-score   support", ""]
        lines += [_line(str(label), scores, width) for label, scores in enumerate(self.classes)]
        lines += [
            "",
            f"{'accuracy':>{width}}  {'':>9} {'':>9} {self.accuracy:>9.2f} {n:>9}",
            _line("macro avg", self.macro, width),
            _line("weighted avg", self.weighted, width),
        ]
        return "\n".join(lines) + "\n"


def classification_report(
    labels: Labels, predicted: Labels, n_classes: int
) -> ClassificationReport:
    """Compare true and predicted classes, both of shape (N,).

    Example:
        >>> labels, predicted = np.array([0, 0, 1, 2]), np.array([0, 1, 1, 1])
        >>> print(classification_report(labels, predicted, 3))
                      precision    recall  f1-score   support
        <BLANKLINE>
                   0       1.00      0.50      0.67         2
                   1       0.33      1.00      0.50         1
                   2       0.00      0.00      0.00         1
        <BLANKLINE>
            accuracy                           0.50         4
           macro avg       0.44      0.50      0.39         4
        weighted avg       0.58      0.50      0.46         4
        <BLANKLINE>
    """
    counts = confusion(labels, predicted, n_classes)
    right, of_true, of_predicted = np.diag(counts), counts.sum(axis=1), counts.sum(axis=0)
    columns = (
        _ratio(right, of_predicted),
        _ratio(right, of_true),
        _ratio(2 * right, of_true + of_predicted),
    )
    n = len(labels)
    classes = tuple(
        Scores(float(p), float(r), float(f), int(support))
        for p, r, f, support in zip(*columns, of_true, strict=True)
    )
    even = np.full(n_classes, 1 / n_classes)
    means = [[float(column @ share) for column in columns] for share in (even, of_true / n)]
    macro, weighted = (Scores(precision, recall, f1, n) for precision, recall, f1 in means)
    return ClassificationReport(classes, float(right.sum() / n), macro, weighted)


def confusion(labels: Labels, predicted: Labels, n_classes: int) -> NDArray[np.int64]:
    """Counts with true classes as rows and predicted ones as columns.

    Example:
        >>> confusion(np.array([0, 0, 1]), np.array([0, 1, 1]), 2).tolist()
        [[1, 1], [0, 1]]
    """
    if labels.ndim != 1 or labels.shape != predicted.shape or not len(labels):
        raise ValueError(
            "classification_report: labels and predicted must have one shape (N,), N >= 1, got "
            f"{labels.shape} and {predicted.shape}."
        )
    for name, classes in (("labels", labels), ("predicted", predicted)):
        if classes.min() < 0 or classes.max() >= n_classes:
            wrong = classes.min() if classes.min() < 0 else classes.max()
            raise ValueError(
                f"classification_report: {name} must be 0 to {n_classes - 1}, got {wrong}."
            )
    flat = np.bincount(labels * n_classes + predicted, minlength=n_classes**2)
    return flat.reshape(n_classes, n_classes)


def _ratio(part: NDArray[np.int64], whole: NDArray[np.int64]) -> NDArray[np.float64]:
    return part / np.maximum(whole, 1)  # a part of nothing is 0, and 0 / 1 = 0


def _line(name: str, scores: Scores, width: int) -> str:
    ratios = f"{scores.precision:>9.2f} {scores.recall:>9.2f} {scores.f1:>9.2f}"
    return f"{name:>{width}}  {ratios} {scores.support:>9}"
