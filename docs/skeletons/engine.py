"""Stochastic gradient Langevin dynamics: a chain that ends near a draw from the posterior.

With U(w) = -log p(D | w) - log p(w), repeat

    w ← w - (ε / 2) ∇U(w) + √ε ξ,   ξ ~ N(0, I)                       (eq. 4)

where log p(D | w) is estimated from a batch of n of the N examples, scaled by N/n.

Reference: [Welling], section 3.
Symbols: ε step_size, N n_data.
Departures: constant step size (the paper lets it fall); one chain keeps its last position only, so
draws come from several chains (`n_models`).
"""

from dataclasses import dataclass, field

import torch
from torch import Generator, Tensor

from bayesieve.checks import check_choice, check_positive
from bayesieve.core.batch import Batch, Metrics
from bayesieve.core.posterior import Posterior, Samples
from bayesieve.core.priors import Normal, Number, per_model
from bayesieve.core.problem import Problem, starting_points
from bayesieve.core.state import Controls

# 1. Formulas: pure, elementwise, numbered, each with an example that prints a number.


def langevin_move(gradient: Tensor, noise: Tensor, step_size: Tensor) -> Tensor:
    """The change of w in eq. 4; `gradient` is that of log p(D, w).

    Example:
        >>> one = torch.tensor(1.0)
        >>> langevin_move(4 * one, one, torch.tensor(0.25)).item()
        1.0
    """
    return 0.5 * step_size * gradient + step_size.sqrt() * noise


# 2. State: what must survive a step, and nothing else. Tensors, `Controls`, one generator.


@dataclass
class LangevinState:
    """What must survive a step."""

    w: Tensor  # (k, d)
    step_size: Tensor  # scalar or (k, 1)
    precision: Tensor  # of the prior, scalar or (k, 1)
    n_bayesian: int  # entries of w with a prior; the rest are point parameters
    controls: Controls
    generator: Generator


# 3. Engine: frozen, no tensors; each hyperparameter documented once, here, with its unit.


@dataclass(frozen=True)
class Langevin:
    """Langevin engine.

    Numbers may be tuples with one entry per model of a population.

    Args:
        prior: density on every Bayesian weight.
        step_size: ε of eq. 4; the posterior is in nats over the full data set.
        start: starting weights: "module" (the model's own) or "he" (uniform in ±√(6 / fan_in)).
    """

    prior: Normal = field(default_factory=lambda: Normal(std=1.0))
    step_size: Number = 1e-4
    start: str = "module"

    def __post_init__(self) -> None:
        check_positive("Langevin", step_size=self.step_size)
        check_choice("Langevin", "start", self.start, ("module", "he"))

    def init(self, problem: Problem, generator: Generator, n_models: int = 1) -> LangevinState:
        """Start at the initial weights."""
        problem.layout.check_bayesian("Langevin")
        w = starting_points(problem, n_models, generator, self.start)
        return LangevinState(
            w=w,
            step_size=per_model(self.step_size, w),
            precision=per_model(self.prior.std, w) ** -2,
            n_bayesian=problem.layout.n_bayesian,
            controls=Controls.neutral(w),
            generator=generator,
        )

    def warm_start_(self, state: LangevinState, posterior: Posterior) -> None:
        """Continue from another posterior's mean."""
        state.w.copy_(posterior.mean)

    def step(self, problem: Problem, state: LangevinState, batch: Batch) -> Metrics:
        """Eq. 4, in place."""
        controls = state.controls
        space = problem.workspace(len(state.w))
        space.weights.copy_(state.w)
        if controls.keep is not None:
            space.weights.mul_(controls.keep)
        log_lik, grad = problem.value_and_grad(space.weights, batch)
        noise = torch.empty_like(state.w[:, : state.n_bayesian])
        noise.normal_(generator=state.generator)
        problem.run(_update_)(
            state.w, grad, noise, state.step_size * controls.lr_scale,
            state.precision * controls.kl_scale, controls.trained,
        )  # fmt: skip
        return {"log_lik": log_lik}

    def kl(self, state: LangevinState) -> Tensor:
        """-log p(w) of the Bayesian weights still trained, in nats, (k,)."""
        n = state.n_bayesian
        energy = -self.prior.log_prob(state.w[:, :n])
        if state.controls.trained is not None:
            energy = energy * state.controls.trained[:, :n]
        return energy.sum(1, dtype=torch.float64)

    def posterior(self, problem: Problem, state: LangevinState, member: int = 0) -> Samples:
        """The last position of one chain, as a copy."""
        w = state.w[member : member + 1].detach().clone()
        buffers = problem.workspace(len(state.w)).buffers(member)
        whole = Samples(problem.network, w, buffers=buffers)
        keep = state.controls.keep
        return whole if keep is None else whole.masked(keep[member])


# 4. Kernels: in-place functions of flat tensors, so that they can be compiled and captured.


def _update_(
    w: Tensor, grad: Tensor, noise: Tensor, step_size: Tensor, precision: Tensor,
    trained: Tensor | None,
) -> None:  # fmt: skip
    n = noise.shape[1]
    move = 0.5 * step_size * grad  # point parameters: plain gradient ascent, no prior, no noise
    move[:, :n] = langevin_move(grad[:, :n] - precision * w[:, :n], noise, step_size)
    w.add_(move if trained is None else move * trained)
