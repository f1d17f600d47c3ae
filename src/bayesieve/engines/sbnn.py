"""Mean-field variational inference under a two-Gaussian spike-and-slab prior.

With q(w) = Π N(w; m, s²) and q(z) = Π Bern(z; p), minimise the negative ELBO

    J(m, s, p) = -E_q[log p(D | w)] + Σ KL(m, s, p)                   (eq. 3.6)

over (m, s) by stochastic gradients and over p exactly                (eq. 3.8).

Reference: [Saha], section 3.
Symbols: m mean, s = exp(log_std), p inclusion, π slab_prob, τ₀ spike_std, τ₁ slab_std,
e = m² + s².
Departures: p is eliminated (the profiled penalty has the same gradient by the envelope theorem),
so no step stores it; s = exp(log_std) in place of softplus, which makes log s exact and its
gradient one product; Adam by default, with the proximal prior step for plain gradient descent;
the objective is divided by N.
"""

from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import torch
from torch import Generator, Tensor

from bayesieve.checks import AUTO, check_choice, check_positive, chosen
from bayesieve.core.batch import Batch, Metrics
from bayesieve.core.execution import kernel
from bayesieve.core.layout import Layout
from bayesieve.core.noise import Gradients, Noise, noise_of
from bayesieve.core.posterior import Factorised
from bayesieve.core.priors import (
    Number,
    SpikeSlab,
    inclusion_logit,
    member_number,
    mixture_numbers,
    mixture_precision,
    profiled_kl,
)
from bayesieve.core.problem import Problem, starting_points
from bayesieve.engines.variational import (
    MeanField,
    Precision,
    PriorNumbers,
    adam_step_,
    factorised,
    mean_field,
    warm_start_,
)


def shrink_weights_(mean: Tensor, layout: Layout, radii: Tensor) -> None:
    """Scale every Bayesian tensor of weights of (k, d) until none exceeds its model's radius."""
    for name, shape in zip(layout.names, layout.shapes, strict=True):
        part = layout.slices[name]
        if part.start < layout.n_bayesian and len(shape) > 1:
            largest = mean[:, part].abs().amax(1)
            mean[:, part] *= (radii / largest).clamp(max=1.0)[:, None]


def proximal_step(
    mean: Tensor, std: Tensor, kappa: Tensor, length: Tensor
) -> tuple[Tensor, Tensor]:
    """Minimise length · R(m, s) + ½(m - mean)² + ½(s - std)² with κ held fixed.

    Unconditionally stable where a gradient step of size lr needs lr κ < 2. Not in the paper.
    """
    shrink = 1 + length * kappa
    return mean / shrink, (std + (std.square() + 4 * shrink * length).sqrt()) / (2 * shrink)


@dataclass(frozen=True)
class SBNN:
    """Spike-and-slab variational engine.

    Numbers may be tuples with one entry per model of a population.

    Args:
        prior: mixture probability and the two standard deviations, on every Bayesian weight.
        lr: learning rate; the objective is in nats per example.
        init_std: starting s of every weight; in a loop written by hand it lies in the spike's basin
            of attraction.
        start: starting means: "module" (the model's own, so trained weights are a warm start),
            "he" (uniform in ±√(6 / fan_in)) or "spike" (the model's own, every tensor of weights
            shrunk into the spike's basin of attraction, so that a weight without data ends there).
        optimizer: "adam", or "sgd" with the proximal prior step.
        local: add the noise to activations of Linear and Conv layers instead of weights.

    Example:
        >>> SBNN(prior=SpikeSlab(slab_std=1.0, spike_std=0.1, slab_prob=0.2)).prior.slab_prob
        0.2
    """

    prior: SpikeSlab = field(default_factory=SpikeSlab)
    lr: Number = AUTO
    init_std: Number = AUTO
    start: Literal["module", "he", "spike"] = "module"
    optimizer: Literal["adam", "sgd"] = "adam"
    local: bool = AUTO

    warm_start_ = staticmethod(warm_start_)

    def __post_init__(self) -> None:
        if not isinstance(self.prior, SpikeSlab):
            raise TypeError(
                f"SBNN: prior must be a SpikeSlab, got {self.prior!r}. Use FlatVI for a Normal."
            )
        check_positive("SBNN", lr=self.lr, init_std=self.init_std)
        check_choice("SBNN", "optimizer", self.optimizer, ("adam", "sgd"))
        check_choice("SBNN", "start", self.start, ("module", "he", "spike"))
        if self.optimizer == "sgd" and self.local:
            raise ValueError("SBNN: local noise needs optimizer='adam'; set local=False.")

    @property
    def noise(self) -> Noise:
        """Where a step adds its noise."""
        return noise_of(self.local)

    def init(self, problem: Problem, generator: Generator, n_models: int = 1) -> MeanField:
        """Start every mean at the initial weights and every std in the spike's basin."""
        problem.layout.check_bayesian("SBNN")
        init_std, lr = self.init_std, chosen(self.lr, 1e-3)
        if init_std is AUTO or (isinstance(init_std, tuple) and AUTO in init_std):
            safe = [self.prior.safe_init_std(i) for i in range(n_models)]
            init_std = tuple(chosen(member_number(init_std, i), std) for i, std in enumerate(safe))
        scheme = "module" if self.start == "spike" else self.start
        mean = starting_points(problem, n_models, generator, scheme)
        if self.start == "spike":
            radii = [self.prior.basin_radius(member_number(init_std, i), i)
                     for i in range(n_models)]  # fmt: skip
            shrink_weights_(mean, problem.layout, mean.new_tensor(radii))
        return mean_field(
            problem, mean, init_std, lr, PriorNumbers(*mixture_numbers(self.prior, mean)),
            generator, moments=self.optimizer == "adam",
        )  # fmt: skip

    def step(self, problem: Problem, state: MeanField, batch: Batch) -> Metrics:
        """One step on J (eq. 3.6): draw w, take the gradient, move (m, log s); in place.

        p is eliminated (eq. 3.8): the penalty of (m, s) is that of κ(m² + s²), see `variational`.
        """
        found = self.noise.gradients(problem, state, batch)  # at w = m + s ε, 0 where pruned
        move_ = adam_step_ if self.optimizer == "adam" else proximal_step_
        problem.run(move_)(problem, state, found, mixture_precision)
        return {"log_lik": found.log_lik}

    def kl(self, state: MeanField) -> Tensor:
        """KL from prior to posterior over the weights still trained, in nats, (k,)."""
        mean = state.mean[:, : state.log_std.shape[1]]
        return state.controls.total_of(partial(profiled_kl, prior=self.prior), mean, state.log_std)

    def posterior(self, problem: Problem, state: MeanField, member: int = 0) -> Factorised:
        """q(w) and the closed-form inclusion of one member."""
        prior = self.prior.member(member)
        n = problem.layout.n_bayesian
        logit = inclusion_logit(state.mean[member, :n], state.log_std[member].exp(), prior)
        return factorised(problem, state, member, prior, logit, self.noise)


@kernel(compiled=False)
def proximal_step_(
    problem: Problem, state: MeanField, found: Gradients, precision: Precision
) -> None:
    """Gradient step on the data term, then the prior's proximal step; in place."""
    state.step += 1
    length = state.lr * state.controls.lr_scale / problem.n_data
    problem.run(_proximal_update_)(state, found.flatten(), length, precision)


def _proximal_update_(
    state: MeanField, found: Gradients, length: Tensor, precision: Precision
) -> None:
    mean, log_std, (keep, trained) = state.mean, state.log_std, state.controls.factors
    n = log_std.shape[1]
    std, kept = log_std.exp(), None if keep is None else keep[:, :n]
    moved = mean + length * found.grad
    data = found.for_log_std(mean[:, :n], kept, slice(0, n))
    std_moved = std + length * data / std  # may be < 0; the proximal step is not
    kappa = precision(mean[:, :n].square() + std.square(), *state.prior.all())
    weight = length * state.controls.kl_scale
    moved[:, :n], new_std = proximal_step(moved[:, :n], std_moved, kappa, weight)
    new_log_std = new_std.log()
    if trained is not None:
        moved = torch.where(trained.bool(), moved, mean)
        new_log_std = torch.where(trained[:, :n].bool(), new_log_std, log_std)
    mean.copy_(moved)
    log_std.copy_(new_log_std)
