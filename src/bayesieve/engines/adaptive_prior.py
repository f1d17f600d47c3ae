"""Stochastic approximation of the Gaussian-Laplace prior's latent numbers while a chain runs.

After each move of the weights, with ω the weight of the newest estimate,

    ρ ← (1 - ω) ρ + ω ρ̃ (eq. 12),  κ ← (1 - ω) κ + ω κ̃(ρ) (eq. 13),
    δ ← (1 - ω) δ + ω δ̃(ρ) (eq. 15),  σ² ← (1 - ω) σ² + ω σ̃² (eq. 14).

ω = 1 is the EM variant. Where σ is also the noise of a Gaussian likelihood, the data's gradient is
rescaled from the likelihood's own noise_std to σ.

Reference: [Deng], algorithm 1.
Departures: ω falls ten times lower by default than in the paper's regression, whose latents settle
before the weights have moved; σ̃ uses the residuals at the point where the gradient was taken, which
saves a forward pass; a pruned weight has the ρ of 0 and no say in δ and σ; for its first
steps σ² may follow the residuals alone (eq. L3 of docs/theory/sgld.md).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from bayesieve.core.likelihoods import Gaussian
from bayesieve.core.network import EXTRA_PREFIX
from bayesieve.core.priors import (
    GaussianLaplace,
    best_scale,
    best_slab_prob,
    log_odds_at_zero,
    log_odds_from,
    penalties,
    penalty_energy,
    penalty_gradient,
    per_model,
)
from bayesieve.core.problem import Problem
from bayesieve.engines.chain import Averaging

# of the newest residuals while σ settles, and in what predictions assume: a hundred batches,
# whatever ω is
_NOISE_WEIGHT = 0.01


@dataclass
class Latents:
    """Estimates for k chains, P prunable weights and L layers, and the prior's numbers."""

    rho: Tensor  # (k, P)
    laplace: Tensor  # κ₀, (k, P)
    gauss: Tensor  # κ₁, (k, P)
    slab_prob: Tensor  # δ, (k, L)
    scale: Tensor  # σ, (k, 1)
    spike_scale: Tensor  # this and the rest: scalar or (k, 1)
    slab_std: Tensor
    slab_share: Tensor
    spike_share: Tensor
    scale_count: Tensor
    scale_square: Tensor
    sizes: tuple[int, ...]  # weights of each layer


def latents_of(prior: GaussianLaplace, problem: Problem, w: Tensor) -> Latents:
    """Starting estimates for weights of shape (k, d)."""
    layout = problem.layout
    sizes = tuple(size for size in _layer_sizes(layout.sizes, layout.n_sparse))
    own = w[:, : layout.n_sparse]

    def filled(value: float | tuple[float, ...], n: int) -> Tensor:
        return per_model(value, w).expand(len(w), n).clone()

    return Latents(
        rho=filled(prior.slab_prob, own.shape[1]),
        laplace=filled(prior.penalty, own.shape[1]),
        gauss=filled(prior.penalty, own.shape[1]),
        slab_prob=filled(prior.slab_prob, len(sizes)),
        scale=filled(prior.scale, 1),
        spike_scale=per_model(prior.spike_scale, w),
        slab_std=per_model(prior.slab_std, w),
        slab_share=per_model(prior.slab_share, w),
        spike_share=per_model(prior.spike_share, w),
        scale_count=per_model(prior.scale_count, w),
        scale_square=per_model(prior.scale_square, w),
        sizes=sizes,
    )


def _layer_sizes(sizes: tuple[int, ...], n_sparse: int) -> Iterator[int]:
    total = 0
    for size in sizes:
        if total == n_sparse:
            return
        total += size
        yield size


def prior_pull(w: Tensor, latents: Latents) -> Tensor:
    """Gradient of the prior's energy for the prunable weights, (k, P)."""
    own = w[:, : latents.rho.shape[1]]
    return penalty_gradient(own, latents.laplace, latents.gauss, latents.scale)


def prior_energy(w: Tensor, latents: Latents) -> Tensor:
    """The prior's energy of each prunable weight, (k, P)."""
    own = w[:, : latents.rho.shape[1]]
    return penalty_energy(own, latents.laplace, latents.gauss, latents.scale)


@dataclass(frozen=True)
class SharedNoise:
    """The Gaussian likelihood whose noise is σ.

    Args:
        noise_std: what a likelihood that learns no noise assumes; predictions keep it.
        n_targets: N · m numbers observed.
        column: of w, where a likelihood that learns its noise has its logarithm. It follows the
            residuals, eq. L4, and is what predictions assume: σ counts weights too, and is not the
            noise of the data. None where it learns none.
    """

    noise_std: float
    n_targets: int
    column: int | None = None

    @classmethod
    def of(cls, problem: Problem) -> "SharedNoise | None":
        """None for class labels."""
        likelihood = problem.likelihood
        if not isinstance(likelihood, Gaussian):
            return None
        if problem.weighted:
            raise ValueError(
                "GaussianLaplace: with real targets every example counts once; remove the weights."
            )
        column = None
        if likelihood.learned:
            column = problem.layout.slices[EXTRA_PREFIX + "log_noise_std"].start
        return cls(likelihood.noise_std, problem.n_data * problem.y[0].numel(), column)

    def assumed(self, w: Tensor) -> Tensor:
        """The noise in the likelihood's own density at weights (k, d), (k,)."""
        if self.column is None:
            return w.new_full((len(w),), self.noise_std)
        return w[:, self.column].exp()

    def residual_square_sum(self, log_lik: Tensor, assumed: Tensor) -> Tensor:
        """Σ (y - ŷ)² over all data, from the likelihood's own log density."""
        constant = self.n_targets * (assumed.log() + 0.5 * math.log(2 * math.pi))
        return -2 * assumed.square() * (log_lik + constant)

    def log_lik(self, square_sum: Tensor, scale: Tensor) -> Tensor:
        """Log density of all data with noise σ, (k,)."""
        constant = self.n_targets * (scale.log() + 0.5 * math.log(2 * math.pi))
        return -0.5 * square_sum / scale.square() - constant

    def followed(self, w: Tensor, square_sum: Tensor) -> Tensor:
        """Eq. L4: the logarithm of the noise that predictions assume, after a batch, (k,)."""
        before, newest = self.assumed(w).square(), square_sum / self.n_targets
        return 0.5 * before.lerp(newest, _NOISE_WEIGHT).log()

    def rescale_(self, grad: Tensor, assumed: Tensor, scale: Tensor) -> None:
        """Turn the likelihood's own gradient into that with noise σ, which has none itself."""
        grad.mul_((assumed[:, None] / scale).square())
        if self.column is not None:
            grad[:, self.column] = 0.0


def update_latents_(
    latents: Latents, w: Tensor, keep: Tensor | None, omega: Tensor, averaging: Averaging,
    square_sum: Tensor | None, n_targets: int, settling: Tensor | None = None,
) -> None:  # fmt: skip
    """One round of eqs 12, 13, 15 and 14 in place.

    Args:
        latents: of k chains.
        w: (k, d), after the move.
        keep: (k, d) bool or None; a weight that is not kept has the ρ of 0 and is not counted: as
            observations of δ and σ zeros that the pruning made would shrink what is left.
        omega: weight of the new estimates, scalar.
        averaging: what is learned.
        square_sum: residual sum of squares, (k,), where σ is also the noise.
        n_targets: number of targets it sums over, 0 for class labels.
        settling: bool, scalar or (k, 1): chains whose σ² follows the residuals alone, eq. L3.
    """
    n, numbers = latents.rho.shape[1], (latents.spike_scale, latents.slab_std)
    kept = None if keep is None else keep[:, :n]
    own = w[:, :n] if kept is None else w[:, :n] * kept
    start = log_odds_at_zero(latents.slab_prob, *numbers)  # (k, L)
    if len(latents.sizes) > 1:  # one number for all weights of a layer
        pairs = zip(start.split(1, 1), latents.sizes, strict=True)
        start = torch.cat([column.expand(-1, size) for column, size in pairs], 1)
    odds = log_odds_from(start, own, latents.scale, *numbers)
    latents.rho.lerp_(torch.sigmoid(odds), omega)
    laplace, gauss = penalties(latents.rho, *numbers)
    latents.laplace.lerp_(laplace, omega)
    latents.gauss.lerp_(gauss, omega)
    if averaging.slab_prob:
        means = _layer_means(latents.rho, kept, latents.sizes)
        best = best_slab_prob(means, latents.slab_share, latents.spike_share)
        latents.slab_prob.lerp_(best, omega)
    if averaging.scale:
        _update_scale_(latents, own, kept, omega, square_sum, n_targets, settling)


def _layer_means(rho: Tensor, kept: Tensor | None, sizes: tuple[int, ...]) -> Tensor:
    """Mean ρ of the weights that each layer keeps, 0 where it keeps none, (k, L)."""
    if kept is None:
        return torch.cat([part.mean(1, keepdim=True) for part in rho.split(sizes, 1)], 1)
    parts, masks = (rho * kept).split(sizes, 1), kept.split(sizes, 1)
    means = [
        part.sum(1, keepdim=True) / mask.sum(1, keepdim=True).clamp(min=1)
        for part, mask in zip(parts, masks, strict=True)
    ]
    return torch.cat(means, 1)


def _update_scale_(
    latents: Latents, own: Tensor, kept: Tensor | None, omega: Tensor, square_sum: Tensor | None,
    n_targets: int, settling: Tensor | None,
) -> None:  # fmt: skip
    laplace_sum = (latents.laplace * own.abs()).sum(1, keepdim=True)
    squares = (latents.gauss * own.square()).sum(1, keepdim=True)
    squares = squares + latents.scale_count * latents.scale_square
    if square_sum is not None:
        squares = squares + square_sum[:, None]
    n_kept = own.shape[1] if kept is None else kept.sum(1, keepdim=True)
    count = n_kept + n_targets + latents.scale_count + 2
    best = best_scale(laplace_sum, squares, count).square()
    if settling is not None:
        assert square_sum is not None
        best = torch.where(settling, _residual_variance(latents, square_sum, n_targets), best)
        omega = torch.where(settling, _NOISE_WEIGHT, omega)
    latents.scale.copy_(latents.scale.square().lerp(best, omega).sqrt())


def _residual_variance(latents: Latents, square_sum: Tensor, n_targets: int) -> Tensor:
    """Maximiser over σ² of the likelihood and the prior of σ² by themselves, eq. L3, (k, 1)."""
    guess = latents.scale_count * latents.scale_square
    return (square_sum[:, None] + guess) / (n_targets + latents.scale_count + 2)
