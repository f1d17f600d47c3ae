"""Variational inference under a regularised horseshoe over units ("Tiered-FF").

Weights are w = γ_i ŵ with ŵ ~ N(0, 1) and one scale γ_i per unit, made of half-Cauchy scales for
unit and layer and of a slab (H1 to H3). With q(ŵ) = N(μ, σ²) and log-normal q for every scale,
maximise

    E_q[log p(D | w)] - Σ KL(μ, σ) - Σ KL(scales)                                          (H4)

by reparameterised gradients.

Reference: Marković, Friston and Kiebel (2024), eq. 6 and appendix B. Equations:
docs/theory/horseshoe.md. Symbols: m = γ̄μ mean, s = γ̄σ = exp(log_std), γ̄ = E[γ], r = γ / γ̄.
Departures: the same family in the coordinates (m, s) of the weight itself, so that a step of a
scale leaves the weights where they are; exact KL; layer scales start at the size of the weights.
"""

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Generator, Tensor

from bayesieve.checks import check_choice, check_positive
from bayesieve.core.batch import Batch, Metrics
from bayesieve.core.posterior import Posterior
from bayesieve.core.posterior_horseshoe import UnitScaled
from bayesieve.core.priors import Number, member_number, per_model
from bayesieve.core.problem import Problem
from bayesieve.core.scale_priors import Horseshoe, log_normal_gamma_kl
from bayesieve.core.state import Controls
from bayesieve.core.unit_scales import UnitScales
from bayesieve.engines._adabelief import adabelief_
from bayesieve.engines._adam import Moments, bias_corrected
from bayesieve.engines._scaled import sample_, scale_terms, update_scaled_


@dataclass
class HorseshoeNumbers:
    """Prior numbers as tensors."""

    log_std: Tensor  # log τ₀, scalar or (k, 1)
    shape: Tensor  # of the Gamma prior of each scale, (k, S) or (1, S)
    rate: Tensor  # the same


@dataclass
class HorseshoeState:
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
    prior: HorseshoeNumbers
    controls: Controls
    generator: Generator
    scales: UnitScales

    @property
    def log_width(self) -> Tensor:
        """Log E[γ] of each unit, (k, R)."""
        return self.scales.log_expected_power(
            self.scale_mean, self.scale_log_std.exp(), self.prior.log_std
        )


@dataclass(frozen=True)
class HorseshoeVI:
    """Variational engine with a regularised horseshoe prior over units.

    Numbers may be tuples with one entry per model of a population.

    Args:
        prior: scale of the layers' half-Cauchy and the Gamma prior of the slab's precision.
        lr: AdaBelief learning rate in units of the scales in force; nats per example.
        init_std: starting std of every ŵ and of the log of every scale.
        start: starting means: "module" (the model's own) or "he" (uniform in ±√(6 / fan_in)).

    Example:
        >>> HorseshoeVI().prior
        Horseshoe(std=0.01, shape=2.0, rate=6.0)
    """

    prior: Horseshoe = field(default_factory=Horseshoe)
    lr: Number = 5e-3
    init_std: Number = 0.1
    start: Literal["module", "he"] = "module"

    def __post_init__(self) -> None:
        check_positive("HorseshoeVI", lr=self.lr, init_std=self.init_std)
        check_choice("HorseshoeVI", "start", self.start, ("module", "he"))

    def init(self, problem: Problem, generator: Generator, n_models: int = 1) -> HorseshoeState:
        """Start near the initial weights, with the scale of each layer at their size."""
        layout = problem.layout
        scales = UnitScales(layout, problem.device, problem.network.dtype)
        mean = problem.starting_points(n_models, generator, self.start)
        numbers = self._numbers(mean, scales)
        init_std = per_model(self.init_std, mean)
        scale_log_std = init_std.log().expand(n_models, scales.size).contiguous()
        scale_mean = _matching_scales(mean[:, layout.bayesian], scales, numbers.log_std)
        width = scales.log_expected_power(scale_mean, scale_log_std.exp(), numbers.log_std)
        log_std = scales.to_entries(width) + init_std.log()
        return HorseshoeState(
            mean=mean,
            log_std=log_std,
            scale_mean=scale_mean,
            scale_log_std=scale_log_std,
            mean_moments=Moments.zeros_like(mean),
            log_std_moments=Moments.zeros_like(log_std),
            scale_mean_moments=Moments.zeros_like(scale_mean),
            scale_log_std_moments=Moments.zeros_like(scale_mean),
            step=mean.new_zeros(()),
            lr=per_model(self.lr, mean),
            prior=numbers,
            controls=Controls.neutral(mean),
            generator=generator,
            scales=scales,
        )

    def warm_start_(self, state: HorseshoeState, posterior: Posterior) -> None:
        """Continue from another posterior's means, and spreads where it has them."""
        state.mean.copy_(posterior.mean)
        std = getattr(posterior, "spread", getattr(posterior, "std", None))
        if isinstance(std, Tensor):
            own = std[: state.log_std.shape[1]]
            state.log_std.copy_(torch.where(own > 0, own.log(), state.log_std))

    def step(self, problem: Problem, state: HorseshoeState, batch: Batch) -> Metrics:
        """One reparameterised gradient step in place."""
        scales = state.scales
        keep, trained = state.controls.keep, state.controls.trained
        scale_noise = torch.empty_like(state.scale_mean).normal_(generator=state.generator)
        with torch.enable_grad():  # the small graph of the scales; the network's is separate
            leaves = [x.detach().requires_grad_() for x in (state.scale_mean, state.scale_log_std)]
            logs = torch.addcmul(leaves[0], leaves[1].exp(), scale_noise)
            log_width = scales.log_expected_power(leaves[0], leaves[1].exp(), state.prior.log_std)
            log_ratio = scales.log_scale(logs, state.prior.log_std) - log_width
            scale_kl = _scale_kl(leaves[0], leaves[1], state)
        ratio = scales.to_entries(log_ratio.detach().exp())
        weights = sample_(problem, state.mean, state.log_std, ratio, keep, state.generator)
        log_lik, grad = problem.value_and_grad(weights, batch)

        n_data, width = problem.n_data, scales.to_entries(log_width.detach().exp())
        terms = problem.kernel(scale_terms)(
            state.mean, state.log_std, grad, weights, width, trained
        )
        pull, excess = (scales.total(own) for own in terms)
        kl = state.controls.kl_scale / n_data
        grads = torch.autograd.grad(
            [log_ratio, log_width, scale_kl],
            leaves,
            [-pull / n_data, kl * excess, kl.expand_as(scale_kl)],
        )
        state.step += 1
        lengths = bias_corrected(state.lr * state.controls.lr_scale, state.step)
        for parameter, own, moments in (
            (state.scale_mean, grads[0], state.scale_mean_moments),
            (state.scale_log_std, grads[1], state.scale_log_std_moments),
        ):
            adabelief_(parameter, own, moments.first, moments.second, *lengths)
        unit = state.prior.log_std.new_full((), 0.1)  # of the steps of point parameters
        problem.kernel(update_scaled_)(
            state.mean, state.log_std, grad, weights, ratio, width, unit,
            (state.mean_moments.first, state.mean_moments.second,
             state.log_std_moments.first, state.log_std_moments.second),
            lengths, (1 / n_data, kl), keep, trained,
        )  # fmt: skip
        return {"log_lik": log_lik}

    def kl(self, state: HorseshoeState) -> Tensor:
        """KL of trained weights and all scales in nats, (k,)."""
        n = state.log_std.shape[1]
        log_width = state.scales.to_entries(state.log_width)
        second_moment = state.mean[:, :n].square() + (2 * state.log_std).exp()
        ratio = second_moment * (-2 * log_width).exp()
        weights = 0.5 * (ratio - 1) + log_width - state.log_std
        if state.controls.trained is not None:
            weights = torch.where(state.controls.trained[:, :n], weights, 0.0)
        scales = _scale_kl(state.scale_mean, state.scale_log_std, state)
        return weights.sum(1, dtype=torch.float64) + scales.double()

    def posterior(self, problem: Problem, state: HorseshoeState, member: int = 0) -> UnitScaled:
        """q(w) of one member, with its scales; exactly 0 where pruned."""
        mean = state.mean[member].detach().clone()
        spread = torch.zeros_like(mean)
        spread[problem.layout.bayesian] = state.log_std[member].exp()
        whole = UnitScaled(
            problem.network,
            mean,
            spread,
            state.scale_mean[member].clone(),
            state.scale_log_std[member].exp(),
            member_number(self.prior.std, member),
            problem.workspace(len(state.mean)).buffers(member),
        )
        keep = state.controls.keep
        return whole if keep is None else whole.masked(keep[member])

    def _numbers(self, like: Tensor, scales: UnitScales) -> HorseshoeNumbers:
        half = like.new_full((1, scales.size - scales.n_layers), 0.5)
        slab = like.new_ones((1, scales.n_layers))
        shape, rate = (per_model(x, like) for x in (self.prior.shape, self.prior.rate))

        def joined(first: Tensor, last: Tensor) -> Tensor:
            return torch.cat([first.expand(len(last), -1), last], 1)

        return HorseshoeNumbers(
            per_model(self.prior.std, like).log(),
            joined(half, shape * slab),
            joined(2 * half, rate * slab),
        )


def _scale_kl(mean: Tensor, log_std: Tensor, state: HorseshoeState) -> Tensor:
    """KL of the scales that are in use, (k,)."""
    kl = log_normal_gamma_kl(mean, log_std, state.prior.shape, state.prior.rate)
    return (state.scales.active * kl).sum(1)


def _matching_scales(mean: Tensor, scales: UnitScales, log_std: Tensor) -> Tensor:
    """Means of the logs at which λ of each layer is the root mean square of its weights."""
    logs = mean.new_zeros((len(mean), scales.size))
    units = scales.total(torch.ones_like(mean))
    squares = scales.total(mean.square())
    sizes = [
        (squares[:, part].sum(1) / units[:, part].sum(1)).sqrt().clamp_min(1e-3)
        for part in scales.units
    ]
    size = torch.stack(sizes, 1).log() - scales.slab * log_std
    a, b, layer_a, layer_b, _ = scales.split(logs)
    layer_a += scales.common * size
    layer_b -= scales.common * size
    alone = scales.to_units((1 - scales.common) * size)
    a += alone
    b -= alone
    return logs
