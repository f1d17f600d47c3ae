"""Maximum a posteriori: one weight vector, trained by gradient descent.

Maximise log p(D | w) + log p(w), divided by N. With prior = None and weight_decay this is the
ordinary training of a neural network, the baseline every other engine is measured against.

Reference: [Kingma] for Adam, [Loshchilov] for decoupled weight decay.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Generator, Tensor

from bayesieve.checks import (
    AUTO,
    check_choice,
    check_kind,
    check_not_negative,
    check_positive,
    chosen,
)
from bayesieve.core.batch import Batch, Metrics
from bayesieve.core.execution import kernel
from bayesieve.core.posterior import Posterior, Samples
from bayesieve.core.priors import (
    Normal,
    Number,
    Prior,
    SpikeSlab,
    inclusion_logit,
    mixture_numbers,
    mixture_precision,
    per_model,
)
from bayesieve.core.problem import Problem, gradient, starting_points
from bayesieve.core.state import Controls
from bayesieve.core.workspace import Found
from bayesieve.engines.optimisers import Moments, Pace, adam_, pace_of


def prior_gradient(w: Tensor, prior: Prior) -> Tensor:
    """Gradient of -log p(w), elementwise.

    Example:
        >>> prior_gradient(torch.tensor(0.5), Normal(std=0.5)).item()
        2.0
    """
    if isinstance(prior, Normal):
        return w / per_model(prior.std, w).square()
    return w * mixture_precision(w.square(), *mixture_numbers(prior, w))


@dataclass
class MAPState:
    """State of k models."""

    w: Tensor  # (k, d)
    moments: Moments | None
    momentum: Tensor | None  # (k, d), of plain gradient descent
    step: Tensor  # scalar
    lr: Tensor  # scalar or (k, 1)
    controls: Controls
    generator: Generator
    n_bayesian: int


@dataclass(frozen=True)
class MAP:
    """Point-estimate engine.

    Numbers may be tuples with one entry per model of a population.

    Args:
        prior: density on every Bayesian weight, or None.
        optimizer: "adamw", "adam" (weight decay enters the gradient) or "sgd".
        lr: learning rate; the objective is in nats per example.
        weight_decay: as the optimiser of that name defines it, on Bayesian weights only.
        momentum: heavy-ball factor of "sgd".
        start: starting weights: "module" (the model's own) or "he" (uniform in ±√(6 / fan_in)).

    Example:
        >>> MAP(prior=Normal(0.3)).prior
        Normal(std=0.3)
    """

    prior: Prior | None = None
    optimizer: Literal["adamw", "adam", "sgd"] = "adamw"
    lr: Number = AUTO
    weight_decay: float = AUTO
    momentum: float = 0.9
    start: Literal["module", "he"] = "module"

    def __post_init__(self) -> None:
        if self.prior is not None:
            check_kind("MAP", "prior", self.prior, Normal, SpikeSlab)
        check_positive("MAP", lr=self.lr)
        check_not_negative("MAP", weight_decay=self.weight_decay, momentum=self.momentum)
        check_choice("MAP", "optimizer", self.optimizer, ("adamw", "adam", "sgd"))
        check_choice("MAP", "start", self.start, ("module", "he"))

    def init(self, problem: Problem, generator: Generator, n_models: int = 1) -> MAPState:
        """Start at the initial weights."""
        w = starting_points(problem, n_models, generator, self.start)
        sgd = self.optimizer == "sgd"
        return MAPState(
            w=w,
            moments=None if sgd else Moments.zeros_like(w, problem.execution.formats.moments_dtype),
            momentum=torch.zeros_like(w) if sgd else None,
            step=w.new_zeros(()),
            lr=per_model(chosen(self.lr, 1e-3), w),
            controls=Controls.neutral(w),
            generator=generator,
            n_bayesian=problem.layout.n_bayesian,
        )

    def warm_start_(self, state: MAPState, posterior: Posterior) -> None:
        """Continue from another posterior's mean."""
        state.w.copy_(posterior.mean)

    def step(self, problem: Problem, state: MAPState, batch: Batch) -> Metrics:
        """Take the gradient of log p(D | w) and move w; in place."""
        space, keep = problem.workspace(len(state.w)), state.controls.factors[0]
        space.weights.copy_(state.w)
        if keep is not None:
            space.weights.mul_(keep)
        found = gradient(problem, space, batch)
        problem.run(descend_)(problem, self, state, found)
        return {"log_lik": found.log_lik}

    def kl(self, state: MAPState) -> Tensor:
        """-log p(w) of the Bayesian weights in nats, (k,); 0 without a prior."""
        if self.prior is None:
            return state.w.new_zeros(len(state.w), dtype=torch.float64)
        return state.controls.total(-self.prior.log_prob(state.w[:, : state.n_bayesian]))

    def posterior(self, problem: Problem, state: MAPState, member: int = 0) -> Samples:
        """One weight vector; inclusion is the slab's responsibility at it, if the prior has one."""
        w = state.w[member : member + 1].detach().clone()
        logit = None
        if isinstance(self.prior, SpikeSlab):
            mean = w[0, problem.layout.bayesian]
            odds = inclusion_logit(mean, torch.zeros_like(mean), self.prior.member(member))
            logit = problem.layout.padded(odds, torch.inf)
        buffers = problem.workspace(len(state.w)).buffers(member)
        return state.controls.masked(Samples(problem.network, w, logit, buffers), member)


@kernel("bayesieve_adam_points", compiled=False)
def descend_(problem: Problem, engine: MAP, state: MAPState, found: Found) -> None:
    """Count a step and take it along the gradient of -(log p(D | w) + log p(w)) / N, in place."""
    state.step += 1
    lr = state.lr * state.controls.lr_scale
    pace, move_ = pace_of(lr, state.step), _adam_ if state.momentum is None else _sgd_
    problem.run(move_)(engine, state, found.flatten().grad, lr, pace, problem.n_data)


def _adam_(
    engine: MAP, state: MAPState, log_lik_grad: Tensor, lr: Tensor, pace: Pace, n_data: int
) -> None:
    """Adam, or AdamW, in place."""
    grad, trained = _objective_grad(engine, state, log_lik_grad, n_data), state.controls.factors[1]
    if engine.weight_decay and engine.optimizer == "adamw":
        decay, n = lr * engine.weight_decay, state.n_bayesian
        state.w[:, :n].mul_(1 - (decay if trained is None else decay * trained[:, :n]))
    assert state.moments is not None
    adam_(state.w, grad, state.moments, pace, trained)


@kernel(small=True)
def _sgd_(
    engine: MAP, state: MAPState, log_lik_grad: Tensor, lr: Tensor, pace: Pace, n_data: int
) -> None:
    """Gradient descent with momentum, in place."""
    grad, trained = _objective_grad(engine, state, log_lik_grad, n_data), state.controls.factors[1]
    assert state.momentum is not None
    state.momentum.mul_(engine.momentum).add_(grad)
    state.w.sub_(lr * state.momentum if trained is None else lr * state.momentum * trained)


def _objective_grad(engine: MAP, state: MAPState, log_lik_grad: Tensor, n_data: int) -> Tensor:
    """Gradient of -(log p(D | w) + log p(w)) / N where weights are trained."""
    n, trained = state.n_bayesian, state.controls.factors[1]
    grad, w = log_lik_grad / -n_data, state.w[:, :n]
    if engine.prior is not None:
        weight = state.controls.kl_scale / n_data
        grad[:, :n] += weight * prior_gradient(w, engine.prior)
    if engine.weight_decay and engine.optimizer != "adamw":
        grad[:, :n] += engine.weight_decay * w
    return grad if trained is None else grad * trained
