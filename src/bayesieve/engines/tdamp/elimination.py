"""Which hidden units to remove: evidence that knows what the other units can take over.

Units that do the same work are each indispensable to a factorised posterior and superfluous as a
pair. Their outgoing weights are therefore judged jointly, with the full covariance between units:
given the units' activity the layer above is a linear model, and removing a unit is Bayesian model
reduction in closed form. Equation numbers are those of docs/theory/tdamp.md.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from bayesieve.engines.tdamp.channels import Unit

_NEWTON_STEPS = 32  # enough for a condition number of 1e8
_LEAST_VARIANCE = 1e-30


class Readout(NamedTuple):
    """Gaussian over what leaves a layer: means (k, o, n) and one covariance (k, n, n) for all o.

    The last of the n columns is the bias of the layer above.
    """

    mean: Tensor
    cov: Tensor


class Choice(NamedTuple):
    """1 for units that are left, (k, n - 1); gains of removing each; the readout without them."""

    alive: Tensor
    gain: Tensor
    readout: Readout


def readout_gram(units: Unit, curvature: Tensor, listening: Tensor, *, biased: bool) -> Tensor:
    """What a batch says about the outgoing weights of all units together, (k, n, n), eq. T26.

    Args:
        units: activity of the layer, (k, batch, n - 1).
        curvature: of the log-likelihood in the units above, (k, batch, o).
        listening: 1 for units above that are left, (k, o).
        biased: whether the layer above has a bias; without, its row is 0.
    """
    share = listening / listening.sum(-1, keepdim=True).clamp(min=1)
    weight = (curvature * share[:, None]).sum(-1, keepdim=True)
    one = torch.full_like(units.mean[..., :1], float(biased))
    columns = torch.cat([units.mean, one], -1)
    spread = torch.cat([(weight * units.var).sum(-2), torch.zeros_like(one[..., 0, :])], -1)
    return (weight * columns).mT @ columns + torch.diag_embed(spread)


def spd_inverse(matrix: Tensor) -> Tensor:
    """Inverse of positive definite matrices, (k, n, n), by Newton's iteration.

    Matrix products alone, so that it can be part of a captured step.

    Example:
        >>> matrix = torch.tensor([[[2.0, 1.0], [1.0, 2.0]]], dtype=torch.float64)
        >>> round(spd_inverse(matrix)[0, 0, 0].item(), 4)
        0.6667
    """
    scale = matrix.diagonal(dim1=-2, dim2=-1).rsqrt()
    unit = scale[..., :, None] * matrix * scale[..., None, :]
    bound = unit.abs().sum(-1).amax(-1)[..., None, None]
    inverse = torch.eye(unit.shape[-1], dtype=unit.dtype, device=unit.device) / bound
    for _ in range(_NEWTON_STEPS):
        inverse = 2 * inverse - inverse @ unit @ inverse
    return scale[..., :, None] * inverse * scale[..., None, :]


def removal_gain(readout: Readout, prior_var: Tensor, cost: Tensor, n_listening: Tensor) -> Tensor:
    """Change of log evidence when a unit alone is removed, (k, n - 1), eq. T27.

    Args:
        readout: of the layer.
        prior_var: ν of the outgoing weights, (k, 1).
        cost: divergence of a unit's incoming weights from their prior, (k, n - 1).
        n_listening: units above that are left, (k, 1).

    Example:
        >>> one = torch.ones(1, 1)
        >>> readout = Readout(torch.tensor([[[2.0, 0.0]]]), torch.eye(2)[None])
        >>> removal_gain(readout, one, 0.5 * one, one).item()  # -2² / 2 + 0.5
        -1.5
    """
    var = readout.cov.diagonal(dim1=-2, dim2=-1)[:, :-1].clamp(min=_LEAST_VARIANCE)
    fit = 0.5 * readout.mean[..., :-1].square().sum(1) / var
    return cost + 0.5 * n_listening * (prior_var / var).log() - fit


def without(readout: Readout, unit: Tensor) -> Readout:
    """The readout given that a unit's outgoing weights are 0, (k, 1) numbers of units, eq. T28."""
    row = readout.cov.gather(1, unit[..., None].expand(-1, -1, readout.cov.shape[2]))  # (k, 1, n)
    var = row.gather(2, unit[..., None]).clamp(min=_LEAST_VARIANCE)
    own = readout.mean.gather(2, unit[..., None].expand(-1, readout.mean.shape[1], -1))
    return Readout(readout.mean - own * row / var, readout.cov - row.mT * row / var)


def eliminate(
    readout: Readout, prior_var: Tensor, cost: Tensor, n_listening: Tensor, alive: Tensor,
    n_least: Tensor, n_rounds: int,
) -> Choice:  # fmt: skip
    """Remove units one by one while the evidence rises; the others take over what they can.

    Args:
        readout: of the layer.
        prior_var: see `removal_gain`, as the next two.
        cost: see there.
        n_listening: see there.
        alive: 1 for units still there, (k, n - 1).
        n_least: number of units at which to stop, (k, 1).
        n_rounds: most units to remove.
    """
    for _ in range(n_rounds):
        gain = removal_gain(readout, prior_var, cost, n_listening)
        best, unit = gain.masked_fill(alive == 0, -torch.inf).max(1, keepdim=True)
        goes = (best > 0) & (alive.sum(1, keepdim=True) > n_least)
        rest = without(readout, unit)
        readout = Readout(*(torch.where(goes[..., None], new, old)
                            for new, old in zip(rest, readout, strict=True)))  # fmt: skip
        alive = torch.where(goes, alive.scatter(1, unit, 0.0), alive)
    return Choice(alive, removal_gain(readout, prior_var, cost, n_listening), readout)
