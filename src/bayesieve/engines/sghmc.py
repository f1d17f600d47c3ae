"""Stochastic gradient Hamiltonian Monte Carlo, with an optional sparse prior learned along the way.

With Q(w) the log posterior, its data part estimated from a batch and scaled by N/n, repeat

    v ← (1 - α) v + ε ∇Q(w) + √(2 ε (α - β̂) T) ξ,   w ← w + v,   ξ ~ N(0, I)      (eq. H1)

with friction α and β̂ = ½ V ε the share of the noise that the gradient itself brings. α = 1 and
V = 0 give SGLD; T = 0 is gradient ascent with momentum 1 - α.

Reference: [Deng], algorithm 1; [Saatci], algorithm 1, for this form of [Chen]'s sampler.
Symbols: ε step_size, α friction, V gradient_variance, v velocity, T = 1/τ temperature; the prior's
are in core/priors.py. adapt="sa" is SGHMC-SA, "em" SGHMC-EM.
Departures: those of engines/adaptive_prior.py; point parameters climb without prior and noise.
"""

from dataclasses import dataclass, field
from typing import Literal

from torch import Generator, Tensor

from bayesieve.checks import check_fraction, check_not_negative, check_positive
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


def noise_std(
    step_size: Tensor, friction: float, gradient_variance: float, temperature: Tensor
) -> Tensor:
    """Standard deviation of what is added to the velocity, eq. H1.

    Example:
        >>> import torch
        >>> noise_std(torch.tensor(0.5), 1.0, 0.0, torch.tensor(1.0)).item()
        1.0
    """
    own = friction - 0.5 * gradient_variance * step_size
    return (2 * step_size * own * temperature).sqrt()


@dataclass(frozen=True)
class SGHMC:
    """Hamiltonian engine; the models of a population are its chains.

    Numbers may be tuples with one entry per model of a population.

    Args:
        prior: density of the Bayesian weights; `GaussianLaplace` concerns the prunable ones.
        step_size: ε of eq. H1; the posterior is in nats over the full data set.
        temperature: T; 1 samples the posterior, 0 is gradient ascent with momentum.
        adapt: how a `GaussianLaplace` prior is learned: "sa", "em" or "none".
        averaging: the weights of the stochastic approximation.
        chain: burn-in, thinning, draws kept, and schedules of step size and temperature.
        preconditioned: divide the gradient by its running root mean square.
        start: starting weights: "module" (the model's own) or "he" (uniform in ±√(6 / fan_in)).
        friction: α in (0, 1], 1 - momentum.
        gradient_variance: V, guess of the gradient's own noise in units of 1 / step_size.

    Example:
        >>> SGHMC(step_size=1e-4).adapt
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
    friction: float = 0.1
    gradient_variance: float = 1.0

    def __post_init__(self) -> None:
        check_sampler("SGHMC", self)
        check_positive("SGHMC", friction=self.friction)
        check_fraction("SGHMC", friction=self.friction)
        check_not_negative("SGHMC", gradient_variance=self.gradient_variance)
        sizes = self.step_size if isinstance(self.step_size, tuple) else (self.step_size,)
        if 0.5 * self.gradient_variance * max(sizes) > self.friction:
            raise ValueError(
                f"SGHMC: gradient_variance * step_size / 2 must be <= friction, got "
                f"{0.5 * self.gradient_variance * max(sizes)} > {self.friction}. "
                "Lower step_size (--lr) or raise friction (--friction)."
            )

    def init(self, problem: Problem, generator: Generator, n_models: int = 1) -> ChainState:
        """Start every chain at the initial weights."""
        return chain_state(self, problem, generator, n_models, momentum=True)

    def step(self, problem: Problem, state: ChainState, batch: Batch) -> Metrics:
        """Eq. H1, then one update of the prior's latent numbers; in place."""
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


def _advance_(engine: SGHMC, state: ChainState, at: Slope, noise: Tensor) -> None:
    """Eq. H1 and what follows a move, in place."""
    velocity, n = state.velocity, state.n_bayesian
    assert velocity is not None
    grad = drift(state, at)
    size, temperature = lengths(engine, state)
    scales = metric(state, at)
    velocity.mul_(1 - engine.friction).add_((size if scales is None else size * scales) * grad)
    std = noise_std(size, engine.friction, engine.gradient_variance, temperature)
    velocity[:, :n].add_((std if scales is None else std * scales[:, :n].sqrt()) * noise)
    if state.controls.trained is not None:
        velocity.mul_(state.controls.trained)
    state.w.add_(velocity)
    after_move_(engine, state, at)
