"""Priors over single weights: frozen dataclasses with a log density and no tensors.

Numbers may be tuples with one entry per model of a population (see `Number`).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bayesieve.checks import check_fraction, check_positive

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
class Normal:
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

    def member(self, index: int) -> "Normal":
        """The prior of one model of a population."""
        return Normal(member_number(self.std, index))


@dataclass(frozen=True)
class SpikeSlab:
    """slab_prob · N(0, slab_std²) + (1 - slab_prob) · N(0, spike_std²) on every weight.

    Args:
        slab_std: τ₁, standard deviation of weights that matter.
        spike_std: τ₀ ≤ τ₁, standard deviation of weights that do not.
        slab_prob: π, prior probability that a weight matters.

    Example:
        >>> prior = SpikeSlab(slab_std=1.0, spike_std=0.1)
        >>> round(prior.half_radius(), 3)  # root-mean-square weight at which inclusion is 1/2
        0.216
    """

    slab_std: Number = _WIDE_STD
    spike_std: Number = _NARROW_STD
    slab_prob: Number = 0.5

    def __post_init__(self) -> None:
        check_positive("SpikeSlab", slab_std=self.slab_std, spike_std=self.spike_std)
        check_fraction("SpikeSlab", open_ends=True, slab_prob=self.slab_prob)
        numbers = (self.slab_std, self.spike_std, self.slab_prob)
        lengths = {len(number) for number in numbers if isinstance(number, tuple)}
        if len(lengths) > 1:
            raise ValueError(
                f"SpikeSlab: tuples must have one length (one number per model), got {lengths}."
            )
        for index in range(max(lengths, default=1)):
            slab, spike = (member_number(n, index) for n in (self.slab_std, self.spike_std))
            if spike > slab:
                raise ValueError(
                    f"SpikeSlab: spike_std must be <= slab_std, got {spike} > {slab}. "
                    "Swap them: the slab is the wide component."
                )

    def log_prob(self, w: Tensor) -> Tensor:
        """Log density of each weight."""
        slab_prob = per_model(self.slab_prob, w)
        slab = Normal(self.slab_std).log_prob(w) + slab_prob.log()
        spike = Normal(self.spike_std).log_prob(w) + (-slab_prob).log1p()
        return torch.logaddexp(slab, spike)

    def member(self, index: int) -> "SpikeSlab":
        """The prior of one model of a population."""
        numbers = (self.slab_std, self.spike_std, self.slab_prob)
        return SpikeSlab(*(member_number(n, index) for n in numbers))

    def half_radius(self, member: int = 0) -> float:
        """√e*, the root-mean-square weight at which inclusion is 1/2 (0 if it is always above)."""
        own = self.member(member)
        slab, spike, prob = (float(n) for n in (own.slab_std, own.spike_std, own.slab_prob))  # type: ignore[arg-type]
        if spike == slab:
            return 0.0 if prob >= 0.5 else math.inf
        energy = 2 * math.log(slab / spike) - 2 * math.log(prob / (1 - prob))
        return math.sqrt(max(energy, 0.0) / (spike**-2 - slab**-2))

    def stationary_stds(self, member: int = 0) -> tuple[float, ...]:
        """The stds at which a weight with mean 0 and no data rests, ascending: one or three.

        Three means spike, unstable point, slab: a weight that starts above the middle one and
        meets no data drifts into the slab and reports inclusion near 1.
        """
        own = self.member(member)
        grid = torch.logspace(
            math.log10(float(own.spike_std) / 2),  # type: ignore[arg-type]
            math.log10(float(own.slab_std) * 2),  # type: ignore[arg-type]
            20001,
            dtype=torch.float64,
        )
        residual = grid.square() * _mean_precision(grid, own) - 1
        change = (residual > 0).diff().nonzero().flatten()  # a grid point may hit a root exactly
        roots = []
        for index in change.tolist():
            left, right = grid[index], grid[index + 1]
            share = residual[index] / (residual[index] - residual[index + 1])
            roots.append(float(left + share * (right - left)))
        return tuple(roots)

    def safe_init_std(self, member: int = 0) -> float:
        """A starting std in the spike's basin: min(spike_std, half the unstable point)."""
        own = self.member(member)
        roots = own.stationary_stds()
        spike = float(own.spike_std)  # type: ignore[arg-type]
        return min(spike, roots[1] / 2) if len(roots) == 3 else spike


def _mean_precision(std: Tensor, prior: SpikeSlab) -> Tensor:
    # k of the sBNN gradient at mean 0: E over inclusion of 1/τ².
    slab, spike = per_model(prior.slab_std, std), per_model(prior.spike_std, std)
    prob = per_model(prior.slab_prob, std)
    gap = spike**-2 - slab**-2
    logit = prob.logit() + (spike / slab).log() + 0.5 * std.square() * gap
    return spike**-2 - torch.sigmoid(logit) * gap


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
