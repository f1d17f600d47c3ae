"""Likelihoods of real numbers."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from scipy.special import stdtrit
from torch import Generator, Tensor

from bayesieve.checks import check_fraction, check_positive
from bayesieve.core.likelihoods.base import (
    Channel,
    Numbers,
    RealLikelihood,
    diagonal_roots,
    number,
)


@dataclass(frozen=True)
class Gaussian(RealLikelihood):
    """Normal noise around the output, with one standard deviation for all outputs.

    Args:
        noise_std: standard deviation of the noise, in units of the (standardised) targets; the
            starting value when it is learned.
        learned: whether log noise_std is a point parameter trained with the weights.

    Example:
        >>> Gaussian(noise_std=1.0).log_prob(torch.zeros(1, 1), torch.zeros(1), {}).item()
        -0.9189385175704956
    """

    channel: ClassVar[Channel | None] = "normal"
    noise: ClassVar[tuple[str, ...]] = ("noise_std", "learned")

    noise_std: float = 1.0
    learned: bool = False

    def __post_init__(self) -> None:
        check_positive("Gaussian", noise_std=self.noise_std)

    def parameters(self) -> dict[str, Tensor]:
        """The log noise standard deviation, when it is learned."""
        return {"log_noise_std": torch.tensor(math.log(self.noise_std))} if self.learned else {}

    def log_noise(self, numbers: Numbers) -> Tensor | float:
        """Log noise standard deviation in force, scalar or (k,) for a population."""
        return numbers["log_noise_std"] if self.learned else math.log(self.noise_std)

    def log_prob(self, output: Tensor, target: Tensor, numbers: Numbers) -> Tensor:
        """Log density of each example, shape (n,); several outputs are summed."""
        mean = output.reshape(len(output), -1)
        residual = target.reshape(len(output), -1) - mean
        log_noise = self.log_noise(numbers)
        scaled = residual * (
            log_noise.neg().exp() if isinstance(log_noise, Tensor) else math.exp(-log_noise)
        )
        per_output = -0.5 * scaled.square() - log_noise - 0.5 * math.log(2 * math.pi)
        return per_output.sum(1)

    def moments(self, outputs: Tensor, numbers: Numbers) -> tuple[Tensor, Tensor]:
        """Means (S, n, m) and the noise's standard deviation, (S, 1, 1)."""
        means = outputs.reshape(*outputs.shape[:2], -1)
        return means, _per_draw(self.log_noise(numbers), means).exp()

    def check(self, output: Tensor, target: Tensor) -> None:
        """Targets must be real and as many as the outputs."""
        self.check_targets(output[0].numel(), target)

    def curvature(
        self, output: Tensor, numbers: Numbers, generator: Generator | None = None
    ) -> Iterator[Tensor]:
        """Yield e / noise_std for each output."""
        noise = torch.as_tensor(self.log_noise(numbers), dtype=output.dtype).neg().exp()
        return diagonal_roots(torch.ones_like(output) * noise.to(output.device), generator)

    @property
    def normal_noise(self) -> float:
        """The standard deviation of the noise; the starting value when it is learned."""
        return self.noise_std

    def frozen(self, numbers: Numbers) -> "Gaussian":
        """The same noise, fixed at what was learned."""
        return Gaussian(math.exp(numbers["log_noise_std"])) if self.learned else self

    def scaled(self, factor: float) -> "Gaussian":
        """The noise of targets times `factor`."""
        return Gaussian(self.noise_std * factor, self.learned)

    @classmethod
    def from_dict(cls, row: Mapping[str, Any]) -> "Gaussian":
        """The likelihood of `to_dict`."""
        return cls(number(row, "noise_std", 1.0), row.get("learned") is True)

    @classmethod
    def configured(cls, noise_std: float | None = None, learned: bool | None = None) -> "Gaussian":
        """Learned from 1 unless the noise is given."""
        return cls(*_noise_settings(noise_std, learned))

    def settings(self) -> dict[str, Any]:
        """Noise, and whether it is learned."""
        return {"noise_std": self.noise_std, "learned": self.learned}

    def page(self) -> dict[str, Any]:
        """The output is the mean."""
        return {"output": "normal"}

    def describe(self) -> str:
        """The noise in words."""
        return f"Gaussian with standard deviation {self.noise_std:.4g}"


@dataclass(frozen=True)
class StudentT(RealLikelihood):
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

    noise: ClassVar[tuple[str, ...]] = ("noise_std", "learned")

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

    def log_scale(self, numbers: Numbers) -> Tensor | float:
        """Log scale in force, scalar or (k,) for a population."""
        return numbers["log_scale"] if self.learned else math.log(self.scale)

    def log_prob(self, output: Tensor, target: Tensor, numbers: Numbers) -> Tensor:
        """Log density of each example, shape (n,); several outputs are summed."""
        mean = output.reshape(len(output), -1)
        log_scale = self.log_scale(numbers)
        factor = log_scale.neg().exp() if isinstance(log_scale, Tensor) else math.exp(-log_scale)
        scaled = (target.reshape(len(output), -1) - mean) * factor
        half = 0.5 * (self.df + 1)
        constant = math.lgamma(half) - math.lgamma(0.5 * self.df)
        constant -= 0.5 * math.log(math.pi * self.df)
        per_output = constant - log_scale - half * torch.log1p(scaled.square() / self.df)
        return per_output.sum(1)

    def moments(self, outputs: Tensor, numbers: Numbers) -> tuple[Tensor, Tensor]:
        """Means (S, n, m) and the noise's standard deviation, (S, 1, 1)."""
        means = outputs.reshape(*outputs.shape[:2], -1)
        return means, self._growth * _per_draw(self.log_scale(numbers), means).exp()

    def check(self, output: Tensor, target: Tensor) -> None:
        """Targets must be real and as many as the outputs."""
        self.check_targets(output[0].numel(), target)

    def curvature(
        self, output: Tensor, numbers: Numbers, generator: Generator | None = None
    ) -> Iterator[Tensor]:
        """Yield √((df + 1) / (df + 3)) e / scale for each output."""
        factor = torch.as_tensor(self.log_scale(numbers), dtype=output.dtype).neg().exp()
        size = factor.to(output.device) * math.sqrt((self.df + 1) / (self.df + 3))
        return diagonal_roots(torch.ones_like(output) * size, generator)

    def log_density(self, target: Tensor, mean: Tensor, std: Tensor) -> Tensor:
        """Log density of each target; the scale is std √((df - 2) / df)."""
        half = 0.5 * (self.df + 1)
        constant = math.lgamma(half) - math.lgamma(self.df / 2)
        constant -= 0.5 * math.log(math.pi * (self.df - 2))
        square = ((target - mean) / std).square()
        return constant - std.log() - half * (square / (self.df - 2)).log1p()

    def half_width(self, level: float) -> float:
        """Half of the central interval that holds `level`, in standard deviations."""
        check_fraction("interval", open_ends=True, level=level)
        return float(stdtrit(self.df, (1 + level) / 2)) / self._growth

    def draw(self, mean: Tensor, std: Tensor, generator: Generator) -> Tensor:
        """Targets drawn at random: a normal over the root of a chi-square by its df."""
        normal = torch.empty_like(mean).normal_(generator=generator)
        half = torch.full_like(mean, self.df / 2)
        chi_square = 2 * torch._standard_gamma(half, generator)
        return mean + std / self._growth * normal * (self.df / chi_square).sqrt()

    def frozen(self, numbers: Numbers) -> "StudentT":
        """The same noise, fixed at what was learned."""
        return StudentT(math.exp(numbers["log_scale"]), self.df) if self.learned else self

    def scaled(self, factor: float) -> "StudentT":
        """The noise of targets times `factor`."""
        return StudentT(self.scale * factor, self.df, self.learned)

    @classmethod
    def from_dict(cls, row: Mapping[str, Any]) -> "StudentT":
        """The likelihood of `to_dict`."""
        return cls(number(row, "scale"), number(row, "df"), row.get("learned") is True)

    @classmethod
    def configured(cls, noise_std: float | None = None, learned: bool | None = None) -> "StudentT":
        """A scale learned from 1 unless it is given."""
        scale, is_learned = _noise_settings(noise_std, learned)
        return cls(scale, learned=is_learned)

    def settings(self) -> dict[str, Any]:
        """Scale, and whether it is learned."""
        return {"noise_std": self.scale, "learned": self.learned}

    def page(self) -> dict[str, Any]:
        """The output is the mean."""
        return {"output": "normal", "df": self.df}

    def describe(self) -> str:
        """The noise in words."""
        return f"Student-t with scale {self.scale:.4g} and {self.df:g} degrees of freedom"

    @property
    def _growth(self) -> float:
        """Standard deviation of the noise in units of its scale."""
        return math.sqrt(self.df / (self.df - 2))


@dataclass(frozen=True)
class Heteroscedastic(RealLikelihood):
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

    noise: ClassVar[tuple[str, ...]] = ("noise_std",)

    noise_std: float = 0.5
    min_noise_std: float = 0.01

    def __post_init__(self) -> None:
        check_positive("Heteroscedastic", noise_std=self.noise_std, floor=self.min_noise_std)

    def moments(self, outputs: Tensor, numbers: Numbers) -> tuple[Tensor, Tensor]:
        """Means and standard deviations, both (S, n, m)."""
        means, raw = outputs.reshape(*outputs.shape[:2], -1).chunk(2, -1)
        return means, self._variance(raw).sqrt()

    def log_prob(self, output: Tensor, target: Tensor, numbers: Numbers) -> Tensor:
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
        self.check_targets(output[0].numel() // 2, target)

    def curvature(
        self, output: Tensor, numbers: Numbers, generator: Generator | None = None
    ) -> Iterator[Tensor]:
        """Yield e / std for a mean, e (d std² / ds) / (√2 std²) for the output s behind its std."""
        raw = output.chunk(2, -1)[1]
        variance = self._variance(raw)
        slope = 2 * (variance - self.min_noise_std**2)
        sizes = torch.cat([variance.rsqrt(), slope / (math.sqrt(2) * variance)], -1)
        return diagonal_roots(sizes, generator)

    def n_outputs(self, n: int) -> int:
        """A mean and a log std for each target column."""
        return 2 * n

    @classmethod
    def configured(
        cls, noise_std: float | None = None, learned: bool | None = None
    ) -> "Heteroscedastic":
        """The usual noise of an untrained network unless it is given."""
        if learned is not None:
            raise ValueError(
                "Heteroscedastic: the noise comes from the network; it is always learned."
            )
        return cls() if noise_std is None else cls(noise_std)

    def settings(self) -> dict[str, Any]:
        """The noise of an untrained network."""
        return {"noise_std": self.noise_std}

    def page(self) -> dict[str, Any]:
        """Numbers of the formula of the standard deviation."""
        noise = {"std": self.noise_std, "least": self.min_noise_std}
        return {"output": "heteroscedastic", "noise": noise}

    def describe(self) -> str:
        """The noise in words."""
        return (
            "Gaussian; of an output (mean, s) the standard deviation is "
            f"sqrt({self.min_noise_std:.4g}² + {self.noise_std:.4g}² exp(2 s))"
        )

    def _variance(self, raw: Tensor) -> Tensor:
        return self.noise_std**2 * (2 * raw).exp() + self.min_noise_std**2


def _noise_settings(noise_std: float | None, learned: bool | None) -> tuple[float, bool]:
    """A noise of 1 unless given, learned unless given."""
    is_learned = noise_std is None if learned is None else learned
    return (1.0 if noise_std is None else noise_std), is_learned


def _per_draw(value: Tensor | float, like: Tensor) -> Tensor:
    """A number, or one for each of the S draws, as a tensor (S, 1, 1)."""
    values = value if isinstance(value, Tensor) else like.new_full((len(like),), value)
    return values[:, None, None]
