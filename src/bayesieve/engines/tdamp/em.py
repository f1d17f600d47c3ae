"""The M-step: closed-form updates of sparsity, slab variance and noise, once per pass."""

import torch
from torch import Tensor

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
