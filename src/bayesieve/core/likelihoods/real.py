"""Likelihoods of real numbers."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bayesieve.checks import check_positive
from bayesieve.core.likelihoods.protocol import Extra, Task


class _Real:
    """What likelihoods of real numbers share."""

    @property
    def task(self) -> Task:
        """Real numbers."""
        return "regression"


@dataclass(frozen=True)
class Gaussian(_Real):
    """Normal noise around the output, with one standard deviation for all outputs.

    Args:
        noise_std: standard deviation of the noise, in units of the (standardised) targets; the
            starting value when it is learned.
        learned: whether log noise_std is a point parameter trained with the weights.

    Example:
        >>> Gaussian(noise_std=1.0).log_prob(torch.zeros(1, 1), torch.zeros(1), {}).item()
        -0.9189385175704956
    """

    noise_std: float = 1.0
    learned: bool = False

    def __post_init__(self) -> None:
        check_positive("Gaussian", noise_std=self.noise_std)

    def parameters(self) -> dict[str, Tensor]:
        """The log noise standard deviation, when it is learned."""
        return {"log_noise_std": torch.tensor(math.log(self.noise_std))} if self.learned else {}

    def log_noise(self, extra: Extra) -> Tensor | float:
        """Log noise standard deviation in force, scalar or (k,) for a population."""
        return extra["log_noise_std"] if self.learned else math.log(self.noise_std)

    def log_prob(self, output: Tensor, target: Tensor, extra: Extra) -> Tensor:
        """Log density of each example, shape (n,); several outputs are summed."""
        mean = output.reshape(len(output), -1)
        residual = target.reshape(len(output), -1) - mean
        log_noise = self.log_noise(extra)
        scaled = residual * (
            log_noise.neg().exp() if isinstance(log_noise, Tensor) else math.exp(-log_noise)
        )
        per_output = -0.5 * scaled.square() - log_noise - 0.5 * math.log(2 * math.pi)
        return per_output.sum(1)

    def moments(self, output: Tensor, extra: Extra) -> tuple[Tensor, Tensor]:
        """Means (S, n, m) and the noise's standard deviation, (S, 1, 1)."""
        means = output.reshape(*output.shape[:2], -1)
        return means, _per_draw(self.log_noise(extra), means).exp()

    def check(self, output: Tensor, target: Tensor) -> None:
        """Targets must be real and as many as the outputs."""
        _check_real("Gaussian", output, target)


@dataclass(frozen=True)
class StudentT(_Real):
    """Student-t noise around the output: a few wild targets do not bend the fit.

    Args:
        scale: of the noise, in units of the (standardised) targets; the starting value when it is
            learned. The standard deviation is scale · √(df / (df - 2)).
        df: degrees of freedom, > 2; small ones have heavy tails.
        learned: whether log scale is a point parameter trained with the weights.

    Example:
        >>> round(StudentT(df=3.0).log_prob(torch.zeros(1, 1), torch.zeros(1), {}).item(), 4)
        -1.0009
    """

    scale: float = 1.0
    df: float = 4.0
    learned: bool = False

    def __post_init__(self) -> None:
        check_positive("StudentT", scale=self.scale)
        if not 2 < self.df < math.inf:
            raise ValueError(f"StudentT: df must be > 2 and finite, got {self.df}. Use Gaussian.")

    def parameters(self) -> dict[str, Tensor]:
        """The log scale, when it is learned."""
        return {"log_scale": torch.tensor(math.log(self.scale))} if self.learned else {}

    def log_scale(self, extra: Extra) -> Tensor | float:
        """Log scale in force, scalar or (k,) for a population."""
        return extra["log_scale"] if self.learned else math.log(self.scale)

    def log_prob(self, output: Tensor, target: Tensor, extra: Extra) -> Tensor:
        """Log density of each example, shape (n,); several outputs are summed."""
        mean = output.reshape(len(output), -1)
        log_scale = self.log_scale(extra)
        factor = log_scale.neg().exp() if isinstance(log_scale, Tensor) else math.exp(-log_scale)
        scaled = (target.reshape(len(output), -1) - mean) * factor
        half = 0.5 * (self.df + 1)
        constant = math.lgamma(half) - math.lgamma(0.5 * self.df)
        constant -= 0.5 * math.log(math.pi * self.df)
        per_output = constant - log_scale - half * torch.log1p(scaled.square() / self.df)
        return per_output.sum(1)

    def moments(self, output: Tensor, extra: Extra) -> tuple[Tensor, Tensor]:
        """Means (S, n, m) and the noise's standard deviation, (S, 1, 1)."""
        means = output.reshape(*output.shape[:2], -1)
        growth = math.sqrt(self.df / (self.df - 2))
        return means, growth * _per_draw(self.log_scale(extra), means).exp()

    def check(self, output: Tensor, target: Tensor) -> None:
        """Targets must be real and as many as the outputs."""
        _check_real("StudentT", output, target)


@dataclass(frozen=True)
class Heteroscedastic(_Real):
    """Normal noise whose size depends on the input: the network returns m means, then m log stds.

    The standard deviation is √(min_noise_std² + noise_std² exp(2 s)) for an output s, so that an
    untrained network (s near 0) starts near noise_std, and no density runs away to infinity.

    Args:
        noise_std: in units of the (standardised) targets, where the second half of outputs is 0.
        min_noise_std: below which no noise is believed.

    Example:
        >>> output = torch.tensor([[2.0, 0.0]])  # mean 2, std about 0.5
        >>> means, stds = Heteroscedastic(0.5).moments(output[None], {})
        >>> means.item(), round(stds.item(), 3)
        (2.0, 0.5)
    """

    noise_std: float = 0.5
    min_noise_std: float = 0.01

    def __post_init__(self) -> None:
        check_positive("Heteroscedastic", noise_std=self.noise_std, floor=self.min_noise_std)

    def parameters(self) -> dict[str, Tensor]:
        """Nothing beside the network."""
        return {}

    def moments(self, output: Tensor, extra: Extra) -> tuple[Tensor, Tensor]:
        """Means and standard deviations, both (S, n, m)."""
        means, raw = output.reshape(*output.shape[:2], -1).chunk(2, -1)
        return means, self._variance(raw).sqrt()

    def log_prob(self, output: Tensor, target: Tensor, extra: Extra) -> Tensor:
        """Log density of each example, shape (n,); several outputs are summed."""
        mean, raw = output.reshape(len(output), -1).chunk(2, -1)
        variance = self._variance(raw)
        square = (target.reshape(len(output), -1) - mean).square()
        return -0.5 * (square / variance + variance.log() + math.log(2 * math.pi)).sum(1)

    def check(self, output: Tensor, target: Tensor) -> None:
        """Targets must be real and half as many as the outputs."""
        if output[0].numel() != 2 * target[0].numel():
            raise ValueError(
                f"Heteroscedastic: the network must return a mean and a log std for each of the "
                f"{target[0].numel()} target columns, got {output[0].numel()} outputs."
            )
        _check_real("Heteroscedastic", output.reshape(len(output), -1).chunk(2, -1)[0], target)

    def _variance(self, raw: Tensor) -> Tensor:
        return self.noise_std**2 * (2 * raw).exp() + self.min_noise_std**2


def _per_draw(value: Tensor | float, like: Tensor) -> Tensor:
    """A number, or one for each of the S draws, as a tensor (S, 1, 1)."""
    own = value if isinstance(value, Tensor) else like.new_full((len(like),), value)
    return own[:, None, None]


def _check_real(who: str, output: Tensor, target: Tensor) -> None:
    if not target.is_floating_point():
        raise ValueError(
            f"{who}: targets must be floating point, got {target.dtype}. "
            "Use Categorical for class numbers."
        )
    if output[0].numel() != target[0].numel():
        raise ValueError(
            f"{who}: the network returns {output[0].numel()} outputs per example but "
            f"targets have {target[0].numel()} columns; they must agree."
        )
