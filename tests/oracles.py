"""Formulas that only tests need: slower or more general than those of the library."""

import math
from typing import NamedTuple

import torch
from scipy.special import gammaincinv
from torch import Generator, Tensor
from torch.nn.functional import softplus

from bayesieve.core.batch import Batch, weighted_sum
from bayesieve.core.priors import Horseshoe, SpikeSlab, _energies
from bayesieve.core.priors_laplace import log_odds_at_zero, log_odds_from
from bayesieve.core.problem import Problem

TOO_WIDE = "evidence_change: the reduced prior is wider than this posterior allows"


def spike_slab_kl(mean: Tensor, std: Tensor, p: Tensor, prior: SpikeSlab) -> Tensor:
    """KL[q(w) q(z) || prior(w, z)] per weight: eq. 3.7 of [Saha] plus the constant it drops."""
    slab, spike = _energies(mean, std, prior)
    neg_entropy_z = torch.special.xlogy(p, p) + torch.special.xlogy(1 - p, 1 - p)
    return p * slab + (1 - p) * spike + neg_entropy_z - std.log() - 0.5


def half_radius(prior: SpikeSlab) -> float:
    """√e*, the root-mean-square weight at which inclusion is 1/2 (0 if it is always above)."""
    slab, spike, prob = prior.slab_std, prior.spike_std, prior.slab_prob
    if spike == slab:
        return 0.0 if prob >= 0.5 else math.inf
    energy = 2 * math.log(slab / spike) - 2 * math.log(prob / (1 - prob))
    return math.sqrt(max(energy, 0.0) / (spike**-2 - slab**-2))


def inclusion_log_odds(
    w: Tensor, slab_prob: Tensor, scale: Tensor, spike_scale: Tensor, slab_std: Tensor
) -> Tensor:
    """Eq. 12 of [Deng] for one weight by itself."""
    start = log_odds_at_zero(slab_prob, spike_scale, slab_std)
    return log_odds_from(start, w, scale, spike_scale, slab_std)


class JointReduction(NamedTuple):
    """A jointly Gaussian posterior under another prior."""

    evidence: Tensor  # ΔF, scalar
    mean: Tensor  # (d,)
    covariance: Tensor  # (d, d)


def reduced_moments(
    mean: Tensor, std: Tensor, prior_std: Tensor, reduced_std: Tensor
) -> tuple[Tensor, Tensor]:
    """Mean and std of each weight under the reduced prior N(0, θ²), (B3).

    Example:
        >>> one, zero = torch.tensor(1.0), torch.tensor(0.0)
        >>> [x.item() for x in reduced_moments(one, one / 2, one, zero)]
        [0.0, 0.0]
    """
    variance = (std / prior_std).square()
    reduced = (reduced_std / prior_std).square()
    rho = reduced + variance - reduced * variance
    if not bool((rho > 0).all()):
        raise ValueError(TOO_WIDE)
    share = reduced / rho
    return share * mean, share.sqrt() * std


def reduce_jointly(
    mean: Tensor, precision: Tensor, prior_std: Tensor, reduced_std: Tensor
) -> JointReduction:
    """ΔF and moments of q = N(mean, precision⁻¹) under independent priors N(0, θ²), (B5).

    Args:
        mean: (d,).
        precision: (d, d).
        prior_std: (d,), of the prior q was found under.
        reduced_std: (d,), θ; 0 removes a weight.

    Example:
        >>> one = torch.ones(1)
        >>> reduce_jointly(0 * one, 4 * torch.eye(1), one, 0 * one).evidence.item()  # log 2
        0.6931471824645996
    """
    scaled = prior_std[:, None] * precision * prior_std  # P of ŵ = w / s
    location = mean / prior_std
    ratio = (reduced_std / prior_std).square()  # the diagonal of G
    mixed = ratio[:, None] * scaled + torch.diag(1 - ratio)  # GP + I - G
    sign, log_det = torch.linalg.slogdet(mixed)
    if not bool(sign > 0):
        raise ValueError(TOO_WIDE)
    covariance = torch.linalg.solve(mixed, torch.diag(ratio)) * (ratio > 0)[:, None]
    force = scaled @ location
    reduced = covariance @ force
    evidence = 0.5 * (torch.logdet(scaled) - log_det - location @ force + force @ reduced)
    return JointReduction(
        evidence, prior_std * reduced, prior_std[:, None] * covariance * prior_std
    )


def mask_free_energy(delta: Tensor, keep: Tensor, kept: Tensor, gone: Tensor) -> Tensor:
    """What the updates of `mask_log_odds` lower, in nats, (B6).

    Args:
        delta: ΔF at 0, (n,).
        keep: probability that each weight is kept, (n,).
        kept: first parameter α of the Beta posterior of the layer's share of kept weights.
        gone: its second parameter β.
    """
    total = torch.digamma(kept + gone)
    log_kept, log_gone = torch.digamma(kept) - total, torch.digamma(gone) - total
    neg_entropy = torch.special.xlogy(keep, keep) + torch.special.xlogy(1 - keep, 1 - keep)
    expected = keep * log_kept + (1 - keep) * log_gone + (1 - keep) * delta
    log_beta = torch.lgamma(kept) + torch.lgamma(gone) - torch.lgamma(kept + gone)
    share = (kept - 1) * log_kept + (gone - 1) * log_gone - log_beta  # KL from the uniform
    return (neg_entropy - expected).sum() + share


def log_regularised_scale(log_ratio: Tensor, log_slab_precision: Tensor) -> Tensor:
    """Log γ, γ² = c²λ² / (c² + λ²) with log λ² = `log_ratio` and log c⁻², (H3).

    Example:
        >>> round(log_regularised_scale(torch.tensor(0.0), torch.tensor(0.0)).exp().item(), 4)
        0.7071
    """
    return 0.5 * (log_ratio - softplus(log_ratio + log_slab_precision))


def horseshoe_draws(
    prior: Horseshoe, n: int, *, n_units: int, fan_in: int, generator: Generator
) -> Tensor:
    """Weights of n layers drawn from the prior, (n, n_units, fan_in)."""

    def normals(*size: int) -> Tensor:
        return torch.empty(size).normal_(generator=generator)

    log_ratio = 2 * math.log(prior.std) + log_cauchy_square(normals(2, n, 1))
    log_ratio = log_ratio + log_cauchy_square(normals(2, n, n_units))
    uniform = torch.rand(n, 1, generator=generator).double()
    # The Gamma sampler of torch takes no generator: invert its distribution function instead.
    precision = torch.as_tensor(gammaincinv(prior.shape, uniform.numpy())) / prior.rate
    log_gamma = log_regularised_scale(log_ratio, precision.to(log_ratio).log())
    return log_gamma.exp()[..., None] * normals(n, n_units, fan_in)


def log_cauchy_square(normals: Tensor) -> Tensor:
    """log(a / b), a and b ~ Gamma(½, 1), from normals of shape (2, ...): z²/2 ~ Gamma(½, 1)."""
    return 2 * (normals[0].abs().log() - normals[1].abs().log())


def log_likelihood(problem: Problem, w: Tensor, batch: Batch) -> Tensor:
    """N/n · Σ log p(y | x, w) of each weight vector, (k, d) -> (k,), in eval mode."""
    space = problem._workspace
    buffers = space.buffers(0) if space else problem.network.buffers()
    values = []
    for i, row in enumerate(w):
        x, y, weight = batch.member(i)
        output = problem.network.outputs(row[None], x, buffers)[0]
        log_prob = problem.likelihood.log_prob(output, y, problem.network.split(row)[1])
        values.append(weighted_sum(log_prob, weight))
    return torch.stack(values) * (problem.n_data / batch.n)
