"""Rankings by uncertainty: selective prediction, OOD detection.

Tied scores have no order: every result here is the expectation over a random order
of the ties, so it does not depend on the order of the examples.
"""

import torch
from torch import Tensor

from bayesieve.assess.metrics.inputs import check_same_shape


def risk_coverage(uncertainty: Tensor, losses: Tensor) -> tuple[Tensor, Tensor]:
    """Coverage k/N and mean loss of the k least uncertain examples, k = 1..N; both (N,).

    Args:
        uncertainty: the higher, the sooner an example is refused, shape (N,).
        losses: loss of each example, 0 or 1 for right or wrong, shape (N,).

    Example:
        >>> coverage, risk = risk_coverage(torch.tensor([0.1, 0.9]), torch.tensor([0.0, 1.0]))
        >>> coverage.tolist(), risk.tolist()
        ([0.5, 1.0], [0.0, 0.5])
    """
    uncertainty, losses = check_same_shape("risk_coverage", uncertainty=uncertainty, losses=losses)
    _check_vector("risk_coverage", "uncertainty", uncertainty)
    _, group, size = torch.unique(uncertainty, return_inverse=True, return_counts=True)
    mean_loss = torch.bincount(group, losses, len(size)) / size
    in_order = mean_loss.repeat_interleave(size)  # each tied example carries its group's mean
    kept = torch.arange(1, len(losses) + 1, dtype=losses.dtype, device=losses.device)
    return kept / len(losses), in_order.cumsum(0) / kept


def aurc(uncertainty: Tensor, losses: Tensor) -> float:
    """Area under the risk-coverage curve: mean risk over the N coverages; lower is better.

    Example:
        >>> aurc(torch.tensor([0.1, 0.9]), torch.tensor([0.0, 1.0]))
        0.25
    """
    return float(risk_coverage(uncertainty, losses)[1].mean())


def auroc(inside: Tensor, outside: Tensor) -> float:
    """Probability that an outside score exceeds an inside score, ties counting one half.

    Args:
        inside: scores of in-distribution examples, shape (N,).
        outside: scores of out-of-distribution examples, shape (M,); higher means stranger.

    Example:
        >>> auroc(torch.tensor([0.1, 0.4]), torch.tensor([0.4, 0.9]))  # (1 + 1 + 1 + ½) / 4
        0.875
    """
    for name, scores in (("inside", inside), ("outside", outside)):
        check_same_shape("auroc", **{name: scores})
        _check_vector("auroc", name, scores)
    scores = torch.cat([inside, outside]).detach().double()
    _, group, size = torch.unique(scores, return_inverse=True, return_counts=True)
    # ranks from 1; ties share their mean
    mid_rank = size.cumsum(0).double() - (size.double() - 1) / 2
    n_inside, n_outside = len(inside), len(outside)
    rank_sum = float(mid_rank[group[n_inside:]].sum())
    return (rank_sum - n_outside * (n_outside + 1) / 2) / (n_inside * n_outside)


def _check_vector(who: str, name: str, scores: Tensor) -> None:
    if scores.ndim != 1:
        raise ValueError(f"{who}: {name} must have one axis, got shape {tuple(scores.shape)}.")
