"""Stochastic Bayesian model reduction: variational inference that prunes by evidence as it goes.

Weights are w = γ₀ c_l λ ŵ with ŵ ~ N(0, 1), one scale c_l per layer, c_l⁻² ~ Gamma(a, b), and masks
λ. With q(ŵ) = N(μ, σ²) and q(c_l⁻²) = LogNormal(μ_c, σ_c²), maximise

    E_q[log p(D | w)] - Σ KL(μ, σ) - Σ KL(μ_c, σ_c)                                   (B8, B9)

by reparameterised gradients, and at the start of every epoch but the first set λ = 0 wherever the
evidence for ŵ = 0 exceeds the layer's threshold, ΔF > ζ_l (B4, B7). Masks never come back.

Reference: Marković, Friston and Kiebel (2024), algorithm 1. Equations: docs/theory/bmr.md.
Symbols: m = τμ mean, s = τσ = exp(log_std), τ = γ₀ E[c] width of a layer, r = c / E[c].
Departures: the same family in the coordinates (m, s) of the weight itself, so that a step of a
layer's scale leaves its weights where they are; steps of m are τ long, as if taken in μ. The KL of
weights is exact, not sampled. By default the KL weighs 0.1 while masks change and biases are kept:
with the paper's settings (`BMR.paper`) a network that has plenty of data loses accuracy.
"""

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Generator, Tensor, nn

from bayesieve.checks import check_choice, check_positive
from bayesieve.core.batch import Batch, Metrics
from bayesieve.core.layout import Roles
from bayesieve.core.posterior import Factorised, Posterior
from bayesieve.core.priors import Number, per_model
from bayesieve.core.problem import Problem
from bayesieve.core.reduction import evidence_at_zero, mask_log_odds
from bayesieve.core.scale_priors import LayerScaled, log_normal_gamma_kl
from bayesieve.core.state import Controls
from bayesieve.engines._adabelief import adabelief_
from bayesieve.engines._adam import Moments, bias_corrected
from bayesieve.engines._layers import Layers, layers_of
from bayesieve.engines._scaled import sample_, scale_terms, update_scaled_

# What the reference prunes: biases and norms too. For Problem(..., roles=PAPER_ROLES).
PAPER_ROLES = Roles(
    prune=(nn.Linear, nn.Conv1d, nn.Conv2d, nn.MultiheadAttention, nn.LayerNorm, "*position*")
)


@dataclass(frozen=True)
class Reduction:
    """When and how masks are renewed.

    Args:
        rule: "hierarchical" learns each layer's threshold ζ; "savage-dickey" takes ζ = 0.
        count_pruned: how pruned weights enter ζ: "reference" by the ΔF they have relaxed to (near
            0, so about ½ each), "as_zero" as pruned for certain, which over-prunes.
        steps_per_epoch: gradient steps between two renewals.
        epochs: after this many epochs masks are final.
        kl: weight of the KL until then; 1 afterwards.
        spare_last: never prune the last layer.
    """

    rule: Literal["hierarchical", "savage-dickey"] = "hierarchical"
    count_pruned: Literal["reference", "as_zero"] = "reference"
    steps_per_epoch: int = 500
    epochs: int = 50
    kl: float = 0.1
    spare_last: bool = True

    def __post_init__(self) -> None:
        check_choice("Reduction", "rule", self.rule, ("hierarchical", "savage-dickey"))
        check_choice("Reduction", "count_pruned", self.count_pruned, ("reference", "as_zero"))
        check_positive(
            "Reduction", steps_per_epoch=self.steps_per_epoch, epochs=self.epochs, kl=self.kl
        )

    def log_odds(self, delta: Tensor, pruned: Tensor) -> Tensor:
        """ζ of one layer from its ΔF at 0 and what is pruned of it, (k, n) -> (k, 1)."""
        if self.rule == "savage-dickey":
            return torch.zeros_like(delta[:, :1])
        return mask_log_odds(delta, pruned if self.count_pruned == "as_zero" else None)


@dataclass
class ScaleNumbers:
    """Prior numbers as tensors, scalar or (k, 1) unless said otherwise."""

    base: Tensor  # γ₀ of each layer, (k, L) or (1, L)
    shape: Tensor
    rate: Tensor
    point: Tensor  # unit of the steps of point parameters


@dataclass
class BMRState:
    """What must survive a step."""

    mean: Tensor  # m, (k, d)
    log_std: Tensor  # log s, (k, n_bayesian)
    scale_mean: Tensor  # μ_c, (k, L)
    scale_log_std: Tensor  # log σ_c, (k, L)
    mean_moments: Moments
    log_std_moments: Moments
    scale_mean_moments: Moments
    scale_log_std_moments: Moments
    step: Tensor  # scalar, number of steps taken
    lr: Tensor  # scalar or (k, 1)
    prior: ScaleNumbers
    controls: Controls
    generator: Generator
    layers: Layers

    @property
    def width(self) -> Tensor:
        """τ = γ₀ E[c] of each layer, (k, L)."""
        log_mean = -0.5 * self.scale_mean + (2 * self.scale_log_std).exp() / 8
        return self.prior.base * log_mean.exp()


@dataclass(frozen=True)
class BMR:
    """Variational engine that prunes by Bayesian model reduction.

    Numbers may be tuples with one entry per model of a population.

    Args:
        prior: width of the layers and the Gamma prior of their precision scales.
        reduction: when and how masks are renewed.
        lr: AdaBelief learning rate in units of the prior's width; nats per example.
        init_std: starting σ of every weight, in units of the prior's width, and of log c⁻².
        start: starting means: "module" (the model's own), "he" (uniform in ±√(6 / fan_in)) or
            "uniform" (in ±2 of the prior's width, with log c⁻² uniform in ±2 too).

    Example:
        >>> BMR.paper().lr, BMR.paper().reduction.kl
        (0.01, 1.0)
    """

    prior: LayerScaled = field(default_factory=LayerScaled)
    reduction: Reduction = field(default_factory=Reduction)
    lr: Number = 1e-2
    init_std: Number = 0.1
    start: Literal["module", "he", "uniform"] = "module"

    def __post_init__(self) -> None:
        check_positive("BMR", lr=self.lr, init_std=self.init_std)
        check_choice("BMR", "start", self.start, ("module", "he", "uniform"))

    @classmethod
    def paper(cls) -> "BMR":
        """The reference's settings; use PAPER_ROLES for the problem to prune biases as well."""
        return cls(reduction=Reduction(kl=1.0), start="uniform")

    def init(self, problem: Problem, generator: Generator, n_models: int = 1) -> BMRState:
        """Start near the initial weights, every scale at 1 (or at random), nothing pruned."""
        layers = layers_of(problem.layout)
        scheme = "module" if self.start == "uniform" else self.start
        mean = problem.starting_points(n_models, generator, scheme)
        numbers = self._numbers(mean, layers)
        scale_mean = mean.new_zeros((n_models, layers.n))
        init_std = per_model(self.init_std, mean)
        if self.start == "uniform":
            scale_mean.uniform_(-2, 2, generator=generator)
        scale_log_std = init_std.log().expand(n_models, layers.n).contiguous()
        width = numbers.base * (-0.5 * scale_mean + (2 * scale_log_std).exp() / 8).exp()
        spread, n = layers.spread(width), problem.layout.n_bayesian
        if self.start == "uniform":
            mean[:, :n] = spread * torch.empty_like(spread).uniform_(-2, 2, generator=generator)
        log_std = (spread * init_std).log()
        controls = Controls.neutral(mean)
        controls.allow_masks_(mean)
        return BMRState(
            mean=mean,
            log_std=log_std,
            scale_mean=scale_mean,
            scale_log_std=scale_log_std,
            mean_moments=Moments.zeros_like(mean),
            log_std_moments=Moments.zeros_like(log_std),
            scale_mean_moments=Moments.zeros_like(scale_mean),
            scale_log_std_moments=Moments.zeros_like(scale_log_std),
            step=mean.new_zeros(()),
            lr=per_model(self.lr, mean),
            prior=numbers,
            controls=controls,
            generator=generator,
            layers=layers,
        )

    def warm_start_(self, state: BMRState, posterior: Posterior) -> None:
        """Continue from another posterior's means, and stds where it has them."""
        state.mean.copy_(posterior.mean)
        if isinstance(posterior, Factorised):
            std = posterior.std[: state.log_std.shape[1]]
            state.log_std.copy_(torch.where(std > 0, std.log(), state.log_std))

    def step(self, problem: Problem, state: BMRState, batch: Batch) -> Metrics:
        """Renew the masks if an epoch begins, then one reparameterised gradient step; in place."""
        self._reduce_if_due_(problem, state)
        layers = state.layers
        keep, trained = state.controls.keep, state.controls.trained
        scale_noise = torch.empty_like(state.scale_mean).normal_(generator=state.generator)
        scale_std = state.scale_log_std.exp()
        log_ratio = -0.5 * scale_std * scale_noise - scale_std.square() / 8  # E[r] = 1
        ratio = layers.spread(log_ratio.exp())
        weights = sample_(problem, state.mean, state.log_std, ratio, keep, state.generator)
        log_lik, grad = problem.value_and_grad(weights, batch)

        n_data, spread = problem.n_data, layers.spread(state.width)
        terms = problem.kernel(scale_terms)(
            state.mean, state.log_std, grad, weights, spread, trained
        )
        pull, excess = (layers.total(own) for own in terms)
        state.step += 1
        lr = state.lr * state.controls.lr_scale
        lengths = bias_corrected(lr, state.step)
        kl = state.controls.kl_scale * self._kl_weight(state.step) / n_data
        self._scale_step_(state, lengths, (pull / n_data, kl * excess, kl), scale_noise)
        problem.kernel(update_scaled_)(
            state.mean, state.log_std, grad, weights, ratio, spread, state.prior.point,
            (state.mean_moments.first, state.mean_moments.second,
             state.log_std_moments.first, state.log_std_moments.second),
            lengths, (1 / n_data, kl), keep, trained,
        )  # fmt: skip
        return {"log_lik": log_lik}

    def kl(self, state: BMRState) -> Tensor:
        """KL of trained weights and layer scales in nats, (k,)."""
        n = state.log_std.shape[1]
        spread = state.layers.spread(state.width)
        second_moment = (state.mean[:, :n].square() + (2 * state.log_std).exp()) / spread.square()
        weights = 0.5 * (second_moment - 1) + spread.log() - state.log_std
        if state.controls.trained is not None:
            weights = torch.where(state.controls.trained[:, :n], weights, 0.0)
        numbers = state.prior.shape, state.prior.rate
        scales = log_normal_gamma_kl(state.scale_mean, state.scale_log_std, *numbers)
        return weights.sum(1, dtype=torch.float64) + scales.sum(1, dtype=torch.float64)

    def posterior(self, problem: Problem, state: BMRState, member: int = 0) -> Factorised:
        """Moments of w of one member; exactly 0 where pruned.

        The scales are integrated out: Var[w] = E[r²] (m² + s²) - m², with E[r²] = exp(σ_c² / 4).
        """
        layout = problem.layout
        mean = state.mean[member].detach().clone()
        std = torch.zeros_like(mean)
        growth = state.layers.spread(((2 * state.scale_log_std).exp() / 4).expm1())[member]
        square, variance = mean[layout.bayesian].square(), (2 * state.log_std[member]).exp()
        std[layout.bayesian] = (variance + growth * (square + variance)).sqrt()
        buffers = problem.workspace(len(state.mean)).buffers(member)
        whole = Factorised(problem.network, mean, std, None, None, buffers)
        keep = state.controls.keep
        return whole if keep is None else whole.masked(keep[member])

    def prior_stds(self, problem: Problem, state: BMRState, member: int = 0) -> dict[str, float]:
        """Width τ of the prior of every Bayesian tensor by name, as `sieve.bmr.reduce` takes it."""
        widths = state.width[member].tolist()
        return {
            name: widths[layer]
            for name, (layer, _) in zip(problem.layout.names, state.layers.parts, strict=False)
        }

    def reduce_(self, state: BMRState) -> Tensor:
        """The masks that the evidence leaves of those in force, (k, d) bool."""
        keep, trained = state.controls.keep, state.controls.trained
        assert keep is not None
        assert trained is not None
        new, width = keep.clone(), state.width
        for layer, parts in enumerate(state.layers.prunable):
            if not parts or (self.reduction.spare_last and layer == state.layers.last):
                continue
            mean, log_std, kept, moving = (
                torch.cat([x[:, part] for part in parts], 1)
                for x in (state.mean, state.log_std, keep, trained)
            )
            delta = evidence_at_zero(mean, log_std.exp(), width[:, layer : layer + 1])
            delta = torch.where(kept | moving, delta, 0.0)  # what no longer moves is the prior's
            supported = delta <= self.reduction.log_odds(delta, ~kept)
            sizes = [part.stop - part.start for part in parts]
            for part, own in zip(parts, supported.split(sizes, 1), strict=True):
                new[:, part] &= own
        return new

    def _reduce_if_due_(self, problem: Problem, state: BMRState) -> None:
        keep, every = state.controls.keep, self.reduction.steps_per_epoch
        if keep is None:
            return
        last = every * self.reduction.epochs
        due = (state.step > 0) & (state.step % every == 0) & (state.step <= last)
        if problem.device.type != "cpu":  # a captured step cannot branch
            keep.copy_(torch.where(due, self.reduce_(state), keep))
        elif bool(due):
            keep.copy_(self.reduce_(state))

    def _kl_weight(self, step: Tensor) -> Tensor:
        pruning = step <= self.reduction.steps_per_epoch * self.reduction.epochs
        return torch.where(pruning, self.reduction.kl, 1.0).to(step.dtype)

    def _scale_step_(
        self,
        state: BMRState,
        lengths: tuple[Tensor, Tensor],
        parts: tuple[Tensor, Tensor, Tensor],
        noise: Tensor,
    ) -> None:
        """Gradients of (KL - log_lik) / N for μ_c and log σ_c, each (k, L), and their step."""
        pull, excess, kl = parts
        std = state.scale_log_std.exp()
        expected = (state.scale_mean + 0.5 * std.square()).exp()  # E[c⁻²]
        grad_mean = kl * (state.prior.rate * expected - state.prior.shape) - 0.5 * excess
        grad_std = kl * (state.prior.rate * expected * std - 1 / std) + 0.25 * std * excess
        grad_std = grad_std + pull * (0.5 * noise + 0.25 * std)
        for parameter, grad, moments in (
            (state.scale_mean, grad_mean, state.scale_mean_moments),
            (state.scale_log_std, grad_std * std, state.scale_log_std_moments),
        ):
            adabelief_(parameter, grad, moments.first, moments.second, *lengths)

    def _numbers(self, like: Tensor, layers: Layers) -> ScaleNumbers:
        std, last = (per_model(x, like) for x in (self.prior.std, self.prior.last_std))
        is_last = torch.arange(layers.n, device=like.device)[None] == layers.last
        shape, rate = (per_model(x, like) for x in (self.prior.shape, self.prior.rate))
        return ScaleNumbers(torch.where(is_last, last, std), shape, rate, std)
