"""Classification metrics from predictive probabilities (N, C) and labels (N,).

The calibration error bins examples by confidence, the largest probability of a row:

    ECE = Σ_b (n_b / N) |accuracy_b - confidence_b|                   ([Guo], eq. 3)

with bins of equal width, or of equal mass as in [Nixon].
"""

from dataclasses import dataclass, fields
from typing import Literal, get_args

import torch
from torch import Tensor

from bayesieve.assess.metrics.inputs import (
    check_labels,
    check_log_probs,
    check_probs,
)
from bayesieve.checks import check_choice, check_positive
from bayesieve.core.likelihoods import ClassPrediction

Binning = Literal["equal-width", "equal-mass"]


def accuracy(probs: Tensor, labels: Tensor) -> float:
    """Share of examples whose most probable class is the label.

    Args:
        probs: shape (N, C).
        labels: whole numbers, shape (N,).

    Example:
        >>> accuracy(torch.tensor([[0.7, 0.3], [0.6, 0.4]]), torch.tensor([0, 1]))
        0.5
    """
    probs = check_probs("accuracy", probs, labels)
    return float((probs.argmax(-1) == labels).double().mean())


def error(probs: Tensor, labels: Tensor) -> float:
    """Share of examples whose most probable class is not the label; arguments as in `accuracy`.

    Example:
        >>> error(torch.tensor([[0.7, 0.3], [0.6, 0.4], [0.1, 0.9]]), torch.tensor([0, 0, 1]))
        0.0
    """
    probs = check_probs("error", probs, labels)
    return float((probs.argmax(-1) != labels).double().mean())


def confusion_matrix(probs: Tensor, labels: Tensor) -> Tensor:
    """Counts of (true class, predicted class), shape (C, C): rows true, columns predicted.

    Example:
        >>> probs = torch.tensor([[0.7, 0.3], [0.6, 0.4], [0.1, 0.9]])
        >>> confusion_matrix(probs, torch.tensor([0, 1, 1])).tolist()
        [[1, 0], [1, 1]]
    """
    probs = check_probs("confusion_matrix", probs, labels)
    n_classes = probs.shape[1]
    cells = labels.long() * n_classes + probs.argmax(-1)
    return torch.bincount(cells, minlength=n_classes**2).reshape(n_classes, n_classes)


def precision_recall_f1(probs: Tensor, labels: Tensor) -> tuple[float, float, float]:
    """Precision, recall and F1, each the plain mean over classes; 0 where a ratio is 0/0.

    Example:
        >>> probs = torch.tensor([[0.7, 0.3], [0.6, 0.4], [0.1, 0.9]])
        >>> precision, recall, f1 = precision_recall_f1(probs, torch.tensor([0, 1, 1]))
        >>> print(f"{precision:.4f} {recall:.4f} {f1:.4f}")
        0.7500 0.7500 0.6667
    """
    counts = confusion_matrix(probs, labels).double()
    hits, true, predicted = counts.diagonal(), counts.sum(1), counts.sum(0)
    precision = hits / predicted.clamp_min(1)  # hits are 0 wherever the count is 0
    recall = hits / true.clamp_min(1)
    f1 = 2 * hits / (true + predicted).clamp_min(1)
    return float(precision.mean()), float(recall.mean()), float(f1.mean())


def negative_log_likelihood(log_probs: Tensor, labels: Tensor) -> float:
    """Mean of -log p(label), nats per example; infinite if a label has probability zero.

    Args:
        log_probs: normalised log-probabilities, shape (N, C).
        labels: whole numbers, shape (N,).

    Example:
        >>> log_probs = torch.tensor([[0.5, 0.5], [0.25, 0.75]]).log()
        >>> round(negative_log_likelihood(log_probs, torch.tensor([0, 0])), 4)  # 1.5 log 2
        1.0397
    """
    log_probs = check_log_probs("negative_log_likelihood", log_probs, labels)
    return -float(log_probs.gather(1, labels.long().unsqueeze(1)).mean())


def brier(probs: Tensor, labels: Tensor) -> float:
    """Mean of Σ_c (p_c - [label = c])², between 0 and 2 (twice the binary convention).

    Example:
        >>> brier(torch.tensor([[0.5, 0.5], [1.0, 0.0]]), torch.tensor([0, 0]))
        0.25
    """
    probs = check_probs("brier", probs, labels)
    one_hot = torch.nn.functional.one_hot(labels.long(), probs.shape[1])
    return float((probs - one_hot).square().sum(-1).mean())


@dataclass(frozen=True)
class ReliabilityBins:
    """Examples grouped by confidence, B bins; an empty bin has confidence and accuracy 0.

    Args:
        confidence: mean largest probability in each bin, B numbers.
        accuracy: share of right predictions in each bin, B numbers.
        count: examples in each bin, B numbers.
        edges: limits of the bins, B + 1 numbers; a bin holds lower < confidence <= upper.
    """

    confidence: tuple[float, ...]
    accuracy: tuple[float, ...]
    count: tuple[int, ...]
    edges: tuple[float, ...]

    @property
    def ece(self) -> float:
        """Mean over examples of |accuracy - confidence| of their bin."""
        gaps = zip(self.confidence, self.accuracy, self.count, strict=True)
        return sum(n * abs(acc - conf) for conf, acc, n in gaps) / sum(self.count)


def reliability_bins(
    probs: Tensor, labels: Tensor, n_bins: int = 15, binning: Binning = "equal-width"
) -> ReliabilityBins:
    """Group examples by the probability of their predicted class.

    Bins of equal mass keep tied confidences together, so that the result does not depend on the
    order of the examples; with many ties some bins are then empty.

    Args:
        probs: shape (N, C).
        labels: whole numbers, shape (N,).
        n_bins: number of bins B.
        binning: bins of equal width in [0, 1], or holding equal shares of the examples.

    Example:
        >>> probs = torch.tensor([[0.8, 0.2], [0.9, 0.1], [0.4, 0.6]])
        >>> bins = reliability_bins(probs, torch.tensor([0, 0, 0]), n_bins=4)
        >>> bins.count, bins.accuracy
        ((0, 0, 1, 2), (0.0, 0.0, 0.0, 1.0))
    """
    check_choice("reliability_bins", "binning", binning, get_args(Binning))
    check_positive("reliability_bins", n_bins=n_bins)
    probs = check_probs("reliability_bins", probs, labels)
    confidence, predicted = probs.max(-1)
    inner = _inner_edges(confidence, n_bins, binning)
    index = torch.bucketize(confidence, inner)  # edge[i-1] < confidence <= edge[i]
    count = torch.bincount(index, minlength=n_bins)
    right = (predicted == labels).double()
    sums = (torch.bincount(index, weights, n_bins) for weights in (confidence, right))
    means = [tuple((total / count.clamp_min(1)).tolist()) for total in sums]
    edges = (0.0, *inner.tolist(), 1.0)
    return ReliabilityBins(means[0], means[1], tuple(count.tolist()), edges)


def ece(probs: Tensor, labels: Tensor, n_bins: int = 15, binning: Binning = "equal-width") -> float:
    """Expected calibration error in [0, 1]; arguments as in `reliability_bins`.

    Example:
        >>> probs = torch.tensor([[0.8, 0.2], [0.8, 0.2]])
        >>> round(ece(probs, torch.tensor([0, 1])), 6)  # 80% sure, right half the time
        0.3
    """
    return reliability_bins(probs, labels, n_bins, binning).ece


def _inner_edges(confidence: Tensor, n_bins: int, binning: Binning) -> Tensor:
    if binning == "equal-width":
        # float64 edges k / n_bins, not a cumulative sum: a confidence of 0.2 then meets edge 0.2
        return torch.arange(1, n_bins, device=confidence.device).double() / n_bins
    ranks = torch.arange(1, n_bins, device=confidence.device) * confidence.numel()
    last = (ranks // n_bins - 1).clamp_min(0)  # index of the last example of each bin
    return confidence.sort().values[last]


@dataclass(frozen=True)
class ClassificationReport:
    """Quality of a classifier's posterior predictive; information in nats per example.

    Args:
        error: share of wrong predictions.
        accuracy: share of right predictions.
        nll: negative log-likelihood.
        brier: Brier score, between 0 and 2.
        ece: calibration error with 15 bins of equal width.
        ece_equal_mass: calibration error with 15 bins of equal mass.
        precision: mean over classes.
        recall: mean over classes.
        f1: mean over classes.
        entropy: mean predictive entropy, the sum of the next two.
        aleatoric: mean expected entropy.
        epistemic: mean mutual information.
        n_examples: N.
        confusion: counts, rows true and columns predicted, C by C; not part of `to_dict`.
    """

    error: float
    accuracy: float
    nll: float
    brier: float
    ece: float
    ece_equal_mass: float
    precision: float
    recall: float
    f1: float
    entropy: float
    aleatoric: float
    epistemic: float
    n_examples: int
    confusion: tuple[tuple[int, ...], ...]

    def to_dict(self) -> dict[str, float]:
        """Return the scalar fields by name, ready for JSON."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "confusion"}


def classification_report(sample_log_probs: Tensor, labels: Tensor) -> ClassificationReport:
    """Summarise posterior draws of class log-probabilities against labels.

    Args:
        sample_log_probs: normalised over classes, shape (S, N, C).
        labels: whole numbers, shape (N,).

    Example:
        >>> draws = torch.tensor([[[0.9, 0.1], [0.2, 0.8]], [[0.7, 0.3], [0.6, 0.4]]]).log()
        >>> report = classification_report(draws, torch.tensor([0, 0]))
        >>> report.error, round(report.brier, 4), report.confusion
        (0.5, 0.4, ((1, 1), (0, 0)))
    """
    shape = tuple(sample_log_probs.shape)
    if len(shape) != 3 or 0 in shape:
        raise ValueError(
            f"classification_report: sample_log_probs must have shape (S, N, C), got {shape}."
        )
    sample_log_probs = check_log_probs("classification_report", sample_log_probs)
    check_labels("classification_report", "each draw", sample_log_probs[0], labels)
    prediction = ClassPrediction(sample_log_probs)
    probs = prediction.probs
    precision, recall, f1 = precision_recall_f1(probs, labels)
    return ClassificationReport(
        error=error(probs, labels),
        accuracy=accuracy(probs, labels),
        nll=negative_log_likelihood(prediction.log_probs, labels),
        brier=brier(probs, labels),
        ece=ece(probs, labels),
        ece_equal_mass=ece(probs, labels, binning="equal-mass"),
        precision=precision,
        recall=recall,
        f1=f1,
        entropy=float(prediction.entropy.mean()),
        aleatoric=float(prediction.aleatoric.mean()),
        epistemic=float(prediction.epistemic.mean()),
        n_examples=len(labels),
        confusion=tuple(map(tuple, confusion_matrix(probs, labels).tolist())),
    )
