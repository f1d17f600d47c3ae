"""Formulas that only tests need: slower or more general than those of the library."""

import torch
from torch import Tensor

from bayesieve.core.batch import Batch, weighted_sum
from bayesieve.core.priors import SpikeSlab, _energies
from bayesieve.core.priors_laplace import log_odds_at_zero, log_odds_from
from bayesieve.core.problem import Problem


def spike_slab_kl(mean: Tensor, std: Tensor, p: Tensor, prior: SpikeSlab) -> Tensor:
    """KL[q(w) q(z) || prior(w, z)] per weight: eq. 3.7 of [Saha] plus the constant it drops."""
    slab, spike = _energies(mean, std, prior)
    neg_entropy_z = torch.special.xlogy(p, p) + torch.special.xlogy(1 - p, 1 - p)
    return p * slab + (1 - p) * spike + neg_entropy_z - std.log() - 0.5


def inclusion_log_odds(
    w: Tensor, slab_prob: Tensor, scale: Tensor, spike_scale: Tensor, slab_std: Tensor
) -> Tensor:
    """Eq. 12 of [Deng] for one weight by itself."""
    start = log_odds_at_zero(slab_prob, spike_scale, slab_std)
    return log_odds_from(start, w, scale, spike_scale, slab_std)


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
