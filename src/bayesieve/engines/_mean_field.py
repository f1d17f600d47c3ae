"""What the mean-field Gaussian engines share: a draw, a gradient by the chain rule, an update.

q(w) = Π N(mean, std²) with std = exp(log_std). For priors that are (mixtures of) centred
Gaussians the penalty's gradient needs one number per weight, an effective precision κ:

    ∂KL/∂mean = mean κ(e),   ∂KL/∂log_std = std² κ(e) - 1,   e = mean² + std²,

with κ = 1/τ² for a Normal and κ = p/τ₁² + (1-p)/τ₀² for the spike and slab. The data term follows
from w = mean + std ε: ∂/∂mean = g and ∂/∂log_std = g ε std = g (w - mean), g the gradient at the
draw. The draw itself is all a step keeps of its noise.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from bayesieve.core.adam import Moments, adam_, bias_corrected
from bayesieve.core.batch import Batch, Metrics
from bayesieve.core.noise import counter_normals, fresh_keys
from bayesieve.core.posterior import Factorised, Posterior
from bayesieve.core.priors import Prior
from bayesieve.core.problem import Problem
from bayesieve.core.state import Controls
from bayesieve.core.workspace import Workspace

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
class MeanFieldState:
    """What must survive a step of a mean-field engine."""

    mean: Tensor  # (k, d)
    log_std: Tensor  # (k, n_bayesian)
    mean_moments: Moments | None
    log_std_moments: Moments | None
    step: Tensor  # scalar, number of steps taken
    lr: Tensor  # scalar or (k, 1)
    prior: PriorNumbers
    controls: Controls
    generator: Generator


def mean_field_state(
    mean: Tensor, init_std: Tensor, lr: Tensor, prior: PriorNumbers, generator: Generator,
    n_bayesian: int, *, moments: bool,
) -> MeanFieldState:  # fmt: skip
    """A fresh state around initial means, (k, d), with one starting std per model or for all."""
    log_std = init_std.log().expand(len(mean), n_bayesian).contiguous()
    return MeanFieldState(
        mean=mean,
        log_std=log_std,
        mean_moments=Moments.zeros_like(mean) if moments else None,
        log_std_moments=Moments.zeros_like(log_std) if moments else None,
        step=mean.new_zeros(()),
        lr=lr,
        prior=prior,
        controls=Controls.neutral(mean),
        generator=generator,
    )


def draw_(
    weights: Tensor, mean: Tensor, log_std: Tensor, noise: Tensor, keep: Tensor | None
) -> None:
    """Write mean + std ε into `weights`, (k, d); 0 where not kept."""
    n = log_std.shape[1]
    weights[:, :n] = torch.addcmul(mean[:, :n], log_std.exp(), noise)
    if n < mean.shape[1]:
        weights[:, n:] = mean[:, n:]
    if keep is not None:
        weights.mul_(keep)


def draw_by_counter_(
    weights: Tensor, mean: Tensor, log_std: Tensor, keys: Tensor, keep: Tensor | None
) -> None:
    """`draw_` with the noise made inside the kernel: for compiled steps on a CPU."""
    k, n = log_std.shape
    draw_(weights, mean, log_std, counter_normals((k, n), keys, log_std.dtype), keep)


def spread_(
    weights: Tensor, stds: Tensor, mean: Tensor, log_std: Tensor, keep: Tensor | None
) -> None:
    """Write mean and std, masked, into the buffers of a local workspace, both (k, d)."""
    n = log_std.shape[1]
    weights.copy_(mean)
    stds[:, :n] = log_std.exp()
    if keep is not None:
        weights.mul_(keep)
        stds.mul_(keep)


def penalised(
    mean: Tensor, log_std: Tensor, data_mean: Tensor, data_log_std: Tensor, shift: Tensor | None,
    scale: tuple[Tensor, Tensor], precision: Precision, numbers: tuple[Tensor, ...],
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Gradients of (KL - log_lik) / N for mean, (k, d), and log_std, (k, n_bayesian).

    Args:
        mean: (k, d).
        log_std: (k, n_bayesian).
        data_mean: gradient of the log-likelihood for the mean, (k, d).
        data_log_std: the same for log_std, (k, n_bayesian).
        shift: w - mean where the prior is evaluated at the sampled weight w (Bayes by Backprop),
            (k, n_bayesian); None takes the prior in expectation.
        scale: 1/N and kl_scale/N.
        precision: κ as a function of e and `numbers`.
        numbers: prior settings.
    """
    per_example, kl = scale
    n = log_std.shape[1]
    own = mean[:, :n]
    if shift is not None:
        w = own + shift
        pull = w * precision(w.square(), *numbers)
        pull_log_std = pull * shift - 1
    else:
        variance = (2 * log_std).exp()
        kappa = precision(own.square() + variance, *numbers)
        pull = own * kappa
        pull_log_std = variance * kappa - 1
    grad_mean = -per_example * data_mean
    grad_mean[:, :n] += kl * pull
    grad_log_std = kl * pull_log_std - per_example * data_log_std
    return grad_mean, grad_log_std


class AdamUpdate:
    """The fused elementwise update of one engine; one object per precision function.

    Args:
        precision: κ of the prior.
        at_draw: whether the prior is evaluated at the sampled weight instead of in expectation.
    """

    def __init__(self, precision: Precision, *, at_draw: bool = False) -> None:
        self.precision = precision
        self.at_draw = at_draw

    def from_draw(
        self, mean: Tensor, log_std: Tensor, grad: Tensor, weights: Tensor,
        moments: tuple[Tensor, Tensor, Tensor, Tensor], lengths: tuple[Tensor, Tensor],
        scale: tuple[Tensor, Tensor], numbers: tuple[Tensor, ...],
        keep: Tensor | None, trained: Tensor | None,
    ) -> None:  # fmt: skip
        """Update in place from a weight draw and the gradient at it, both (k, d)."""
        n = log_std.shape[1]
        shift = weights[:, :n] - mean[:, :n]
        if keep is not None:
            shift = shift * keep[:, :n]
        grad_mean, grad_log_std = penalised(
            mean, log_std, grad, grad[:, :n] * shift, shift if self.at_draw else None, scale,
            self.precision, numbers,
        )  # fmt: skip
        adam_(mean, grad_mean, moments[0], moments[1], *lengths, trained)
        own = None if trained is None else trained[:, :n]
        adam_(log_std, grad_log_std, moments[2], moments[3], *lengths, own)

    def from_parts(
        self, mean: Tensor, log_std: Tensor, data_mean: Tensor, data_std: Tensor, stds: Tensor,
        moments: tuple[Tensor, Tensor, Tensor, Tensor], lengths: tuple[Tensor, Tensor],
        scale: tuple[Tensor, Tensor], numbers: tuple[Tensor, ...], trained: Tensor | None,
    ) -> None:  # fmt: skip
        """Update in place from gradients for mean and std at the stds, all (k, d)."""
        n = log_std.shape[1]
        grad_mean, grad_log_std = penalised(
            mean, log_std, data_mean, data_std[:, :n] * stds[:, :n], None, scale, self.precision,
            numbers,
        )  # fmt: skip
        adam_(mean, grad_mean, moments[0], moments[1], *lengths, trained)
        own = None if trained is None else trained[:, :n]
        adam_(log_std, grad_log_std, moments[2], moments[3], *lengths, own)


def adam_step(
    problem: Problem, state: MeanFieldState, batch: Batch, update: AdamUpdate, *, local: bool
) -> Metrics:
    """One reparameterised gradient step in place; returns {"log_lik": (k,)}."""
    assert state.mean_moments is not None
    assert state.log_std_moments is not None
    space = problem.workspace(len(state.mean), local=local)
    moments = (
        state.mean_moments.first, state.mean_moments.second,
        state.log_std_moments.first, state.log_std_moments.second,
    )  # fmt: skip
    state.step += 1
    lengths = bias_corrected(state.lr * state.controls.lr_scale, state.step)
    n_data = problem.n_data
    scale = (torch.full_like(state.step, 1 / n_data), state.controls.kl_scale / n_data)
    numbers, (keep, trained) = state.prior.all(), state.controls.factors
    if local:
        log_lik = local_gradient(problem, space, state, batch)
        problem.kernel(update.from_parts)(
            state.mean, state.log_std, space.grads, space.std_grads, space.stds, moments, lengths,
            scale, numbers, trained,
        )  # fmt: skip
        return {"log_lik": log_lik}
    if problem.compiled and problem.device.type == "cpu":
        keys = fresh_keys(state.generator)
        problem.kernel(draw_by_counter_)(space.weights, state.mean, state.log_std, keys, keep)
    else:
        noise = torch.empty_like(state.log_std).normal_(generator=state.generator)
        problem.kernel(draw_)(space.weights, state.mean, state.log_std, noise, keep)
    log_lik, grad = problem.value_and_grad(space.weights, batch)
    problem.kernel(update.from_draw)(
        state.mean, state.log_std, grad, space.weights, moments, lengths, scale, numbers, keep,
        trained,
    )  # fmt: skip
    return {"log_lik": log_lik}


def local_gradient(
    problem: Problem, space: Workspace, state: MeanFieldState, batch: Batch
) -> Tensor:
    """Fill the workspace's gradients for mean and std, noise on activations; log_lik, (k,)."""
    keep, _ = state.controls.factors
    problem.kernel(spread_)(space.weights, space.stds, state.mean, state.log_std, keep)
    return local_pass(problem, space, state.generator, batch)


def local_pass(problem: Problem, space: Workspace, generator: Generator, batch: Batch) -> Tensor:
    """Gradients for the means and stds that a local workspace holds, into it; log_lik, (k,).

    Tensors that no local layer owns are drawn in weight space.
    """
    assert space.stds is not None
    assert space.std_grads is not None
    space.bind(generator)
    layout = problem.layout
    drawn = {
        name: layout.slices[name]
        for name in layout.names
        if layout.slices[name].start < layout.n_bayesian and name not in space.local_names
    }
    noise = {}
    for name, part in drawn.items():
        stds = space.stds[:, part]
        noise[name] = torch.empty_like(stds).normal_(generator=generator)
        space.weights[:, part].addcmul_(stds, noise[name])
    log_lik = space.value_and_grad(batch, problem.n_data / batch.n)
    for name, part in drawn.items():
        space.std_grads[:, part] = space.grads[:, part] * noise[name]
    problem.clip_(space.grads, space.std_grads)
    return log_lik


def warm_start_(state: MeanFieldState, posterior: Posterior) -> None:
    """Set means, and stds where the posterior has them, in every member; in place."""
    state.mean.copy_(posterior.mean)
    if isinstance(posterior, Factorised):
        std = posterior.std[: state.log_std.shape[1]]
        state.log_std.copy_(torch.where(std > 0, std.log(), state.log_std))


def factorised(
    problem: Problem, state: MeanFieldState, member: int, prior: Prior,
    logit_inclusion: Tensor | None, *, local: bool,
) -> Factorised:  # fmt: skip
    """One member's posterior as copies: mean and std are 0 where pruned, std 0 for points."""
    layout = problem.layout
    mean = state.mean[member].detach().clone()
    std = torch.zeros_like(mean)
    std[layout.bayesian] = state.log_std[member].exp()
    logit = None
    if logit_inclusion is not None:
        logit = torch.full_like(mean, torch.inf)
        logit[layout.bayesian] = logit_inclusion
    buffers = problem.workspace(len(state.mean), local=local).buffers(member)
    whole = Factorised(problem.network, mean, std, prior, logit, buffers)
    keep = state.controls.keep
    return whole if keep is None else whole.masked(keep[member])
