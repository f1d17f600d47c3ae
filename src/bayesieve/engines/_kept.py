"""What a chain keeps of its path: a ring of draws, the average position, statistics of norms.

The newest place of the ring always holds the current position, so that keeping a draw needs no
branch inside a captured step. With each draw lie the running statistics its normalisation layers
had then (core/norm_statistics.py).
"""

import torch
from torch import Tensor

from bayesieve.core.norm_statistics import flat_statistics, named_statistics
from bayesieve.core.posterior import Posterior, Samples
from bayesieve.core.priors import GaussianLaplace
from bayesieve.core.problem import Problem
from bayesieve.engines._chain import ChainState, Sampler, Slope
from bayesieve.engines.adaptive_prior import Latents, update_latents_
from bayesieve.engines.chain import Chain


def start_at_(engine: Sampler, state: ChainState, posterior: Posterior) -> None:
    """Move every chain to another posterior's mean, in place."""
    state.w.copy_(posterior.mean)
    state.average.copy_(posterior.mean)
    state.draws[:, 0] = posterior.mean
    names, given = state.norm_names, posterior.buffers
    if state.norms is not None and all(name in given for name in names):
        state.norms[:, 0] = flat_statistics(names, {name: given[name][None] for name in names})


def after_move_(engine: Sampler, state: ChainState, at: Slope) -> None:
    """Let the prior follow the new position and keep it; in place, inside an engine's kernel."""
    chain, w = engine.chain, state.w
    if state.latents is not None and engine.adapt != "none":
        _follow_(engine, state, state.latents, at)
    if at.noise is not None and at.noise.column is not None and at.square_sum is not None:
        w[:, at.noise.column] = at.noise.followed(w, at.square_sum)
    state.draws.index_copy_(1, _newest(chain, state.step), w[:, None])
    state.average.lerp_(w, 1 / (state.step - chain.burn_in).clamp(min=1))


def _follow_(engine: Sampler, state: ChainState, latents: Latents, at: Slope) -> None:
    """One update of the latent numbers, by the engine's own weight of the new ones."""
    averaging = engine.averaging
    omega = averaging.omega(state.step)
    if engine.adapt == "em":
        omega = torch.ones_like(omega)
    settling = state.step <= averaging.noise_first if averaging.noise_first else None
    update_latents_(
        latents, state.w, state.controls.keep, omega, averaging, at.square_sum,
        0 if at.noise is None else at.noise.n_targets, settling,
    )  # fmt: skip


def keep_norms_(engine: Sampler, problem: Problem, state: ChainState) -> None:
    """Keep the running statistics that go with the new position; in place."""
    if state.norms is not None:
        buffers = problem.workspace(len(state.w)).all_buffers()
        own = flat_statistics(state.norm_names, buffers)
        state.norms.index_copy_(1, _newest(engine.chain, state.step), own[:, None])


def _newest(chain: Chain, step: Tensor) -> Tensor:
    """The place in the ring of the current position, (1,)."""
    return ((chain.n_seen(step) - 1) % chain.n_kept)[None]


def kept_draws(engine: Sampler, problem: Problem, state: ChainState, member: int = 0) -> Samples:
    """The draws of one chain as copies, oldest first, 0 where pruned; inclusion as of now."""
    seen = int(engine.chain.n_seen(state.step).item())
    rows = [ring[member] for ring in (state.draws, state.norms) if ring is not None]
    if seen > engine.chain.n_kept:
        rows = [ring.roll(-(seen % len(ring)), 0) for ring in rows]
    own = [ring[:seen].detach().clone() for ring in rows]
    return _samples(engine, problem, state, member, own[0], own[1] if len(own) > 1 else None)


def average_position(
    engine: Sampler, problem: Problem, state: ChainState, member: int = 0
) -> Samples:
    """The mean of all positions of one chain since burn-in, as a posterior of one draw.

    Of normalisation layers it has the last statistics, which are not its own: no batch has gone
    through it. `sieve.prune.reestimate_batchnorm` computes them.
    """
    draws = state.average[member : member + 1].detach().clone()
    return _samples(engine, problem, state, member, draws, None)


def _samples(
    engine: Sampler, problem: Problem, state: ChainState, member: int, draws: Tensor,
    norms: Tensor | None,
) -> Samples:  # fmt: skip
    buffers, own = problem.workspace(len(state.w)).buffers(member), {}
    if norms is not None:
        own = named_statistics(state.norm_names, norms, buffers)
        buffers |= {name: value.mean(0) for name, value in own.items()}
    whole = Samples(problem.network, draws, _log_odds(engine, problem, state, member), buffers, own)
    keep = state.controls.keep
    return whole if keep is None else whole.masked(keep[member])


def _log_odds(engine: Sampler, problem: Problem, state: ChainState, member: int) -> Tensor | None:
    """Log-odds of the wider component at each weight, (d,); None without an adaptive prior."""
    if state.latents is None or engine.adapt == "none":
        return None
    assert isinstance(engine.prior, GaussianLaplace)
    logit = torch.full_like(state.w[member], torch.inf)
    odds = state.latents.rho[member].logit(eps=1e-7)
    wide = engine.prior.ranks_by_inclusion(member)
    logit[problem.layout.sparse] = odds if wide else -odds
    return logit
