"""Conformal intervals and label sets: coverage that does not rest on the model.

K models have each been fitted without some rows; model k gives a score to every row it has not
seen, larger for less likely targets: |y - mean| / std for numbers, 1 - p(label) for labels. With n
scores s_i in all, and k(i) the model that did not see row i, the set of a new row x is

    C(x) = { y :  #{ i : s_k(i)(x, y) > s_i } < (1 - α)(n + 1) }.

For real targets the interval around it goes from the ⌊α(n + 1)⌋-th smallest mean_k(i)(x) -
s_i std_k(i)(x) to the ⌈(1 - α)(n + 1)⌉-th smallest mean_k(i)(x) + s_i std_k(i)(x).

What is proved, for rows that are exchangeable and models that treat the rows they learn from alike:

- K = 1, **split conformal**: a new row's target is in C with probability at least 1 - α, and at
  most 1 - α + 1/(n + 1) where no two scores are equal [Vovk].
- K folds of n/K rows each, **CV+**: with probability at least

      1 - 2α - min( 2 (1 - 1/K) / (n/K + 1), (1 - K/n) / (K + 1) ).

  [Barber] prove it for |y - mean|, [Gupta] for any score by the models of the folds, so for
  residuals over the predicted std too, and [Romano] for labels. It is near 1 - α where leaving out
  a fold changes the predictions little. This is no bound for fold residuals around a model of all
  rows, nor for folds whose held-out rows have chosen a setting of the model.

Both are averages over training sets and new rows, not promises for one set or one region of x.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from bayesieve.assess.metrics import check_same_shape
from bayesieve.checks import check_fraction, check_positive

_BLOCK = 2_000_000  # ends of intervals compared at once


def residual_scores(mean: Tensor, std: Tensor, targets: Tensor) -> Tensor:
    """|y - mean| / std of each entry; all three of one shape, (n,) or (n, m).

    Example:
        >>> residual_scores(torch.zeros(2), torch.tensor([1.0, 2.0]), torch.tensor([3.0, 3.0]))
        tensor([3.0000, 1.5000], dtype=torch.float64)
    """
    mean, std, targets = check_same_shape("residual_scores", mean=mean, std=std, targets=targets)
    check_positive("residual_scores", std=float(std.min()))
    return (targets - mean).abs() / std


def label_scores(probs: Tensor, labels: Tensor, ignore: int | None = None) -> Tensor:
    """1 - p(label) of each example, (n,); where it has several positions, the largest of them.

    Label sets made of such scores hold the labels of all positions of a new example at once.

    Args:
        probs: (n, C) or, with positions, (n, ..., C).
        labels: (n,) or (n, ...).
        ignore: label of positions that do not count, as in `Categorical`.

    Example:
        >>> label_scores(torch.tensor([[0.75, 0.25]]), torch.tensor([1]))
        tensor([0.7500])
        >>> padded = torch.tensor([[0, 1, -100]])
        >>> label_scores(torch.tensor([[[0.75, 0.25]] * 3]), padded, ignore=-100)
        tensor([0.7500])
    """
    counts = torch.ones_like(labels, dtype=torch.bool) if ignore is None else labels != ignore
    chosen = probs.gather(-1, labels.long().where(counts, 0)[..., None])[..., 0]
    return (1 - chosen).where(counts, 0.0).reshape(len(labels), -1).amax(1)


def conformal_interval(
    mean: Tensor, std: Tensor, scores: Sequence[Tensor], alpha: float
) -> tuple[Tensor, Tensor]:
    """Ends of the interval of N new rows, (N,) each; infinite where n is too small for the level.

    Args:
        mean: (K, N), predictions of the K models.
        std: (K, N), their standard deviations; ones for plain residuals.
        scores: K tensors, (n_k,) each, of the rows that each model has not seen.
        alpha: share of new targets that may fall outside.

    Example:
        >>> zero, one = torch.zeros(1, 1), torch.ones(1, 1)
        >>> conformal_interval(zero, one, [torch.arange(1.0, 10.0)], alpha=0.2)  # the 8th of 9
        (tensor([-8.]), tensor([8.]))
        >>> conformal_interval(zero, one, [torch.arange(1.0, 4.0)], alpha=0.2)
        (tensor([-inf]), tensor([inf]))
    """
    rank, n = _rank("conformal_interval", scores, len(mean), alpha)
    if rank > n:
        infinite = torch.full_like(mean[0], math.inf)
        return -infinite, infinite
    ends = []
    rows = max(1, _BLOCK // n)
    for means, stds in zip(mean.split(rows, 1), std.split(rows, 1), strict=True):
        both = []
        for sign in (-1, 1):  # the low end is the high one of the mirrored targets
            reach = [m + sign * s * r[:, None] for m, s, r in zip(means, stds, scores, strict=True)]
            both.append(sign * (sign * torch.cat(reach)).kthvalue(rank, 0).values)
        ends.append(both)
    return torch.cat([low for low, _ in ends]), torch.cat([high for _, high in ends])


def conformal_labels(probs: Tensor, scores: Sequence[Tensor], alpha: float) -> Tensor:
    """Labels in the set of N new rows, (N, C) bool; of each position if they have several.

    Args:
        probs: (K, N, C), probabilities of the K models; (K, N, ..., C) with positions.
        scores: K tensors, (n_k,) each, of the rows that each model has not seen.
        alpha: share of new labels that may fall outside.

    Example:
        >>> calibration = [torch.arange(1, 20) / 20]  # the bound is the 18th of 19, 0.9
        >>> conformal_labels(torch.tensor([[[0.7, 0.25, 0.05]]]), calibration, 0.1).tolist()
        [[True, True, False]]
    """
    rank, _ = _rank("conformal_labels", scores, len(probs), alpha)
    below = [
        torch.searchsorted(held_out.sort().values, (1 - p).to(held_out.dtype).contiguous())
        for p, held_out in zip(probs, scores, strict=True)
    ]
    return torch.stack(below).sum(0) < rank


def _rank(who: str, scores: Sequence[Tensor], n_models: int, alpha: float) -> tuple[int, int]:
    """⌈(1 - α)(n + 1)⌉, and n, the number of all scores."""
    check_fraction(who, open_ends=True, alpha=alpha)
    if len(scores) != n_models:
        raise ValueError(
            f"{who}: {n_models} models need as many sets of scores, got {len(scores)}."
        )
    for held_out in scores:
        if held_out.ndim != 1 or not len(held_out) or bool(held_out.isnan().any()):
            raise ValueError(
                f"{who}: scores must have shape (n,), n > 0, without NaN, got "
                f"{tuple(held_out.shape)}."
            )
    n = sum(len(held_out) for held_out in scores)
    return math.ceil(round((n + 1) * (1 - alpha), 9)), n  # 9.000000000000002 is 9
