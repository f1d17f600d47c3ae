"""What the samplers share: state, the gradient of the log posterior, step sizes, noise.

The chain axis is the population axis k. What a chain keeps of its path is in engines/_kept.py.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Generator, Tensor

from bayesieve.checks import check_choice, check_kind, check_not_negative, check_positive
from bayesieve.core.batch import Batch
from bayesieve.core.noise import counter_normals, fresh_keys
from bayesieve.core.norm_statistics import flat_statistics, statistics_names
from bayesieve.core.priors import GaussianLaplace, Normal, Number, per_model
from bayesieve.core.problem import Problem
from bayesieve.core.state import Controls
from bayesieve.engines.adaptive_prior import (
    Latents,
    SharedNoise,
    latents_of,
    prior_energy,
    prior_pull,
)
from bayesieve.engines.chain import Adapt, Averaging, Chain

_RMS_DECAY, _RMS_FLOOR = 0.99, 1e-5  # of the preconditioner, per example


@dataclass
class ChainState:
    """What must survive a step of a sampler."""

    w: Tensor  # (k, d)
    velocity: Tensor | None  # (k, d), of samplers with momentum
    square: Tensor | None  # (k, d), running mean square of the gradient, of preconditioned ones
    draws: Tensor  # (k, n_kept, d)
    norms: Tensor | None  # (k, n_kept, b), running statistics of normalisation layers
    average: Tensor  # (k, d), of all positions since burn-in
    latents: Latents | None  # of a GaussianLaplace prior
    precision: Tensor  # of Gaussian priors, scalar or (k, 1)
    step: Tensor  # scalar
    step_size: Tensor  # scalar or (k, 1)
    temperature: Tensor  # scalar or (k, 1)
    controls: Controls
    generator: Generator
    n_bayesian: int
    norm_names: tuple[str, ...]  # the buffers in `norms`


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
    check_kind(who, "prior", engine.prior, Normal, GaussianLaplace)
    check_positive(who, step_size=engine.step_size)
    check_not_negative(who, temperature=engine.temperature)
    check_choice(who, "adapt", engine.adapt, ("none", "sa", "em"))
    check_choice(who, "start", engine.start, ("module", "he"))
    if engine.adapt != "none" and not isinstance(engine.prior, GaussianLaplace):
        raise ValueError(
            f"{who}: adapt={engine.adapt!r} needs a GaussianLaplace prior, got "
            f"{type(engine.prior).__name__}. Give that prior (--prior gaussian-laplace), or "
            "adapt='none' (--adapt none)."
        )


def chain_state(
    engine: Sampler, problem: Problem, generator: Generator, n_models: int, *, momentum: bool
) -> ChainState:
    """A fresh state at the initial weights."""
    problem.layout.check_bayesian(type(engine).__name__)
    w = problem.starting_points(n_models, generator, engine.start)
    prior, latents = engine.prior, None
    if isinstance(prior, GaussianLaplace):
        noise = SharedNoise.of(problem)  # raises where the likelihood does not fit
        if noise is None and engine.averaging.noise_first:
            raise ValueError(
                f"{type(engine).__name__}: averaging.noise_first is for real targets; "
                "class labels have no residuals. Leave it at 0."
            )
        latents = latents_of(prior, problem, w)
    std = prior.other_std if isinstance(prior, GaussianLaplace) else prior.std
    n_kept = engine.chain.n_kept
    names = statistics_names(problem.network)
    norms = flat_statistics(names, problem.workspace(n_models).all_buffers()) if names else None
    return ChainState(
        w=w,
        velocity=torch.zeros_like(w) if momentum else None,
        square=torch.ones_like(w) if engine.preconditioned else None,
        draws=_ring(w, n_kept),
        norms=None if norms is None else _ring(norms, n_kept),
        average=w.clone(),
        latents=latents,
        precision=per_model(std, w) ** -2,
        step=w.new_zeros(()),
        step_size=per_model(engine.step_size, w),
        temperature=per_model(engine.temperature, w),
        controls=Controls.neutral(w),
        generator=generator,
        n_bayesian=problem.layout.n_bayesian,
        norm_names=names,
    )


def _ring(first: Tensor, n_kept: int) -> Tensor:
    """Room for n_kept rows (k, n_kept, ...), the first of them filled."""
    ring = first.new_zeros(len(first), n_kept, first.shape[1])
    ring[:, 0] = first
    return ring


@dataclass
class Slope:
    """The gradient of the log-likelihood at the current position.

    `log_lik` is (k,), `grad` (k, d); where the prior's scale is also the noise, `square_sum` is the
    residual sum of squares, (k,).
    """

    log_lik: Tensor
    grad: Tensor
    n_data: int
    square_sum: Tensor | None = None
    noise: SharedNoise | None = None


def slope(problem: Problem, state: ChainState, batch: Batch) -> Slope:
    """Log-likelihood of all data, estimated from a batch, and its gradient."""
    space = problem.workspace(len(state.w))
    space.weights.copy_(state.w)
    keep = state.controls.factors[0]
    if keep is not None:
        space.weights.mul_(keep)
    log_lik, grad = problem.value_and_grad(space.weights, batch)
    latents = state.latents
    noise = None if latents is None else SharedNoise.of(problem)
    square_sum = None
    if latents is not None and noise is not None:
        assumed = noise.assumed(state.w)
        square_sum = noise.residual_square_sum(log_lik, assumed)
        log_lik = noise.log_lik(square_sum, latents.scale[:, 0])
        noise.rescale_(grad, assumed, latents.scale)
    return Slope(log_lik, grad, problem.n_data, square_sum, noise)


def normals(problem: Problem, state: ChainState) -> Tensor:
    """Standard normals for the Bayesian entries, (k, n_bayesian)."""
    shape = (len(state.w), state.n_bayesian)
    if problem.compiled and problem.device.type == "cpu":
        keys = fresh_keys(state.generator)
        drawn: Tensor = problem.kernel(counter_normals)(shape, keys, state.w.dtype)
        return drawn
    return state.w.new_empty(shape).normal_(generator=state.generator)


# What follows runs inside an engine's kernel, compiled as one piece: tensors in, tensors out.


def drift(state: ChainState, at: Slope) -> Tensor:
    """Gradient of log p(D | w) + kl_scale log p(w), in place; points have no prior, (k, d)."""
    grad, w, latents = at.grad, state.w, state.latents
    weight, start = state.controls.kl_scale, 0
    if latents is not None:
        start = latents.rho.shape[1]
        grad[:, :start].sub_(weight * prior_pull(w, latents))
    rest = slice(start, state.n_bayesian)
    grad[:, rest].sub_(weight * state.precision * w[:, rest])
    return grad


def metric(state: ChainState, at: Slope) -> Tensor | None:
    """Diagonal preconditioner 1 / (root mean square of the gradient per example), or None.

    [Li]'s RMSprop metric without the divergence term, whose neglect is a bias of order
    1 - 0.99 while the metric still moves.
    """
    if state.square is None:
        return None
    state.square.lerp_((at.grad / at.n_data).square(), 1 - _RMS_DECAY)
    return 1 / (state.square.sqrt() + _RMS_FLOOR)


def lengths(engine: Sampler, state: ChainState) -> tuple[Tensor, Tensor]:
    """Step size and temperature of the step now being taken, each scalar or (k, 1)."""
    chain = engine.chain
    size = state.step_size * state.controls.lr_scale * chain.factor(state.step)
    return size, state.temperature * chain.heat(state.step)


def energy(engine: Sampler, state: ChainState) -> Tensor:
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
