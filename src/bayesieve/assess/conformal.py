"""Conformal prediction: intervals and label sets with coverage that does not rest on the model.

From scores s_i of examples the model has not learned from, q is the ⌈(n + 1)(1 - α)⌉-th smallest;
a new score lies at or below q with probability at least 1 - α if the examples are exchangeable
[Vovk]. For real targets s = |y - mean| / std, so that the interval mean ± q · std keeps the shape
of the model's own uncertainty. For labels s = 1 - p(label), so that the set holds every label with
p ≥ 1 - q.

With scores from inner folds, each by a network that has not seen the example, the rule is
cross-conformal: coverage near 1 - α in practice, at least 1 - 2α in theory [Barber].
"""

import math

from torch import Tensor

from bayesieve.assess.metrics.inputs import check_same_shape
from bayesieve.checks import check_fraction


def conformal_quantile(scores: Tensor, alpha: float) -> float:
    """The bound q on a new score; infinite where n is too small for the level.

    Args:
        scores: (n,), of held-out examples, larger is stranger.
        alpha: share of new examples that may fall outside.

    Example:
        >>> import torch
        >>> conformal_quantile(torch.arange(1.0, 10.0), alpha=0.2)  # the 8th of 9
        8.0
        >>> conformal_quantile(torch.arange(1.0, 4.0), alpha=0.2)
        inf
    """
    check_fraction("conformal_quantile", open_ends=True, alpha=alpha)
    if scores.ndim != 1 or not len(scores) or bool(scores.isnan().any()):
        raise ValueError(
            f"conformal_quantile: scores must have shape (n,), n > 0, without NaN, got "
            f"{tuple(scores.shape)}."
        )
    n = len(scores)
    rank = math.ceil(round((n + 1) * (1 - alpha), 9))  # 9.000000000000002 is 9
    return math.inf if rank > n else float(scores.sort().values[rank - 1])


def residual_scores(mean: Tensor, std: Tensor, targets: Tensor) -> Tensor:
    """|y - mean| / std of each entry; all three of one shape, (n,) or (n, m).

    Example:
        >>> import torch
        >>> residual_scores(torch.zeros(2), torch.tensor([1.0, 2.0]), torch.tensor([3.0, 3.0]))
        tensor([3.0000, 1.5000], dtype=torch.float64)
    """
    mean, std, targets = check_same_shape("residual_scores", mean=mean, std=std, targets=targets)
    if not bool((std > 0).all()):
        raise ValueError("residual_scores: std must be > 0.")
    return (targets - mean).abs() / std


def label_scores(probs: Tensor, labels: Tensor) -> Tensor:
    """1 - p(label) of each example; probabilities (n, C), labels (n,).

    Example:
        >>> import torch
        >>> label_scores(torch.tensor([[0.75, 0.25]]), torch.tensor([1]))
        tensor([0.7500])
    """
    return 1 - probs.gather(1, labels.long()[:, None])[:, 0]


def label_sets(probs: Tensor, quantile: float) -> Tensor:
    """The labels with p ≥ 1 - quantile, (n, C) bool; the likeliest label is always in.

    Example:
        >>> import torch
        >>> label_sets(torch.tensor([[0.7, 0.2, 0.1]]), quantile=0.85).tolist()
        [[True, True, False]]
    """
    inside = probs >= 1 - quantile
    return inside | (probs >= probs.amax(-1, keepdim=True))


def coverage(lower: Tensor, upper: Tensor, targets: Tensor) -> float:
    """Share of targets inside their interval; all three of one shape.

    Example:
        >>> import torch
        >>> coverage(torch.zeros(4), torch.ones(4), torch.tensor([0.5, 2.0, 1.0, -1.0]))
        0.5
    """
    lower, upper, targets = check_same_shape("coverage", lower=lower, upper=upper, targets=targets)
    return float(((lower <= targets) & (targets <= upper)).double().mean())
