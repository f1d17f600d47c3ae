"""Numbers that say how good a prediction is: pure functions of tensors, no autograd.

Information is in nats. Everything is computed in float64 on the device of the input, and a wrong
shape, label or probability raises instead of being repaired.

Classification, from predictive probabilities (N, C) and labels (N,): the calibration error bins
examples by confidence, the largest probability of a row,

    ECE = Σ_b (n_b / N) |accuracy_b - confidence_b|                   ([Guo], eq. 3)

with bins of equal width, or of equal mass as in [Nixon].

Regression, from posterior draws of the mean and a noise level: the predictive density of one
target (a vector of m outputs, independent given the weights) is

    p(y) = (1/S) Σ_s Π_j p(y_j; mean_sj, noise_std_j)

with p the density of a likelihood.

The Monte-Carlo error of a number is its standard error over the posterior draws, by the jackknife:
from what the number is without each of the draws, or each of the antithetic pairs, that are
independent.
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

import torch
from torch import Tensor

from bayesieve.checks import check_choice, check_positive
from bayesieve.core.likelihoods.prediction import (
    ClassPrediction,
    Drawn,
    Prediction,
    RealPrediction,
    at_temperature,
    independent_means,
)

if TYPE_CHECKING:
    from bayesieve.core.likelihoods.real import RealLikelihood

Binning = Literal["equal-width", "equal-mass"]

_SUM_TOLERANCE = 1e-3  # how far a row of probabilities may sum from 1, half precision included
_ROUNDING = 1e-15  # of a sum of densities, relative to the largest


# --------------------------------------------------------------------------------- classification


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
    # float64 edges k / n_bins, not a cumulative sum: a confidence of 0.2 then meets edge 0.2
    inner = torch.arange(1, n_bins, device=confidence.device).double() / n_bins
    if binning == "equal-mass":
        ranks = torch.arange(1, n_bins, device=confidence.device) * confidence.numel()
        last = (ranks // n_bins - 1).clamp_min(0)  # index of the last example of each bin
        inner = confidence.sort().values[last]
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


def classification_report(
    sample_log_probs: Tensor, labels: Tensor, drawn: Drawn = "all", temperature: float = 1.0
) -> dict[str, float]:
    """Quality of a classifier's posterior predictive; information in nats per example.

    Args:
        sample_log_probs: draws, normalised over classes, shape (S, N, C).
        labels: whole numbers, shape (N,).
        drawn: how the draws were chosen; see `ClassPrediction`.
        temperature: of the averaged probabilities.

    Returns:
        Numbers by name, ready for JSON:

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

    Example:
        >>> draws = torch.tensor([[[0.9, 0.1], [0.2, 0.8]], [[0.7, 0.3], [0.6, 0.4]]]).log()
        >>> report = classification_report(draws, torch.tensor([0, 0]))
        >>> report["error"], round(report["brier"], 4)
        (0.5, 0.4)
    """
    shape = tuple(sample_log_probs.shape)
    if len(shape) != 3 or 0 in shape:
        raise ValueError(
            f"classification_report: sample_log_probs must have shape (S, N, C), got {shape}."
        )
    sample_log_probs = check_log_probs("classification_report", sample_log_probs)
    check_labels("classification_report", "each draw", sample_log_probs[0], labels)
    prediction = ClassPrediction(sample_log_probs, drawn, temperature)
    probs = prediction.probs
    precision, recall, f1 = precision_recall_f1(probs, labels)
    return dict(
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
    )


# --------------------------------------------------------------------------- draws of a posterior


def monte_carlo_error(prediction: Prediction, targets: Tensor | None = None) -> float:
    """Standard error that the choice of draws leaves in the negative log-likelihood, nats.

    It is 0 where the draws are the whole posterior, and infinite where fewer than two are
    independent.

    Args:
        prediction: with its draws.
        targets: labels (N,) or numbers (N, m). Without them the result is the standard error of
            the prediction itself, a root mean square over inputs: of the probability of the
            likeliest class, or of the mean in predictive standard deviations.

    Example:
        >>> draws = torch.tensor([[[0.8, 0.2]], [[0.6, 0.4]]]).log()
        >>> prediction = ClassPrediction(draws, "independent")
        >>> round(monte_carlo_error(prediction), 4)  # 0.1414 / √2
        0.1
        >>> round(monte_carlo_error(prediction, torch.tensor([0])), 4)  # log(0.8 / 0.6) / 2
        0.1438
    """
    if prediction.drawn == "all":
        return 0.0
    if targets is not None:
        logs = _without_each(prediction, targets).mean(1)
        n = len(logs)
        return float(((n - 1) * logs.var(correction=0)).sqrt()) if n > 1 else math.inf
    if isinstance(prediction, ClassPrediction):
        values = prediction.log_densities(prediction.label).exp()
    else:
        values = prediction.sample_means.detach().double() / prediction.std
    units = independent_means(values, prediction.drawn)
    return float((units.var(0) / len(units)).mean().sqrt()) if len(units) > 1 else math.inf


def _without_each(prediction: Prediction, targets: Tensor) -> Tensor:
    """Log densities of targets without each independent draw, (U, N), less a constant of each."""

    def without(values: Tensor) -> Tensor:
        units = independent_means(values, prediction.drawn)
        n = len(units)
        return ((n * units.mean(0) - units) / max(n - 1, 1)).clamp_min(_ROUNDING).log()

    if isinstance(prediction, ClassPrediction) and prediction.temperature != 1.0:  # all classes
        logs = without(prediction.sample_log_probs.detach().double().exp())
        logs = at_temperature(logs, prediction.temperature)
        return logs.gather(2, targets.long().expand(len(logs), -1)[..., None])[..., 0]
    logs = prediction.log_densities(targets)
    return without((logs - logs.amax(0)).exp())


# ------------------------------------------------------------------------------------- regression


def rmse(mean: Tensor, targets: Tensor) -> float:
    """Root of the mean squared error over all entries; both of shape (N,) or (N, m).

    Example:
        >>> round(rmse(torch.tensor([0.0, 0.0]), torch.tensor([3.0, 4.0])), 4)  # sqrt(12.5)
        3.5355
    """
    mean, targets = check_same_shape("rmse", mean=mean, targets=targets)
    return float((mean - targets).square().mean().sqrt())


def mae(mean: Tensor, targets: Tensor) -> float:
    """Mean absolute error over all entries; both of shape (N,) or (N, m).

    Example:
        >>> mae(torch.tensor([0.0, 0.0]), torch.tensor([3.0, -4.0]))
        3.5
    """
    mean, targets = check_same_shape("mae", mean=mean, targets=targets)
    return float((mean - targets).abs().mean())


def log_likelihood_mixture(
    sample_means: Tensor,
    noise_std: float | Tensor,
    targets: Tensor,
    likelihood: "RealLikelihood",
) -> float:
    """Mean over examples of log (1/S) Σ_s p(y; mean_s, noise_std), nats per example.

    Args:
        sample_means: one mean per posterior draw, shape (S, N) or (S, N, m); with m outputs the
            density is the joint one.
        noise_std: a number, shape (m,), or any shape of as many axes as `sample_means` that
            broadcasts to it.
        targets: shape (N,) or (N, m).
        likelihood: the family of the noise.

    Example:
        >>> from bayesieve.core.likelihoods import Gaussian
        >>> draws = torch.tensor([[0.0], [2.0]])
        >>> round(log_likelihood_mixture(draws, 1.0, torch.tensor([1.0]), Gaussian()), 4)
        -1.4189
    """
    sample_means, noise = _check_draws("log_likelihood_mixture", sample_means, noise_std)
    _, targets = check_same_shape("log_likelihood_mixture", draw=sample_means[0], targets=targets)
    log_density = likelihood.log_density(targets, sample_means, noise)
    if log_density.ndim == 3:
        log_density = log_density.sum(-1)
    n_draws = sample_means.shape[0]
    return float((torch.logsumexp(log_density, 0) - math.log(n_draws)).mean())


def interval_coverage(lower: Tensor, upper: Tensor, targets: Tensor) -> float:
    """Share of targets inside their intervals; near its level for a calibrated model.

    Example:
        >>> interval_coverage(-torch.ones(4), torch.ones(4), torch.tensor([0.0, 1.0, -1.5, 3.0]))
        0.5
    """
    lower, upper, targets = check_same_shape(
        "interval_coverage", lower=lower, upper=upper, targets=targets
    )
    return float(((lower <= targets) & (targets <= upper)).double().mean())


def regression_report(
    sample_means: Tensor,
    noise_std: float | Tensor,
    targets: Tensor,
    likelihood: "RealLikelihood",
    target_std: float | Tensor = 1.0,
) -> dict[str, float]:
    """Quality of a regressor's posterior predictive, in the original unit of the targets.

    Args:
        sample_means: standardised, shape (S, N, m), or (S, N) for one output.
        noise_std: standardised; see `log_likelihood_mixture`.
        targets: standardised in the same way, shape (N, m) or (N,).
        likelihood: the family of the noise.
        target_std: what the targets were divided by: a number, or one per output, shape (m,).

    Returns:
        Numbers by name, ready for JSON:

        rmse: root mean squared error of the predictive mean.
        mae: mean absolute error of the predictive mean.
        log_lik: mean log predictive density, nats per example.
        nll: its negative.
        coverage_90: share of targets inside the central 90% interval.
        interval_width_90: mean length of that interval.
        aleatoric_std: mean noise std.
        epistemic_std: mean std of the posterior draws' means.
        n_examples: N.

    Example:
        >>> from bayesieve.core.likelihoods import Gaussian
        >>> draws = torch.tensor([[[0.0], [1.0]], [[2.0], [1.0]]])
        >>> targets = torch.tensor([[1.0], [3.0]])
        >>> report = regression_report(draws, 1.0, targets, Gaussian(), target_std=10.0)
        >>> report["mae"], report["aleatoric_std"], report["epistemic_std"]
        (10.0, 10.0, 5.0)
    """
    # one number per output, so that the sum of logs counts each output once
    n_outputs = sample_means.shape[2] if sample_means.ndim == 3 else 1
    scale = torch.as_tensor(target_std, dtype=torch.float64, device=sample_means.device).detach()
    if tuple(scale.shape) not in ((), (n_outputs,)):
        raise ValueError(
            f"regression_report: target_std must be a number or have shape ({n_outputs},), "
            f"got {tuple(scale.shape)}."
        )
    scale = scale.expand(n_outputs)
    check_positive("regression_report", target_std=tuple(scale.tolist()))
    prediction = RealPrediction(
        *_check_draws("regression_report", sample_means, noise_std), likelihood
    )
    lower, upper = (end * scale for end in prediction.interval(0.9))
    mean = prediction.mean * scale
    # y = scale * z gives p(y) = p(z) / Π_j scale_j
    log_lik = log_likelihood_mixture(sample_means, noise_std, targets, likelihood)
    log_lik -= float(scale.log().sum())
    targets = targets.detach().double() * scale
    return dict(
        rmse=rmse(mean, targets),
        mae=mae(mean, targets),
        log_lik=log_lik,
        nll=-log_lik,
        coverage_90=interval_coverage(lower, upper, targets),
        interval_width_90=float((upper - lower).mean()),
        aleatoric_std=float((prediction.aleatoric_std * scale).mean()),
        epistemic_std=float((prediction.epistemic_std * scale).mean()),
        n_examples=len(targets),
    )


def _check_draws(
    who: str, sample_means: Tensor, noise_std: float | Tensor
) -> tuple[Tensor, Tensor]:
    shape = tuple(sample_means.shape)
    if len(shape) not in (2, 3):
        raise ValueError(f"{who}: sample_means must have shape (S, N) or (S, N, m), got {shape}.")
    (sample_means,) = check_same_shape(who, sample_means=sample_means)
    noise = torch.as_tensor(noise_std, dtype=torch.float64, device=sample_means.device).detach()
    per_output = len(shape) == 3 and tuple(noise.shape) == shape[2:]
    broadcasts = noise.ndim == len(shape) and all(
        mine in (1, whole) for mine, whole in zip(noise.shape, shape, strict=True)
    )
    if not (noise.ndim == 0 or per_output or broadcasts):
        raise ValueError(
            f"{who}: noise_std must be a number, have shape (m,) or broadcast axis by axis to "
            f"{shape}, got {tuple(noise.shape)}."
        )
    check_positive(who, noise_std=(float(noise.min()), float(noise.max())))
    return sample_means, noise


# ----------------------------------------------------------------------------------------- checks


def check_probs(who: str, probs: Tensor, labels: Tensor) -> Tensor:
    """Return `probs` (N, C) in float64; raise unless rows are distributions over the labels.

    Example:
        >>> check_probs("accuracy", torch.tensor([[0.9, 0.3]]), torch.tensor([0]))
        Traceback (most recent call last):
        ValueError: accuracy: rows of probs must sum to 1, got a row that sums to 1.2.
    """
    check_labels(who, "probs", probs, labels)
    probs = probs.detach().double()
    if not bool(((probs >= 0) & (probs <= 1 + _SUM_TOLERANCE)).all()):
        raise ValueError(f"{who}: probs must be between 0 and 1, got a value outside or a NaN.")
    _check_sums(who, "probs", probs.sum(-1))
    return probs


def check_log_probs(who: str, log_probs: Tensor, labels: Tensor | None = None) -> Tensor:
    """Return `log_probs` (..., N, C) in float64; raise unless each row is normalised.

    Example:
        >>> check_log_probs("brier", torch.tensor([[0.0, 0.0]]))
        Traceback (most recent call last):
        ValueError: brier: rows of exp(log_probs) must sum to 1, got a row that sums to 2. \
Pass log_softmax(logits).
    """
    if labels is not None:
        check_labels(who, "log_probs", log_probs, labels)
    log_probs = log_probs.detach().double()
    advice = " Pass log_softmax(logits)."
    _check_sums(who, "exp(log_probs)", log_probs.exp().sum(-1), advice)
    return log_probs


def check_labels(who: str, name: str, scores: Tensor, labels: Tensor) -> None:
    """Raise unless `scores` is (N, C) and `labels` holds N whole numbers in 0..C-1.

    Example:
        >>> check_labels("brier", "probs", torch.ones(2, 3), torch.tensor([0, 3]))
        Traceback (most recent call last):
        ValueError: brier: labels must lie in 0..2, got 0..3.
    """
    shape = tuple(scores.shape)
    if len(shape) != 2 or 0 in shape:
        raise ValueError(f"{who}: {name} must have shape (N, C), got {shape}.")
    if tuple(labels.shape) != shape[:1]:
        got = tuple(labels.shape)
        raise ValueError(f"{who}: labels must have shape {shape[:1]}, got {got}.")
    if labels.is_floating_point() or labels.is_complex():
        raise TypeError(f"{who}: labels must be whole numbers, got {labels.dtype}.")
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= shape[1]:
        raise ValueError(f"{who}: labels must lie in 0..{shape[1] - 1}, got {low}..{high}.")


def check_same_shape(who: str, **tensors: Tensor) -> list[Tensor]:
    """Return the tensors in float64; raise unless all are finite and of one non-empty shape.

    Example:
        >>> check_same_shape("rmse", mean=torch.zeros(2, 1), targets=torch.zeros(2))
        Traceback (most recent call last):
        ValueError: rmse: mean and targets must have one non-empty shape, got (2, 1) and (2,).
    """
    shapes = [tuple(tensor.shape) for tensor in tensors.values()]
    if len(set(shapes)) != 1 or 0 in shapes[0]:
        names = " and ".join(tensors)
        got = " and ".join(map(str, shapes))
        raise ValueError(f"{who}: {names} must have one non-empty shape, got {got}.")
    for name, tensor in tensors.items():
        if not bool(tensor.isfinite().all()):
            raise ValueError(f"{who}: {name} must be finite, got a NaN or an infinity.")
    return [tensor.detach().double() for tensor in tensors.values()]


def _check_sums(who: str, what: str, sums: Tensor, advice: str = "") -> None:
    gap = (sums - 1).abs()
    if not bool((gap <= _SUM_TOLERANCE).all()):  # written so that a NaN fails
        worst = float(sums.flatten()[gap.flatten().argmax()])
        raise ValueError(
            f"{who}: rows of {what} must sum to 1, got a row that sums to {worst:.4g}.{advice}"
        )
