"""Module B and the M-step: exact sum-product over the group prior, and the numbers of the prior.

Weights of one group hang on one indicator, so the prior's factor graph is a forest of stars and
its messages are closed forms. Everything stays in log-odds: evidences add over hundreds of weights
and reach hundreds of nats. The M-step updates sparsity, slab variance and noise in closed form,
once per pass. Equation numbers are those of docs/theory/tdamp.md.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from bayesieve.engines.tdamp.channels import Message

LEAST_VARIANCE = 1e-10
LEAST_PRECISION = 0.1  # of the message back, in units of the slab's
_SECTIONS, _ROUNDS = 64, 7  # of a search that narrows its interval 64-fold each time


class Slab(NamedTuple):
    """Posterior moments of a weight given that its group is active."""

    mean: Tensor
    var: Tensor


def log_evidence(data: Message, slab_var: Tensor) -> Tensor:
    """Log of ∫ N(w; 0, ν) exp(H w - G w² / 2) dw, per weight, eq. T16.

    Example:
        >>> data = Message(torch.tensor(1.0), torch.tensor(0.0))
        >>> log_evidence(data, torch.tensor(4.0)).item()
        2.0
    """
    grown = 1 + slab_var * data.precision
    return 0.5 * (data.linear.square() * slab_var / grown - grown.log())


def group_sum(values: Tensor, group_of: Tensor, n_groups: int) -> Tensor:
    """Sums over the weights of each group, (k, d) -> (k, n_groups)."""
    sums = values.new_zeros(len(values), n_groups)
    return sums.index_add_(1, group_of, values)


def slab_moments(data: Message, slab_var: Tensor) -> Slab:
    """Mean and variance of a weight given that its group is active, eq. T18."""
    var = slab_var / (1 + slab_var * data.precision)
    return Slab(var * data.linear, var)


def extrinsic(data: Message, slab: Slab, slab_var: Tensor, active: Tensor) -> Message:
    """Message back to Module A: the mixture's Gaussian projection over the data's, eq. T19.

    Where the mixture is wider than the data's message allows, the result would not be a density;
    there it is a centred Gaussian of a tenth of the slab's precision.

    Args:
        data: (H, G) from Module A.
        slab: moments of eq. T18.
        slab_var: ν.
        active: P(s = 1 | data) of each weight's group.

    Example:
        >>> data, one = Message(torch.tensor(0.3), torch.tensor(2.0)), torch.tensor(1.0)
        >>> extrinsic(data, slab_moments(data, one), one, one).precision.item()
        1.0
    """
    mean = active * slab.mean
    var = active * (slab.var + (1 - active) * slab.mean.square())
    var = var.clamp(min=LEAST_VARIANCE)
    precision = 1 / var - data.precision
    least = LEAST_PRECISION / slab_var
    certain = active == 1  # then the message is the slab itself; the subtraction would round
    precision = torch.where(certain, 1 / slab_var, precision)
    linear = torch.where(certain, 0, mean / var - data.linear)
    weak = precision < least
    return Message(torch.where(weak, 0, linear), torch.where(weak, least, precision))


def budget_shift(evidence: Tensor, n_active: Tensor) -> Tensor:
    """κ with Σ_g sigmoid(κ + e_g) = n_active, by nested sections in float64, eq. T20.

    Args:
        evidence: (k, g); -inf for groups already removed.
        n_active: scalar; from the number of groups on, κ is so large that all are active.

    Example:
        >>> evidence = torch.tensor([[-2.0, 0.0, 2.0, 4.0]])
        >>> budget_shift(evidence, torch.tensor(2.0)).item()  # by symmetry: minus the middle
        -1.0
    """
    evidence64 = evidence.double()
    finite = torch.isfinite(evidence64)
    low = -torch.where(finite, evidence64, -torch.inf).amax(1, keepdim=True) - 60
    high = -torch.where(finite, evidence64, torch.inf).amin(1, keepdim=True) + 60
    steps = torch.linspace(0, 1, _SECTIONS + 1, dtype=evidence64.dtype, device=evidence64.device)
    for _ in range(_ROUNDS):
        points = low + (high - low) * steps  # (k, sections + 1)
        active = torch.sigmoid(points[..., None] + evidence64[:, None]).sum(2)
        last_short = (active < n_active).sum(1, keepdim=True).clamp(1, _SECTIONS) - 1
        low, high = points.gather(1, last_short), points.gather(1, last_short + 1)
    return (0.5 * (low + high)).to(evidence.dtype)


LEAST_NOISE = 1e-3
_EDGE = 1e-6


def sparsity_update(active: Tensor, alive: Tensor) -> Tensor:
    """ρ: the mean activity of the groups that are left, (k, g) -> (k, 1), eq. T21.

    Example:
        >>> sparsity_update(torch.tensor([[0.9, 0.1, 0.0]]), torch.tensor([[1.0, 1.0, 0.0]]))
        tensor([[0.5000]])
    """
    mean = (active * alive).sum(1, keepdim=True) / alive.sum(1, keepdim=True).clamp(min=1)
    return mean.clamp(_EDGE, 1 - _EDGE)


def slab_update(old: Tensor, second_moment: Tensor, weight: Tensor) -> Tensor:
    """ν: the second moment of active weights, halfway in logarithms, eq. T22.

    Args:
        old: ν now, (k, layers).
        second_moment: Σ π (mean² + var) over a layer's weights, (k, layers).
        weight: Σ π over them, (k, layers).

    Example:
        >>> slab_update(torch.tensor(1.0), torch.tensor(8.0), torch.tensor(2.0)).item()
        2.0
    """
    return torch.where(weight > 0, (old * second_moment / weight.clamp(min=_EDGE)).sqrt(), old)


def noise_residual(omega: Tensor, var: Tensor, target: Tensor, noise: Tensor) -> Tensor:
    """E[(y - z)²] under z's posterior given y, of each output, eq. T23.

    Example:
        >>> one = torch.tensor(1.0)
        >>> noise_residual(torch.tensor(0.0), one, torch.tensor(2.0), one).item()
        1.5
    """
    z_var = 1 / (1 / var + 1 / noise)
    z_mean = z_var * (omega / var + target / noise)
    return (target - z_mean).square() + z_var


def noise_update(old: Tensor, mean_residual: Tensor) -> Tensor:
    """v: the mean of eq. T23, mixed half and half with the old value and kept above 1e-3."""
    return (0.5 * (old + mean_residual)).clamp(min=LEAST_NOISE)
