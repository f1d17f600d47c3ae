"""What the samplers share: the gradient of the log posterior, step sizes, and the draws they keep.

The chain axis is the population axis k. Of each chain the state holds the position, a ring of kept
draws and the average position since burn-in. The newest place of the ring always holds the current
position, so that keeping a draw needs no branch inside a captured step.
"""

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Generator, Tensor

from bayesieve.checks import check_choice, check_not_negative, check_positive
from bayesieve.core.batch import Batch
from bayesieve.core.gaussian_laplace import GaussianLaplace
from bayesieve.core.noise import counter_normals, fresh_keys
from bayesieve.core.posterior import Posterior, Samples
from bayesieve.core.priors import Normal, Number, per_model
from bayesieve.core.problem import Problem
from bayesieve.core.state import Controls
from bayesieve.engines._adaptive_prior import (
    Adapt,
    Averaging,
    Latents,
    SharedNoise,
    latents_of,
    prior_energy,
    prior_pull,
    update_latents_,
)

_RMS_DECAY, _RMS_FLOOR = 0.99, 1e-5  # of the preconditioner, per example


@dataclass(frozen=True)
class Chain:
    """What a chain keeps of its path, and how its step size and temperature change.

    Args:
        burn_in: steps before the first kept draw.
        thin: steps between kept draws.
        n_kept: most draws held of one chain; then the oldest go.
        power: the step size falls as (1 + (k - 1) / delay)^-power.
        delay: steps before it begins to fall.
        cycle: steps of a cosine cycle from the full step size to 0; 0 for none.
        cooling: factor on the temperature after each step; below 1 is simulated annealing.

    Example:
        >>> round(Chain(cycle=10).factor(torch.tensor(6.0)).item(), 4)  # half-way down a cosine
        0.5
    """

    burn_in: int = 0
    thin: int = 100
    n_kept: int = 20
    power: float = 0.0
    delay: float = 1.0
    cycle: int = 0
    cooling: float = 1.0

    def __post_init__(self) -> None:
        check_positive("Chain", thin=self.thin, n_kept=self.n_kept, delay=self.delay)
        check_positive("Chain", cooling=self.cooling)
        check_not_negative("Chain", burn_in=self.burn_in, power=self.power, cycle=self.cycle)

    def factor(self, step: Tensor) -> Tensor:
        """Factor on the step size at step k ≥ 1."""
        value = torch.ones_like(step)
        if self.power:
            value = (1 + (step - 1) / self.delay) ** -self.power
        if self.cycle:
            value = value * 0.5 * (1 + torch.cos(math.pi / self.cycle * ((step - 1) % self.cycle)))
        return value

    def n_seen(self, step: Tensor) -> Tensor:
        """Draws kept so far, the current position included, after `step` steps; at least 1."""
        return ((step - self.burn_in) / self.thin).ceil().clamp(min=1)


@dataclass
class ChainState:
    """What must survive a step of a sampler."""

    w: Tensor  # (k, d)
    velocity: Tensor | None  # (k, d), of samplers with momentum
    square: Tensor | None  # (k, d), running mean square of the gradient, of preconditioned ones
    draws: Tensor  # (k, n_kept, d)
    average: Tensor  # (k, d), of all positions since burn-in
    latents: Latents | None  # of a GaussianLaplace prior
    precision: Tensor  # of Gaussian priors, scalar or (k, 1)
    step: Tensor  # scalar
    step_size: Tensor  # scalar or (k, 1)
    temperature: Tensor  # scalar or (k, 1)
    controls: Controls
    generator: Generator
    n_bayesian: int


class Sampler(Protocol):
    """The settings both samplers have."""

    @property
    def prior(self) -> Normal | GaussianLaplace: ...
    @property
    def step_size(self) -> Number: ...
    @property
    def temperature(self) -> Number: ...
    @property
    def adapt(self) -> Adapt: ...
    @property
    def averaging(self) -> Averaging: ...
    @property
    def chain(self) -> Chain: ...
    @property
    def preconditioned(self) -> bool: ...
    @property
    def start(self) -> str: ...


def check_sampler(who: str, engine: Sampler) -> None:
    """Raise on settings no sampler can work with."""
    check_positive(who, step_size=engine.step_size)
    check_not_negative(who, temperature=engine.temperature)
    check_choice(who, "adapt", engine.adapt, ("none", "sa", "em"))
    check_choice(who, "start", engine.start, ("module", "he"))
    if engine.adapt != "none" and not isinstance(engine.prior, GaussianLaplace):
        raise ValueError(
            f"{who}: adapt={engine.adapt!r} needs a GaussianLaplace prior, got "
            f"{type(engine.prior).__name__}. Give that prior, or adapt='none'."
        )


def chain_state(
    engine: Sampler, problem: Problem, generator: Generator, n_models: int, *, momentum: bool
) -> ChainState:
    """A fresh state at the initial weights."""
    w = problem.starting_points(n_models, generator, engine.start)
    prior, latents = engine.prior, None
    if isinstance(prior, GaussianLaplace):
        SharedNoise.of(problem)  # raises where the likelihood does not fit
        latents = latents_of(prior, problem, w)
    std = prior.other_std if isinstance(prior, GaussianLaplace) else prior.std
    draws = w.new_zeros(len(w), engine.chain.n_kept, w.shape[1])
    draws[:, 0] = w
    return ChainState(
        w=w,
        velocity=torch.zeros_like(w) if momentum else None,
        square=torch.ones_like(w) if engine.preconditioned else None,
        draws=draws,
        average=w.clone(),
        latents=latents,
        precision=per_model(std, w) ** -2,
        step=w.new_zeros(()),
        step_size=per_model(engine.step_size, w),
        temperature=per_model(engine.temperature, w),
        controls=Controls.neutral(w),
        generator=generator,
        n_bayesian=problem.layout.n_bayesian,
    )


def warm_start_(state: ChainState, posterior: Posterior) -> None:
    """Move every chain to another posterior's mean, in place."""
    state.w.copy_(posterior.mean)
    state.average.copy_(posterior.mean)
    state.draws[:, 0] = posterior.mean


@dataclass
class Slope:
    """The gradient of the log posterior at the current position.

    `log_lik` is (k,), `grad` (k, d), `square_sum` the residual sum of squares (k,) where the
    prior's scale is also the noise.
    """

    log_lik: Tensor
    grad: Tensor
    square_sum: Tensor | None = None
    n_targets: int = 0


def slope(problem: Problem, state: ChainState, batch: Batch) -> Slope:
    """Gradient of log p(D | w) + kl_scale log p(w), 0 for the prior of point parameters."""
    space = problem.workspace(len(state.w))
    space.weights.copy_(state.w)
    if state.controls.keep is not None:
        space.weights.mul_(state.controls.keep)
    log_lik, grad = problem.value_and_grad(space.weights, batch)
    latents, square_sum, n_targets = state.latents, None, 0
    noise = None if latents is None else SharedNoise.of(problem)
    if latents is not None and noise is not None:
        square_sum, n_targets = noise.residual_square_sum(log_lik), noise.n_targets
        log_lik = noise.log_lik(square_sum, latents.scale[:, 0])
        grad.mul_(noise.factor(latents.scale))
    problem.kernel(_add_prior_)(
        grad, state.w, latents, state.precision, state.controls.kl_scale, state.n_bayesian
    )
    return Slope(log_lik, grad, square_sum, n_targets)


def _add_prior_(
    grad: Tensor, w: Tensor, latents: Latents | None, precision: Tensor, kl_scale: Tensor, n: int
) -> None:
    start = 0
    if latents is not None:
        start = latents.rho.shape[1]
        grad[:, :start].sub_(kl_scale * prior_pull(w, latents))
    grad[:, start:n].sub_(kl_scale * precision * w[:, start:n])


def normals(problem: Problem, state: ChainState) -> Tensor:
    """Standard normals for the Bayesian entries, (k, n_bayesian)."""
    shape = (len(state.w), state.n_bayesian)
    if problem.compiled and problem.device.type == "cpu":
        keys = fresh_keys(state.generator)
        drawn: Tensor = problem.kernel(counter_normals)(shape, keys, state.w.dtype)
        return drawn
    return state.w.new_empty(shape).normal_(generator=state.generator)


def metric(state: ChainState, grad: Tensor, n_data: int) -> Tensor | None:
    """Diagonal preconditioner 1 / (root mean square of the gradient per example), or None.

    [Li]'s RMSprop metric without the divergence term, whose neglect is a bias of order
    1 - 0.99 while the metric still moves.
    """
    if state.square is None:
        return None
    state.square.lerp_((grad / n_data).square(), 1 - _RMS_DECAY)
    return 1 / (state.square.sqrt() + _RMS_FLOOR)


def after_move_(engine: Sampler, problem: Problem, state: ChainState, at: Slope) -> None:
    """Keep the new position and let the prior follow it; in place."""
    problem.kernel(_keep_)(state.w, state.draws, state.average, state.step, engine.chain)
    if state.latents is None or engine.adapt == "none":
        return
    omega = engine.averaging.omega(state.step)
    if engine.adapt == "em":
        omega = torch.ones_like(omega)
    problem.kernel(update_latents_)(
        state.latents, state.w, state.controls.keep, omega, engine.averaging, at.square_sum,
        at.n_targets,
    )  # fmt: skip


def _keep_(w: Tensor, draws: Tensor, average: Tensor, step: Tensor, chain: Chain) -> None:
    slot = ((chain.n_seen(step) - 1) % chain.n_kept).long()
    draws.index_copy_(1, slot[None], w[:, None])
    average.lerp_(w, 1 / (step - chain.burn_in).clamp(min=1))


def lengths(engine: Sampler, state: ChainState) -> tuple[Tensor, Tensor]:
    """Step size and temperature of the step now being taken, each scalar or (k, 1)."""
    chain = engine.chain
    size = state.step_size * state.controls.lr_scale * chain.factor(state.step)
    temperature = state.temperature
    if chain.cooling != 1:
        temperature = temperature * chain.cooling ** (state.step - 1)
    return size, temperature


def energy(state: ChainState) -> Tensor:
    """The prior's energy of the Bayesian weights still trained, in nats, (k,).

    Constants are left out: under an adaptive prior they would change with the latents.
    """
    n = state.n_bayesian
    w = (
        state.w[:, :n]
        if state.controls.keep is None
        else state.w[:, :n] * state.controls.keep[:, :n]
    )
    value = 0.5 * state.precision * w.square()
    if state.latents is not None:
        start = state.latents.rho.shape[1]
        value = torch.cat([prior_energy(w, state.latents), value[:, start:]], 1)
    if state.controls.trained is not None:
        value = value * state.controls.trained[:, :n]
    return value.sum(1, dtype=torch.float64)


def kept_draws(engine: Sampler, problem: Problem, state: ChainState, member: int) -> Samples:
    """The draws of one chain as copies, oldest first, 0 where pruned."""
    seen = int(engine.chain.n_seen(state.step).item())
    ring = state.draws[member]
    if seen > len(ring):
        ring = ring.roll(-(seen % len(ring)), 0)
    return _samples(engine, problem, state, member, ring[:seen])


def average_position(engine: Sampler, problem: Problem, state: ChainState, member: int) -> Samples:
    """The mean of all positions of one chain since burn-in, as a posterior of one draw."""
    return _samples(engine, problem, state, member, state.average[member : member + 1])


def _samples(
    engine: Sampler, problem: Problem, state: ChainState, member: int, draws: Tensor
) -> Samples:
    logit = None
    if state.latents is not None and engine.adapt != "none":
        logit = torch.full_like(state.w[member], torch.inf)
        logit[problem.layout.sparse] = state.latents.rho[member].logit(eps=1e-7)
    buffers = problem.workspace(len(state.w)).buffers(member)
    whole = Samples(problem.network, draws.detach().clone(), logit, buffers)
    keep = state.controls.keep
    return whole if keep is None else whole.masked(keep[member])
