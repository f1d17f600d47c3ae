"""Checks of the inputs of metrics: each returns float64 tensors or raises, with one wording."""

from torch import Tensor

SUM_TOLERANCE = 1e-3  # how far a row of probabilities may sum from 1, half precision included


def check_probs(who: str, probs: Tensor, labels: Tensor) -> Tensor:
    """Return `probs` (N, C) in float64; raise unless rows are distributions over the labels.

    Example:
        >>> import torch
        >>> check_probs("accuracy", torch.tensor([[0.9, 0.3]]), torch.tensor([0]))
        Traceback (most recent call last):
        ValueError: accuracy: rows of probs must sum to 1, got a row that sums to 1.2.
    """
    check_labels(who, "probs", probs, labels)
    probs = probs.detach().double()
    if not bool(((probs >= 0) & (probs <= 1 + SUM_TOLERANCE)).all()):
        raise ValueError(f"{who}: probs must be between 0 and 1, got a value outside or a NaN.")
    _check_sums(who, "probs", probs.sum(-1))
    return probs


def check_log_probs(who: str, log_probs: Tensor, labels: Tensor | None = None) -> Tensor:
    """Return `log_probs` (..., N, C) in float64; raise unless each row is normalised.

    Example:
        >>> import torch
        >>> check_log_probs("brier", torch.tensor([[0.0, 0.0]]))
        Traceback (most recent call last):
        ValueError: brier: rows of exp(log_probs) must sum to 1, got a row that sums to 2. \
Pass log_softmax(logits).
    """
    if labels is not None:
        check_labels(who, "log_probs", log_probs, labels)
    log_probs = log_probs.detach().double()
    advice = " Pass log_softmax(logits)."
    _check_sums(who, "exp(log_probs)", log_probs.exp().sum(-1), advice)
    return log_probs


def check_labels(who: str, name: str, scores: Tensor, labels: Tensor) -> None:
    """Raise unless `scores` is (N, C) and `labels` holds N whole numbers in 0..C-1.

    Example:
        >>> import torch
        >>> check_labels("brier", "probs", torch.ones(2, 3), torch.tensor([0, 3]))
        Traceback (most recent call last):
        ValueError: brier: labels must lie in 0..2, got 0..3.
    """
    shape = tuple(scores.shape)
    if len(shape) != 2 or 0 in shape:
        raise ValueError(f"{who}: {name} must have shape (N, C), got {shape}.")
    if tuple(labels.shape) != shape[:1]:
        got = tuple(labels.shape)
        raise ValueError(f"{who}: labels must have shape {shape[:1]}, got {got}.")
    if labels.is_floating_point() or labels.is_complex():
        raise TypeError(f"{who}: labels must be whole numbers, got {labels.dtype}.")
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= shape[1]:
        raise ValueError(f"{who}: labels must lie in 0..{shape[1] - 1}, got {low}..{high}.")


def check_same_shape(who: str, **tensors: Tensor) -> list[Tensor]:
    """Return the tensors in float64; raise unless all are finite and of one non-empty shape.

    Example:
        >>> import torch
        >>> check_same_shape("rmse", mean=torch.zeros(2, 1), targets=torch.zeros(2))
        Traceback (most recent call last):
        ValueError: rmse: mean and targets must have one non-empty shape, got (2, 1) and (2,).
    """
    shapes = [tuple(tensor.shape) for tensor in tensors.values()]
    if len(set(shapes)) != 1 or 0 in shapes[0]:
        names = " and ".join(tensors)
        got = " and ".join(map(str, shapes))
        raise ValueError(f"{who}: {names} must have one non-empty shape, got {got}.")
    for name, tensor in tensors.items():
        if not bool(tensor.isfinite().all()):
            raise ValueError(f"{who}: {name} must be finite, got a NaN or an infinity.")
    return [tensor.detach().double() for tensor in tensors.values()]


def _check_sums(who: str, what: str, sums: Tensor, advice: str = "") -> None:
    gap = (sums - 1).abs()
    if not bool((gap <= SUM_TOLERANCE).all()):  # written so that a NaN fails
        worst = float(sums.flatten()[gap.flatten().argmax()])
        raise ValueError(
            f"{who}: rows of {what} must sum to 1, got a row that sums to {worst:.4g}.{advice}"
        )
