"""Mean-field Gaussian inference: state, draw, update and posterior of FlatVI and SBNN.

q(w) = Π N(mean, std²) with std = exp(log_std). For priors that are (mixtures of) centred
Gaussians the penalty's gradient needs one number per weight, an effective precision κ:

    ∂KL/∂mean = mean κ(e),   ∂KL/∂log_std = std² κ(e) - 1,   e = mean² + std²,

with κ = 1/τ² for a Normal and κ = p/τ₁² + (1-p)/τ₀² for the spike and slab. The data term is that
of the noise (core/noise.py). A step is two calls: `noise.gradients`, `adam_step_`.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from bayesieve.core.execution import WHOLE, kernel
from bayesieve.core.noise import Gradients, Noise
from bayesieve.core.posterior import Factorised, Posterior
from bayesieve.core.priors import Number, Prior, per_model
from bayesieve.core.problem import Problem
from bayesieve.core.state import Controls
from bayesieve.engines.optimisers import (
    Moments,
    Pace,
    adam_,
    pace_of,
)

Precision = Callable[..., Tensor]  # (e, *settings) -> κ, elementwise


@dataclass
class PriorNumbers:
    """Settings of the precision function as tensors, each scalar or (k, 1)."""

    first: Tensor
    second: Tensor
    third: Tensor

    def all(self) -> tuple[Tensor, Tensor, Tensor]:
        """The three numbers in order."""
        return self.first, self.second, self.third


@dataclass
class MeanField:
    """State of k mean-field posteriors."""

    mean: Tensor  # (k, d)
    log_std: Tensor  # (k, n_bayesian)
    mean_moments: Moments | None
    log_std_moments: Moments | None
    step: Tensor  # scalar, number of steps taken
    lr: Tensor  # scalar or (k, 1)
    prior: PriorNumbers
    controls: Controls
    generator: Generator


def mean_field(
    problem: Problem, mean: Tensor, init_std: Number, lr: Number, prior: PriorNumbers,
    generator: Generator, *, moments: bool = True,
) -> MeanField:  # fmt: skip
    """A fresh state around initial means, (k, d), with one starting std per model or for all."""
    shape, dtype = (len(mean), problem.layout.n_bayesian), problem.execution.formats.moments_dtype
    log_std = per_model(init_std, mean).log().expand(shape).contiguous()
    return MeanField(
        mean=mean,
        log_std=log_std,
        mean_moments=Moments.zeros_like(mean, dtype) if moments else None,
        log_std_moments=Moments.zeros_like(log_std, dtype) if moments else None,
        step=mean.new_zeros(()),
        lr=per_model(lr, mean),
        prior=prior,
        controls=Controls.neutral(mean),
        generator=generator,
    )


def warm_start_(state: MeanField, posterior: Posterior) -> None:
    """Set means, and stds where the posterior has them, in every member; in place."""
    state.mean.copy_(posterior.mean)
    if isinstance(posterior, Factorised):
        std = posterior.std[: state.log_std.shape[1]]
        state.log_std.copy_(torch.where(std > 0, std.log(), state.log_std))


@kernel("bayesieve_adam", compiled=False)
def adam_step_(
    problem: Problem, state: MeanField, found: Gradients, precision: Precision,
    at_draw: bool = False,
) -> None:  # fmt: skip
    """Count a step and take it: Adam on (KL - log_lik) / N, in place.

    Args:
        problem: network and data.
        state: of k models.
        found: gradients of the log-likelihood.
        precision: κ of the prior as a function of e and the numbers in `state.prior`.
        at_draw: whether the prior is evaluated at the sampled weight instead of in expectation.
    """
    state.step += 1
    pace = pace_of(state.lr * state.controls.lr_scale, state.step)
    kl = state.controls.kl_scale / problem.n_data
    problem.run(move_)(state, found.flatten(), pace, kl, problem.n_data, precision, at_draw)


@kernel(in_parts=True)
def move_(
    state: MeanField, found: Gradients, pace: Pace, kl: Tensor, n_data: int, precision: Precision,
    at_draw: bool, part: slice = WHOLE,
) -> None:  # fmt: skip
    """The Adam step along the gradients of (KL - log_lik) / N of a part of the weights, in place.

    The part may end with weights that have no posterior.
    """
    assert state.mean_moments is not None
    assert state.log_std_moments is not None
    keep, trained = (None if mask is None else mask[:, part] for mask in state.controls.factors)
    grad_mean = -1 / n_data * found.grad[:, part]
    bayesian = slice(part.start, min(part.stop, state.log_std.shape[1]))  # those with a posterior
    n, mean_moments = bayesian.stop - bayesian.start, state.mean_moments.part(part)
    if n <= 0:
        adam_(state.mean[:, part], grad_mean, mean_moments, pace, trained)
        return
    kept = None if keep is None else keep[:, :n]
    data = found.for_log_std(state.mean[:, bayesian], kept, bayesian)
    pull, pull_log_std = _pulls(state, found, precision, at_draw, kept, bayesian)
    grad_mean[:, :n] += kl * pull
    grad_log_std = kl * pull_log_std - 1 / n_data * data
    adam_(state.mean[:, part], grad_mean, mean_moments, pace, trained)
    log_std, moments = state.log_std[:, bayesian], state.log_std_moments.part(bayesian)
    adam_(log_std, grad_log_std, moments, pace, None if trained is None else trained[:, :n])


def _pulls(
    state: MeanField, found: Gradients, precision: Precision, at_draw: bool, keep: Tensor | None,
    bayesian: slice,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The prior's pull on m and on log s of a part of the posterior."""
    numbers, mean = state.prior.all(), state.mean[:, bayesian]
    if at_draw:
        shift = found.weights[:, bayesian] - mean
        shift = shift if keep is None else shift * keep
        w = mean + shift
        pull = w * precision(w.square(), *numbers)
        return pull, pull * shift - 1
    variance = (2 * state.log_std[:, bayesian]).exp()
    kappa = precision(mean.square() + variance, *numbers)
    return mean * kappa, variance * kappa - 1


def factorised(
    problem: Problem, state: MeanField, member: int, prior: Prior,
    logit_inclusion: Tensor | None, noise: Noise,
) -> Factorised:  # fmt: skip
    """One member's posterior as copies: mean and std are 0 where pruned, std 0 for points."""
    layout, mean = problem.layout, state.mean[member].detach().clone()
    std = layout.padded(state.log_std[member].exp(), 0.0)
    logit = None if logit_inclusion is None else layout.padded(logit_inclusion, torch.inf)
    buffers = noise.workspace(problem, len(state.mean)).buffers(member)
    posterior = Factorised(problem.network, mean, std, prior, logit, buffers)
    return state.controls.masked(posterior, member)
