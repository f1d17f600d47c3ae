"""Stochastic Bayesian model reduction: variational inference that prunes by evidence as it goes.

Weights are w = γ₀ c_l λ ŵ with ŵ ~ N(0, 1), one scale c_l per layer, c_l⁻² ~ Gamma(a, b), and masks
λ. With q(ŵ) = N(μ, σ²) and q(c_l⁻²) = LogNormal(μ_c, σ_c²), maximise

    E_q[log p(D | w)] - Σ KL(μ, σ) - Σ KL(μ_c, σ_c)                                   (B8, B9)

by reparameterised gradients, and at the start of every epoch but the first set λ = 0 wherever the
evidence for ŵ = 0 exceeds a threshold, ΔF > ζ (B4, B7). Masks never come back.

Reference: Marković, Friston and Kiebel (2024), algorithm 1. Equations: docs/theory/bmr.md.
Symbols: m = τμ mean, s = τσ = exp(log_std), τ = γ₀ E[c] width of a layer, r = c / E[c].
A step of a scale may hold either pair:

    (m, s) held:  ∂/∂μ_c of the KL of weights is -½ Σ (1 - (m² + s²) / τ²), of log_lik 0,
    (μ, σ) held:  ∂/∂μ_c of the KL of weights is 0, of log_lik -½ Σ g w, and m and s follow τ.

The optimum is one; on the way (m, s) lets a width follow its weights at once.

Departures: the same family in the coordinates (m, s) of the weight itself, so that by default a
step of a layer's scale leaves its weights where they are; steps of m are τ long, as if taken in μ.
The KL of weights is exact, not sampled. By default ζ = 0 (a learned ζ is high while most weights
are needed, and then hardly anything goes), the KL weighs 0.1 while masks change, and biases are
kept: with the paper's settings (`BMR.paper`) a network that has plenty of data loses accuracy.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Generator, Tensor, nn

from bayesieve.checks import AUTO, check_choice, check_fraction, check_kind, check_positive, chosen
from bayesieve.core.batch import Batch, Metrics
from bayesieve.core.execution import kernel
from bayesieve.core.layout import EntryGroups, Roles
from bayesieve.core.noise import Noise, noise_of
from bayesieve.core.posterior import Factorised
from bayesieve.core.priors import Number, per_model
from bayesieve.core.problem import Problem, starting_points
from bayesieve.engines.scaled import (
    LayerScaled,
    Rates,
    ScaledState,
    adabelief_,
    log_normal_gamma_kl,
    warm_start_,
    weights_kl,
    weights_step_,
)

if TYPE_CHECKING:
    from bayesieve.engines.recipes import RunSize

# What the reference prunes: biases and norms too. For Problem(..., roles=PAPER_ROLES).
PAPER_ROLES = Roles(
    prune=(nn.Linear, nn.Conv1d, nn.Conv2d, nn.MultiheadAttention, nn.LayerNorm, "*position*")
)
N_UPDATES = 4  # of the mask probabilities; the reference's k_max
_LEAST_RENEWALS = 50  # in a run, however short


@dataclass(frozen=True)
class Reduction:
    """When and how masks are renewed.

    Args:
        rule: "savage-dickey" takes the threshold ζ = 0; "hierarchical" learns it.
        steps_per_epoch: gradient steps between renewals; fewer in runs of less than 50 epochs.
        start: fraction of the run before the first renewal.
        end: fraction of the run after which masks are final.
        kl: weight of the KL until then; 1 afterwards.
        spare_last: never prune the last layer.
        scope: "layer" learns one ζ in each layer, "global" one for all of them.

    Example:
        >>> Reduction(end=0.5).rule
        'savage-dickey'
    """

    rule: Literal["hierarchical", "savage-dickey"] = "savage-dickey"
    steps_per_epoch: int = 500
    start: float = 0.1
    end: float = 0.6
    kl: float = 0.1
    spare_last: bool = True
    scope: Literal["layer", "global"] = "layer"

    def __post_init__(self) -> None:
        check_choice("Reduction", "rule", self.rule, ("hierarchical", "savage-dickey"))
        check_choice("Reduction", "scope", self.scope, ("layer", "global"))
        check_positive("Reduction", steps_per_epoch=self.steps_per_epoch, end=self.end, kl=self.kl)
        check_fraction("Reduction", start=self.start, end=self.end)


@dataclass
class ScaleNumbers:
    """Prior numbers as tensors, scalar or (k, 1)."""

    base: Tensor  # γ₀ of each layer, (k, L) or (1, L)
    shape: Tensor
    rate: Tensor


BMRState = ScaledState[ScaleNumbers, EntryGroups]


@kernel(small=True)
def factors(
    scale_mean: Tensor, scale_log_std: Tensor, base: Tensor, noise: Tensor | None
) -> tuple[Tensor, Tensor]:
    """A draw of r = c / E[c] (1 without noise) and τ = γ₀ E[c] of each layer, both (k, L).

    Example:
        >>> import torch
        >>> mean, log_std = torch.zeros(1, 2), torch.full((1, 2), -30.0)
        >>> factors(mean, log_std, torch.tensor([[0.1, 1.0]]), None)
        (tensor([[1., 1.]]), tensor([[0.1000, 1.0000]]))
    """
    std = scale_log_std.exp()
    width = base * (-0.5 * scale_mean + std.square() / 8).exp()
    ratio = 0 * width if noise is None else -0.5 * std * noise - std.square() / 8
    return ratio.exp(), width


def widths(state: BMRState) -> Tensor:
    """τ = γ₀ E[c] of each layer, (k, L)."""
    return factors(state.scale_mean, state.scale_log_std, state.prior.base, None)[1]


@dataclass(frozen=True)
class BMR:
    """Variational engine that prunes by Bayesian model reduction.

    Numbers may be tuples with one entry per model of a population.

    Args:
        prior: width of the layers and the Gamma prior of their precision scales.
        reduction: when and how masks are renewed; None leaves pruning to `fit`.
        lr: AdaBelief learning rate in units of the prior's width; nats per example.
        init_std: starting σ of every weight, in units of the prior's width, and of log c⁻².
        start: starting means: "module" (the model's own), "he" (uniform in ±√(6 / fan_in)) or
            "uniform" (in ±2 of the prior's width, with log c⁻² uniform in ±2 too).
        local: add the noise to activations of Linear and Conv layers instead of weights.
        coordinates: what a step of a layer's scale holds: "weights" leaves w where it is,
            "standard" leaves ŵ, so that w follows, as in the reference.

    Example:
        >>> BMR.paper().lr, BMR.paper().reduction.kl
        (0.01, 1.0)
    """

    prior: LayerScaled = field(default_factory=LayerScaled)
    reduction: Reduction | None = field(default_factory=Reduction)
    lr: Number = AUTO
    init_std: Number = AUTO
    start: Literal["module", "he", "uniform"] = "module"
    local: bool = AUTO
    coordinates: Literal["weights", "standard"] = "weights"

    warm_start_ = staticmethod(warm_start_)

    def __post_init__(self) -> None:
        check_choice("BMR", "coordinates", self.coordinates, ("weights", "standard"))
        check_kind("BMR", "prior", self.prior, LayerScaled)
        check_positive("BMR", lr=self.lr, init_std=self.init_std)
        check_choice("BMR", "start", self.start, ("module", "he", "uniform"))

    @classmethod
    def paper(cls) -> "BMR":
        """The reference's settings; use PAPER_ROLES for the problem to prune biases as well."""
        reduction = Reduction("hierarchical", start=0.0, end=1.0, kl=1.0)
        return cls(
            reduction=reduction, lr=0.01, init_std=0.1, start="uniform", local=False,
            coordinates="standard",
        )  # fmt: skip

    @staticmethod
    def fields_from(settings: Mapping[str, Any], size: "RunSize") -> dict[str, Any]:
        """Choose when masks are renewed, and the coordinates, as the preset of a run has them."""
        paper, rule, reduction = settings["preset"] == "paper", settings.get("rule"), None
        if size.may_prune and rule not in (None, "none"):
            reduction = Reduction(rule, start=0.0, end=1.0, kl=1.0) if paper else Reduction(rule)
        return {"reduction": reduction, "coordinates": "standard" if paper else "weights"}

    @property
    def noise(self) -> Noise:
        """Where a step adds its noise."""
        return noise_of(self.local)

    def init(self, problem: Problem, generator: Generator, n_models: int = 1) -> BMRState:
        """Start near the initial weights, every scale at 1 (or at random), nothing pruned."""
        problem.layout.check_bayesian("BMR")
        layers = EntryGroups(problem.layout, problem.device)
        scheme = "module" if self.start == "uniform" else self.start
        mean = starting_points(problem, n_models, generator, scheme)
        std, last = (per_model(x, mean) for x in (self.prior.std, self.prior.last_std))
        is_last = torch.arange(layers.n_layers, device=mean.device)[None] == layers.last
        shape, rate = (per_model(x, mean) for x in (self.prior.shape, self.prior.rate))
        numbers = ScaleNumbers(torch.where(is_last, last, std), shape, rate)
        scale_mean = mean.new_zeros((n_models, layers.n_layers))
        init_std = per_model(chosen(self.init_std, 0.1), mean)
        if self.start == "uniform":
            scale_mean.uniform_(-2, 2, generator=generator)
        scale_log_std = init_std.log().expand(n_models, layers.n_layers).contiguous()
        width = factors(scale_mean, scale_log_std, numbers.base, None)[1]
        spread, n = layers.to_entries(width), problem.layout.n_bayesian
        if self.start == "uniform":
            mean[:, :n] = spread * torch.empty_like(spread).uniform_(-2, 2, generator=generator)
        kl = 1.0 if self.reduction is None else self.reduction.kl
        state = ScaledState(
            mean, (spread * init_std).log(), scale_mean, scale_log_std,
            per_model(chosen(self.lr, 1e-2), mean), mean.new_full((), kl), numbers, generator,
            layers,
        )  # fmt: skip
        if self.reduction is not None:
            state.controls.allow_masks_(mean)
        return state

    def step(self, problem: Problem, state: BMRState, batch: Batch) -> Metrics:
        """Draw scales and weights, take the gradient, move weights and scales; in place.

        Masks are those of the last renewal.
        """
        noise = torch.empty_like(state.scale_mean).normal_(generator=state.generator)
        ratio, width = problem.run(factors)(
            state.scale_mean, state.scale_log_std, state.prior.base, noise
        )
        found = self.noise.gradients(problem, state, batch, ratio)  # at w = r (m + s ε)
        pulls, rates = weights_step_(problem, state, found, ratio, width)
        held = self.coordinates == "standard"
        before = widths(state) if held else None
        problem.run(_move_scales_)(state, noise, pulls, rates, held)
        if before is not None:
            factor = state.groups.to_entries(widths(state) / before)
            state.mean[:, : factor.shape[1]].mul_(factor)
            state.log_std.add_(factor.log())
        return {"log_lik": found.log_lik}

    def kl(self, state: BMRState) -> Tensor:
        """KL of trained weights and layer scales in nats, (k,)."""
        numbers = state.prior.shape, state.prior.rate
        scales = log_normal_gamma_kl(state.scale_mean, state.scale_log_std, *numbers)
        return weights_kl(state, widths(state)) + scales.sum(1, dtype=torch.float64)

    def posterior(self, problem: Problem, state: BMRState, member: int = 0) -> Factorised:
        """Moments of w of one member with the scales at their centres; exactly 0 where pruned.

        A scale moves all weights of its layer together. Spread over them as noise of each it would
        ruin layers whose scale nothing determines, such as those before a BatchNorm: there σ_c
        grows freely, and |m| / s is what the data know.
        """
        mean = state.mean[member].detach().clone()
        std = problem.layout.padded(state.log_std[member].exp(), 0.0)
        buffers = self.noise.workspace(problem, len(state.mean)).buffers(member)
        posterior = Factorised(problem.network, mean, std, None, None, buffers)
        return state.controls.masked(posterior, member)

    def prior_stds(self, problem: Problem, state: BMRState, member: int = 0) -> dict[str, float]:
        """Width τ of the prior of every Bayesian tensor by name, for `weight_evidence`."""
        width = widths(state)[member].tolist()
        return {
            name: width[layer]
            for name, (layer, _) in zip(problem.layout.names, state.groups.tensors, strict=False)
        }

    def settled(self, n_epochs: int) -> float | None:
        """Fraction of the run from which masks are final; None without a reduction."""
        return None if self.reduction is None else self.reduction.end

    def renew_every(self, n_steps: int) -> int:
        """Steps between renewals in a run of `n_steps`; 0 without a reduction."""
        every = 0 if self.reduction is None else self.reduction.steps_per_epoch
        return min(every, max(n_steps // _LEAST_RENEWALS, 1))

    def renew_(self, problem: Problem, state: BMRState, step: int, n_steps: int) -> None:
        """Renew the masks, and raise the weight of the KL when they are final."""
        if self.reduction is None or state.controls.keep is None:
            return
        first, last = self.reduction.start * n_steps, self.reduction.end * n_steps
        if first <= step <= last:
            state.controls.keep.copy_(self.reduced(state))
        if step >= last:
            state.kl.fill_(1.0)

    def reduced(self, state: BMRState) -> Tensor:
        """The masks that the evidence leaves of those in force, (k, d) bool."""
        keep, trained = state.controls.keep, state.controls.trained
        if self.reduction is None or keep is None or trained is None:
            raise ValueError("BMR: without a reduction there are no masks to renew.")
        n = state.log_std.shape[1]
        width = state.groups.to_entries(widths(state))
        delta = evidence_at_zero(state.mean[:, :n], state.log_std.exp(), width)
        # What no longer moves counts as relaxed to the prior.
        delta = torch.where((keep | trained)[:, :n], delta, 0.0)
        new = keep.clone()
        rule, spare = self.reduction.rule, self.reduction.spare_last
        for slices in sharing(state.groups, self.reduction.scope, spare_last=spare):
            zeta = shared_log_odds(rule, torch.cat([delta[:, part] for part in slices], 1))
            for part in slices:
                new[:, part] &= delta[:, part] <= zeta
        return new


@kernel("bayesieve_layer_scales")
def _move_scales_(state: BMRState, noise: Tensor, pulls: Tensor, rates: Rates, held: bool) -> None:
    """AdaBelief on (KL - log_lik) / N for μ_c and log σ_c, each (k, L); (μ, σ) held, or (m, s)."""
    mean, log_std, prior, kl = state.scale_mean, state.scale_log_std, state.prior, rates.kl
    pull, std = pulls[0] / rates.n_data, log_std.exp()
    expected = prior.rate * (mean + 0.5 * std.square()).exp()  # of rate c⁻²
    grad_mean = kl * (expected - prior.shape)
    grad_std = kl * (expected * std - 1 / std)
    if held:
        grad_mean = grad_mean + 0.5 * pull
        grad_std = grad_std + 0.5 * noise * pull
    else:
        excess = kl * pulls[1]
        grad_mean = grad_mean - 0.5 * excess
        grad_std = grad_std + 0.25 * std * excess + pull * (0.5 * noise + 0.25 * std)
    adabelief_(mean, grad_mean, state.scale_mean_moments, rates.pace)
    adabelief_(log_std, grad_std * std, state.scale_log_std_moments, rates.pace)


# Bayesian model reduction: what another prior would have done to the evidence.
#
# With a posterior q(w) found under the prior p, the evidence under a reduced prior p̃ follows
# without new data:
#
#     ΔF = log p̃(D) - log p(D) = log E_q[p̃(w) / p(w)]                                      (B1)
#
# ΔF > 0 means that the data prefer the reduced model. Numbers in brackets are equations of
# docs/theory/bmr.md. References: [Friston]; Marković, Friston and Kiebel (2024), section III.


def evidence_at_zero(mean: Tensor, std: Tensor, prior_std: Tensor) -> Tensor:
    """ΔF of each weight when it is fixed at 0, (B4): the Savage-Dickey ratio [Dickey].

    Example:
        >>> half = torch.tensor(0.5)
        >>> round(evidence_at_zero(torch.tensor(0.0), half, 2 * half).item(), 4)  # log 2
        0.6931
    """
    return prior_std.log() - std.log() - 0.5 * (mean / std).square()


def mask_log_odds(delta: Tensor, n_updates: int = N_UPDATES) -> Tensor:
    """ζ of one layer: prior log-odds that a weight is kept, learned from the layer, (B7).

    A weight is pruned when its ΔF exceeds ζ.

    Args:
        delta: ΔF at 0 of the layer's weights, (..., n).
        n_updates: coordinate updates, from ζ = 0.

    Returns:
        (..., 1).

    Example:
        >>> mask_log_odds(torch.full((100,), -50.0)).round(decimals=2)  # all are needed
        tensor([5.1900])
    """
    zeta = torch.zeros_like(delta[..., :1])
    n = delta.shape[-1]
    for _ in range(n_updates):
        kept = torch.sigmoid(zeta - delta).sum(-1, keepdim=True, dtype=torch.float64)
        zeta = (torch.digamma(1 + kept) - torch.digamma(1 + n - kept)).to(delta.dtype)
    return zeta


def shared_log_odds(rule: str, delta: Tensor) -> Tensor:
    """ζ of weights that share it, from their ΔF at 0, (k, n) -> (k, 1); 0 by Savage and Dickey.

    Pruned weights enter by the ΔF that they have relaxed to: near 0, so about ½ each.
    """
    return torch.zeros_like(delta[:, :1]) if rule == "savage-dickey" else mask_log_odds(delta)


def sharing(layers: EntryGroups, scope: str, *, spare_last: bool) -> list[list[slice]]:
    """Slices of the prunable tensors that share a ζ: of a layer, or with "global" all of them.

    Args:
        layers: of the network.
        scope: "layer" or "global".
        spare_last: leaves the last layer out.
    """
    pruned = [(i, part) for i, part in layers.prunable if not (spare_last and i == layers.last)]
    if scope == "global":
        return [[part for _, part in pruned]] if pruned else []
    owners = dict.fromkeys(i for i, _ in pruned)
    return [[part for i, part in pruned if i == owner] for owner in owners]
