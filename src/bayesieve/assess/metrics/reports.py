"""The summaries that are printed, stored and compared: one frozen record per task."""

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from bayesieve.assess.metrics.classification import (
    accuracy,
    brier,
    confusion_matrix,
    ece,
    error,
    negative_log_likelihood,
    precision_recall_f1,
)
from bayesieve.assess.metrics.inputs import check_labels, check_sample_log_probs
from bayesieve.assess.metrics.regression import (
    interval_coverage,
    log_likelihood_mixture,
    mae,
    mean_interval_width,
    predictive_moments,
    rmse,
)
from bayesieve.assess.metrics.uncertainty import (
    expected_entropy,
    mutual_information,
    predictive_entropy,
    predictive_log_probs,
)
from bayesieve.core.likelihoods import Gaussian, RealLikelihood

_NORMAL = Gaussian()


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


@dataclass(frozen=True)
class RegressionReport:
    """Quality of a regressor's posterior predictive, in the original unit of the targets.

    Args:
        rmse: root mean squared error of the predictive mean.
        mae: mean absolute error of the predictive mean.
        log_lik: mean log predictive density, nats per example.
        nll: its negative.
        coverage_90: share of targets inside the central 90% interval.
        interval_width_90: mean length of that interval.
        aleatoric_std: mean noise std.
        epistemic_std: mean std of the posterior draws' means.
        n_examples: N.
    """

    rmse: float
    mae: float
    log_lik: float
    nll: float
    coverage_90: float
    interval_width_90: float
    aleatoric_std: float
    epistemic_std: float
    n_examples: int

    def to_dict(self) -> dict[str, float]:
        """Return every field by name, ready for JSON."""
        return {f.name: getattr(self, f.name) for f in fields(self)}


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
    sample_log_probs = check_sample_log_probs("classification_report", sample_log_probs)
    check_labels("classification_report", "each draw", sample_log_probs[0], labels)
    log_probs = predictive_log_probs(sample_log_probs)
    probs = log_probs.exp()
    precision, recall, f1 = precision_recall_f1(probs, labels)
    return ClassificationReport(
        error=error(probs, labels),
        accuracy=accuracy(probs, labels),
        nll=negative_log_likelihood(log_probs, labels),
        brier=brier(probs, labels),
        ece=ece(probs, labels),
        ece_equal_mass=ece(probs, labels, binning="equal-mass"),
        precision=precision,
        recall=recall,
        f1=f1,
        entropy=float(predictive_entropy(sample_log_probs).mean()),
        aleatoric=float(expected_entropy(sample_log_probs).mean()),
        epistemic=float(mutual_information(sample_log_probs).mean()),
        n_examples=len(labels),
        confusion=tuple(map(tuple, confusion_matrix(probs, labels).tolist())),
    )


def regression_report(
    sample_means: Tensor,
    noise_std: float | Tensor,
    targets: Tensor,
    target_std: float | Tensor = 1.0,
    likelihood: RealLikelihood = _NORMAL,
) -> RegressionReport:
    """Summarise posterior draws of the mean against targets, in original units.

    Args:
        sample_means: standardised, shape (S, N, m), or (S, N) for one output.
        noise_std: standardised; see `log_likelihood_mixture`.
        targets: standardised in the same way, shape (N, m) or (N,).
        target_std: what the targets were divided by: a number, or one per output, shape (m,).
        likelihood: the family of the noise.

    Example:
        >>> draws = torch.tensor([[[0.0], [1.0]], [[2.0], [1.0]]])
        >>> targets = torch.tensor([[1.0], [3.0]])
        >>> report = regression_report(draws, 1.0, targets, target_std=10.0)
        >>> report.mae, report.aleatoric_std, report.epistemic_std
        (10.0, 10.0, 5.0)
    """
    scale = _check_scale(sample_means, target_std)
    mean, aleatoric, epistemic = (
        moment * scale for moment in predictive_moments(sample_means, noise_std)
    )
    # y = scale * z gives p(y) = p(z) / Π_j scale_j
    log_lik = log_likelihood_mixture(sample_means, noise_std, targets, likelihood)
    log_lik -= float(scale.log().sum())
    targets = targets.detach().double() * scale
    total = (aleatoric.square() + epistemic.square()).sqrt()
    return RegressionReport(
        rmse=rmse(mean, targets),
        mae=mae(mean, targets),
        log_lik=log_lik,
        nll=-log_lik,
        coverage_90=interval_coverage(mean, total, targets, 0.9, likelihood),
        interval_width_90=mean_interval_width(total, 0.9, likelihood),
        aleatoric_std=float(aleatoric.mean()),
        epistemic_std=float(epistemic.mean()),
        n_examples=len(targets),
    )


def _check_scale(sample_means: Tensor, target_std: float | Tensor) -> Tensor:
    # one number per output, so that the sum of logs counts each output once
    n_outputs = sample_means.shape[2] if sample_means.ndim == 3 else 1
    scale = torch.as_tensor(target_std, dtype=torch.float64, device=sample_means.device).detach()
    if scale.ndim == 0:
        scale = scale.expand(n_outputs)
    if tuple(scale.shape) != (n_outputs,):
        found = tuple(scale.shape)
        raise ValueError(
            f"regression_report: target_std must be a number or have shape ({n_outputs},), "
            f"got {found}."
        )
    if not bool(((scale > 0) & scale.isfinite()).all()):
        raise ValueError(f"regression_report: target_std must be > 0, got {float(scale.min())}.")
    return scale
