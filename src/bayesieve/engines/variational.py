"""Mean-field Gaussian inference: state, draw, update and posterior of FlatVI and SBNN.

q(w) = Π N(mean, std²) with std = exp(log_std). For priors that are (mixtures of) centred
Gaussians the penalty's gradient needs one number per weight, an effective precision κ:

    ∂KL/∂mean = mean κ(e),   ∂KL/∂log_std = std² κ(e) - 1,   e = mean² + std²,

with κ = 1/τ² for a Normal and κ = p/τ₁² + (1-p)/τ₀² for the spike and slab. The data term follows
from w = mean + std ε: ∂/∂mean = g and ∂/∂log_std = g ε std = g (w - mean), g the gradient at the
draw. The draw itself is all a step keeps of its noise. With noise on activations there are
gradients for means and variances instead: ∂/∂log_std = 2 std² ∂/∂std².

A step is three calls: `draw_weights`, `Problem.gradient_`, `adam_step_`.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from bayesieve.core import native
from bayesieve.core.noise import spread_tensors
from bayesieve.core.posterior import Factorised, Posterior
from bayesieve.core.priors import Number, Prior, per_model
from bayesieve.core.problem import Problem
from bayesieve.core.state import Controls
from bayesieve.core.workspace import Draw
from bayesieve.engines.optimisers import (
    Moments,
    Pace,
    adam_,
    bias_corrections,
    pace_of,
)

Precision = Callable[..., Tensor]  # (e, *settings) -> κ, elementwise
Masks = tuple[Tensor | None, Tensor | None]  # keep and trained, (k, d), as factors 0 and 1


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
    shape, execution = (len(mean), problem.layout.n_bayesian), problem.execution
    dtype = execution.moments_dtype
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


def adam_step_(
    problem: Problem, state: MeanField, drawn: Draw, precision: Precision, *, at_draw: bool = False
) -> None:
    """One Adam step on (KL - log_lik) / N in place.

    Args:
        problem: network and data.
        state: of k models.
        drawn: a draw, and the gradient of the log-likelihood at it.
        precision: κ of the prior as a function of e and the numbers in `state.prior`.
        at_draw: whether the prior is evaluated at the sampled weight instead of in expectation.
    """
    state.step += 1
    in_float32 = problem.execution.moments_dtype is None
    if problem.execution.native and in_float32 and not at_draw and drawn.spread_grads is None:
        _move_natively_(problem, state, drawn)
        return
    pace = pace_of(state.lr * state.controls.lr_scale, state.step)
    kl = state.controls.kl_scale / problem.n_data
    masks, n = state.controls.factors, state.log_std.shape[1]
    for part in problem.execution.parts(state.mean, n):
        problem.kernel(move_)(
            state, drawn, pace, kl, problem.n_data, precision, at_draw, masks, part
        )


def move_(
    state: MeanField, drawn: Draw, pace: Pace, kl: Tensor, n_data: int, precision: Precision,
    at_draw: bool, masks: Masks, part: slice,
) -> None:  # fmt: skip
    """The Adam step along the gradients of (KL - log_lik) / N of a part of the weights, in place.

    The part may end with weights that have no posterior.
    """
    assert state.mean_moments is not None
    assert state.log_std_moments is not None
    assert drawn.grads is not None
    keep, trained = (None if mask is None else mask[:, part] for mask in masks)
    grad_mean = -1 / n_data * drawn.grads[:, part]
    bayesian = slice(part.start, min(part.stop, state.log_std.shape[1]))  # those with a posterior
    n, mean_moments = bayesian.stop - bayesian.start, state.mean_moments.part(part)
    if n <= 0:
        adam_(state.mean[:, part], grad_mean, mean_moments, pace, trained)
        return
    pull, pull_log_std, data_log_std = _pulls(state, drawn, precision, at_draw, keep, bayesian)
    grad_mean[:, :n] += kl * pull
    grad_log_std = kl * pull_log_std - 1 / n_data * data_log_std
    adam_(state.mean[:, part], grad_mean, mean_moments, pace, trained)
    log_std, moments = state.log_std[:, bayesian], state.log_std_moments.part(bayesian)
    moving = None if trained is None else trained[:, :n]
    adam_(log_std, grad_log_std, moments, pace, moving)


def _move_natively_(problem: Problem, state: MeanField, drawn: Draw) -> None:
    """`move_` of all weights in C; κ is that of the numbers in `state.prior`.

    With noise on activations it also writes what the next step reads, where the gradients came in
    pieces, which say what form the variances of each tensor have.
    """
    library, n_data, following = native.steps(), problem.n_data, None
    mean, std = state.mean_moments, state.log_std_moments
    assert library is not None
    assert mean is not None
    assert std is not None
    (k, d), n = state.mean.shape, state.log_std.shape[1]
    if drawn.variances is not None:
        space = problem.workspace(k, local=True)
        space.remember()  # C leaves no trace in the versions of tensors
        if drawn.pieces is not None:
            following = native.addresses(drawn.weights, drawn.variances, drawn.brief_variances)
            space.remember(*spread_tensors(state, drawn))
    controls, pieces = state.controls, drawn.take_pieces()
    kl, corrections = controls.kl_scale.item() / n_data, bias_corrections(state.step.item())
    length = state.lr * (controls.lr_scale.item() * corrections[0])
    numbers = native.columns(k, *state.prior.all(), kl, length, corrections[1])
    gradients = native.table(pieces)
    tensors = (drawn.weights if drawn.variances is None else None, state.mean, mean.first,
               mean.second, state.log_std, std.first, std.second, *controls.factors,
               numbers)  # fmt: skip
    described = native.addresses(gradients, *tensors)
    sizes = (len(pieces), k, n, d)
    library.bayesieve_adam(described, *sizes, 1 / n_data, native.address(following))


def _pulls(
    state: MeanField, drawn: Draw, precision: Precision, at_draw: bool, keep: Tensor | None,
    bayesian: slice,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Of a part of the posterior: the prior's pull on m and on log s, and the data's on log s."""
    numbers, mean, shift = state.prior.all(), state.mean[:, bayesian], None
    assert drawn.grads is not None
    if drawn.variances is None:
        shift = drawn.weights[:, bayesian] - mean
        if keep is not None:
            shift = shift * keep[:, : mean.shape[1]]
        if drawn.spread_grads is None:
            data_log_std = drawn.grads[:, bayesian] * shift
        else:  # the sum over processes
            data_log_std = drawn.spread_grads[:, bayesian]
    else:
        assert drawn.variance_grads is not None
        data_log_std = 2 * drawn.variance_grads[:, bayesian] * drawn.variances[:, bayesian]
    if at_draw:
        assert shift is not None
        w = mean + shift
        pull = w * precision(w.square(), *numbers)
        return pull, pull * shift - 1, data_log_std
    variance = (2 * state.log_std[:, bayesian]).exp()
    kappa = precision(mean.square() + variance, *numbers)
    return mean * kappa, variance * kappa - 1, data_log_std


def factorised(
    problem: Problem, state: MeanField, member: int, prior: Prior,
    logit_inclusion: Tensor | None, *, local: bool,
) -> Factorised:  # fmt: skip
    """One member's posterior as copies: mean and std are 0 where pruned, std 0 for points."""
    layout, mean = problem.layout, state.mean[member].detach().clone()
    std = layout.padded(state.log_std[member].exp(), 0.0)
    logit = None if logit_inclusion is None else layout.padded(logit_inclusion, torch.inf)
    buffers = problem.workspace(len(state.mean), local=local).buffers(member)
    posterior = Factorised(problem.network, mean, std, prior, logit, buffers)
    return state.controls.masked(posterior, member)
