"""Once per pass: Module B, the M-step, and the removal of groups.

Module B: weights of one group hang on one indicator, so the prior's factor graph is a forest of
stars and its messages are closed forms. Everything stays in log-odds: evidences add over hundreds
of weights and reach hundreds of nats. The M-step updates sparsity, slab variance and noise in
closed form.

Removal: a group by itself goes when its activity is improbable. Hidden units that do the same work
are each indispensable to a factorised posterior and superfluous as a pair. Their outgoing weights
are therefore judged jointly, with the full covariance between units: given the units' activity the
layer above is a linear model, and removing a unit is Bayesian model reduction in closed form.
Equation numbers are those of docs/theory/tdamp.md.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from bayesieve.core.layout import Layout
from bayesieve.core.priors import normal_kl
from bayesieve.core.problem import Problem
from bayesieve.engines.tdamp.channels import Message, Unit
from bayesieve.engines.tdamp.damp import Layer
from bayesieve.engines.tdamp.state import TDAMPState, kept, moments, set_

LEAST_VARIANCE = 1e-10
LEAST_PRECISION = 0.1  # of the message back, in units of the slab's
_SECTIONS, _ROUNDS = 64, 7  # of a search that narrows its interval 64-fold each time


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


def slab_moments(data: Message, slab_var: Tensor) -> Unit:
    """Mean and variance of a weight given that its group is active, eq. T18."""
    var = slab_var / (1 + slab_var * data.precision)
    return Unit(var * data.linear, var)


def extrinsic(data: Message, slab: Unit, slab_var: Tensor, active: Tensor) -> Message:
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


_NEWTON_STEPS = 32  # enough for a condition number of 1e8
_LEAST_UNIT_VARIANCE = 1e-30
_GONE = 0.01  # activity below which a group by itself is removed


class Readout(NamedTuple):
    """Gaussian over what leaves a layer: means (k, o, n) and one covariance (k, n, n) for all o.

    The last of the n columns is the bias of the layer above. `prior_var` is ν of these weights and
    `n_listening` the number of units above that are left, both (k, 1).
    """

    mean: Tensor
    cov: Tensor
    prior_var: Tensor
    n_listening: Tensor


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


def removal_gain(readout: Readout, cost: Tensor) -> Tensor:
    """Change of log evidence when a unit alone is removed, (k, n - 1), eq. T27.

    Args:
        readout: of the layer.
        cost: divergence of a unit's incoming weights from their prior, (k, n - 1).

    Example:
        >>> one = torch.ones(1, 1)
        >>> readout = Readout(torch.tensor([[[2.0, 0.0]]]), torch.eye(2)[None], one, one)
        >>> removal_gain(readout, 0.5 * one).item()  # -2² / 2 + 0.5
        -1.5
    """
    var = readout.cov.diagonal(dim1=-2, dim2=-1)[:, :-1].clamp(min=_LEAST_UNIT_VARIANCE)
    fit = 0.5 * readout.mean[..., :-1].square().sum(1) / var
    return cost + 0.5 * readout.n_listening * (readout.prior_var / var).log() - fit


def without(readout: Readout, unit: Tensor) -> Readout:
    """The readout given that a unit's outgoing weights are 0, (k, 1) numbers of units, eq. T28."""
    row = readout.cov.gather(1, unit[..., None].expand(-1, -1, readout.cov.shape[2]))  # (k, 1, n)
    var = row.gather(2, unit[..., None]).clamp(min=_LEAST_UNIT_VARIANCE)
    gone = readout.mean.gather(2, unit[..., None].expand(-1, readout.mean.shape[1], -1))
    mean, cov = readout.mean - gone * row / var, readout.cov - row.mT * row / var
    return readout._replace(mean=mean, cov=cov)


def eliminate(
    readout: Readout, cost: Tensor, alive: Tensor, n_least: Tensor, n_rounds: int
) -> tuple[Tensor, Tensor, Readout]:
    """Remove units one by one while the evidence rises; the others take over what they can.

    Returns 1 for units that are left, (k, n - 1); gains of removing each; the readout without them.

    Args:
        readout: of the layer.
        cost: see `removal_gain`.
        alive: 1 for units still there, (k, n - 1).
        n_least: number of units at which to stop, (k, 1).
        n_rounds: most units to remove.
    """
    for _ in range(n_rounds):
        gain = removal_gain(readout, cost)
        best, unit = gain.masked_fill(alive == 0, -torch.inf).max(1, keepdim=True)
        goes = (best > 0) & (alive.sum(1, keepdim=True) > n_least)
        rest = without(readout, unit)
        pairs = zip(rest[:2], readout[:2], strict=True)
        mean, cov = (torch.where(goes[..., None], new, old) for new, old in pairs)
        readout = readout._replace(mean=mean, cov=cov)
        alive = torch.where(goes, alive.scatter(1, unit, 0.0), alive)
    return alive, removal_gain(readout, cost), readout


# Few data are read in full, and few outputs at a larger share than asked for: a unit pays for its
# incoming weights once, however many outputs it serves.
_LEAST_TARGETS = 2000  # examples times outputs


def remove_groups_(
    state: TDAMPState, keep: float | None, prune_passes: tuple[int, int], now: Tensor
) -> None:
    """Odds of each group by itself, and removal of improbable groups, eqs. T17 and T20.

    Args:
        state: of the engine; its `passes` already counts the pass that ends.
        keep: fraction of groups to end with; None removes by the prior odds of the last M-step.
        prune_passes: first and last pass after which groups are removed.
        now: scalar; False leaves everything as it is.
    """
    first, last = prune_passes
    progress = ((state.passes - first + 1) / (last - first + 1)).clamp(0, 1)
    count = state.count.clamp(min=1) if keep is None else 1.0  # where ρ is learned, data count once
    data = Message(state.data_linear / count, state.data_precision / count)
    evidence = log_evidence(data, state.slab_var[:, state.wiring.layer_of]) * kept(state)
    evidence = group_sum(evidence, state.wiring.group_of, state.wiring.n_groups + 1)
    for block in state.wiring.blocks:
        alive = state.alive[:, block]
        left = evidence[:, block].masked_fill(alive == 0, -torch.inf)
        n_groups = left.shape[1]
        n_keep = n_groups if keep is None else max(1, round(keep * n_groups))
        prior = state.prior_log_odds[:, block]
        if keep is not None:
            prior = budget_shift(left, n_groups - progress * (n_groups - n_keep))
        log_odds = prior + left
        active = torch.sigmoid(log_odds)
        alive = torch.where(progress > 0, alive * (active >= _GONE), alive)
        if keep is None:
            prior = sparsity_update(active, alive).logit()
        else:  # after the last pass exactly `n_keep` are left
            best = torch.zeros_like(left).scatter_(1, left.topk(n_keep, 1).indices, 1.0)
            decided = torch.where(best > 0, torch.inf, -torch.inf).to(best.dtype)
            alive = torch.where(progress == 1, best * (left > -torch.inf), alive)
            log_odds = torch.where(progress == 1, decided, log_odds)
        _set_block_(state, block, alive, log_odds, prior, now)


def _set_block_(
    state: TDAMPState, block: slice, alive: Tensor, log_odds: Tensor, prior: Tensor, now: Tensor
) -> None:
    """Overwrite what is known of a layer's groups where `now`; `prior` is (k, 1) or (k, groups)."""
    set_(state.alive[:, block], alive.to(state.alive.dtype), now)
    set_(state.log_odds[:, block], log_odds, now)
    set_(state.prior_log_odds[:, block], prior.expand_as(log_odds), now)


def remove_units_(
    problem: Problem, state: TDAMPState, prune_passes: tuple[int, int], judged_at: float,
    now: Tensor,
) -> None:  # fmt: skip
    """Remove superfluous units of every hidden layer and hand their work to the others.

    Args:
        problem: that is learned.
        state: see `remove_groups_`, as `prune_passes` and `now`.
        prune_passes: see there.
        judged_at: share of the data that the evidence is read at: what a removal costs at once is
            mostly learned again.
        now: see there.
    """
    first, last = prune_passes
    due = (state.passes >= first) & (state.passes <= last)
    cost = _incoming_cost(state)
    for i, block in enumerate(state.wiring.blocks):
        alive = state.alive[:, block].double()
        n_least = torch.where(due, 1.0, alive.sum(1, keepdim=True))
        n_rounds = math.ceil(alive.shape[1] / (last - first + 1))
        readout = _readout(problem, state, i, judged_at)
        left, gain, readout = eliminate(readout, cost[:, block], alive, n_least, n_rounds)
        odds = (-gain).clamp(min=0)  # those whose turn has not come yet are undecided
        odds = odds.masked_fill(left == 0, -torch.inf).to(state.log_odds.dtype)
        share = sparsity_update(torch.sigmoid(odds), torch.ones_like(odds)).logit()
        _set_block_(state, block, left, odds, share, now)
        removed = (left < alive).any(1, keepdim=True)
        _hand_over_(problem.layout, state, state.wiring.layers[i + 1], readout, now & removed)


def judged_share(judged_at: float, n_data: int, n_listening: Tensor) -> Tensor:
    """Share τ of the data that evidence is read at, of the shape of `n_listening`.

    Example:
        >>> judged_share(0.2, 4000, torch.tensor([1.0, 3.0, 20.0]))
        tensor([0.5000, 0.2000, 0.2000])
    """
    targets = n_data * n_listening.clamp(min=1)
    return (_LEAST_TARGETS / targets).clamp(judged_at, 1.0)


def _incoming_cost(state: TDAMPState) -> Tensor:
    """KL[q || prior] of each unit's incoming weights with the data counted once, (k, g)."""
    wiring, mean = state.wiring, moments(state)[0]
    once = state.data_precision / state.count.clamp(min=1)
    prior_std = state.slab_var[:, wiring.layer_of].sqrt()
    log_std = -0.5 * (once + prior_std.square().reciprocal()).log()
    cost = normal_kl(mean.double(), log_std.double(), prior_std.double()) * kept(state)
    return group_sum(cost, wiring.group_of, wiring.n_groups + 1)[:, :-1]


def _readout(problem: Problem, state: TDAMPState, index: int, judged_at: float) -> Readout:
    """Joint posterior of what leaves a layer."""
    layout, above = problem.layout, state.wiring.layers[index + 1]
    mean, var = (layout.unflatten(value) for value in moments(state))
    weight = mean[above.weight].double()
    bias = torch.zeros_like(weight[..., 0]) if above.bias is None else mean[above.bias].double()
    size = weight.shape[-1] + 1
    gram = state.gram[:, state.wiring.grams[index]].view(-1, size, size).double()
    prior_var = state.slab_var[:, index + 1, None].double()
    listening = (var[above.weight] > 0).any(-1).double().sum(-1, keepdim=True)
    share = judged_share(judged_at, problem.n_data, listening)[..., None]
    cov = spd_inverse(share * gram + torch.diag_embed((1 / prior_var).expand(-1, size)))
    return Readout(torch.cat([weight, bias[..., None]], -1), cov, prior_var, listening)


def _hand_over_(
    layout: Layout, state: TDAMPState, above: Layer, readout: Readout, now: Tensor
) -> None:
    """Move the means of outgoing weights to where the others take over, eq. T28."""
    scale = state.controls.kl_scale
    means = (readout.mean[..., :-1], readout.mean[..., -1])
    for name, mean in zip(above.tensors, means, strict=False):  # a bias may lack
        part = layout.slices[name]
        precision = scale * state.prior_precision[:, part] + state.data_precision[:, part]
        linear = mean.flatten(1).to(precision.dtype) * precision
        linear = linear - scale * state.prior_linear[:, part]
        trained = state.controls.trained
        set_(state.data_linear[:, part], linear, now if trained is None else now & trained[:, part])
