"""Stochastic gradient Langevin dynamics, with an optional sparse prior learned along the way.

With Q(w) the log posterior, its data part estimated from a batch and scaled by N/n, repeat

    w ← w + ε ∇Q(w) + √(2 ε T) ξ,   ξ ~ N(0, I).                       (eq. L1)

With a `GaussianLaplace` prior and adapt="sa" the latent numbers of the prior are averaged along the
chain by stochastic approximation (SGLD-SA); adapt="em" replaces them at every step (SGLD-EM).

Reference: [Deng], algorithm 1; [Welling] for the sampler, whose ε is twice ours.
Symbols: ε step_size, T = 1/τ temperature, ξ noise; the prior's are in core/priors.py.
Departures: those of engines/adaptive_prior.py; point parameters climb without prior and noise.
"""

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Generator, Tensor

from bayesieve.core.batch import Batch, Metrics
from bayesieve.core.priors import GaussianLaplace, Normal, Number
from bayesieve.core.problem import Problem
from bayesieve.engines._chain import (
    ChainState,
    Slope,
    chain_state,
    check_sampler,
    drift,
    energy,
    lengths,
    metric,
    normals,
    slope,
)
from bayesieve.engines._kept import (
    after_move_,
    average_position,
    keep_norms_,
    kept_draws,
    start_at_,
)
from bayesieve.engines.chain import Adapt, Averaging, Chain


def langevin_move(gradient: Tensor, noise: Tensor, step_size: Tensor, heat: Tensor) -> Tensor:
    """The change of w in eq. L1.

    Example:
        >>> one = torch.tensor(1.0)
        >>> langevin_move(4 * one, one, one / 2, one).item()
        3.0
    """
    return step_size * gradient + (2 * step_size * heat).sqrt() * noise


@dataclass(frozen=True)
class SGLD:
    """Langevin engine; the models of a population are its chains.

    Numbers may be tuples with one entry per model of a population.

    Args:
        prior: density of the Bayesian weights; `GaussianLaplace` concerns the prunable ones.
        step_size: ε of eq. L1; the posterior is in nats over the full data set.
        temperature: T; 1 samples the posterior, 0 is gradient ascent.
        adapt: how a `GaussianLaplace` prior is learned: "sa", "em" or "none".
        averaging: the weights of the stochastic approximation.
        chain: burn-in, thinning, draws kept, and schedules of step size and temperature.
        preconditioned: divide the gradient by its running root mean square.
        start: starting weights: "module" (the model's own) or "he" (uniform in ±√(6 / fan_in)).

    Example:
        >>> SGLD(step_size=1e-4).adapt
        'none'
    """

    prior: Normal | GaussianLaplace = field(default_factory=Normal)
    step_size: Number = 1e-5
    temperature: Number = 1.0
    adapt: Adapt = "none"
    averaging: Averaging = field(default_factory=Averaging)
    chain: Chain = field(default_factory=Chain)
    preconditioned: bool = False
    start: Literal["module", "he"] = "module"

    def __post_init__(self) -> None:
        check_sampler("SGLD", self)

    def init(self, problem: Problem, generator: Generator, n_models: int = 1) -> ChainState:
        """Start every chain at the initial weights."""
        return chain_state(self, problem, generator, n_models, momentum=False)

    def step(self, problem: Problem, state: ChainState, batch: Batch) -> Metrics:
        """Eq. L1, then one update of the prior's latent numbers; in place."""
        at = slope(problem, state, batch)
        state.step += 1
        problem.kernel(_advance_)(self, state, at, normals(problem, state))
        keep_norms_(self, problem, state)
        return {"log_lik": at.log_lik}

    # What every sampler shares reads the same here and there.
    warm_start_ = start_at_
    kl = energy
    posterior = kept_draws
    average = average_position


def _advance_(engine: SGLD, state: ChainState, at: Slope, noise: Tensor) -> None:
    """Eq. L1 and what follows a move, in place."""
    grad, n = drift(state, at), state.n_bayesian
    size, temperature = lengths(engine, state)
    scales = metric(state, at)
    own = size if scales is None else size * scales
    move = own * grad
    length = own if scales is None else own[:, :n]
    move[:, :n] = langevin_move(grad[:, :n], noise, length, temperature)
    trained = state.controls.trained
    state.w.add_(move if trained is None else torch.where(trained, move, torch.zeros_like(move)))
    after_move_(engine, state, at)
