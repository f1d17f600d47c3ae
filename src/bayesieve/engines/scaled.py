"""Mean-field inference with random scales, for BMR and the horseshoe: w = r (m + s ε).

r has mean 1 and is shared by the weights of a layer or a unit. The prior of w / r is N(0, τ²), τ
the width in force. Steps of m are taken in units of τ, as if in m / τ, so that one learning rate
serves layers of any width. With ∂w, ∂m and ∂log s the gradients of the log-likelihood,
∂ log_lik / ∂ log r is the sum of w ∂w = m ∂m + ∂log s over the entries that share r, and
∂ KL / ∂ log τ that of 1 - (m² + s²) / τ².

A step draws the scales, takes the gradients (`noise.gradients`), calls `weights_step_`, and moves
the scales along the gradients that `weights_step_` returns.

`LayerScaled` and `Horseshoe` have an unknown width: one scale per layer, or one per unit and layer.
Reference: Marković, Friston and Kiebel (2024), section III and appendix B. Equations B are those of
docs/theory/bmr.md, H those of docs/theory/horseshoe.md.
"""

import math
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

import torch
from torch import Generator, Tensor

from bayesieve.checks import check_positive
from bayesieve.core.execution import kernel
from bayesieve.core.layout import EntryGroups
from bayesieve.core.noise import Gradients
from bayesieve.core.posterior import Posterior
from bayesieve.core.priors import Number, NumbersOfModels, normal_kl
from bayesieve.core.problem import Problem
from bayesieve.core.state import Controls
from bayesieve.engines.optimisers import BETA_1, BETA_2, Moments, Pace, pace_of

_HALF_LOG_2PI_E = 0.5 * math.log(2 * math.pi * math.e)
ADABELIEF_EPS = 1e-16
POINT_UNIT = 0.1  # of the steps of point parameters: the usual width of a layer


N = TypeVar("N")  # prior numbers of an engine
G = TypeVar("G", bound=EntryGroups)


# Priors with an unknown width. All scales have log-normal posteriors.


def log_normal_gamma_kl(mean: Tensor, log_std: Tensor, shape: Tensor, rate: Tensor) -> Tensor:
    """KL[LogNormal(m, s²) || Gamma(shape, rate)] of each scale, (B9).

    Example:
        >>> zero, one = torch.zeros(()), torch.ones(())
        >>> round(log_normal_gamma_kl(zero, zero, one, one).item(), 4)  # e^½ - ½ log 2πe
        0.2298
    """
    expected = (mean + 0.5 * (2 * log_std).exp()).exp()
    constant = torch.lgamma(shape) - shape * rate.log() - _HALF_LOG_2PI_E
    return constant - log_std - shape * mean + rate * expected


@dataclass(frozen=True)
class LayerScaled(NumbersOfModels):
    """w = std · c · ŵ with ŵ ~ N(0, 1) and c⁻² ~ Gamma(shape, rate), one c per layer.

    Args:
        std: γ₀, width of a layer at c = 1.
        last_std: the same for the last layer.
        shape: of c⁻².
        rate: of c⁻².

    Example:
        >>> LayerScaled().std, LayerScaled().last_std
        (0.1, 1.0)
    """

    std: Number = 0.1
    last_std: Number = 1.0
    shape: Number = 2.0
    rate: Number = 2.0

    def __post_init__(self) -> None:
        check_positive("LayerScaled", **vars(self))


@dataclass(frozen=True)
class Horseshoe(NumbersOfModels):
    """The regularised horseshoe over units: one half-Cauchy scale per unit and per layer.

    Args:
        std: τ₀, the scale of a layer's half-Cauchy.
        shape: of c⁻², the precision of the slab that bounds every scale.
        rate: of c⁻².

    Example:
        >>> Horseshoe(std=(0.01, 0.1)).member(1).std
        0.1
    """

    std: Number = 0.01
    shape: Number = 2.0
    rate: Number = 6.0

    def __post_init__(self) -> None:
        check_positive("Horseshoe", **vars(self))


@dataclass
class ScaledState(Generic[N, G]):
    """State of k posteriors with random scales."""

    mean: Tensor  # m, (k, d)
    log_std: Tensor  # log s, (k, n_bayesian)
    scale_mean: Tensor  # means of the logs of all scales, (k, S)
    scale_log_std: Tensor  # logs of their stds, (k, S)
    lr: Tensor  # scalar or (k, 1)
    kl: Tensor  # scalar, the engine's own weight of the KL
    prior: N
    generator: Generator
    groups: G
    mean_moments: Moments = field(init=False)
    log_std_moments: Moments = field(init=False)
    scale_mean_moments: Moments = field(init=False)
    scale_log_std_moments: Moments = field(init=False)
    step: Tensor = field(init=False)  # scalar, number of steps taken
    controls: Controls = field(init=False)

    def __post_init__(self) -> None:
        for name in ("mean", "log_std", "scale_mean", "scale_log_std"):
            setattr(self, f"{name}_moments", Moments.zeros_like(getattr(self, name)))
        self.step, self.controls = self.mean.new_zeros(()), Controls.neutral(self.mean)


class Rates(NamedTuple):
    """Numbers of one step: the pace of AdaBelief, and the weights of KL and log-likelihood."""

    pace: Pace
    kl: Tensor  # per example
    n_data: int


def warm_start_(state: ScaledState[N, G], posterior: Posterior) -> None:
    """Continue from another posterior's means, and stds where it has them; in place."""
    state.mean.copy_(posterior.mean)
    if isinstance(std := getattr(posterior, "std", None), Tensor):
        std = std[: state.log_std.shape[1]]
        state.log_std.copy_(torch.where(std > 0, std.log(), state.log_std))


def weights_kl(state: ScaledState[N, G], width: Tensor) -> Tensor:
    """KL of the trained weights under a prior of widths τ, (k, G), in nats, (k,)."""
    mean = state.mean[:, : state.log_std.shape[1]]
    kl = normal_kl(mean, state.log_std, state.groups.to_entries(width))
    return state.controls.total(kl)


def weights_step_(
    problem: Problem, state: ScaledState[N, G], found: Gradients, ratio: Tensor, width: Tensor
) -> tuple[Tensor, Rates]:
    """Count a step and take it for (m, log s): AdaBelief on (KL - log_lik) / N, in place.

    Args:
        problem: network and data.
        state: of k models.
        found: gradients of the log-likelihood.
        ratio: r of the draw, (k, G).
        width: τ of the draw, (k, G).

    Returns:
        ∂ log_lik / ∂ log r and ∂ KL / ∂ log τ of each group, (2, k, G), and the rates of the step.
    """
    lr, kl = state.lr * state.controls.lr_scale, state.kl * state.controls.kl_scale
    rates = problem.run(_advance_)(state.step, lr, kl, problem.n_data)
    return problem.run(descend_)(problem, state, found, ratio, width, rates), rates


@kernel(small=True)
def _advance_(step: Tensor, lr: Tensor, kl: Tensor, n_data: int) -> Rates:
    step += 1
    return Rates(pace_of(lr, step), kl / n_data, n_data)


@kernel("bayesieve_adabelief", compiled=False)
def descend_(
    problem: Problem, state: ScaledState[N, G], found: Gradients, ratio: Tensor, width: Tensor,
    rates: Rates,
) -> Tensor:  # fmt: skip
    """Move (m, log s) in place; return the gradients for log r and log τ, (2, k, G)."""
    return problem.run(move_)(state, found.flatten(), torch.stack([ratio, width]), rates)


def move_(state: ScaledState[N, G], found: Gradients, scales: Tensor, rates: Rates) -> Tensor:
    """The same with gradients in one piece."""
    (keep, trained), groups, n = state.controls.factors, state.groups, state.log_std.shape[1]
    mean, everything = state.mean[:, :n], slice(0, n)
    keep = None if keep is None else keep[:, :n]
    data = found.grad[:, :n] if keep is None else found.grad[:, :n] * keep
    ratio, width = groups.to_entries(scales)
    data_mean, data_log_std = data * ratio, found.for_log_std(ratio * mean, keep, everything)
    pull = groups.total(data_mean * mean + data_log_std)
    variance, precision = (2 * state.log_std).exp(), 1 / width.square()
    excess = 1 - precision * (mean.square() + variance)
    if trained is not None:
        excess = excess * trained[:, :n]
    (pace, kl, n_data), units = rates, width
    grad_mean = (kl * precision * mean - 1 / n_data * data_mean) * width
    grad_log_std = kl * (precision * variance - 1) - 1 / n_data * data_log_std
    if n < state.mean.shape[1]:
        unit = POINT_UNIT * torch.ones_like(state.mean[:, n:])
        units = torch.cat([width, unit], 1)
        grad_mean = torch.cat([grad_mean, -1 / n_data * unit * found.grad[:, n:]], 1)
    pulls = torch.stack([pull, groups.total(excess)])
    in_units = Pace(pace.length * units, pace.second_factor)
    adabelief_(state.mean, grad_mean, state.mean_moments, in_units, trained)
    bayesian = None if trained is None else trained[:, :n]
    adabelief_(state.log_std, grad_log_std, state.log_std_moments, pace, bayesian)
    return pulls


def adabelief_(
    parameter: Tensor, grad: Tensor, moments: Moments, pace: Pace, trained: Tensor | None = None
) -> None:
    """One AdaBelief step in place where `trained`: Zhuang et al. (2020), algorithm 2.

    m ← β₁m + (1-β₁)g,   s ← β₂s + (1-β₂)(g - m)² + ε,   step = lr · m̂ / (√ŝ + ε)

    It divides by the distance of a gradient from its forecast m.
    """
    first, second = moments.first, moments.second
    first.mul_(BETA_1).add_(grad, alpha=1 - BETA_1)
    surprise = grad - first
    second.mul_(BETA_2).addcmul_(surprise, surprise, value=1 - BETA_2).add_(ADABELIEF_EPS)
    step = pace.length * first / (second.sqrt() * pace.second_factor + ADABELIEF_EPS)
    parameter.sub_(step if trained is None else step * trained)
