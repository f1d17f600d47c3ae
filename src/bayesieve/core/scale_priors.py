"""Priors whose width is itself unknown: one scale per layer, or one per unit and layer.

All scales have log-normal posteriors; their KL from a Gamma prior is exact (`log_normal_gamma_kl`).
Equation numbers are those of docs/theory/bmr.md (B) and docs/theory/horseshoe.md (H).
Reference: Marković, Friston and Kiebel (2024), section III and appendix B.
"""

import math
from dataclasses import dataclass, fields
from typing import Self

import torch
from torch import Generator, Tensor
from torch.nn.functional import softplus

from bayesieve.checks import check_positive
from bayesieve.core.priors import Number, member_number

_HALF_LOG_2PI_E = 0.5 * math.log(2 * math.pi * math.e)


def log_normal_gamma_kl(mean: Tensor, log_std: Tensor, shape: Tensor, rate: Tensor) -> Tensor:
    """KL[LogNormal(m, s²) || Gamma(shape, rate)] of each scale, (B9).

    Example:
        >>> zero, one = torch.zeros(()), torch.ones(())
        >>> round(log_normal_gamma_kl(zero, zero, one, one).item(), 4)  # e^½ - ½ log 2πe
        0.2298
    """
    expected = (mean + 0.5 * (2 * log_std).exp()).exp()
    constant = torch.lgamma(shape) - shape * rate.log() - _HALF_LOG_2PI_E
    return constant - log_std - shape * mean + rate * expected


def log_regularised_scale(log_ratio: Tensor, log_slab_precision: Tensor) -> Tensor:
    """Log γ, γ² = c²λ² / (c² + λ²) with log λ² = `log_ratio` and log c⁻², (H3).

    Example:
        >>> round(log_regularised_scale(torch.tensor(0.0), torch.tensor(0.0)).exp().item(), 4)
        0.7071
    """
    return 0.5 * (log_ratio - softplus(log_ratio + log_slab_precision))


@dataclass(frozen=True)
class _Numbers:
    """Positive settings, each one number or one per model of a population."""

    def __post_init__(self) -> None:
        check_positive(
            type(self).__name__, **{spec.name: getattr(self, spec.name) for spec in fields(self)}
        )

    def member(self, index: int) -> Self:
        """The prior of one model of a population."""
        own = {spec.name: member_number(getattr(self, spec.name), index) for spec in fields(self)}
        return type(self)(**own)


@dataclass(frozen=True)
class LayerScaled(_Numbers):
    """w = std · c · ŵ with ŵ ~ N(0, 1) and c⁻² ~ Gamma(shape, rate), one c per layer.

    Args:
        std: γ₀, width of a layer at c = 1.
        last_std: the same for the last layer.
        shape: of c⁻².
        rate: of c⁻².

    Example:
        >>> LayerScaled().std, LayerScaled().last_std
        (0.1, 1.0)
    """

    std: Number = 0.1
    last_std: Number = 1.0
    shape: Number = 2.0
    rate: Number = 2.0


@dataclass(frozen=True)
class Horseshoe(_Numbers):
    """The regularised horseshoe over units: one half-Cauchy scale per unit and per layer.

    Args:
        std: τ₀, the scale of a layer's half-Cauchy.
        shape: of c⁻², the precision of the slab that bounds every scale.
        rate: of c⁻².

    Example:
        >>> draws = Horseshoe(std=1.0).draw(4, n_units=1000, fan_in=2, generator=Generator())
        >>> draws.shape
        torch.Size([4, 1000, 2])
    """

    std: Number = 0.01
    shape: Number = 2.0
    rate: Number = 6.0

    def draw(self, n: int, *, n_units: int, fan_in: int, generator: Generator) -> Tensor:
        """Weights of n layers drawn from the prior, (n, n_units, fan_in)."""
        own = self.member(0)
        std, shape, rate = (float(x) for x in (own.std, own.shape, own.rate))  # type: ignore[arg-type]

        def normals(*size: int) -> Tensor:
            return torch.empty(size, device=generator.device).normal_(generator=generator)

        log_ratio = 2 * math.log(std) + _log_cauchy_square(normals(2, n, 1))
        log_ratio = log_ratio + _log_cauchy_square(normals(2, n, n_units))
        uniform = torch.rand(n, 1, generator=generator, device=generator.device).double().cpu()
        # The Gamma sampler of torch takes no generator: invert its distribution function instead.
        precision = _gamma_quantile(uniform, shape, rate).to(log_ratio)
        log_gamma = log_regularised_scale(log_ratio, precision.log())
        return log_gamma.exp()[..., None] * normals(n, n_units, fan_in)


def _log_cauchy_square(normals: Tensor) -> Tensor:
    """log(a / b), a and b ~ Gamma(½, 1), from normals of shape (2, ...): z²/2 ~ Gamma(½, 1)."""
    return 2 * (normals[0].abs().log() - normals[1].abs().log())


def _gamma_quantile(probability: Tensor, shape: float, rate: float) -> Tensor:
    from scipy.special import gammaincinv

    return torch.as_tensor(gammaincinv(shape, probability.numpy())) / rate
