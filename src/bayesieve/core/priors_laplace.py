"""The spike-and-slab Gaussian-Laplace prior of [Deng], section 3, with its equation numbers.

A prunable weight β of layer l is Laplace(0, σ v₀) when γ = 0 and N(0, σ² v₁) when γ = 1, with
γ ~ Bern(δ_l), δ_l ~ Beta and σ² ~ IG(ν/2, νλ/2). Given estimates ρ of γ, the expected penalties
κ₀ = (1 - ρ)/v₀ and κ₁ = ρ/v₁, the prior's part of the objective is

    Σ_j κ₀ |β| / σ + κ₁ β² / (2σ²).                                    (in eq. 10)

Symbols: v₀ spike_scale, v₁ slab_std², σ scale, δ slab_prob, ρ inclusion, κ₀ and κ₁ the penalties,
ν scale_count, λ scale_square.
Departures: the Beta prior's pseudo-counts are given per weight of the layer, a = 1 + slab_share p
and b = 1 + spike_share p, so that one setting serves layers of any size (the paper's b = p is
spike_share = 1 up to one count); ρ is computed as log-odds, where the ratio of densities is 0/0.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bayesieve.checks import check_fraction, check_not_negative, check_positive
from bayesieve.core.priors import Number, NumbersOfModels, member_number, per_model

_SLAB_STD = math.sqrt(10.0)  # v₁ = 10 as in the regression of [Deng]
_LOGIT_BOUND = 60.0
_SMALLEST_PROB = 1e-12  # keeps an emptied layer from being empty for ever
_SMALLEST_GAP = 1e-7  # of 1 - δ: the resolution of float32


@dataclass(frozen=True)
class GaussianLaplace(NumbersOfModels):
    """(1 - slab_prob) Laplace(0, scale spike_scale) + slab_prob N(0, scale² slab_std²).

    It is the prior of prunable weights; other Bayesian weights are N(0, other_std²). ρ, the
    probability of the Gaussian, rises with |β| up to scale slab_std² / spike_scale only, since the
    Laplace has the heavier tail. Where slab_std is below √2 spike_scale the Gaussian is the narrow
    component; the inclusion that samplers report is then 1 - ρ.

    Args:
        spike_scale: v₀, Laplace scale in units of `scale`.
        slab_std: √v₁, Gaussian standard deviation in units of `scale`.
        slab_prob: starting δ of every layer, and starting ρ of every weight.
        slab_share: pseudo-observations of slab weights per weight in a layer.
        spike_share: the same for spike weights; 0 for both is a flat prior on δ.
        scale: starting σ.
        scale_count: ν, pseudo-observations of the prior guess of σ².
        scale_square: λ, that guess.
        penalty: starting κ₀ and κ₁; kept throughout when nothing adapts.
        other_std: standard deviation of Bayesian weights that are never pruned.
        decay: precision of a normal factor beside the mixture, that is weight decay of prunable
            weights; samplers apply it as it is, with no latent number of its own.

    Example:
        >>> GaussianLaplace(spike_scale=0.1).ranks_by_inclusion()
        True
    """

    spike_scale: Number = 0.1
    slab_std: Number = _SLAB_STD
    slab_prob: Number = 0.5
    slab_share: Number = 0.0
    spike_share: Number = 1.0
    scale: Number = 1.0
    scale_count: Number = 1.0
    scale_square: Number = 1.0
    penalty: Number = 1.0
    other_std: Number = 1.0
    decay: float = 0.0

    def __post_init__(self) -> None:
        check_positive(
            "GaussianLaplace", spike_scale=self.spike_scale, slab_std=self.slab_std,
            scale=self.scale, scale_count=self.scale_count, scale_square=self.scale_square,
            other_std=self.other_std,
        )  # fmt: skip
        check_not_negative(
            "GaussianLaplace", slab_share=self.slab_share, spike_share=self.spike_share,
            penalty=self.penalty, decay=self.decay,
        )  # fmt: skip
        check_fraction("GaussianLaplace", open_ends=True, slab_prob=self.slab_prob)

    def log_prob(self, w: Tensor) -> Tensor:
        """Log density of each prunable weight at starting δ and σ, unnormalised with `decay`."""
        spike_scale = per_model(self.spike_scale, w) * per_model(self.scale, w)
        slab_std = per_model(self.slab_std, w) * per_model(self.scale, w)
        slab_prob = per_model(self.slab_prob, w)
        spike = -w.abs() / spike_scale - (2 * spike_scale).log() + (-slab_prob).log1p()
        slab = -0.5 * (w / slab_std).square() - slab_std.log() - 0.5 * math.log(2 * math.pi)
        return torch.logaddexp(spike, slab + slab_prob.log()) - 0.5 * self.decay * w.square()

    def ranks_by_inclusion(self, member: int = 0) -> bool:
        """Return whether the Gaussian is the wide component: inclusion then marks large weights."""
        slab_std, spike = (member_number(n, member) for n in (self.slab_std, self.spike_scale))
        return slab_std >= math.sqrt(2) * spike


def log_odds_at_zero(slab_prob: Tensor, spike_scale: Tensor, slab_std: Tensor) -> Tensor:
    """Log-odds of ρ, the responsibility of the Gaussian, at a weight of 0, eq. 12; free of σ.

    Example:
        >>> numbers = (torch.tensor(value) for value in (0.5, 0.5, 1.0))
        >>> log_odds_at_zero(*numbers).item()  # -log √(2π): N(0; 0, 1) over Laplace(0; 0, ½)
        -0.9189385175704956
    """
    prob = slab_prob.clamp(_SMALLEST_PROB, 1 - _SMALLEST_GAP)
    start = prob.log() - (-prob).log1p()
    return start + (2 * spike_scale).log() - slab_std.log() - 0.5 * math.log(2 * math.pi)


def log_odds_from(
    start: Tensor, w: Tensor, scale: Tensor, spike_scale: Tensor, slab_std: Tensor
) -> Tensor:
    """Eq. 12 at a weight, given its value at w = 0."""
    size = w.abs() / scale
    odds = start + size / spike_scale - 0.5 * (size / slab_std).square()
    return odds.clamp(-_LOGIT_BOUND, _LOGIT_BOUND)


def penalties(rho: Tensor, spike_scale: Tensor, slab_std: Tensor) -> tuple[Tensor, Tensor]:
    """κ₀ and κ₁, eq. 13."""
    return (1 - rho) / spike_scale, rho / slab_std.square()


def decay_of(prior: object) -> float:
    """Precision of the normal factor beside a GaussianLaplace prior; 0 for any other."""
    return prior.decay if isinstance(prior, GaussianLaplace) else 0.0


def penalty_energy(w: Tensor, laplace: Tensor, gauss: Tensor, scale: Tensor) -> Tensor:
    """κ₀ |β| / σ + κ₁ β² / (2σ²), per weight: the prior's part of -Q₁, eq. 10.

    Example:
        >>> two = torch.tensor(2.0)
        >>> penalty_energy(two, two, two, two).item()  # 2·2/2 + 2·4/8
        3.0
    """
    size = w.abs() / scale
    return laplace * size + 0.5 * gauss * size.square()


def penalty_gradient(w: Tensor, laplace: Tensor, gauss: Tensor, scale: Tensor) -> Tensor:
    """Its gradient; 0 at w = 0, where the Laplace part has a kink."""
    return laplace * w.sign() / scale + gauss * w / scale.square()


def best_scale(laplace_sum: Tensor, square_sum: Tensor, count: Tensor | float) -> Tensor:
    """Maximiser over σ of -count log σ - laplace_sum / σ - square_sum / (2σ²), eq. 14.

    Args:
        laplace_sum: R = Σ κ₀ |β|.
        square_sum: C = Σ κ₁ β² + νλ, plus the residual sum of squares where σ is also the noise.
        count: A = P + ν + 2, plus the number of targets where σ is also the noise. The paper drops
            the 2 in that case.

    Example:
        >>> best_scale(torch.tensor(0.0), torch.tensor(8.0), 2.0).item()
        2.0
    """
    root = (laplace_sum.square() + 4 * count * square_sum).sqrt()
    return (laplace_sum + root) / (2 * count)


def best_slab_prob(mean_rho: Tensor, slab_share: Tensor, spike_share: Tensor) -> Tensor:
    """Maximiser of Q₂ over δ of a layer whose ρ average to `mean_rho`, eq. 15.

    Example:
        >>> half, one = torch.tensor(0.5), torch.tensor(1.0)
        >>> best_slab_prob(half, 0 * one, one).item()
        0.25
    """
    return (mean_rho + slab_share) / (1 + slab_share + spike_share)
