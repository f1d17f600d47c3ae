"""Removal of hidden units at the end of a pass, in place, by their joint evidence.

Units that do the same work are each indispensable to a factorised posterior and superfluous as a
pair. Their outgoing weights are therefore judged jointly, with the full covariance between units:
given the units' activity the layer above is a linear model, and removing a unit is Bayesian model
reduction in closed form. Equation numbers are those of docs/theory/tdamp.md.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from bayesieve.core.layout import Layout
from bayesieve.core.priors import normal_kl
from bayesieve.core.problem import Problem
from bayesieve.engines.tdamp.damp import Layer
from bayesieve.engines.tdamp.spmp import group_sum, sparsity_update
from bayesieve.engines.tdamp.state import PassSettings, TDAMPState, kept, moments, set_

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
    gone = readout.mean.gather(2, unit[..., None].expand(-1, readout.mean.shape[1], -1))
    return Readout(readout.mean - gone * row / var, readout.cov - row.mT * row / var)


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


# The evidence is read at a share of the data, since what a removal costs at once is mostly learned
# again: 0.01 to 0.1 find the same support. Few data are read in full, and few outputs at a larger
# share: a unit pays for its incoming weights once, however many outputs it serves.
_JUDGED_AT, _LEAST_TARGETS = 0.1, 2000  # examples times outputs


def remove_units_(problem: Problem, state: TDAMPState, settings: PassSettings, now: Tensor) -> None:
    """Remove superfluous units of every hidden layer and hand their work to the others.

    Args:
        problem: that is learned.
        state: of the engine; its `passes` already counts the pass that ends.
        settings: of the engine.
        now: scalar; False leaves everything as it is.
    """
    first, last = settings.prune_passes
    due = (state.passes >= first) & (state.passes <= last)
    cost = _incoming_cost(state)
    for i, block in enumerate(state.wiring.blocks):
        alive = state.alive[:, block].double()
        readout, prior_var, listening = _readout(problem, state, i)
        n_least = torch.where(due, 1.0, alive.sum(1, keepdim=True))
        n_rounds = math.ceil(alive.shape[1] / (last - first + 1))
        choice = eliminate(readout, prior_var, cost[:, block], listening, alive, n_least, n_rounds)
        odds = (-choice.gain).clamp(min=0)  # those whose turn has not come yet are undecided
        odds = odds.masked_fill(choice.alive == 0, -torch.inf).to(state.log_odds.dtype)
        share = sparsity_update(torch.sigmoid(odds), torch.ones_like(odds)).logit()
        set_(state.alive[:, block], choice.alive.to(state.alive.dtype), now)
        set_(state.log_odds[:, block], odds, now)
        set_(state.prior_log_odds[:, block], share.expand_as(odds), now)
        removed = (choice.alive < alive).any(1, keepdim=True)
        _hand_over_(problem.layout, state, state.wiring.layers[i + 1], choice, now & removed)
    set_(state.reached, state.wiring.reach(state.alive), now)
    state.reached[:, state.n_bayesian :] = 0


def judged_share(n_data: int, n_listening: Tensor) -> Tensor:
    """Share τ of the data that evidence is read at, of the shape of `n_listening`.

    Example:
        >>> judged_share(4000, torch.tensor([1.0, 3.0, 20.0]))
        tensor([0.5000, 0.1667, 0.1000])
    """
    targets = n_data * n_listening.clamp(min=1)
    return (_LEAST_TARGETS / targets).clamp(_JUDGED_AT, 1.0)


def _incoming_cost(state: TDAMPState) -> Tensor:
    """KL[q || prior] of each unit's incoming weights with the data counted once, (k, g)."""
    wiring = state.wiring
    mean, _ = moments(state)
    once = state.data_precision / state.count.clamp(min=1)
    prior_std = state.slab_var[:, wiring.layer_of].sqrt()
    log_std = -0.5 * (once + prior_std.square().reciprocal()).log()
    cost = normal_kl(mean.double(), log_std.double(), prior_std.double()) * kept(state)
    return group_sum(cost, wiring.group_of, wiring.n_groups + 1)[:, :-1]


def _readout(problem: Problem, state: TDAMPState, index: int) -> tuple[Readout, Tensor, Tensor]:
    """Joint posterior of what leaves a layer, its prior variance, and how many listen, (k, 1)."""
    layout, above = problem.layout, state.wiring.layers[index + 1]
    mean, var = (layout.unflatten(value) for value in moments(state))
    weight = mean[above.weight].double()
    bias = torch.zeros_like(weight[..., 0]) if above.bias is None else mean[above.bias].double()
    size = weight.shape[-1] + 1
    gram = state.gram[:, state.wiring.grams[index]].view(-1, size, size).double()
    prior_var = state.slab_var[:, index + 1, None].double()
    listening = (var[above.weight] > 0).any(-1).double().sum(-1, keepdim=True)
    share = judged_share(problem.n_data, listening)[..., None]
    cov = spd_inverse(share * gram + torch.diag_embed((1 / prior_var).expand(-1, size)))
    return Readout(torch.cat([weight, bias[..., None]], -1), cov), prior_var, listening


def _hand_over_(
    layout: Layout, state: TDAMPState, above: Layer, choice: Choice, now: Tensor
) -> None:
    """Move the means of outgoing weights to where the others take over, eq. T28."""
    scale = state.controls.kl_scale
    means = {above.weight: choice.readout.mean[..., :-1]}
    if above.bias is not None:
        means[above.bias] = choice.readout.mean[..., -1]
    for name, mean in means.items():
        part = layout.slices[name]
        precision = scale * state.prior_precision[:, part] + state.data_precision[:, part]
        linear = mean.flatten(1).to(precision.dtype) * precision
        linear = linear - scale * state.prior_linear[:, part]
        trained = state.controls.trained
        set_(state.data_linear[:, part], linear, now if trained is None else now & trained[:, part])
