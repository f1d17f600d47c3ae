"""Maximum a posteriori: one weight vector, trained by gradient descent.

Maximise log p(D | w) + log p(w), divided by N. With prior = None and weight_decay this is the
ordinary training of a neural network, the baseline every other engine is measured against.

Reference: [Kingma] for Adam, [Loshchilov] for decoupled weight decay.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Generator, Tensor

from bayesieve.checks import check_choice, check_kind, check_not_negative, check_positive
from bayesieve.core.adam import Moments, adam_, bias_corrected
from bayesieve.core.batch import Batch, Metrics
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
from bayesieve.core.problem import Problem
from bayesieve.core.state import Controls


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
    """What must survive a step."""

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
    lr: Number = 1e-3
    weight_decay: float = 0.0
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
        w = problem.starting_points(n_models, generator, self.start)
        sgd = self.optimizer == "sgd"
        return MAPState(
            w=w,
            moments=None if sgd else Moments.zeros_like(w),
            momentum=torch.zeros_like(w) if sgd else None,
            step=w.new_zeros(()),
            lr=per_model(self.lr, w),
            controls=Controls.neutral(w),
            generator=generator,
            n_bayesian=problem.layout.n_bayesian,
        )

    def warm_start_(self, state: MAPState, posterior: Posterior) -> None:
        """Continue from another posterior's mean."""
        state.w.copy_(posterior.mean)

    def step(self, problem: Problem, state: MAPState, batch: Batch) -> Metrics:
        """One gradient step in place."""
        space = problem.workspace(len(state.w))
        space.weights.copy_(state.w)
        keep, trained = state.controls.factors
        if keep is not None:
            space.weights.mul_(keep)
        log_lik, grad = problem.value_and_grad(space.weights, batch)
        state.step += 1
        lr = state.lr * state.controls.lr_scale
        length, second_factor = bias_corrected(lr, state.step)
        first, second = (
            (state.moments.first, state.moments.second)
            if state.moments is not None
            else (state.momentum, None)
        )
        problem.kernel(_update_)(
            state.w, grad, first, second, lr, length, second_factor,
            state.controls.kl_scale, self, problem.n_data, problem.layout.n_bayesian,
            trained,
        )  # fmt: skip
        return {"log_lik": log_lik}

    def kl(self, state: MAPState) -> Tensor:
        """-log p(w) of the Bayesian weights in nats, (k,); 0 without a prior."""
        if self.prior is None:
            return state.w.new_zeros(len(state.w), dtype=torch.float64)
        n = state.n_bayesian
        energy = -self.prior.log_prob(state.w[:, :n])
        if state.controls.trained is not None:
            energy = energy * state.controls.trained[:, :n]
        return energy.sum(1, dtype=torch.float64)

    def posterior(self, problem: Problem, state: MAPState, member: int = 0) -> Samples:
        """One weight vector; inclusion is the slab's responsibility at it, if the prior has one."""
        w = state.w[member : member + 1].detach().clone()
        logit = None
        if isinstance(self.prior, SpikeSlab):
            logit = torch.full_like(w[0], torch.inf)
            part = problem.layout.bayesian
            own = w[0, part]
            logit[part] = inclusion_logit(own, torch.zeros_like(own), self.prior.member(member))
        buffers = problem.workspace(len(state.w)).buffers(member)
        whole = Samples(problem.network, w, logit, buffers)
        keep = state.controls.keep
        return whole if keep is None else whole.masked(keep[member])


def _update_(
    w: Tensor, log_lik_grad: Tensor, first: Tensor, second: Tensor | None, lr: Tensor,
    length: Tensor, second_factor: Tensor, kl_scale: Tensor, engine: MAP, n_data: int, n: int,
    trained: Tensor | None,
) -> None:  # fmt: skip
    grad = log_lik_grad / -n_data
    own = w[:, :n]
    if engine.prior is not None:
        grad[:, :n] += (kl_scale / n_data) * prior_gradient(own, engine.prior)
    if engine.weight_decay and engine.optimizer != "adamw":
        grad[:, :n] += engine.weight_decay * own
    if trained is not None:
        grad = grad * trained
    if engine.weight_decay and engine.optimizer == "adamw":
        decay = lr * engine.weight_decay
        own.mul_(1 - (decay if trained is None else decay * trained[:, :n]))
    if second is not None:
        adam_(w, grad, first, second, length, second_factor, trained)
    else:
        first.mul_(engine.momentum).add_(grad)
        w.sub_(lr * first if trained is None else lr * first * trained)
