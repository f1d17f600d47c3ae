"""The posterior probability that an input matters: what error control needs."""

import math

import torch
from torch import Tensor

from bayesieve.checks import check_fraction
from bayesieve.core.posterior import Posterior
from bayesieve.select.weights import (
    PriorStds,
    Source,
    matrices_of,
    per_input,
    present_columns,
    source_of,
    weight_evidence,
    weight_probabilities,
)


def feature_inclusion(
    posterior: Posterior, *, source: Source | None = None, prior_stds: PriorStds | None = None,
    prior_prob: float | None = None,
) -> Tensor:  # fmt: skip
    """Posterior probability that an input matters, (D,).

    From the evidence it compares "each of the K weights that leave input j is present with
    probability q = 1/K, one of them at least" with "none is":

        B_j = [Π_i (1 - q + q B_ij) - (1 - q)^K] / [1 - (1 - q)^K],   logit P_j = log B_j + logit π

    with B_ij = p(D) / p(D | w_ij = 0) by Savage and Dickey. From inclusion probabilities it is the
    chance of an open path, P_j = 1 - Π_i (1 - p_ij r_i), r_i that of unit i likewise: exact for
    one hidden layer, an upper bound for more.

    Args:
        posterior: of a fully connected network.
        source: "inclusion" or "evidence"; None takes the first the posterior has.
        prior_stds: prior std by tensor name, for the evidence of an engine that learns it.
        prior_prob: π, prior probability that an input matters, for the evidence; None estimates it
            as the share of inputs that matter (its fixed point π = mean P_j).

    Example:
        >>> from bayesieve.select.weights import example_posterior
        >>> feature_inclusion(example_posterior([[0.5, 0.0], [0.5, 0.0]], [[1.0, 1.0]]))
        tensor([0.7500, 0.0000])
    """
    chosen = source or source_of(posterior, prior_stds)
    if chosen == "magnitude":
        raise ValueError("feature_inclusion: a size is no probability; use source='evidence'.")
    if chosen == "evidence":
        first = matrices_of(posterior, weight_evidence(posterior, prior_stds))[0]
        columns = per_input(posterior, first).transpose(0, 1).flatten(1)
        present = present_columns(posterior, first.shape[-1]).repeat(1, len(first))
        return probability_from_evidence(log_bayes_factor(columns, present), prior_prob)
    matrices = matrices_of(posterior, weight_probabilities(posterior, chosen))
    reach = matrices[-1].new_ones(len(matrices[-1]))
    for matrix in reversed(matrices):
        reach = 1 - (1 - matrix * reach[:, None]).prod(0)
    present = present_columns(posterior, len(reach))
    return 1 - (1 - per_input(posterior, reach) * present).prod(-1)


def log_bayes_factor(evidence: Tensor, present: Tensor | None = None) -> Tensor:
    """Log B of "some of these K weights matter, each with chance 1/K" against "none", (...,).

    Args:
        evidence: (..., K), log Bayes factor of each weight alone.
        present: (..., K) bool, the weights that count among the K; None counts all. Where none is
            left the result is -inf: nothing there can matter.

    Example:
        >>> log_bayes_factor(torch.tensor([[2.0], [-1.0]]))  # of one weight: its own
        tensor([ 2., -1.])
        >>> log_bayes_factor(torch.tensor([[2.0, 0.0]]), torch.tensor([[True, False]]))
        tensor([2.])
    """
    own = evidence.double()
    if present is None:
        present = torch.ones_like(own, dtype=torch.bool)
    k = present.sum(-1)
    many = k.clamp_min(2).double()  # the formula for one weight is that weight's own, below
    none = many * torch.log1p(-1 / many)
    keep = torch.log1p(-1 / many)[..., None]
    each = torch.logaddexp(keep.expand_as(own), own - many.log()[..., None])
    gain = torch.where(present, each, keep.expand_as(own)).sum(-1)
    # The absent weights add nothing to either side.
    gain = gain - (own.shape[-1] - many) * keep.squeeze(-1) - none  # >= 0
    # log(e^gain - 1) without overflow
    growth = torch.where(gain > 30, gain, gain.clamp(max=30).expm1().log())
    found = growth + none - (-none.expm1()).log()
    alone = torch.where(present, own, -torch.inf).amax(-1)  # -inf where there is none at all
    return torch.where(k > 1, found, alone).to(evidence.dtype)


def probability_from_evidence(evidence: Tensor, prior_prob: float | None = None) -> Tensor:
    """P = sigmoid(evidence + logit π) of D inputs, (D,); None finds π = mean P.

    Example:
        >>> probability_from_evidence(torch.tensor([9.0, -9.0, -9.0]), 0.5).round().tolist()
        [1.0, 0.0, 0.0]
    """
    if prior_prob is not None:
        check_fraction("feature_inclusion", open_ends=True, prior_prob=prior_prob)
        return torch.sigmoid(evidence + math.log(prior_prob / (1 - prior_prob)))
    d, share = len(evidence), 0.5
    for _ in range(200):
        probability = torch.sigmoid(evidence + math.log(share / (1 - share)))
        # Half an input on either side: a share of 0 or 1 could never be left again.
        renewed = (float(probability.sum()) + 0.5) / (d + 1)
        if abs(renewed - share) < 1e-6:
            break
        share = renewed
    return torch.sigmoid(evidence + math.log(share / (1 - share)))
