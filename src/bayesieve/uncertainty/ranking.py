"""Rankings by uncertainty (selective prediction, OOD detection), and ranks of targets.

Tied scores have no order: a result is the expectation over a random order of the ties, so that it
does not depend on the order of the examples.
"""

import torch
from torch import Generator, Tensor

from bayesieve.assess.metrics import check_same_shape


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
    _check_vector("risk_coverage", uncertainty=uncertainty)
    _, group, size = torch.unique(uncertainty, return_inverse=True, return_counts=True)
    mean_loss = torch.bincount(group, losses, len(size)) / size
    in_order = mean_loss.repeat_interleave(size)  # each tied example carries its group's mean
    kept = torch.arange(1, len(losses) + 1, dtype=losses.dtype, device=losses.device)
    return kept / len(losses), in_order.cumsum(0) / kept


def auroc(inside: Tensor, outside: Tensor) -> float:
    """Probability that an outside score exceeds an inside score, ties counting one half.

    Args:
        inside: scores of in-distribution examples, shape (N,).
        outside: scores of out-of-distribution examples, shape (M,); higher means less familiar.

    Example:
        >>> auroc(torch.tensor([0.1, 0.4]), torch.tensor([0.4, 0.9]))  # (1 + 1 + 1 + ½) / 4
        0.875
    """
    (first,) = check_same_shape("auroc", inside=inside)
    (second,) = check_same_shape("auroc", outside=outside)
    _check_vector("auroc", inside=inside, outside=outside)
    scores = torch.cat([first, second])
    _, group, size = torch.unique(scores, return_inverse=True, return_counts=True)
    # ranks from 1; ties share their mean
    mid_rank = size.cumsum(0).double() - (size.double() - 1) / 2
    n_inside, n_outside = len(inside), len(outside)
    rank_sum = float(mid_rank[group[n_inside:]].sum())
    return (rank_sum - n_outside * (n_outside + 1) / 2) / (n_inside * n_outside)


def _check_vector(who: str, **tensors: Tensor) -> None:
    for name, tensor in tensors.items():
        if tensor.ndim != 1:
            raise ValueError(f"{who}: {name} must have one axis, got shape {tuple(tensor.shape)}.")


def rank_histogram(samples: Tensor, targets: Tensor, n_bins: int, generator: Generator) -> Tensor:
    """Count targets by their rank among draws from their predictive distribution, (n_bins,).

    The probability integral transform by ranks: flat for a calibrated model, a hill where its
    distributions are too wide, a valley where they are too narrow. A target that ties with draws,
    as counts do, gets one of their ranks at random.

    Args:
        samples: draws, (n, N, m).
        targets: (N, m).
        n_bins: n + 1 must be a multiple of it, so that every bin has as many ranks.
        generator: of the ranks of ties.

    Example:
        >>> samples = torch.tensor([1.0, 2.0, 3.0]).reshape(3, 1, 1).expand(3, 4, 1)
        >>> targets = torch.tensor([[0.0], [1.5], [2.5], [9.0]])
        >>> rank_histogram(samples, targets, 2, torch.Generator())
        tensor([2, 2])
    """
    if (len(samples) + 1) % n_bins:
        raise ValueError(
            f"rank_histogram: n_bins must divide {len(samples) + 1}, one more than the draws, got "
            f"{n_bins}."
        )
    below = (samples < targets).sum(0)
    ties = (samples == targets).sum(0)
    place = torch.rand(targets.shape, generator=generator, device=targets.device)
    rank = below + (place * (ties + 1)).floor().long()
    return torch.bincount((rank * n_bins // (len(samples) + 1)).flatten(), minlength=n_bins)
