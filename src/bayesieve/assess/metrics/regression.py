"""Regression metrics from posterior draws of the mean and a noise level.

The predictive density of one target (a vector of m outputs, independent given the weights) is

    p(y) = (1/S) Σ_s Π_j p(y_j; mean_sj, noise_std_j)

with p normal unless another likelihood is named.
"""

import math
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from bayesieve.assess.metrics.inputs import check_same_shape
from bayesieve.core.likelihoods import Gaussian, RealLikelihood, RealPrediction

_NORMAL = Gaussian()


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
    likelihood: RealLikelihood = _NORMAL,
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
        >>> draws = torch.tensor([[0.0], [2.0]])
        >>> round(log_likelihood_mixture(draws, 1.0, torch.tensor([1.0])), 4)
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
        return asdict(self)


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
    prediction = RealPrediction(
        *_check_draws("regression_report", sample_means, noise_std), likelihood
    )
    lower, upper = (end * scale for end in prediction.interval(0.9))
    mean = prediction.mean * scale
    # y = scale * z gives p(y) = p(z) / Π_j scale_j
    log_lik = log_likelihood_mixture(sample_means, noise_std, targets, likelihood)
    log_lik -= float(scale.log().sum())
    targets = targets.detach().double() * scale
    return RegressionReport(
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
    _check_std(who, "noise_std", noise)
    return sample_means, noise


def _check_std(who: str, name: str, std: Tensor) -> None:
    if not bool(((std > 0) & std.isfinite()).all()):
        raise ValueError(f"{who}: {name} must be > 0 and finite, got {float(std.min())}.")


def _check_scale(sample_means: Tensor, target_std: float | Tensor) -> Tensor:
    # one number per output, so that the sum of logs counts each output once
    n_outputs = sample_means.shape[2] if sample_means.ndim == 3 else 1
    scale = torch.as_tensor(target_std, dtype=torch.float64, device=sample_means.device).detach()
    if scale.ndim == 0:
        scale = scale.expand(n_outputs)
    if tuple(scale.shape) != (n_outputs,):
        raise ValueError(
            f"regression_report: target_std must be a number or have shape ({n_outputs},), "
            f"got {tuple(scale.shape)}."
        )
    if not bool(((scale > 0) & scale.isfinite()).all()):
        raise ValueError(f"regression_report: target_std must be > 0, got {float(scale.min())}.")
    return scale
