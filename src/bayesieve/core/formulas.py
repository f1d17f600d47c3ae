"""Closed forms that several engines use, elementwise over weights.

Numbers in brackets are equations of [Saha] (see docs/references.md).
"""

import torch
from torch import Tensor

from bayesieve.core.priors import SpikeSlab, per_model


def normal_kl(mean: Tensor, log_std: Tensor, prior_std: Tensor) -> Tensor:
    """KL[N(m, s²) || N(0, τ²)] per weight.

    Example:
        >>> normal_kl(torch.tensor(1.0), torch.tensor(0.0), torch.tensor(1.0)).item()
        0.5
    """
    ratio = (mean.square() + (2 * log_std).exp()) / prior_std.square()
    return 0.5 * (ratio - 1) + prior_std.log() - log_std


def mixture_numbers(prior: SpikeSlab, like: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Log-odds at e = 0, 1/τ₀² - 1/τ₁², and 1/τ₁², each scalar or (k, 1)."""
    slab_std, spike_std = per_model(prior.slab_std, like), per_model(prior.spike_std, like)
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


def spike_slab_kl(mean: Tensor, std: Tensor, p: Tensor, prior: SpikeSlab) -> Tensor:
    """KL[q(w) q(z) || prior(w, z)] per weight: eq. 3.7 plus the constant it drops."""
    slab, spike = _energies(mean, std, prior)
    neg_entropy_z = torch.special.xlogy(p, p) + torch.special.xlogy(1 - p, 1 - p)
    return p * slab + (1 - p) * spike + neg_entropy_z - std.log() - 0.5


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


def proximal_step(
    mean: Tensor, std: Tensor, kappa: Tensor, length: Tensor
) -> tuple[Tensor, Tensor]:
    """Minimise length · R(m, s) + ½(m - mean)² + ½(s - std)² with κ held fixed.

    Unconditionally stable where a gradient step of size lr needs lr κ < 2. Not in the paper.
    """
    shrink = 1 + length * kappa
    return mean / shrink, (std + (std.square() + 4 * shrink * length).sqrt()) / (2 * shrink)


def _energies(mean: Tensor, std: Tensor, prior: SpikeSlab) -> tuple[Tensor, Tensor]:
    # A and B of eq. 3.8. Algorithm 1 in the paper prints m for m² in A: a misprint.
    second_moment = mean.square() + std.square()
    slab_std, spike_std = per_model(prior.slab_std, mean), per_model(prior.spike_std, mean)
    slab_prob = per_model(prior.slab_prob, mean)
    slab = second_moment / (2 * slab_std**2) + (slab_std / slab_prob).log()
    spike = second_moment / (2 * spike_std**2) + spike_std.log() - (-slab_prob).log1p()
    return slab, spike
