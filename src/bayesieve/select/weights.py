"""Weights of a fully connected network, and the probability that each of them matters."""

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor, nn

from bayesieve.checks import check_choice
from bayesieve.core.evidence import evidence_at_zero, evidence_change
from bayesieve.core.graph import sequential_layers
from bayesieve.core.network import Network
from bayesieve.core.posterior import Factorised, Posterior
from bayesieve.core.priors import Normal, Prior, SpikeSlab, per_model
from bayesieve.errors import UnsupportedModelError
from bayesieve.select.additive import HingeBasis
from bayesieve.sieve.scores import std_of

Source = Literal["inclusion", "evidence", "magnitude"]
SOURCES: tuple[Source, ...] = ("inclusion", "evidence", "magnitude")
PriorStds = Mapping[str, float]


def weight_probabilities(
    posterior: Posterior, source: Source | None = None, prior_stds: PriorStds | None = None
) -> Tensor:
    """How probable it is that each weight matters, (d,), in [0, 1].

    "inclusion" is that of the posterior (sBNN's p, the averaged ρ of SG-MCMC, TDAMP's groups);
    "evidence" is the probability at even prior odds that a weight is not 0, the sigmoid of
    `weight_log_bayes_factors`;
    "magnitude" is |mean| over the largest of its tensor, a score without that meaning.

    Args:
        posterior: any.
        source: None takes inclusion, else evidence; a posterior with neither is refused.
        prior_stds: prior std by tensor name, for the evidence of an engine that learns it.
    """
    chosen = source or source_of(posterior, prior_stds)
    check_choice("feature importance", "source", chosen, SOURCES)
    if chosen == "evidence":
        return torch.sigmoid(weight_log_bayes_factors(posterior, prior_stds))
    if chosen == "magnitude":
        return _relative_magnitude(posterior)
    if posterior.inclusion is None:
        raise ValueError(
            f"feature importance: {type(posterior).__name__} has no inclusion probabilities. Use "
            "source='evidence' or 'magnitude', or an engine with a sparse prior."
        )
    return posterior.inclusion


def source_of(posterior: Posterior, prior_stds: PriorStds | None) -> Source:
    """Default source of the probability of a weight: inclusion, else evidence."""
    if posterior.inclusion is not None:
        return "inclusion"
    if prior_stds is not None or _prior_of(posterior) is not None:
        return "evidence"
    raise ValueError(
        f"feature importance: {type(posterior).__name__} has neither inclusion probabilities nor a "
        "prior to compare with. Give prior_stds, or use source='magnitude'."
    )


def _prior_of(posterior: Posterior) -> Prior | None:
    return posterior.prior if isinstance(posterior, Factorised) else None


def weight_log_bayes_factors(posterior: Posterior, prior_stds: PriorStds | None = None) -> Tensor:
    """Log Bayes factor of each weight against 0, (d,), in nats; -inf where pruned.

    Under a normal prior it is the ratio of Savage and Dickey. Under a spike-and-slab prior it is
    that of the slab: the posterior is read as a normal prior of precision p/τ₁² + (1 - p)/τ₀², the
    one its optimum knows, times the likelihood, and Bayesian model reduction changes that prior to
    the slab and to a point at 0.
    """
    mean, std = posterior.mean, std_of(posterior, "feature importance", "source='magnitude'")
    prior = None if prior_stds is not None else _prior_of(posterior)
    if isinstance(prior, SpikeSlab):
        evidence = _slab_evidence(mean, std, prior, posterior.inclusion)
    else:
        evidence = -evidence_at_zero(mean, std, _prior_std(posterior, prior, prior_stds))
    at_zero_std = torch.where(mean == 0, -torch.inf, torch.inf).to(mean.dtype)
    return torch.where(std > 0, evidence, at_zero_std)


def _slab_evidence(mean: Tensor, std: Tensor, prior: SpikeSlab, inclusion: Tensor | None) -> Tensor:
    slab, spike = per_model(prior.slab_std, mean), per_model(prior.spike_std, mean)
    p = torch.ones_like(mean) if inclusion is None else inclusion
    effective = (p / slab.square() + (1 - p) / spike.square()).rsqrt()
    std = torch.minimum(std, (1 - 1e-6) * effective)  # rounding may leave it a little wider
    change = evidence_change(mean, std, effective, slab.expand_as(mean))
    return change - evidence_at_zero(mean, std, effective)


def _prior_std(posterior: Posterior, prior: Prior | None, prior_stds: PriorStds | None) -> Tensor:
    if prior_stds is None:
        if not isinstance(prior, Normal):
            raise ValueError(
                f"feature importance: {type(posterior).__name__} without a prior has no evidence. "
                "Give prior_stds, or use source='magnitude'."
            )
        return per_model(prior.std, posterior.mean).expand_as(posterior.mean)
    stds = torch.ones_like(posterior.mean)  # where none is named the evidence is not asked for
    for name, std in prior_stds.items():
        stds[posterior.layout.slices[name]] = std
    return stds


def _relative_magnitude(posterior: Posterior) -> Tensor:
    size, layout = posterior.mean.abs(), posterior.layout
    tensors = [size[layout.slices[name]] for name in layout.names]
    tiny = torch.finfo(size.dtype).tiny
    return torch.cat([tensor / tensor.amax().clamp_min(tiny) for tensor in tensors])


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


def per_input(posterior: Posterior, values: Tensor) -> Tensor:
    """Values of first-layer columns, (..., D · K), by the input they come from, (..., D, K)."""
    basis = _basis_of(posterior)
    n = values.shape[-1] if basis is None else basis.n_inputs
    return values.unflatten(-1, (n, values.shape[-1] // n))


def present_columns(posterior: Posterior, n_columns: int) -> Tensor:
    """Which of the n_columns = D · K first-layer columns see anything at all, (D, K).

    A function of a basis that is 0 on all data (a hinge of a column of two values, all of those of
    a constant one) has a weight of which the data say nothing: it must not count as evidence.
    """
    basis = _basis_of(posterior)
    if basis is None:
        return torch.ones(n_columns, 1, dtype=torch.bool, device=posterior.mean.device)
    return basis.present.to(posterior.mean.device)


def mean_per_input(posterior: Posterior, values: Tensor) -> Tensor:
    """Mean over the K first-layer columns of each input, (..., D); those that see nothing are 0."""
    return (per_input(posterior, values) * present_columns(posterior, values.shape[-1])).mean(-1)


def _basis_of(posterior: Posterior) -> HingeBasis | None:
    bases = [m for m in posterior.network.skeleton.modules() if isinstance(m, HingeBasis)]
    return bases[0] if bases else None


def _not_sequential(reason: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        "feature importance: the network must be a sequence of Linear layers and activations in an "
        f"nn.Sequential (as nets.mlp builds it), but {reason}."
    )


def example_posterior(*matrices: list[list[float]]) -> Factorised:
    """A network without biases whose weights have these inclusion probabilities."""
    from bayesieve.core.likelihoods import Gaussian

    tensors = [torch.tensor(matrix) for matrix in matrices]
    layers = [nn.Linear(m.shape[1], m.shape[0], bias=False) for m in tensors]
    network = Network.of(nn.Sequential(*layers), Gaussian())
    flat = torch.cat([matrix.flatten() for matrix in tensors])
    return Factorised(network, flat, torch.ones_like(flat), None, flat.logit())
