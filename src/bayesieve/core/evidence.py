"""Bayesian model reduction in closed form: what another prior would have done to the evidence.

With a posterior q(w) found under the prior p, the evidence under a reduced prior p̃ follows without
new data:

    ΔF = log p̃(D) - log p(D) = log E_q[p̃(w) / p(w)]                                      (B1)

ΔF > 0 means that the data prefer the reduced model. Numbers in brackets are equations of
docs/theory/bmr.md. References: [Friston]; Marković, Friston and Kiebel (2024), section III.
"""

import torch
from torch import Tensor

from bayesieve.core.layout import EntryGroups

N_UPDATES = 4  # of the mask probabilities; the reference's k_max


def evidence_change(mean: Tensor, std: Tensor, prior_std: Tensor, reduced_std: Tensor) -> Tensor:
    """ΔF of each weight when its prior N(0, s²) becomes N(0, θ²), (B2); θ may be 0.

    Example:
        >>> numbers = (torch.tensor(x) for x in (1.0, 0.5, 1.0, 0.0))
        >>> round(evidence_change(*numbers).item(), 4)  # -log 0.5 - 1 / (2 · 0.25)
        -1.3069
    """
    variance = (std / prior_std).square()
    reduced = (reduced_std / prior_std).square()
    rho = reduced + variance - reduced * variance
    if not bool((rho > 0).all()):
        raise ValueError(
            "evidence_change: the reduced prior is wider than this posterior allows: std² < θ²s² / "
            "(θ² - s²) must hold (θ reduced, s original prior std). Take a narrower one."
        )
    pull = (mean / std).square() * (1 - reduced / rho)
    return -0.5 * rho.log() - 0.5 * pull


def evidence_at_zero(mean: Tensor, std: Tensor, prior_std: Tensor) -> Tensor:
    """ΔF of each weight when it is fixed at 0, (B4): the Savage-Dickey ratio [Dickey].

    Example:
        >>> half = torch.tensor(0.5)
        >>> round(evidence_at_zero(torch.tensor(0.0), half, 2 * half).item(), 4)  # log 2
        0.6931
    """
    return prior_std.log() - std.log() - 0.5 * (mean / std).square()


def mask_log_odds(delta: Tensor, n_updates: int = N_UPDATES) -> Tensor:
    """ζ of one layer: prior log-odds that a weight is kept, learned from the layer, (B7).

    A weight is pruned when its ΔF exceeds ζ.

    Args:
        delta: ΔF at 0 of the layer's weights, (..., n).
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
        kept = torch.sigmoid(zeta - delta).sum(-1, keepdim=True, dtype=torch.float64)
        zeta = (torch.digamma(1 + kept) - torch.digamma(1 + n - kept)).to(delta.dtype)
    return zeta


def shared_log_odds(rule: str, delta: Tensor) -> Tensor:
    """ζ of weights that share it, from their ΔF at 0, (k, n) -> (k, 1); 0 by Savage and Dickey.

    Pruned weights enter by the ΔF that they have relaxed to: near 0, so about ½ each.
    """
    return torch.zeros_like(delta[:, :1]) if rule == "savage-dickey" else mask_log_odds(delta)


def sharing(layers: EntryGroups, scope: str, *, spare_last: bool) -> list[list[slice]]:
    """Slices of the prunable tensors that share a ζ: of a layer, or with "global" all of them.

    Args:
        layers: of the network.
        scope: "layer" or "global".
        spare_last: leaves the last layer out.
    """
    pruned = [(i, part) for i, part in layers.prunable if not (spare_last and i == layers.last)]
    if scope == "global":
        return [[part for _, part in pruned]] if pruned else []
    owners = dict.fromkeys(i for i, _ in pruned)
    return [[part for i, part in pruned if i == owner] for owner in owners]
