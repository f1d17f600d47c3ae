"""Importance of the inputs of a fully connected network, a ranking.

With P⁽ˡ⁾ the matrix, (n_l, n_{l-1}), of the probabilities that the weights of layer l matter,

    ψ = (P⁽ᴸ⁺¹⁾ P⁽ᴸ⁾ ⋯ P⁽¹⁾)ᵀ / (n_1 ⋯ n_L)

is for each input the mean over its paths to the output of the product of these probabilities; with
several outputs it is the mean over them. φ is ψ mapped to [0, 1]. Vector-matrix products from the
output back, divided by n_l at each layer, cost as much as one prediction and never underflow.

ψ and φ rank the inputs. They are no probabilities that an input matters: with many units some path
is always open. `joint_posterior` has these.

Reference: [Saha], section 3.5.
Symbols: P probabilities, ψ psi, φ phi, D inputs.
Departures: engines without inclusion probabilities take part through the evidence, or the size, of
their weights.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from bayesieve.checks import check_choice
from bayesieve.core.network import Network, sequential_layers
from bayesieve.core.posterior import Posterior
from bayesieve.core.priors import Normal, SpikeSlab, per_model
from bayesieve.engines.bmr import evidence_at_zero
from bayesieve.errors import UnsupportedModelError
from bayesieve.nets.embedding import PiecewiseLinear
from bayesieve.select.additive import HingeBasis
from bayesieve.sieve.ranking import std_of

Source = Literal["inclusion", "evidence", "magnitude"]
SOURCES: tuple[Source, ...] = ("inclusion", "evidence", "magnitude")
PriorStds = Mapping[str, float]


@dataclass(frozen=True, eq=False)
class FeatureImportance:
    """Importance of D inputs under a posterior.

    Args:
        psi: (D,), mean over paths of the product of probabilities.
        source: where the probability of a weight came from.
    """

    psi: Tensor
    source: Source

    @property
    def phi(self) -> Tensor:
        """Psi mapped to [0, 1], (D,)."""
        return normalised(self.psi)


def feature_importance(
    posterior: Posterior, *, source: Source | None = None, prior_stds: PriorStds | None = None
) -> FeatureImportance:
    """Importance of every input of a posterior's network.

    Args:
        posterior: of a fully connected network, by any engine.
        source: where the probability of a weight comes from: its "inclusion", the "evidence" for it
            or its "magnitude"; None takes the first the posterior has (see
            `weight_probabilities`).
        prior_stds: prior std by tensor name, for the evidence of an engine that learns it
            (`BMR.prior_stds`).

    Example:
        >>> from bayesieve.core.likelihoods import Gaussian
        >>> from bayesieve.core.posterior import Factorised
        >>> network = Network.of(nn.Sequential(nn.Linear(3, 1, bias=False)), Gaussian())
        >>> logit = torch.tensor([0.75, 0.5, 0.25]).logit()
        >>> q = Factorised(network, torch.zeros(3), torch.ones(3), logit_inclusion=logit)
        >>> feature_importance(q).psi, feature_importance(q).phi
        (tensor([0.7500, 0.5000, 0.2500]), tensor([1.0000, 0.5000, 0.0000]))
    """
    chosen = _chosen(posterior, source, prior_stds)
    probabilities = weight_probabilities(posterior, chosen, prior_stds)
    psi = path_importance(matrices_of(posterior, probabilities))
    columns, present = by_input(posterior, psi)
    return FeatureImportance((columns * present).mean(-1), chosen)


def path_importance(matrices: Sequence[Tensor]) -> Tensor:
    """ψ, (..., D), of the matrices of all layers from the first, each (..., outputs, inputs).

    Example:
        >>> first, second = torch.full((4, 3), 0.5), torch.full((1, 4), 0.5)
        >>> path_importance([first, second])
        tensor([0.2500, 0.2500, 0.2500])
    """
    if not matrices:
        raise ValueError("path_importance: got no matrix.")
    row = matrices[-1].mean(-2, keepdim=True)
    for matrix in reversed(matrices[:-1]):
        row = row @ matrix / matrix.shape[-2]
    return row.squeeze(-2)


def normalised(psi: Tensor, varies: Tensor | None = None) -> Tensor:
    """φ = (ψ - min) / (max - min) over the last axis; 0 where ψ is constant.

    Args:
        psi: (..., D).
        varies: (D,) bool, the inputs to compare; the others get 0. Of a constant input the data say
            nothing, so its ψ is that of the prior. None compares all.

    Example:
        >>> normalised(torch.tensor([1.0, 2.0, 5.0]))
        tensor([0.0000, 0.2500, 1.0000])
        >>> normalised(torch.tensor([1.0, 9.0, 5.0]), torch.tensor([True, False, True]))
        tensor([0., 0., 1.])
    """
    if varies is None:
        varies = torch.ones_like(psi, dtype=torch.bool)
    low = psi.masked_fill(~varies, torch.inf).amin(-1, keepdim=True)
    high = psi.masked_fill(~varies, -torch.inf).amax(-1, keepdim=True)
    span = high - low
    return torch.where(varies & (span > 0), (psi - low) / torch.where(span > 0, span, 1.0), 0.0)


def weight_probabilities(
    posterior: Posterior, source: Source | None = None, prior_stds: PriorStds | None = None
) -> Tensor:
    """Return how probable it is that each weight matters, (d,), in [0, 1].

    "inclusion" is that of the posterior (sBNN's p, the averaged ρ of SG-MCMC, TDAMP's groups);
    "evidence" is the probability at even prior odds that a weight is not 0, the sigmoid of
    `weight_log_bayes_factors`;
    "magnitude" is |mean| over the largest of its tensor, a score without that meaning.

    Args:
        posterior: any.
        source: None takes inclusion, else evidence; a posterior with neither is refused.
        prior_stds: prior std by tensor name, for the evidence of an engine that learns it.
    """
    chosen = _chosen(posterior, source, prior_stds)
    if chosen == "evidence":
        return torch.sigmoid(weight_log_bayes_factors(posterior, prior_stds))
    if chosen == "magnitude":
        size, layout = posterior.mean.abs(), posterior.layout
        tensors = [size[layout.slices[name]] for name in layout.names]
        tiny = torch.finfo(size.dtype).tiny
        return torch.cat([tensor / tensor.amax().clamp_min(tiny) for tensor in tensors])
    if posterior.inclusion is None:
        raise ValueError(
            f"feature importance: {type(posterior).__name__} has no inclusion probabilities. Use "
            "source='evidence' or 'magnitude', or an engine with a sparse prior."
        )
    return posterior.inclusion


def best_source(posterior: Posterior, prior_stds: PriorStds | None = None) -> Source:
    """The best source of the probability of a weight: inclusion, else evidence, else magnitude."""
    if posterior.inclusion is not None:
        return "inclusion"
    has_prior = posterior.prior is not None or prior_stds is not None
    return "evidence" if has_prior else "magnitude"


def _chosen(posterior: Posterior, source: Source | None, prior_stds: PriorStds | None) -> Source:
    """The source asked for, else the best one; magnitude must be asked for."""
    if source is not None:
        check_choice("feature importance", "source", source, SOURCES)
        return source
    best = best_source(posterior, prior_stds)
    if best == "magnitude":
        raise ValueError(
            f"feature importance: {type(posterior).__name__} has neither inclusion probabilities "
            "nor a prior to compare with. Give prior_stds, or use source='magnitude'."
        )
    return best


def weight_log_bayes_factors(posterior: Posterior, prior_stds: PriorStds | None = None) -> Tensor:
    """Log Bayes factor of each weight against 0, (d,), in nats; -inf where pruned.

    Under a normal prior it is the ratio of Savage and Dickey. Under a spike-and-slab prior it is
    that of the slab: the posterior is read as a normal prior of precision p/τ₁² + (1 - p)/τ₀², the
    one its optimum knows, times the likelihood, and Bayesian model reduction changes that prior to
    the slab and to a point at 0.
    """
    mean, std = posterior.mean, std_of(posterior, "feature importance", "source='magnitude'")
    prior = posterior.prior
    if prior_stds is not None:
        prior_std = torch.ones_like(mean)  # where none is named the evidence is not asked for
        for name, value in prior_stds.items():
            prior_std[posterior.layout.slices[name]] = value
        evidence = -evidence_at_zero(mean, std, prior_std)
    elif isinstance(prior, SpikeSlab):
        evidence = _slab_evidence(mean, std, prior, posterior.inclusion)
    elif isinstance(prior, Normal):
        evidence = -evidence_at_zero(mean, std, per_model(prior.std, mean).expand_as(mean))
    else:
        raise ValueError(
            f"feature importance: {type(posterior).__name__} without a prior has no evidence. "
            "Give prior_stds, or use source='magnitude'."
        )
    at_zero_std = torch.where(mean == 0, -torch.inf, torch.inf).to(mean.dtype)
    return torch.where(std > 0, evidence, at_zero_std)


def _slab_evidence(mean: Tensor, std: Tensor, prior: SpikeSlab, inclusion: Tensor | None) -> Tensor:
    slab, spike = per_model(prior.slab_std, mean), per_model(prior.spike_std, mean)
    p = torch.ones_like(mean) if inclusion is None else inclusion
    effective = (p / slab.square() + (1 - p) / spike.square()).rsqrt()
    std = torch.minimum(std, (1 - 1e-6) * effective)  # rounding may leave it a little wider
    change = evidence_change(mean, std, effective, slab.expand_as(mean))
    return change - evidence_at_zero(mean, std, effective)


def evidence_change(mean: Tensor, std: Tensor, prior_std: Tensor, reduced_std: Tensor) -> Tensor:
    """ΔF of each weight when its prior N(0, s²) becomes N(0, θ²), (B2); θ may be 0.

    Example:
        >>> numbers = (torch.tensor(x) for x in (1.0, 0.5, 1.0, 0.0))
        >>> round(evidence_change(*numbers).item(), 4)  # -log 0.5 - 1 / (2 · 0.25)
        -1.3069
    """
    variance = (std / prior_std).square()
    reduced = (reduced_std / prior_std).square()
    rho = reduced + variance - reduced * variance
    if not bool((rho > 0).all()):
        raise ValueError(
            "evidence_change: the reduced prior is wider than this posterior allows: std² < θ²s² / "
            "(θ² - s²) must hold (θ reduced, s original prior std). Take a narrower one."
        )
    pull = (mean / std).square() * (1 - reduced / rho)
    return -0.5 * rho.log() - 0.5 * pull


def matrices_of(posterior: Posterior, values: Tensor) -> list[Tensor]:
    """The entries of `values`, (..., d), that are weights: one (..., outputs, inputs) per layer."""
    named = posterior.layout.unflatten(values)
    return [named[name] for name in linear_layers(posterior.network)]


def linear_layers(network: Network) -> list[str]:
    """Names of the weight matrices of a plain sequence of Linear layers, first layer first."""
    names, width = [], None
    for path, module in sequential_layers(network.skeleton):
        if isinstance(module, nn.Linear):
            if width not in (None, module.in_features):
                raise _not_sequential(f"{path!r} takes {module.in_features} inputs, not {width}")
            names.append(f"{path}.weight" if path else "weight")
            width = module.out_features
        elif any(True for _ in module.parameters()) or any(True for _ in module.children()):
            raise _not_sequential(f"{path or 'the network'!r} is a {type(module).__name__}")
    missing = [name for name in names if name not in network.layout.names]
    if missing or not names:
        raise _not_sequential(f"{missing[0]!r} is not trained" if missing else "it has none")
    return names


def by_input(posterior: Posterior, values: Tensor) -> tuple[Tensor, Tensor]:
    """Values of the first layer's columns, (..., D · K), by input, (..., D, K); which see anything.

    A function of a basis that is 0 on all data (a hinge of a column of two values, all of those of
    a constant one) has a weight of which the data say nothing: it must not count as evidence.
    """
    layers = posterior.network.skeleton.modules()
    bases = [layer for layer in layers if isinstance(layer, HingeBasis | PiecewiseLinear)]
    if not bases:
        columns = values[..., None]
        return columns, torch.ones(columns.shape[-2:], dtype=torch.bool, device=values.device)
    basis, present = bases[0], bases[0].present.to(values.device)
    if isinstance(basis, PiecewiseLinear):
        return basis.by_column(values), present
    return values.unflatten(-1, present.shape), present


def _not_sequential(reason: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        "feature importance: the network must be a sequence of Linear layers and activations in an "
        f"nn.Sequential (as nets.mlp builds it), but {reason}."
    )
