"""Stochastic gradient Langevin dynamics, with an optional sparse prior learned along the way.

With Q(w) the log posterior, its data part estimated from a batch and scaled by N/n, repeat

    w ← w + ε ∇Q(w) + √(2 ε T) ξ,   ξ ~ N(0, I).                       (eq. L1)

With a `GaussianLaplace` prior and adapt="sa" the latent numbers of the prior are averaged along the
chain by stochastic approximation (SGLD-SA); adapt="em" replaces them at every step (SGLD-EM).

Reference: [Deng], algorithm 1; [Welling] for the sampler, whose ε is twice ours.
Symbols: ε step_size, T = 1/τ temperature, ξ noise; the prior's are in core/gaussian_laplace.py.
Departures: those of engines/_adaptive_prior.py; point parameters climb without prior and noise.
"""

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Generator, Tensor

from bayesieve.core.batch import Batch, Metrics
from bayesieve.core.gaussian_laplace import GaussianLaplace
from bayesieve.core.posterior import Posterior, Samples
from bayesieve.core.priors import Normal, Number
from bayesieve.core.problem import Problem
from bayesieve.engines._adaptive_prior import Adapt, Averaging
from bayesieve.engines._chain import (
    Chain,
    ChainState,
    after_move_,
    average_position,
    chain_state,
    check_sampler,
    energy,
    kept_draws,
    lengths,
    metric,
    normals,
    slope,
    warm_start_,
)


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

    def warm_start_(self, state: ChainState, posterior: Posterior) -> None:
        """Continue from another posterior's mean."""
        warm_start_(state, posterior)

    def step(self, problem: Problem, state: ChainState, batch: Batch) -> Metrics:
        """Eq. L1, then one update of the prior's latent numbers; in place."""
        at = slope(problem, state, batch)
        state.step += 1
        size, temperature = lengths(self, state)
        problem.kernel(_move_)(
            state.w, at.grad, normals(problem, state), size, temperature,
            metric(state, at.grad, problem.n_data), state.controls.trained,
        )  # fmt: skip
        after_move_(self, problem, state, at)
        return {"log_lik": at.log_lik}

    def kl(self, state: ChainState) -> Tensor:
        """The prior's energy of the weights still trained, in nats without constants, (k,)."""
        return energy(state)

    def posterior(self, problem: Problem, state: ChainState, member: int = 0) -> Samples:
        """The kept draws of one chain; inclusion is ρ averaged along it."""
        return kept_draws(self, problem, state, member)

    def average(self, problem: Problem, state: ChainState, member: int = 0) -> Samples:
        """The mean of every position of one chain since burn-in, as one draw."""
        return average_position(self, problem, state, member)


def _move_(
    w: Tensor, grad: Tensor, noise: Tensor, size: Tensor, temperature: Tensor,
    metric: Tensor | None, trained: Tensor | None,
) -> None:  # fmt: skip
    n = noise.shape[1]
    own = size if metric is None else size * metric
    move = own * grad
    length = own if metric is None else own[:, :n]
    move[:, :n] = langevin_move(grad[:, :n], noise, length, temperature)
    w.add_(move if trained is None else torch.where(trained, move, torch.zeros_like(move)))
