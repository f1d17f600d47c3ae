"""How much each input of a fully connected network matters, from the posterior of its weights.

With P⁽ˡ⁾ the matrix, (n_l, n_{l-1}), of the probabilities that the weights of layer l matter,

    ψ = (P⁽ᴸ⁺¹⁾ P⁽ᴸ⁾ ⋯ P⁽¹⁾)ᵀ / (n_1 ⋯ n_L)

is for each input the mean over its paths to the output of the product of these probabilities; with
several outputs it is the mean over them. φ is ψ mapped to [0, 1]. Vector-matrix products from the
output back, divided by n_l at each layer, cost as much as one prediction and never underflow.

Reference: [Saha], section 3.5.
Symbols: P probabilities, ψ psi, φ phi, D inputs.
Departures: engines without inclusion probabilities take part through the evidence, or the size, of
their weights.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from bayesieve.checks import check_positive
from bayesieve.core.posterior import Posterior
from bayesieve.select.weights import (
    PriorStds,
    Source,
    matrices_of,
    mean_per_input,
    source_of,
    weight_probabilities,
)


@dataclass(frozen=True, eq=False)
class FeatureImportance:
    """What a posterior says of D inputs.

    Args:
        psi: (D,), mean over paths of the product of probabilities.
        source: what stood for the probability of a weight.
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
        source: what stands for the probability of a weight: its "inclusion", the "evidence" for it
            or its "magnitude"; None takes the first the posterior has (see
            `weight_probabilities`).
        prior_stds: prior std by tensor name, for the evidence of an engine that learns it
            (`BMR.prior_stds`).

    Example:
        >>> from bayesieve.select.weights import example_posterior
        >>> q = example_posterior([[1.0, 0.5, 0.0], [1.0, 0.5, 0.0]], [[1.0, 0.0]])
        >>> feature_importance(q).psi, feature_importance(q).phi
        (tensor([0.5000, 0.2500, 0.0000]), tensor([1.0000, 0.5000, 0.0000]))
    """
    chosen = source or source_of(posterior, prior_stds)
    probabilities = weight_probabilities(posterior, chosen, prior_stds)
    psi = path_importance(matrices_of(posterior, probabilities))
    return FeatureImportance(mean_per_input(posterior, psi), chosen)


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


def normalised(psi: Tensor) -> Tensor:
    """φ = (ψ - min) / (max - min) over the last axis; 0 where ψ is constant.

    Example:
        >>> normalised(torch.tensor([1.0, 2.0, 5.0]))
        tensor([0.0000, 0.2500, 1.0000])
    """
    low, high = psi.amin(-1, keepdim=True), psi.amax(-1, keepdim=True)
    span = high - low
    return torch.where(span > 0, (psi - low) / torch.where(span > 0, span, 1.0), 0.0)


def normalised_among(psi: Tensor, varies: Tensor) -> Tensor:
    """φ, (D,), of the inputs that vary among themselves; 0 where `varies`, (D,), is False.

    Of a constant input the data say nothing, so its ψ is that of the prior.

    Example:
        >>> normalised_among(torch.tensor([1.0, 9.0, 5.0]), torch.tensor([True, False, True]))
        tensor([0., 0., 1.])
    """
    phi = torch.zeros_like(psi)
    if bool(varies.any()):
        phi[varies] = normalised(psi[varies])
    return phi


def importance_draws(
    posterior: Posterior, n: int, generator: Generator, *, source: Source | None = None,
    prior_stds: PriorStds | None = None,
) -> Tensor:  # fmt: skip
    """ψ of n random networks in which each weight is present with its probability, (n, D).

    The weights of a path are distinct, so the mean over draws tends to ψ itself; their spread is
    the uncertainty of ψ that the posterior claims.
    """
    check_positive("importance_draws", n=n)
    probabilities = weight_probabilities(posterior, source, prior_stds)
    rows = probabilities.expand(n, -1)
    present = torch.bernoulli(rows, generator=generator)
    return mean_per_input(posterior, path_importance(matrices_of(posterior, present)))
