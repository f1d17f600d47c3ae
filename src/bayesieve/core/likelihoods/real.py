"""Likelihoods of real numbers."""

import math
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any, ClassVar, Self

import torch
from torch import Generator, Tensor

from bayesieve.checks import check_fraction, check_positive
from bayesieve.core.likelihoods.base import Channel, Likelihood, Numbers, Task, diagonal_roots
from bayesieve.core.likelihoods.prediction import Drawn, RealPrediction, mixture_moments


class RealLikelihood(Likelihood):
    """A likelihood of real numbers with a mean and a standard deviation."""

    task: ClassVar[Task] = "regression"
    delivered: ClassVar[tuple[str, ...]] = ("mean", "aleatoric_std", "epistemic_std")

    @abstractmethod
    def moments(self, outputs: Tensor, numbers: Numbers) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of the targets under S weight vectors.

        Args:
            outputs: (S, n, ...), of the network.
            numbers: learned numbers, each (S, ...).

        Returns:
            Means (S, n, m) and standard deviations that broadcast to them.
        """

    normal: ClassVar[bool] = False  # whether the noise is normal, so that other tails may suit

    def numbers_for(self, noise_std: float) -> dict[str, float]:
        """The learned numbers that give the noise this standard deviation; {} if none can."""
        return {}

    def log_noise_outputs(self, n: int) -> slice:
        """Return the slice of n outputs that predict a log standard deviation; empty by default."""
        return slice(0, 0)

    def log_density(self, target: Tensor, mean: Tensor, std: Tensor) -> Tensor:
        """Log density of each target under this mean and standard deviation: normal by default."""
        return -0.5 * ((target - mean) / std).square() - std.log() - 0.5 * math.log(2 * math.pi)

    def half_width(self, level: float) -> float:
        """Half of the central interval that holds `level`, in standard deviations: of a normal."""
        check_fraction("interval", open_ends=True, level=level)
        return NormalDist().inv_cdf((1 + level) / 2)

    def interval(self, mean: Tensor, std: Tensor, level: float) -> tuple[Tensor, Tensor]:
        """Ends of the central interval that holds `level` of targets of this mean and std."""
        half = self.half_width(level) * std
        return mean - half, mean + half

    def draw(self, mean: Tensor, std: Tensor, generator: Generator) -> Tensor:
        """Targets of this mean and standard deviation, drawn at random: normal by default."""
        return torch.addcmul(mean, std, torch.empty_like(mean).normal_(generator=generator))

    def predictive(self, outputs: Tensor, numbers: Numbers) -> RealPrediction:
        """Means and noise under every weight vector."""
        return RealPrediction(*self.moments(outputs, numbers), self)

    def summary(
        self, outputs: Tensor, numbers: Numbers, drawn: Drawn = "all"
    ) -> tuple[Tensor, ...]:
        """Mean, aleatoric and epistemic standard deviation, (n, m) each."""
        return mixture_moments(*self.moments(outputs, numbers))

    def mistakes(self, output: Tensor, target: Tensor, numbers: Numbers) -> Tensor:
        """Mean squared error of each example, (n,)."""
        rows = {name: value[None] for name, value in numbers.items()}
        mean = self.moments(output[None], rows)[0][0]
        return (mean - target.reshape(len(target), -1)).square().mean(1)

    def check_targets(self, n_means: int, target: Tensor) -> None:
        """Raise unless targets are real and as many as the means."""
        who = type(self).__name__
        if not target.is_floating_point():
            raise ValueError(
                f"{who}: targets must be floating point, got {target.dtype}. "
                "Use Categorical for class numbers."
            )
        if n_means != target[0].numel():
            raise ValueError(
                f"{who}: the network returns {n_means} outputs per example but "
                f"targets have {target[0].numel()} columns; they must agree."
            )


class _OneLevel(RealLikelihood):
    """Noise of one size around the output; its logarithm may be a learned number.

    The dataclasses below have a field `learned` and one for the size, which `size` names.
    """

    noise: ClassVar[tuple[str, ...]] = ("noise_std", "learned")
    size: ClassVar[str]  # the field with the size of the noise
    learned: bool

    @property
    def growth(self) -> float:
        """Standard deviation of the noise by its size."""
        return 1.0

    @property
    def information(self) -> float:
        """Fisher information of the output, times the size squared."""
        return 1.0

    def parameters(self) -> dict[str, Tensor]:
        """The log of the size, when it is learned."""
        start = torch.tensor(math.log(getattr(self, self.size)))
        return {f"log_{self.size}": start} if self.learned else {}

    def log_size(self, numbers: Numbers) -> Tensor | float:
        """Log of the size in force, scalar or (k,) for a population."""
        return numbers[f"log_{self.size}"] if self.learned else math.log(getattr(self, self.size))

    def numbers_for(self, noise_std: float) -> dict[str, float]:
        """The log of the size, when it is learned."""
        return {f"log_{self.size}": math.log(noise_std / self.growth)} if self.learned else {}

    def residuals(self, output: Tensor, target: Tensor, log_size: Tensor | float) -> Tensor:
        """Targets less outputs, by the size of the noise, (n, m)."""
        factor = log_size.neg().exp() if isinstance(log_size, Tensor) else math.exp(-log_size)
        n = len(output)
        return (target.reshape(n, -1) - output.reshape(n, -1)) * factor

    def moments(self, outputs: Tensor, numbers: Numbers) -> tuple[Tensor, Tensor]:
        """Means (S, n, m) and the noise's standard deviation, (S, 1, 1)."""
        means, value = outputs.reshape(*outputs.shape[:2], -1), self.log_size(numbers)
        logs = value if isinstance(value, Tensor) else means.new_full((len(means),), value)
        return means, self.growth * logs[:, None, None].exp()

    def check(self, output: Tensor, target: Tensor) -> None:
        """Targets must be real and as many as the outputs."""
        self.check_targets(output[0].numel(), target)

    def curvature(
        self, output: Tensor, numbers: Numbers, generator: Generator | None = None
    ) -> Iterator[Tensor]:
        """Yield √information e / size for each output."""
        factor = torch.as_tensor(self.log_size(numbers), dtype=output.dtype).neg().exp()
        root = math.sqrt(self.information) * factor.to(output.device)
        return diagonal_roots(torch.ones_like(output) * root, generator)

    def frozen(self, numbers: Numbers) -> Self:
        """The same noise, fixed at what was learned."""
        if not self.learned:
            return self
        return self._with(math.exp(numbers[f"log_{self.size}"]), learned=False)

    def scaled(self, factor: float) -> Self:
        """The noise of targets times `factor`."""
        return self._with(getattr(self, self.size) * factor, learned=self.learned)

    @classmethod
    def configured(cls, noise_std: float | None = None, learned: bool | None = None) -> Self:
        """Noise of size 1, and learned, unless given."""
        size = 1.0 if noise_std is None else noise_std
        return cls()._with(size, learned=noise_std is None if learned is None else learned)

    def settings(self) -> dict[str, Any]:
        """Size, and whether it is learned."""
        return {"noise_std": getattr(self, self.size), "learned": self.learned}

    def _with(self, size: float, *, learned: bool) -> Self:
        return replace(self, **{self.size: size, "learned": learned})  # type: ignore[type-var]


@dataclass(frozen=True)
class Gaussian(_OneLevel):
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
    normal: ClassVar[bool] = True
    size: ClassVar[str] = "noise_std"

    noise_std: float = 1.0
    learned: bool = False

    def __post_init__(self) -> None:
        check_positive("Gaussian", noise_std=self.noise_std)

    @property
    def normal_noise(self) -> float:
        """The standard deviation of the noise; the starting value when it is learned."""
        return self.noise_std

    def log_prob(self, output: Tensor, target: Tensor, numbers: Numbers) -> Tensor:
        """Log density of each example, shape (n,); several outputs are summed."""
        log_noise = self.log_size(numbers)
        scaled = self.residuals(output, target, log_noise)
        per_output = -0.5 * scaled.square() - log_noise - 0.5 * math.log(2 * math.pi)
        return per_output.sum(1)

    def page(self) -> dict[str, Any]:
        """The output is the mean."""
        return {"output": "normal"}

    def describe(self) -> str:
        """The noise in words."""
        return f"Gaussian with standard deviation {self.noise_std:.4g}"


@dataclass(frozen=True)
class StudentT(_OneLevel):
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

    size: ClassVar[str] = "scale"

    scale: float = 1.0
    df: float = 4.0
    learned: bool = False

    def __post_init__(self) -> None:
        check_positive("StudentT", scale=self.scale)
        if not 2 < self.df < math.inf:
            raise ValueError(f"StudentT: df must be > 2 and finite, got {self.df}. Use Gaussian.")

    @property
    def growth(self) -> float:
        """Standard deviation of the noise by its scale."""
        return math.sqrt(self.df / (self.df - 2))

    @property
    def information(self) -> float:
        """Fisher information of the output, times the scale squared."""
        return (self.df + 1) / (self.df + 3)

    def log_prob(self, output: Tensor, target: Tensor, numbers: Numbers) -> Tensor:
        """Log density of each example, shape (n,); several outputs are summed."""
        log_scale = self.log_size(numbers)
        square = self.residuals(output, target, log_scale).square()
        half = 0.5 * (self.df + 1)
        constant = math.lgamma(half) - math.lgamma(0.5 * self.df)
        constant -= 0.5 * math.log(math.pi * self.df)
        per_output = constant - log_scale - half * torch.log1p(square / self.df)
        return per_output.sum(1)

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
        from scipy.special import stdtrit  # here: it takes a third of a second to load

        return float(stdtrit(self.df, (1 + level) / 2)) / self.growth

    def draw(self, mean: Tensor, std: Tensor, generator: Generator) -> Tensor:
        """Targets drawn at random: a normal over the root of a chi-square by its df."""
        normal = torch.empty_like(mean).normal_(generator=generator)
        chi_square = 2 * torch._standard_gamma(torch.full_like(mean, self.df / 2), generator)
        return mean + std / self.growth * normal * (self.df / chi_square).sqrt()

    def page(self) -> dict[str, Any]:
        """The output is the mean."""
        return {"output": "normal", "df": self.df}

    def describe(self) -> str:
        """The noise in words."""
        return f"Student-t with scale {self.scale:.4g} and {self.df:g} degrees of freedom"


@dataclass(frozen=True)
class Heteroscedastic(RealLikelihood):
    """Normal noise whose size depends on the input: the network returns m means, then m log stds.

    The standard deviation is √(min_noise_std² + noise_std² exp(2 s)) for an output s, so that an
    untrained network (s near 0) starts near noise_std, and no density runs away to infinity.

    The gradient of the density goes by 1/std². An untrained network therefore learns most from rows
    that it takes for quiet, and gives the others up as noise, or diverges. During the first half of
    a run the gradient of each target is weighted by std^(2β), where β falls from 1 to 0 [Seitzer];
    then it is that of the density.

    Args:
        noise_std: in units of the (standardised) targets, where the second half of outputs is 0.
        min_noise_std: below which no noise is believed.

    Example:
        >>> output = torch.tensor([[2.0, 0.0]])  # mean 2, std about 0.5
        >>> means, stds = Heteroscedastic(0.5).moments(output[None], {})
        >>> means.item(), round(stds.item(), 2)
        (2.0, 0.5)
    """

    noise: ClassVar[tuple[str, ...]] = ("noise_std",)
    normal: ClassVar[bool] = True
    warm_up: ClassVar[float] = 0.5

    noise_std: float = 0.5
    min_noise_std: float = 0.05

    def __post_init__(self) -> None:
        check_positive("Heteroscedastic", noise_std=self.noise_std, floor=self.min_noise_std)

    def log_noise_outputs(self, n: int) -> slice:
        """The second half."""
        return slice(n // 2, n)

    def moments(self, outputs: Tensor, numbers: Numbers) -> tuple[Tensor, Tensor]:
        """Means and standard deviations, both (S, n, m)."""
        means, raw = outputs.reshape(*outputs.shape[:2], -1).chunk(2, -1)
        return means, self._variance(raw).sqrt()

    def log_prob(self, output: Tensor, target: Tensor, numbers: Numbers) -> Tensor:
        """Log density of each example, shape (n,); several outputs are summed."""
        return self._log_densities(output, target)[0].sum(1)

    def warm_log_prob(
        self, output: Tensor, target: Tensor, numbers: Numbers, warmth: Tensor
    ) -> Tensor:
        """The same numbers, with the gradient of each target times std^(2 warmth)."""
        densities, variance = self._log_densities(output, target)
        value = densities.detach()
        return (value + variance.detach() ** warmth * (densities - value)).sum(1)

    def _log_densities(self, output: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Log densities and variances of the targets, (n, m)."""
        mean, raw = output.reshape(len(output), -1).chunk(2, -1)
        variance = self._variance(raw)
        square = (target.reshape(len(output), -1) - mean).square()
        return -0.5 * (square / variance + variance.log() + math.log(2 * math.pi)), variance

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
