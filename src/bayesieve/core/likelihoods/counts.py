"""Likelihoods of counts: the network returns the logarithm of the mean, one output for each target.

With f the output, μ = rate exp(f) and α the dispersion,

    Poisson             log p(y | f) = y log μ - μ - log y!,                variance μ
    negative binomial   log p(y | f) = log Γ(y + 1/α) - log Γ(1/α) - log y!
                                       + y log μα - (y + 1/α) log(1 + μα),  variance μ + α μ²

and the Fisher information of f is μ and μ / (1 + μα). With α → 0 the second is the first. Both are
one family by mean and standard deviation: α = (std² - μ) / μ². A mixture over weight vectors, whose
variance is above that of its parts, is summed up by this family too. So intervals have ends that
are whole numbers, and none is below 0.

Targets are counts as they are. `rate` is the mean of an untrained network, so that the prior speaks
of factors of it and not of the unit of the counts.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor
from torch.nn import functional as F

from bayesieve.checks import check_fraction, check_positive
from bayesieve.core.likelihoods.base import Numbers, diagonal_roots
from bayesieve.core.likelihoods.real import RealLikelihood

_LEAST = 1e-9  # dispersion below which counts are Poisson
_STIRLING = 50.0  # r from which log Γ(y + r) - log Γ(r) is a series, since it is mostly rounding


class CountLikelihood(RealLikelihood):
    """Counts with mean rate · exp(output); the dataclasses below have a field `rate`."""

    standardised: ClassVar[bool] = False
    rate: float

    def log_dispersion(self, numbers: Numbers) -> Tensor | float:
        """Log of α in force, scalar or (k,) for a population; -inf for Poisson."""
        return -math.inf

    def log_means(self, output: Tensor) -> Tensor:
        """Logs of the means, (n, m), of outputs (n, ...)."""
        return output.reshape(len(output), -1) + math.log(self.rate)

    def moments(self, outputs: Tensor, numbers: Numbers) -> tuple[Tensor, Tensor]:
        """Means (S, n, m) and standard deviations √(μ + α μ²)."""
        mean = self.rate * outputs.reshape(*outputs.shape[:2], -1).exp()
        log_dispersion = self.log_dispersion(numbers)
        if isinstance(log_dispersion, Tensor):
            return mean, (mean + log_dispersion[:, None, None].exp() * mean.square()).sqrt()
        return mean, (mean + math.exp(log_dispersion) * mean.square()).sqrt()

    def log_density(self, target: Tensor, mean: Tensor, std: Tensor) -> Tensor:
        """Log probability of each count under this mean and standard deviation."""
        mean = mean.clamp_min(torch.finfo(mean.dtype).tiny)
        return negative_binomial(target, mean.log(), _log_dispersion(mean, std))

    def interval(self, mean: Tensor, std: Tensor, level: float) -> tuple[Tensor, Tensor]:
        """Quantiles (1 - level) / 2 and (1 + level) / 2 of counts of this mean and std."""
        check_fraction("interval", open_ends=True, level=level)
        mean, std = torch.broadcast_tensors(mean.detach().double(), std.detach().double())
        size = _log_dispersion(mean, std).neg().exp().cpu().numpy()
        ends = [
            torch.as_tensor(_quantile(mean.cpu().numpy(), size, share)).to(mean.device)
            for share in ((1 - level) / 2, (1 + level) / 2)
        ]
        return ends[0], ends[1]

    def draw(self, mean: Tensor, std: Tensor, generator: Generator) -> Tensor:
        """Counts drawn at random: Poisson, of a rate that is gamma distributed where std² > μ."""
        size = _log_dispersion(mean, std).neg().exp()
        gamma = torch._standard_gamma(size, generator) / size
        return torch.poisson(mean * torch.where(size < 1 / _LEAST, gamma, 1.0), generator)

    def curvature(
        self, output: Tensor, numbers: Numbers, generator: Generator | None = None
    ) -> Iterator[Tensor]:
        """Yield √(μ / (1 + μα)) e for each output."""
        mean = self.rate * output.exp()
        log_dispersion = self.log_dispersion(numbers)
        alpha = torch.as_tensor(log_dispersion, dtype=output.dtype, device=output.device).exp()
        return diagonal_roots((mean / (1 + alpha * mean)).sqrt(), generator)

    def check(self, output: Tensor, target: Tensor) -> None:
        """Targets must be whole numbers from 0, one for each output."""
        self.check_targets(output[0].numel(), target)
        if target.device.type != "meta" and bool(((target < 0) | (target != target.round())).any()):
            raise ValueError(
                f"{type(self).__name__}: targets must be counts, whole numbers >= 0, as they are: "
                "not standardised. Use Gaussian for other numbers."
            )

    def around(self, targets: Tensor) -> Self:
        """The same with the mean of these counts as its rate."""
        mean = float(targets.double().mean())
        return replace(self, rate=mean if mean > 0 else 1.0)  # type: ignore[type-var]

    def settings(self) -> dict[str, Any]:
        """The rate."""
        return {"rate": self.rate}

    def scaled(self, factor: float) -> Self | None:
        """Counts have no other unit: itself for a factor of 1."""
        return self if factor == 1 else None


@dataclass(frozen=True)
class Poisson(CountLikelihood):
    """Counts whose variance is their mean, rate · exp(output).

    Args:
        rate: the mean where the output is 0, such as the mean of the training counts.

    Example:
        >>> three = torch.tensor([[3.0]])
        >>> round(Poisson().log_prob(torch.zeros(1, 1), three, {}).item(), 4)  # -1 - log 6
        -2.7918
    """

    rate: float = 1.0

    def __post_init__(self) -> None:
        check_positive("Poisson", rate=self.rate)

    def log_prob(self, output: Tensor, target: Tensor, numbers: Numbers) -> Tensor:
        """Log probability of the counts of each example, shape (n,)."""
        log_mean = self.log_means(output)
        counts = target.reshape(log_mean.shape)
        return (counts * log_mean - log_mean.exp() - torch.lgamma(counts + 1)).sum(1)

    def describe(self) -> str:
        """The noise in words."""
        return "Poisson counts: their variance is their mean"


@dataclass(frozen=True)
class NegativeBinomial(CountLikelihood):
    """Counts of mean μ = rate · exp(output) and variance μ + dispersion · μ².

    Args:
        dispersion: α; the starting value when it is learned.
        rate: the mean where the output is 0, such as the mean of the training counts.
        learned: whether log α is a point parameter trained with the weights.

    Example:
        >>> one = torch.ones(1, 1)  # of mean 1 and α = 1: geometric, 1/4
        >>> NegativeBinomial(1.0).log_prob(torch.zeros(1, 1), one, {}).exp().item()
        0.25
    """

    noise: ClassVar[tuple[str, ...]] = ("learned",)

    dispersion: float = 0.5
    rate: float = 1.0
    learned: bool = False

    def __post_init__(self) -> None:
        check_positive("NegativeBinomial", dispersion=self.dispersion, rate=self.rate)

    def parameters(self) -> dict[str, Tensor]:
        """The log of the dispersion, when it is learned."""
        return {"log_dispersion": torch.tensor(math.log(self.dispersion))} if self.learned else {}

    def log_dispersion(self, numbers: Numbers) -> Tensor | float:
        """Log of α in force, scalar or (k,) for a population."""
        return numbers["log_dispersion"] if self.learned else math.log(self.dispersion)

    def log_prob(self, output: Tensor, target: Tensor, numbers: Numbers) -> Tensor:
        """Log probability of the counts of each example, shape (n,)."""
        log_mean, log_dispersion = self.log_means(output), self.log_dispersion(numbers)
        if not isinstance(log_dispersion, Tensor):
            log_dispersion = torch.full_like(log_mean, log_dispersion)
        counts = target.reshape(log_mean.shape)
        return negative_binomial(counts, log_mean, log_dispersion).sum(1)

    def frozen(self, numbers: Numbers) -> "NegativeBinomial":
        """The same with the dispersion that was learned."""
        if not self.learned:
            return self
        return replace(self, dispersion=math.exp(numbers["log_dispersion"]), learned=False)

    @classmethod
    def configured(
        cls, noise_std: float | None = None, learned: bool | None = None
    ) -> "NegativeBinomial":
        """A dispersion that is learned, unless given."""
        if noise_std is not None:
            raise ValueError("NegativeBinomial: the noise follows from mean and dispersion.")
        return cls(learned=learned is not False)

    def settings(self) -> dict[str, Any]:
        """The rate, and whether the dispersion is learned."""
        return super().settings() | {"learned": self.learned}

    def describe(self) -> str:
        """The noise in words."""
        return f"negative binomial counts: of mean m the variance is m + {self.dispersion:.4g} m²"


def negative_binomial(counts: Tensor, log_mean: Tensor, log_dispersion: Tensor) -> Tensor:
    """Log probability of counts; of a small dispersion the limit is Poisson's, without rounding.

    With r = 1/α it is g(y, r) - log y! + y log μ - (y + r) log(1 + μ / r), where
    g = log Γ(y + r) - log Γ(r) - y log r is Stirling's series where r is large.

    Example:
        >>> alpha, rate = torch.tensor([0.0, -30.0]), torch.tensor(2.0).log()
        >>> negative_binomial(torch.tensor(1.0), rate, alpha).exp()  # 2 / (1 + 2)², 2 exp(-2)
        tensor([0.2222, 0.2707])
    """
    r = log_dispersion.neg().exp()
    near, far = r.clamp_max(_STIRLING), r.clamp_min(_STIRLING)
    gammas = torch.lgamma(counts + near) - torch.lgamma(near) - counts * near.log()
    series = (counts + far - 0.5) * torch.log1p(counts / far) - counts
    series = series + (1 / (counts + far) - 1 / far) / 12
    g = torch.where(r < _STIRLING, gammas, series)
    spread = (counts + r) * F.softplus(log_mean + log_dispersion)
    return g - torch.lgamma(counts + 1) + counts * log_mean - spread


def _log_dispersion(mean: Tensor, std: Tensor) -> Tensor:
    """Log of α = (std² - μ) / μ²; of a variance that is not above the mean a negligible one."""
    mean = mean.clamp_min(torch.finfo(mean.dtype).tiny)
    return ((std.square() / mean - 1) / mean).clamp_min(_LEAST).log()


def _quantile(
    mean: NDArray[np.float64], size: NDArray[np.float64], share: float
) -> NDArray[np.float64]:
    """Smallest count that is not exceeded with probability `share`, by bisection."""
    from scipy.special import betainc, gammaincc  # here: it takes a third of a second to load

    def below(counts: NDArray[np.float64]) -> NDArray[np.float64]:
        poisson = gammaincc(counts + 1, mean)
        spread: NDArray[np.float64] = betainc(size, counts + 1, size / (size + mean))
        return np.where(size < 0.1 / _LEAST, spread, poisson)

    low, high = np.full_like(mean, -1.0), np.ceil(mean) + 1.0
    while (short := below(high) < share).any():
        low, high = np.where(short, high, low), np.where(short, 2 * high, high)
    while (high - low > 1).any():
        middle = np.floor((low + high) / 2)
        enough = below(middle) >= share
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    return high
