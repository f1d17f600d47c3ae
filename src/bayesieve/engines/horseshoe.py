"""Variational inference under a regularised horseshoe over units ("Tiered-FF").

Weights are w = γ_i ŵ with ŵ ~ N(0, 1) and one scale γ_i per unit, made of half-Cauchy scales for
unit and layer and of a slab (H1 to H3). With q(ŵ) = N(μ, σ²) and log-normal q for every scale,
maximise

    E_q[log p(D | w)] - Σ KL(μ, σ) - Σ KL(scales)                                          (H4)

by reparameterised gradients.

Reference: Marković, Friston and Kiebel (2024), eq. 6 and appendix B. Equations:
docs/theory/horseshoe.md. Symbols: m = γ̄μ mean, s = γ̄σ = exp(log_std), γ̄ = E[γ], r = γ / γ̄.
Departures: the same family in the coordinates (m, s) of the weight itself, so that a step of a
scale leaves the weights where they are; exact KL; layer scales start at the size of the weights;
scales stay at their centres where a network has running statistics (BatchNorm), see `init`.
"""

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Generator, Tensor

from bayesieve.checks import AUTO, check_choice, check_kind, check_positive, chosen
from bayesieve.core.batch import Batch, Metrics
from bayesieve.core.execution import kernel
from bayesieve.core.noise import Noise, noise_of
from bayesieve.core.posterior_horseshoe import UnitScaled, UnitScales
from bayesieve.core.priors import Number, member_number, per_model
from bayesieve.core.problem import Problem, starting_points
from bayesieve.core.workspace import statistics_names
from bayesieve.engines.scaled import (
    Horseshoe,
    Rates,
    ScaledState,
    adabelief_,
    log_normal_gamma_kl,
    warm_start_,
    weights_kl,
    weights_step_,
)


@dataclass
class HorseshoeNumbers:
    """Prior numbers as tensors."""

    log_std: Tensor  # log τ₀, scalar or (k, 1)
    shape: Tensor  # of the Gamma prior of each scale, (k, S) or (1, S)
    rate: Tensor  # the same
    held: bool  # whether draws leave the scales at their centres, r = 1


HorseshoeState = ScaledState[HorseshoeNumbers, UnitScales]


def log_widths(state: HorseshoeState) -> Tensor:
    """Log E[γ] of each unit, (k, R)."""
    return state.groups.log_expected_power(
        state.scale_mean, state.scale_log_std.exp(), state.prior.log_std
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
        local: add the noise to activations of Linear and Conv layers instead of weights.

    Example:
        >>> HorseshoeVI().prior
        Horseshoe(std=0.01, shape=2.0, rate=6.0)
    """

    prior: Horseshoe = field(default_factory=Horseshoe)
    lr: Number = AUTO
    init_std: Number = AUTO
    start: Literal["module", "he"] = "module"
    local: bool = False

    warm_start_ = staticmethod(warm_start_)

    def __post_init__(self) -> None:
        check_kind("HorseshoeVI", "prior", self.prior, Horseshoe)
        check_positive("HorseshoeVI", lr=self.lr, init_std=self.init_std)
        check_choice("HorseshoeVI", "start", self.start, ("module", "he"))

    @property
    def noise(self) -> Noise:
        """Where a step adds its noise."""
        return noise_of(self.local)

    def init(self, problem: Problem, generator: Generator, n_models: int = 1) -> HorseshoeState:
        """Start near the initial weights, with the scale of each layer at their size."""
        problem.layout.check_bayesian("HorseshoeVI")
        layout = problem.layout
        scales = UnitScales(layout, problem.device, problem.network.dtype)
        mean = starting_points(problem, n_models, generator, self.start)
        # A BatchNorm divides the scale of a unit out again. Nothing then determines it, its
        # posterior is as wide as the prior, and statistics averaged over draws of it fit no draw.
        numbers = self._numbers(mean, scales, held=bool(statistics_names(problem.network)))
        init_std = per_model(chosen(self.init_std, 0.1), mean)
        scale_log_std = init_std.log().expand(n_models, scales.size).contiguous()
        scale_mean = _matching_scales(mean[:, layout.bayesian], scales, numbers.log_std)
        width = scales.log_expected_power(scale_mean, scale_log_std.exp(), numbers.log_std)
        log_std = scales.to_entries(width) + init_std.log()
        return ScaledState(
            mean, log_std, scale_mean, scale_log_std,
            per_model(chosen(self.lr, 5e-3), mean), mean.new_ones(()), numbers, generator, scales,
        )  # fmt: skip

    def step(self, problem: Problem, state: HorseshoeState, batch: Batch) -> Metrics:
        """Draw scales and weights, take the gradient, move weights and scales; in place."""
        noise = torch.empty_like(state.scale_mean).normal_(generator=state.generator)
        ratio, width = problem.run(_factors)(state, noise)
        found = self.noise.gradients(problem, state, batch, ratio)  # at w = r (m + s ε)
        pulls, rates = weights_step_(problem, state, found, ratio, width)
        problem.run(_move_scales_)(state, noise, pulls, rates)
        return {"log_lik": found.log_lik}

    def kl(self, state: HorseshoeState) -> Tensor:
        """KL of trained weights and all scales in nats, (k,)."""
        numbers = state.prior.shape, state.prior.rate
        scales = log_normal_gamma_kl(state.scale_mean, state.scale_log_std, *numbers)
        active = (state.groups.active * scales).sum(1, dtype=torch.float64)
        return weights_kl(state, log_widths(state).exp()) + active

    def posterior(self, problem: Problem, state: HorseshoeState, member: int = 0) -> UnitScaled:
        """q(w) of one member, with its scales as they were drawn; exactly 0 where pruned."""
        scale_std = state.scale_log_std[member].exp()
        posterior = UnitScaled(
            problem.network,
            state.mean[member].detach().clone(),
            problem.layout.padded(state.log_std[member].exp(), 0.0),
            state.scale_mean[member].clone(),
            torch.zeros_like(scale_std) if state.prior.held else scale_std,
            member_number(self.prior.std, member),
            self.noise.workspace(problem, len(state.mean)).buffers(member),
        )
        return state.controls.masked(posterior, member)

    def _numbers(self, like: Tensor, scales: UnitScales, *, held: bool) -> HorseshoeNumbers:
        half = like.new_full((1, scales.size - scales.n_layers), 0.5)
        slab = like.new_ones((1, scales.n_layers))
        shape, rate = (per_model(x, like) for x in (self.prior.shape, self.prior.rate))

        def joined(first: Tensor, last: Tensor) -> Tensor:
            return torch.cat([first.expand(len(last), -1), last], 1)

        return HorseshoeNumbers(
            per_model(self.prior.std, like).log(),
            joined(half, shape * slab),
            joined(2 * half, rate * slab),
            held,
        )


@kernel("bayesieve_unit_factors")
def _factors(state: HorseshoeState, noise: Tensor) -> tuple[Tensor, Tensor]:
    """A draw of r = γ / E[γ] (1 where held), and E[γ] of each unit, both (k, R)."""
    units, log_std, std = state.groups, state.prior.log_std, state.scale_log_std.exp()
    log_width = units.log_expected_power(state.scale_mean, std, log_std)
    if state.prior.held:
        return torch.ones_like(log_width), log_width.exp()
    logs = torch.addcmul(state.scale_mean, std, noise)
    log_ratio = units.log_scale(logs, log_std) - log_width
    return log_ratio.exp(), log_width.exp()


@kernel("bayesieve_unit_scales")
def _move_scales_(state: HorseshoeState, noise: Tensor, pulls: Tensor, rates: Rates) -> None:
    """AdaBelief on (KL - log_lik) / N for the means and log-stds of all scales, in place."""
    units, prior = state.groups, state.prior

    def objective(mean: Tensor, log_std: Tensor) -> Tensor:
        """The terms that depend on the scales; that of the weights is linear in log r and log γ̄."""
        std = log_std.exp()
        log_width = units.log_expected_power(mean, std, prior.log_std)
        logs = torch.addcmul(mean, std, noise)
        log_ratio = units.log_scale(logs, prior.log_std) - log_width
        kl = units.active * log_normal_gamma_kl(mean, log_std, prior.shape, prior.rate)
        penalty = rates.kl * (kl.sum() + (pulls[1] * log_width).sum())
        return penalty if prior.held else penalty - (pulls[0] * log_ratio).sum() / rates.n_data

    grads = torch.func.grad(objective, argnums=(0, 1))(state.scale_mean, state.scale_log_std)
    adabelief_(state.scale_mean, grads[0], state.scale_mean_moments, rates.pace)
    adabelief_(state.scale_log_std, grads[1], state.scale_log_std_moments, rates.pace)


def _matching_scales(mean: Tensor, scales: UnitScales, log_std: Tensor) -> Tensor:
    """Means of the logs at which λ of each layer is the root mean square of its weights."""
    logs = mean.new_zeros((len(mean), scales.size))
    units = scales.total(torch.ones_like(mean))
    squares = scales.total(mean.square())
    sizes = [
        (squares[:, part].sum(1) / units[:, part].sum(1)).sqrt().clamp_min(1e-3)
        for part in scales.layers
    ]
    size = torch.stack(sizes, 1).log() - scales.slab * log_std
    a, b, layer_a, layer_b, _ = scales.split(logs)
    layer_a += scales.common * size
    layer_b -= scales.common * size
    alone = scales.to_units((1 - scales.common) * size)
    a += alone
    b -= alone
    return logs
