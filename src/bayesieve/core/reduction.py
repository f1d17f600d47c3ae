"""Bayesian model reduction in closed form: what another prior would have done to the evidence.

With a posterior q(w) found under the prior p, the evidence under a reduced prior p̃ follows without
new data:

    ΔF = log p̃(D) - log p(D) = log E_q[p̃(w) / p(w)]                                      (B1)

ΔF > 0 means that the data prefer the reduced model. Numbers in brackets are equations of
docs/theory/bmr.md. References: [Friston]; Marković, Friston and Kiebel (2024), section III.
"""

from typing import NamedTuple

import torch
from torch import Tensor

N_UPDATES = 4  # of the mask probabilities; the reference's k_max


class JointReduction(NamedTuple):
    """A jointly Gaussian posterior under another prior."""

    evidence: Tensor  # ΔF, scalar
    mean: Tensor  # (d,)
    covariance: Tensor  # (d, d)


def evidence_change(mean: Tensor, std: Tensor, prior_std: Tensor, reduced_std: Tensor) -> Tensor:
    """ΔF of each weight when its prior N(0, s²) becomes N(0, θ²), (B2); θ may be 0.

    Example:
        >>> numbers = (torch.tensor(x) for x in (1.0, 0.5, 1.0, 0.0))
        >>> round(evidence_change(*numbers).item(), 4)  # -log 0.5 - 1 / (2 · 0.25)
        -1.3069
    """
    variance = (std / prior_std).square()
    reduced = (reduced_std / prior_std).square()
    rho = _rho(variance, reduced)
    pull = (mean / std).square() * (1 - reduced / rho)
    return -0.5 * rho.log() - 0.5 * pull


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
    share = reduced / _rho(variance, reduced)
    return share * mean, share.sqrt() * std


def evidence_at_zero(mean: Tensor, std: Tensor, prior_std: Tensor) -> Tensor:
    """ΔF of each weight when it is fixed at 0, (B4): the Savage-Dickey ratio [Dickey].

    Example:
        >>> half = torch.tensor(0.5)
        >>> round(evidence_at_zero(torch.tensor(0.0), half, 2 * half).item(), 4)  # log 2
        0.6931
    """
    return prior_std.log() - std.log() - 0.5 * (mean / std).square()


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
        raise ValueError(_TOO_WIDE)
    covariance = torch.linalg.solve(mixed, torch.diag(ratio)) * (ratio > 0)[:, None]
    force = scaled @ location
    reduced = covariance @ force
    evidence = 0.5 * (torch.logdet(scaled) - log_det - location @ force + force @ reduced)
    return JointReduction(
        evidence, prior_std * reduced, prior_std[:, None] * covariance * prior_std
    )


def mask_log_odds(
    delta: Tensor, pruned: Tensor | None = None, n_updates: int = N_UPDATES
) -> Tensor:
    """ζ of one layer: prior log-odds that a weight is kept, learned from the layer, (B7).

    A weight is pruned when its ΔF exceeds ζ.

    Args:
        delta: ΔF at 0 of the layer's weights, (..., n).
        pruned: (..., n) bool, weights to count as pruned for certain; None counts all by ΔF.
        n_updates: coordinate updates, from ζ = 0.

    Returns:
        (..., 1).

    Example:
        >>> mask_log_odds(torch.full((100,), -50.0)).round(decimals=2)  # all are needed
        tensor([5.1900])
    """
    zeta = torch.zeros_like(delta[..., :1])
    n = delta.shape[-1]
    for _ in range(n_updates):
        keep = torch.sigmoid(zeta - delta)
        if pruned is not None:
            keep = keep.masked_fill(pruned, 0)
        kept = keep.sum(-1, keepdim=True, dtype=torch.float64)
        zeta = (torch.digamma(1 + kept) - torch.digamma(1 + n - kept)).to(delta.dtype)
    return zeta


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


_TOO_WIDE = (
    "reduce: the reduced prior is wider than this posterior allows: std² < θ²s² / (θ² - s²) must "
    "hold (θ reduced, s original prior std). Take a narrower one."
)


def _rho(variance: Tensor, reduced: Tensor) -> Tensor:
    rho = reduced + variance - reduced * variance
    if not bool((rho > 0).all()):
        raise ValueError(_TOO_WIDE)
    return rho
