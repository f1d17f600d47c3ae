"""What engines with random scales share: w = r (m + s ε), r of mean 1 for a layer or a unit.

The prior of w / r is N(0, τ²), τ the width in force. Steps of m are taken in units of τ, as if in
m / τ, so that one learning rate serves layers of any width.
"""

import torch
from torch import Generator, Tensor

from bayesieve.core.noise import counter_normals, fresh_keys
from bayesieve.core.problem import Problem
from bayesieve.engines._adabelief import adabelief_


def sample_(
    problem: Problem, mean: Tensor, log_std: Tensor, ratio: Tensor, keep: Tensor | None,
    generator: Generator,
) -> Tensor:  # fmt: skip
    """Draw the weights of one step into the problem's workspace, (k, d), and return them."""
    weights = problem.workspace(len(mean)).weights
    if problem.compiled and problem.device.type == "cpu":
        keys = fresh_keys(generator)
        problem.kernel(draw_scaled_by_counter_)(weights, mean, log_std, keys, ratio, keep)
    else:
        noise = torch.empty_like(log_std).normal_(generator=generator)
        problem.kernel(draw_scaled_)(weights, mean, log_std, noise, ratio, keep)
    return weights


def scale_terms(
    mean: Tensor, log_std: Tensor, grad: Tensor, weights: Tensor, width: Tensor,
    trained: Tensor | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Terms of ∂ log_lik / ∂ log r and of ∂ KL / ∂ log τ, one per entry, (k, n_bayesian)."""
    n = log_std.shape[1]
    excess = 1 - (mean[:, :n].square() + (2 * log_std).exp()) / width.square()
    return grad[:, :n] * weights[:, :n], excess if trained is None else excess * trained[:, :n]


def draw_scaled_by_counter_(
    weights: Tensor, mean: Tensor, log_std: Tensor, keys: Tensor, ratio: Tensor,
    keep: Tensor | None,
) -> None:  # fmt: skip
    """`draw_scaled_` with the noise made inside the kernel: for compiled steps on a CPU."""
    k, n = log_std.shape
    noise = counter_normals((k, n), keys, log_std.dtype)
    draw_scaled_(weights, mean, log_std, noise, ratio, keep)


def draw_scaled_(
    weights: Tensor, mean: Tensor, log_std: Tensor, noise: Tensor, ratio: Tensor,
    keep: Tensor | None,
) -> None:  # fmt: skip
    """Write r (m + s ε) into `weights`, (k, d); 0 where not kept."""
    n = log_std.shape[1]
    weights[:, :n] = ratio * torch.addcmul(mean[:, :n], log_std.exp(), noise)
    weights[:, n:] = mean[:, n:]
    if keep is not None:
        weights.mul_(keep)


def update_scaled_(
    mean: Tensor, log_std: Tensor, grad: Tensor, weights: Tensor, ratio: Tensor, width: Tensor,
    point: Tensor, moments: tuple[Tensor, Tensor, Tensor, Tensor], lengths: tuple[Tensor, Tensor],
    scale: tuple[float, Tensor], keep: Tensor | None, trained: Tensor | None,
) -> None:  # fmt: skip
    """AdaBelief on (KL - log_lik) / N in the units of the prior's width, in place."""
    per_example, kl = scale
    n = log_std.shape[1]
    own, variance = mean[:, :n], (2 * log_std).exp()
    force = grad[:, :n] * ratio  # ∂ log_lik / ∂ m
    shift = weights[:, :n] / ratio - own  # s ε
    if keep is not None:
        force, shift = force * keep[:, :n], shift * keep[:, :n]
    precision = kl / width.square()
    grad_mean = torch.cat([precision * own - per_example * force, -per_example * grad[:, n:]], 1)
    grad_log_std = precision * variance - kl - per_example * force * shift
    units = torch.cat([width, point.expand(len(mean), mean.shape[1] - n)], 1)
    length, second_factor = lengths
    adabelief_(
        mean, grad_mean * units, moments[0], moments[1], length * units, second_factor, trained
    )
    own_trained = None if trained is None else trained[:, :n]
    adabelief_(log_std, grad_log_std, moments[2], moments[3], *lengths, own_trained)
