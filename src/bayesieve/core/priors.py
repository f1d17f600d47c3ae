"""Priors of the weights and their closed forms: frozen dataclasses without tensors, pure functions.

Numbers may be tuples with one entry per model of a population (see `Number`).

`Normal` and `SpikeSlab` are densities of single weights. Equations 3.x are those of [Saha].
Priors of layers, units and groups are with their engines: `engines.scaled`, `engines.tdamp`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Self

import torch
from torch import Tensor

from bayesieve.checks import AUTO, check_fraction, check_positive, chosen

Number = float | tuple[float, ...]

_WIDE_STD, _NARROW_STD = math.exp(-1), math.exp(-3)  # measured best on MNIST, docs/theory/sbnn.md
_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)


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
class NumbersOfModels:
    """Settings that are each one number or one per model of a population."""

    def member(self, index: int) -> Self:
        """The prior of one model of a population."""
        numbers = {f.name: member_number(getattr(self, f.name), index) for f in fields(self)}
        return type(self)(**numbers)


@dataclass(frozen=True)
class Normal(NumbersOfModels):
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
class SpikeSlab(NumbersOfModels):
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


def _energies(mean: Tensor, std: Tensor, prior: SpikeSlab) -> tuple[Tensor, Tensor]:
    # A and B of eq. 3.8. Algorithm 1 in the paper prints m for m² in A: a misprint.
    second_moment = mean.square() + std.square()
    slab_std, spike_std = (per_model(std, mean) for std in prior.stds)
    slab_prob = per_model(prior.slab_prob, mean)
    slab = second_moment / (2 * slab_std**2) + (slab_std / slab_prob).log()
    spike = second_moment / (2 * spike_std**2) + spike_std.log() - (-slab_prob).log1p()
    return slab, spike


Prior = Normal | SpikeSlab


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
