"""The end of a pass: Module B, removal of groups, and the M-step, in place."""

from typing import NamedTuple

import torch
from torch import Tensor

from bayesieve.core.problem import Problem
from bayesieve.engines.tdamp.channels import Message
from bayesieve.engines.tdamp.removal import remove_units_
from bayesieve.engines.tdamp.spmp import (
    budget_shift,
    extrinsic,
    group_sum,
    log_evidence,
    noise_update,
    slab_moments,
    slab_update,
    sparsity_update,
)
from bayesieve.engines.tdamp.state import PassSettings, TDAMPState, kept, set_

_LEARN_NOISE_AFTER = 4  # passes
_GONE = 0.01  # activity below which a group is removed


class Activity(NamedTuple):
    """Posterior and prior log-odds of groups, and 1 for those left, each (k, g + 1)."""

    log_odds: Tensor
    prior_log_odds: Tensor
    alive: Tensor


def close_pass_(problem: Problem, state: TDAMPState, settings: PassSettings, now: Tensor) -> None:
    """Module B, removal of groups and the M-step, where `now` (scalar) is True."""
    wiring = state.wiring
    set_(state.passes, state.passes + 1, now)
    if settings.joint:
        remove_units_(problem, state, settings, now)
        active = wiring.per_weight(state.alive)
    else:
        _remove_groups_(state, settings, now)
        active = wiring.per_weight(torch.sigmoid(state.log_odds))
    slab_var = state.slab_var[:, wiring.layer_of]
    data = Message(state.data_linear, state.data_precision)
    if settings.learn_slab:
        share, slab = active * kept(state), slab_moments(data, slab_var)
        moments = (share * (slab.mean.square() + slab.var), share)
        sums = (group_sum(values, wiring.layer_of, wiring.n_layers + 1) for values in moments)
        set_(state.slab_var, slab_update(state.slab_var, *sums), now)
        slab_var = state.slab_var[:, wiring.layer_of]
    back = extrinsic(data, slab_moments(data, slab_var), slab_var, active)
    trained = state.controls.trained
    moving = now if trained is None else now & trained
    set_(state.prior_linear, back.linear, moving)
    set_(state.prior_precision, back.precision, moving)
    if problem.likelihood.parameters():  # the noise is learned
        noise = noise_update(state.noise, state.residual / problem.n_data)
        set_(state.noise, noise, now & (state.passes > _LEARN_NOISE_AFTER))
    for total in (state.residual, state.seen, state.gram):
        set_(total, torch.zeros_like(total), now)


def _remove_groups_(state: TDAMPState, settings: PassSettings, now: Tensor) -> None:
    """Odds of each group by itself, and removal of those that are improbable."""
    slab_var = state.slab_var[:, state.wiring.layer_of]
    new = _activity(state, settings, _evidence(state, settings, slab_var))
    set_(state.log_odds, new.log_odds, now)
    set_(state.prior_log_odds, new.prior_log_odds, now)
    set_(state.alive, new.alive, now)
    set_(state.reached, state.wiring.reach(state.alive), now)
    state.reached[:, state.n_bayesian :] = 0


def _evidence(state: TDAMPState, settings: PassSettings, slab_var: Tensor) -> Tensor:
    """Log evidence of each group, (k, g); read at a single count where ρ is learned."""
    count = state.count.clamp(min=1) if settings.keep is None else 1.0
    data = Message(state.data_linear / count, state.data_precision / count)
    evidence = log_evidence(data, slab_var) * kept(state)
    return group_sum(evidence, state.wiring.group_of, state.wiring.n_groups + 1)[:, :-1]


def _activity(state: TDAMPState, settings: PassSettings, evidence: Tensor) -> Activity:
    """Activity of the groups after this pass, eqs. T17 and T20."""
    first, last = settings.prune_passes
    progress = ((state.passes - first + 1) / (last - first + 1)).clamp(0, 1)
    result = Activity(*(v.clone() for v in (state.log_odds, state.prior_log_odds, state.alive)))
    for block in state.wiring.blocks:
        groups = Activity(*(value[:, block] for value in result))
        left = evidence[:, block].masked_fill(groups.alive == 0, -torch.inf)
        if settings.keep is None:
            _learned_(groups, left, progress)
        else:
            n_keep = max(1, round(settings.keep * left.shape[1]))
            _budgeted_(groups, left, progress, n_keep)
    return result


def _learned_(groups: Activity, evidence: Tensor, progress: Tensor) -> None:
    """Prior odds from the last M-step; groups that are almost surely inactive go."""
    groups.log_odds.copy_(groups.prior_log_odds + evidence)
    active = torch.sigmoid(groups.log_odds)
    set_(groups.alive, groups.alive * (active >= _GONE), progress > 0)
    groups.prior_log_odds.copy_(sparsity_update(active, groups.alive).logit())


def _budgeted_(groups: Activity, evidence: Tensor, progress: Tensor, n_keep: int) -> None:
    """Prior odds that leave a falling number of groups active; at the end exactly `n_keep`."""
    n_groups = evidence.shape[1]
    shift = budget_shift(evidence, n_groups - progress * (n_groups - n_keep))
    groups.prior_log_odds.copy_(shift.expand_as(evidence))
    groups.log_odds.copy_(shift + evidence)
    set_(groups.alive, groups.alive * (torch.sigmoid(groups.log_odds) >= _GONE), progress > 0)
    best = torch.zeros_like(evidence).scatter_(1, evidence.topk(n_keep, 1).indices, 1.0)
    final = progress == 1
    set_(groups.alive, best * (evidence > -torch.inf), final)
    set_(groups.log_odds, torch.where(best > 0, torch.inf, -torch.inf).to(best.dtype), final)
