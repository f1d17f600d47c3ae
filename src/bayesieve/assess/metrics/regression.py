"""Regression metrics from posterior draws of the mean and a noise level.

The predictive density of one target (a vector of m outputs, independent given the weights) is

    p(y) = (1/S) Σ_s Π_j p(y_j; mean_sj, noise_std_j)

with p normal unless another likelihood is named. Its variance splits into noise (aleatoric) and
spread of the means (epistemic). Intervals are those of p with the mean and variance of the mixture.
"""

import math
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from bayesieve.assess.metrics.inputs import check_same_shape
from bayesieve.core.likelihoods import Gaussian, RealLikelihood
from bayesieve.core.likelihoods.prediction import mixture_moments

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


def predictive_moments(
    sample_means: Tensor, noise_std: float | Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, aleatoric std and epistemic std of the mixture, each (N,) or (N, m).

    Their squares add up to the variance of the mixture, so the epistemic part divides by S.

    Example:
        >>> mean, aleatoric, epistemic = predictive_moments(torch.tensor([[0.0], [2.0]]), 0.5)
        >>> mean.item(), aleatoric.item(), epistemic.item()
        (1.0, 0.5, 1.0)
    """
    sample_means, noise = _check_draws("predictive_moments", sample_means, noise_std)
    return mixture_moments(sample_means, noise)


def interval(
    mean: Tensor, std: Tensor, level: float, likelihood: RealLikelihood = _NORMAL
) -> tuple[Tensor, Tensor]:
    """Lower and upper end of the central interval that holds `level` of the mass.

    Args:
        mean: any shape.
        std: same shape.
        level: strictly between 0 and 1.
        likelihood: the family, with this mean and standard deviation.

    Example:
        >>> lower, upper = interval(torch.zeros(1), torch.ones(1), 0.9)
        >>> round(lower.item(), 3), round(upper.item(), 3)
        (-1.645, 1.645)
    """
    half = likelihood.half_width(level)
    mean, std = check_same_shape("interval", mean=mean, std=std)
    _check_std("interval", "std", std)
    return mean - half * std, mean + half * std


def interval_coverage(
    mean: Tensor,
    std: Tensor,
    targets: Tensor,
    level: float,
    likelihood: RealLikelihood = _NORMAL,
) -> float:
    """Share of targets inside the central interval; near `level` for a calibrated model.

    Example:
        >>> mean, std, targets = torch.zeros(4), torch.ones(4), torch.tensor([0.0, 1.0, -1.5, 3.0])
        >>> interval_coverage(mean, std, targets, level=0.9)
        0.75
    """
    lower, upper = interval(mean, std, level, likelihood)
    _, targets = check_same_shape("interval_coverage", mean=mean, targets=targets)
    return float(((lower <= targets) & (targets <= upper)).double().mean())


def mean_interval_width(std: Tensor, level: float, likelihood: RealLikelihood = _NORMAL) -> float:
    """Mean length of the central interval, in the unit of the targets.

    Example:
        >>> round(mean_interval_width(torch.tensor([1.0, 3.0]), level=0.9), 3)  # 2 * 2 * 1.645
        6.579
    """
    lower, upper = interval(torch.zeros_like(std), std, level, likelihood)
    return float((upper - lower).mean())


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
