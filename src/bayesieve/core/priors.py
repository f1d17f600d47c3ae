"""Priors of the weights and their closed forms: frozen dataclasses without tensors, pure functions.

Numbers may be tuples with one entry per model of a population (see `Number`).

- `Normal` and `SpikeSlab` are densities of single weights. Equations 3.x are those of [Saha].
- `LayerScaled` and `Horseshoe` have an unknown width: one scale per layer, or one per unit and
  layer. Reference: Marković, Friston and Kiebel (2024), section III and appendix B. Equations B are
  those of docs/theory/bmr.md, H those of docs/theory/horseshoe.md.
- `GaussianLaplace` is the spike and slab of [Deng], section 3, whose latent numbers samplers learn.
- `GroupSparse` keeps or removes a group of weights as a whole (TDAMP).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Literal, Self

import torch
from torch import Tensor

from bayesieve.checks import (
    AUTO,
    check_choice,
    check_fraction,
    check_not_negative,
    check_positive,
    chosen,
)

Number = float | tuple[float, ...]
Group = Literal["units", "inputs", "weights"]
GROUPS: tuple[Group, ...] = ("units", "inputs", "weights")

_WIDE_STD, _NARROW_STD = math.exp(-1), math.exp(-3)  # measured best on MNIST, docs/theory/sbnn.md
_SLAB_STD = math.sqrt(10.0)  # v₁ = 10 as in the regression of [Deng]
_LOGIT_BOUND = 60.0
_SMALLEST_PROB = 1e-12  # keeps an emptied layer from being empty for ever
_SMALLEST_GAP = 1e-7  # of 1 - δ: the resolution of float32
_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)
_HALF_LOG_2PI_E = 0.5 * math.log(2 * math.pi * math.e)


def per_model(value: Number, like: Tensor) -> Tensor:
    """A setting as a tensor on the device of `like`: scalar, or (k, 1) for a tuple of k numbers."""
    if isinstance(value, tuple) and like.dim() == 2 and len(value) != len(like):
        raise _wrong_count(value)
    tensor = torch.tensor(value, dtype=like.dtype, device=like.device)
    return tensor if tensor.dim() == 0 else tensor[:, None]


def member_number(value: Number, member: int) -> float:
    """The number that model `member` of a population uses."""
    if isinstance(value, tuple) and member >= len(value):
        raise _wrong_count(value)
    return value[member] if isinstance(value, tuple) else value


def _wrong_count(value: tuple[float, ...]) -> ValueError:
    return ValueError(
        "fit: a setting given as a tuple must hold one number per model; the number of models is "
        f"not {len(value)}, the length of {value}."
    )


@dataclass(frozen=True)
class _Numbers:
    """Settings that are each one number or one per model of a population."""

    def member(self, index: int) -> Self:
        """The prior of one model of a population."""
        numbers = {f.name: member_number(getattr(self, f.name), index) for f in fields(self)}
        return type(self)(**numbers)


@dataclass(frozen=True)
class Normal(_Numbers):
    """N(0, std²) on every weight.

    Example:
        >>> Normal(std=1.0).log_prob(torch.zeros(1)).item()
        -0.9189385175704956
    """

    std: Number = 1.0

    def __post_init__(self) -> None:
        check_positive("Normal", std=self.std)

    def log_prob(self, w: Tensor) -> Tensor:
        """Log density of each weight."""
        std = per_model(self.std, w)
        return -0.5 * (w / std).square() - std.log() - _HALF_LOG_2PI


def normal_kl(mean: Tensor, log_std: Tensor, prior_std: Tensor) -> Tensor:
    """KL[N(m, s²) || N(0, τ²)] per weight.

    Example:
        >>> normal_kl(torch.tensor(1.0), torch.tensor(0.0), torch.tensor(1.0)).item()
        0.5
    """
    ratio = (mean.square() + (2 * log_std).exp()) / prior_std.square()
    return 0.5 * (ratio - 1) + prior_std.log() - log_std


@dataclass(frozen=True)
class SpikeSlab(_Numbers):
    """slab_prob · N(0, slab_std²) + (1 - slab_prob) · N(0, spike_std²) on every weight.

    Args:
        slab_std: τ₁, standard deviation of weights that matter.
        spike_std: τ₀ ≤ τ₁, standard deviation of weights that do not.
        slab_prob: π, prior probability that a weight matters.

    Example:
        >>> prior = SpikeSlab(slab_std=1.0, spike_std=0.1)
        >>> [round(std, 3) for std in prior.stationary_stds()]  # spike, unstable point, slab
        [0.108, 0.301, 1.0]
    """

    slab_std: Number = AUTO
    spike_std: Number = AUTO
    slab_prob: Number = 0.5

    def __post_init__(self) -> None:
        check_positive("SpikeSlab", slab_std=self.slab_std, spike_std=self.spike_std)
        check_fraction("SpikeSlab", open_ends=True, slab_prob=self.slab_prob)
        numbers = (*self.stds, self.slab_prob)
        lengths = {len(number) for number in numbers if isinstance(number, tuple)}
        if len(lengths) > 1:
            raise ValueError(
                f"SpikeSlab: tuples must have one length (one number per model), got {lengths}."
            )
        for index in range(max(lengths, default=1)):
            slab, spike = (member_number(n, index) for n in self.stds)
            if spike > slab:
                raise ValueError(
                    f"SpikeSlab: spike_std must be <= slab_std, got {spike} > {slab}. "
                    "Swap them: the slab is the wide component."
                )

    @property
    def stds(self) -> tuple[Number, Number]:
        """The stds of slab and spike, with plain numbers for those nobody chose."""
        return chosen(self.slab_std, _WIDE_STD), chosen(self.spike_std, _NARROW_STD)

    def member(self, index: int) -> "SpikeSlab":
        """The prior of one model of a population, as numbers."""
        numbers = (member_number(number, index) for number in (*self.stds, self.slab_prob))
        return SpikeSlab(*numbers)

    def log_prob(self, w: Tensor) -> Tensor:
        """Log density of each weight."""
        slab_prob, (slab_std, spike_std) = per_model(self.slab_prob, w), self.stds
        slab = Normal(slab_std).log_prob(w) + slab_prob.log()
        spike = Normal(spike_std).log_prob(w) + (-slab_prob).log1p()
        return torch.logaddexp(slab, spike)

    def stationary_stds(self, member: int = 0) -> tuple[float, ...]:
        """The stds at which a weight with mean 0 and no data rests, ascending: one or three.

        Three means spike, unstable point, slab: a weight that starts above the middle one and
        meets no data drifts into the slab and reports inclusion near 1.
        """
        slab, spike = (member_number(n, member) for n in self.stds)
        ends = math.log10(spike / 2), math.log10(slab * 2)
        grid = torch.logspace(*ends, 20001, dtype=torch.float64)
        energy = grid.square()
        kappa = mixture_precision(energy, *mixture_numbers(self.member(member), grid))
        residual = energy * kappa - 1
        change = (residual > 0).diff().nonzero().flatten()  # a grid point may hit a root exactly
        roots = []
        for index in change.tolist():
            left, right = grid[index], grid[index + 1]
            share = residual[index] / (residual[index] - residual[index + 1])
            roots.append(float(left + share * (right - left)))
        return tuple(roots)

    def safe_init_std(self, member: int = 0) -> float:
        """A starting std in the spike's basin: min(spike_std, half the unstable point)."""
        roots, spike = self.stationary_stds(member), member_number(self.stds[1], member)
        return min(spike, roots[1] / 2) if len(roots) == 3 else spike

    def basin_radius(self, std: float, member: int = 0) -> float:
        """The largest starting mean of a weight of this std that is still in the spike's basin.

        m² + s² then stays below the unstable point; infinite where there is but one resting place.

        Example:
            >>> round(SpikeSlab(slab_std=1.0, spike_std=0.1).basin_radius(0.05), 3)
            0.297
            >>> SpikeSlab(slab_std=0.1, spike_std=0.03, slab_prob=0.1).basin_radius(0.02)
            inf
        """
        roots = self.stationary_stds(member)
        if len(roots) < 3:
            return math.inf
        if std >= roots[1]:
            raise ValueError(
                f"SpikeSlab: a std of {std:g} is outside the spike's basin, which ends at "
                f"{roots[1]:.3g}; start with a smaller one."
            )
        return math.sqrt(roots[1] ** 2 - std**2)


def mixture_numbers(prior: SpikeSlab, like: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Log-odds at e = 0, 1/τ₀² - 1/τ₁², and 1/τ₁², each scalar or (k, 1)."""
    slab_std, spike_std = (per_model(std, like) for std in prior.stds)
    log_odds = per_model(prior.slab_prob, like).logit() + (spike_std / slab_std).log()
    return log_odds, spike_std**-2 - slab_std**-2, slab_std**-2


def inclusion_logit(mean: Tensor, std: Tensor, prior: SpikeSlab) -> Tensor:
    """Log-odds of the minimiser over p of the KL at fixed (m, s), eq. 3.8.

    Kept as log-odds because p itself rounds to 1 in float32 for most weights.

    Example:
        >>> zero = torch.zeros(1)
        >>> inclusion_logit(zero, zero, SpikeSlab(slab_std=1.0, spike_std=0.1)).item()
        -2.3025851249694824
    """
    log_odds, gap, _ = mixture_numbers(prior, mean)
    return log_odds + 0.5 * gap * (mean.square() + std.square())


def profiled_kl(mean: Tensor, log_std: Tensor, prior: SpikeSlab) -> Tensor:
    """The KL per weight with p at its minimiser: -log s - logaddexp(-A, -B) - 1/2.

    Example:
        >>> prior = SpikeSlab(slab_std=1.0, spike_std=1.0)
        >>> profiled_kl(torch.tensor(1.0), torch.tensor(0.0), prior).item()  # N(1,1) from N(0,1)
        0.5
    """
    slab, spike = _energies(mean, log_std.exp(), prior)
    return -log_std - torch.logaddexp(-slab, -spike) - 0.5


def mixture_precision(second_moment: Tensor, log_odds: Tensor, gap: Tensor, slab: Tensor) -> Tensor:
    """κ = p/τ₁² + (1-p)/τ₀² at e = m² + s²; settings as `mixture_numbers` returns them."""
    return slab + gap * torch.sigmoid(-(log_odds + 0.5 * gap * second_moment))


def constant_precision(second_moment: Tensor, *numbers: Tensor) -> Tensor:
    """κ = 1/τ² of a Normal, the last of the numbers, whatever the weight."""
    return numbers[-1]


def _energies(mean: Tensor, std: Tensor, prior: SpikeSlab) -> tuple[Tensor, Tensor]:
    # A and B of eq. 3.8. Algorithm 1 in the paper prints m for m² in A: a misprint.
    second_moment = mean.square() + std.square()
    slab_std, spike_std = (per_model(std, mean) for std in prior.stds)
    slab_prob = per_model(prior.slab_prob, mean)
    slab = second_moment / (2 * slab_std**2) + (slab_std / slab_prob).log()
    spike = second_moment / (2 * spike_std**2) + spike_std.log() - (-slab_prob).log1p()
    return slab, spike


Prior = Normal | SpikeSlab


# Priors with an unknown width. All scales have log-normal posteriors.


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

    def __post_init__(self) -> None:
        check_positive("LayerScaled", **vars(self))


@dataclass(frozen=True)
class Horseshoe(_Numbers):
    """The regularised horseshoe over units: one half-Cauchy scale per unit and per layer.

    Args:
        std: τ₀, the scale of a layer's half-Cauchy.
        shape: of c⁻², the precision of the slab that bounds every scale.
        rate: of c⁻².

    Example:
        >>> Horseshoe(std=(0.01, 0.1)).member(1).std
        0.1
    """

    std: Number = 0.01
    shape: Number = 2.0
    rate: Number = 6.0

    def __post_init__(self) -> None:
        check_positive("Horseshoe", **vars(self))


# The spike-and-slab Gaussian-Laplace prior of [Deng], section 3; equation numbers are the paper's.
#
# A prunable weight β of layer l is Laplace(0, σ v₀) when γ = 0 and N(0, σ² v₁) when γ = 1, with
# γ ~ Bern(δ_l), δ_l ~ Beta and σ² ~ IG(ν/2, νλ/2). Given estimates ρ of γ, the expected penalties
# κ₀ = (1 - ρ)/v₀ and κ₁ = ρ/v₁, the prior's part of the objective is
#
#     Σ_j κ₀ |β| / σ + κ₁ β² / (2σ²).                                    (in eq. 10)
#
# Symbols: v₀ spike_scale, v₁ slab_std², σ scale, δ slab_prob, ρ inclusion, κ₀ and κ₁ the penalties,
# ν scale_count, λ scale_square.
# Departures: the Beta prior's pseudo-counts are given per weight of the layer, a = 1 + slab_share p
# and b = 1 + spike_share p, so that one setting serves layers of any size (the paper's b = p is
# spike_share = 1 up to one count); ρ is computed as log-odds, where the ratio of densities is 0/0.


@dataclass(frozen=True)
class GaussianLaplace(_Numbers):
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


@dataclass(frozen=True)
class GroupSparse:
    """s ~ Bernoulli(active_prob) per group; weights are N(0, ν) where s = 1 and 0 where s = 0.

    The slab variance ν of a layer is the number below divided by the layer's inputs.

    Args:
        group: what is kept or removed as one: "units" (a hidden unit's incoming weights and its
            bias), "inputs" (all weights leaving one input feature) or single "weights".
        active_prob: ρ, prior probability that a group is active; learned from there.
        hidden_variance: ν times fan-in of hidden layers.
        output_variance: ν times fan-in of the last layer.

    Example:
        >>> GroupSparse(hidden_variance=2.0).slab_variance(50, last=False)
        0.04
    """

    group: Group = "units"
    active_prob: float = 0.5
    hidden_variance: float = 1.0
    output_variance: float = 3.0

    def __post_init__(self) -> None:
        check_choice("GroupSparse", "group", self.group, GROUPS)
        check_fraction("GroupSparse", open_ends=True, active_prob=self.active_prob)
        check_positive(
            "GroupSparse",
            hidden_variance=self.hidden_variance,
            output_variance=self.output_variance,
        )

    def slab_variance(self, fan_in: int, *, last: bool) -> float:
        """ν of a layer's weights and biases."""
        return (self.output_variance if last else self.hidden_variance) / fan_in


def stack_priors(priors: Sequence[Prior]) -> Prior:
    """One prior whose numbers are tuples, from one prior per model (all of the same class)."""
    kinds = {type(prior) for prior in priors}
    if len(kinds) != 1:
        raise ValueError(
            "fit: the engines of a population must have priors of one class, got "
            + ", ".join(sorted(kind.__name__ for kind in kinds))
            + "."
        )
    names = tuple(type(priors[0]).__dataclass_fields__)
    columns = {name: tuple(getattr(prior, name) for prior in priors) for name in names}
    return type(priors[0])(**columns)
