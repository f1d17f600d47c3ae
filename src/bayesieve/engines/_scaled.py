"""What engines with random scales share: w = r (m + s ε), r of mean 1 for a layer or a unit.

The prior of w / r is N(0, τ²), τ the width in force. Steps of m are taken in units of τ, as if in
m / τ, so that one learning rate serves layers of any width. With ∂w, ∂m and ∂log s the gradients of
the log-likelihood, ∂ log_lik / ∂ log r is the sum of w ∂w = m ∂m + ∂log s over the entries that
share r, and ∂ KL / ∂ log τ that of 1 - (m² + s²) / τ².
"""

from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import torch
from torch import Generator, Tensor

from bayesieve.core.adam import Moments, bias_corrected
from bayesieve.core.batch import Batch
from bayesieve.core.noise import counter_normals, fresh_keys
from bayesieve.core.posterior import Factorised, Posterior
from bayesieve.core.problem import Problem
from bayesieve.core.state import Controls
from bayesieve.engines._adabelief import adabelief_
from bayesieve.engines._mean_field import local_pass

POINT_UNIT = 0.1  # of the steps of point parameters: the usual width of a layer
MomentTensors = tuple[Tensor, Tensor, Tensor, Tensor]  # of mean, then of log_std


class Groups(Protocol):
    """Which entries share a scale: G groups of the n Bayesian entries."""

    def to_entries(self, values: Tensor) -> Tensor:
        """One number per group, (..., G), to one per entry, (..., n)."""
        ...

    def total(self, values: Tensor) -> Tensor:
        """Sum over the entries of each group, (..., n) -> (..., G)."""
        ...


N = TypeVar("N")  # prior numbers of an engine
G = TypeVar("G", bound=Groups)


@dataclass
class ScaledState(Generic[N, G]):
    """What must survive a step."""

    mean: Tensor  # m, (k, d)
    log_std: Tensor  # log s, (k, n_bayesian)
    scale_mean: Tensor  # means of the logs of all scales, (k, S)
    scale_log_std: Tensor  # logs of their stds, (k, S)
    mean_moments: Moments
    log_std_moments: Moments
    scale_mean_moments: Moments
    scale_log_std_moments: Moments
    step: Tensor  # scalar, number of steps taken
    lr: Tensor  # scalar or (k, 1)
    kl: Tensor  # scalar, the engine's own weight of the KL
    prior: N
    controls: Controls
    generator: Generator
    groups: G

    @property
    def scale_moments(self) -> MomentTensors:
        """What AdaBelief remembers of the scales."""
        mean, log_std = self.scale_mean_moments, self.scale_log_std_moments
        return mean.first, mean.second, log_std.first, log_std.second


def scaled_state(
    mean: Tensor, log_std: Tensor, scales: tuple[Tensor, Tensor], lr: Tensor, kl: float, prior: N,
    groups: G, generator: Generator,
) -> ScaledState[N, G]:  # fmt: skip
    """A fresh state around initial means, with `scales` the means and log-stds of the scales."""
    return ScaledState(
        mean=mean,
        log_std=log_std,
        scale_mean=scales[0],
        scale_log_std=scales[1],
        mean_moments=Moments.zeros_like(mean),
        log_std_moments=Moments.zeros_like(log_std),
        scale_mean_moments=Moments.zeros_like(scales[0]),
        scale_log_std_moments=Moments.zeros_like(scales[1]),
        step=mean.new_zeros(()),
        lr=lr,
        kl=mean.new_full((), kl),
        prior=prior,
        controls=Controls.neutral(mean),
        generator=generator,
        groups=groups,
    )


def warm_start_(state: ScaledState[N, G], posterior: Posterior) -> None:
    """Continue from another posterior's means, and stds where it has them; in place."""
    state.mean.copy_(posterior.mean)
    spread = getattr(posterior, "spread", None)
    std = posterior.std if isinstance(posterior, Factorised) else spread
    if isinstance(std, Tensor):
        own = std[: state.log_std.shape[1]]
        state.log_std.copy_(torch.where(own > 0, own.log(), state.log_std))


def weights_kl(state: ScaledState[N, G], width: Tensor) -> Tensor:
    """KL of the trained weights under a prior of widths τ, (k, G), in nats, (k,)."""
    n = state.log_std.shape[1]
    spread = state.groups.to_entries(width)
    second_moment = (state.mean[:, :n].square() + (2 * state.log_std).exp()) / spread.square()
    own = 0.5 * (second_moment - 1) + spread.log() - state.log_std
    if state.controls.trained is not None:
        own = torch.where(state.controls.trained[:, :n], own, 0.0)
    return own.sum(1, dtype=torch.float64)


def advance_(step: Tensor, lr: Tensor, kl: Tensor, n_data: int) -> tuple[Tensor, Tensor, Tensor]:
    """Count a step; its two lengths of `bias_corrected` and the weight of the KL per example."""
    step += 1
    return *bias_corrected(lr, step), kl / n_data


def weights_step_(
    problem: Problem, state: ScaledState[N, G], batch: Batch, ratio: Tensor, width: Tensor, *,
    local: bool,
) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor, Tensor]]:  # fmt: skip
    """Draw weights, take their gradient and one AdaBelief step of (m, log s); in place.

    Args:
        problem: what is inferred.
        state: of k models.
        batch: examples.
        ratio: r, (k, G).
        width: τ, (k, G).
        local: whether noise is added to activations.

    Returns:
        log_lik, (k,); ∂ log_lik / ∂ log r and ∂ KL / ∂ log τ of each group, (2, k, G); and what
        `advance_` returned.
    """
    controls, n_data, groups = state.controls, problem.n_data, state.groups
    keep, trained = controls.factors
    scales = torch.stack([ratio, width])
    moments = (
        state.mean_moments.first, state.mean_moments.second,
        state.log_std_moments.first, state.log_std_moments.second,
    )  # fmt: skip
    space = problem.workspace(len(state.mean), local=local)
    if local:
        problem.kernel(spread_scaled_)(
            space.weights, space.stds, state.mean, state.log_std, groups, ratio, keep
        )
        log_lik, grad = local_pass(problem, space, state.generator, batch), space.grads
    else:
        draw_(problem, state, space.weights, ratio)
        log_lik, grad = problem.value_and_grad(space.weights, batch)
    lengths = problem.kernel(advance_)(
        state.step, state.lr * controls.lr_scale, state.kl * controls.kl_scale, n_data
    )
    if local:
        totals = problem.kernel(update_from_parts_)(
            state.mean, state.log_std, grad, space.std_grads, space.stds, groups, scales, moments,
            lengths, 1 / n_data, keep, trained,
        )  # fmt: skip
    else:
        totals = problem.kernel(update_from_draw_)(
            state.mean, state.log_std, grad, space.weights, groups, scales, moments, lengths,
            1 / n_data, keep, trained,
        )  # fmt: skip
    return log_lik, totals, lengths


def draw_(problem: Problem, state: ScaledState[N, G], weights: Tensor, ratio: Tensor) -> None:
    """Write r (m + s ε) into `weights`, (k, d), with r of each group, (k, G)."""
    groups, (keep, _) = state.groups, state.controls.factors
    if problem.compiled and problem.device.type == "cpu":
        keys = fresh_keys(state.generator)
        problem.kernel(draw_by_counter_)(
            weights, state.mean, state.log_std, keys, groups, ratio, keep
        )
    else:
        noise = torch.empty_like(state.log_std).normal_(generator=state.generator)
        problem.kernel(draw_scaled_)(weights, state.mean, state.log_std, noise, groups, ratio, keep)


def draw_by_counter_(
    weights: Tensor, mean: Tensor, log_std: Tensor, keys: Tensor, groups: Groups, ratio: Tensor,
    keep: Tensor | None,
) -> None:  # fmt: skip
    """`draw_scaled_` with the noise made inside the kernel: for compiled steps on a CPU."""
    k, n = log_std.shape
    noise = counter_normals((k, n), keys, log_std.dtype)
    draw_scaled_(weights, mean, log_std, noise, groups, ratio, keep)


def draw_scaled_(
    weights: Tensor, mean: Tensor, log_std: Tensor, noise: Tensor, groups: Groups, ratio: Tensor,
    keep: Tensor | None,
) -> None:  # fmt: skip
    """Write r (m + s ε) into `weights`, (k, d); 0 where not kept."""
    n = log_std.shape[1]
    drawn = torch.addcmul(mean[:, :n], log_std.exp(), noise)
    weights[:, :n] = groups.to_entries(ratio) * drawn
    if n < mean.shape[1]:
        weights[:, n:] = mean[:, n:]
    if keep is not None:
        weights.mul_(keep)


def spread_scaled_(
    weights: Tensor, stds: Tensor, mean: Tensor, log_std: Tensor, groups: Groups, ratio: Tensor,
    keep: Tensor | None,
) -> None:  # fmt: skip
    """Write r m and r s, masked, into the buffers of a local workspace, both (k, d)."""
    n = log_std.shape[1]
    own_ratio = groups.to_entries(ratio)
    weights[:, :n] = own_ratio * mean[:, :n]
    stds[:, :n] = own_ratio * log_std.exp()
    if n < mean.shape[1]:
        weights[:, n:] = mean[:, n:]
    if keep is not None:
        weights.mul_(keep)
        stds.mul_(keep)


def update_from_draw_(
    mean: Tensor, log_std: Tensor, grad: Tensor, weights: Tensor, groups: Groups, scales: Tensor,
    moments: MomentTensors, lengths: tuple[Tensor, Tensor, Tensor], per_example: float,
    keep: Tensor | None, trained: Tensor | None,
) -> Tensor:  # fmt: skip
    """Update in place from a draw of the weights and the gradient at it, both (k, d)."""
    n = log_std.shape[1]
    own = grad[:, :n] if keep is None else grad[:, :n] * keep[:, :n]
    drawn = weights[:, :n]  # 0 where not kept
    ratio, width = groups.to_entries(scales)
    data_log_std = own * (drawn - ratio * mean[:, :n])
    excess = _update_(
        mean, log_std, grad, own * ratio, data_log_std, width, moments, lengths, per_example,
        trained,
    )  # fmt: skip
    return torch.stack([groups.total(grad[:, :n] * drawn), groups.total(excess)])


def update_from_parts_(
    mean: Tensor, log_std: Tensor, grad: Tensor, std_grad: Tensor, stds: Tensor, groups: Groups,
    scales: Tensor, moments: MomentTensors, lengths: tuple[Tensor, Tensor, Tensor],
    per_example: float, keep: Tensor | None, trained: Tensor | None,
) -> Tensor:  # fmt: skip
    """Update in place from gradients for r m and r s, and the stds r s, all (k, d)."""
    n = log_std.shape[1]
    own = grad[:, :n] if keep is None else grad[:, :n] * keep[:, :n]
    ratio, width = groups.to_entries(scales)
    data_mean, data_log_std = own * ratio, std_grad[:, :n] * stds[:, :n]
    pull = groups.total(data_mean * mean[:, :n] + data_log_std)  # before the mean moves
    excess = _update_(
        mean, log_std, grad, data_mean, data_log_std, width, moments, lengths, per_example,
        trained,
    )  # fmt: skip
    return torch.stack([pull, groups.total(excess)])


def _update_(
    mean: Tensor, log_std: Tensor, grad: Tensor, data_mean: Tensor, data_log_std: Tensor,
    width: Tensor, moments: MomentTensors, lengths: tuple[Tensor, Tensor, Tensor],
    per_example: float, trained: Tensor | None,
) -> Tensor:  # fmt: skip
    """AdaBelief on (KL - log_lik) / N in units of τ; returns ∂ KL / ∂ log τ per entry, (k, n)."""
    n, d = log_std.shape[1], mean.shape[1]
    length, second_factor, kl = lengths
    own, variance = mean[:, :n], (2 * log_std).exp()
    precision = 1 / width.square()
    excess = 1 - precision * (own.square() + variance)
    grad_mean = (kl * precision * own - per_example * data_mean) * width
    grad_log_std = kl * (precision * variance - 1) - per_example * data_log_std
    units = width
    if n < d:
        unit = POINT_UNIT * torch.ones_like(mean[:, n:])
        units = torch.cat([width, unit], 1)
        grad_mean = torch.cat([grad_mean, -per_example * unit * grad[:, n:]], 1)
    own_trained = None
    if trained is not None:
        own_trained = trained[:, :n]
        excess = excess * own_trained
    adabelief_(mean, grad_mean, moments[0], moments[1], length * units, second_factor, trained)
    adabelief_(log_std, grad_log_std, moments[2], moments[3], length, second_factor, own_trained)
    return excess
