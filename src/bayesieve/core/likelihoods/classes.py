"""Likelihoods of class labels."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from bayesieve.checks import check_positive
from bayesieve.core.likelihoods.protocol import Extra, Task


class _Classes:
    """What likelihoods of class labels share."""

    @property
    def task(self) -> Task:
        """Class probabilities."""
        return "classification"

    def parameters(self) -> dict[str, Tensor]:
        """Nothing is learned here."""
        return {}


_SUM_ERROR = 1e-3  # of the probabilities of a row


def _check_probabilities(target: Tensor) -> None:
    """Raise unless every row of (n, ..., classes) is a distribution."""
    off = (target.sum(-1) - 1).abs() > _SUM_ERROR
    wrong = (target < 0).any(-1) | off
    if bool(wrong.any()):
        where = int(wrong.nonzero()[0, 0])
        raise ValueError(
            f"Categorical: float targets are class probabilities, >= 0 and with sum 1; those of "
            f"example {where} are not. Use int64 class numbers for hard labels."
        )


@dataclass(frozen=True)
class Categorical(_Classes):
    """Softmax over the last output axis; targets are class numbers or rows of probabilities.

    With probability rows the log density is Σ_c target_c log p_c, which is what training on
    softened labels (self-distillation) maximises.

    Args:
        class_weight: what an example of each class counts; None counts all once.

    Example:
        >>> Categorical().log_prob(torch.zeros(1, 4), torch.tensor([2]), {}).item()
        -1.3862943649291992
        >>> Categorical((1.0, 3.0)).log_prob(torch.zeros(2, 2), torch.tensor([0, 1]), {}).tolist()
        [-0.6931471824645996, -2.079441547393799]
    """

    class_weight: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if self.class_weight is not None:
            check_positive("Categorical", class_weight=self.class_weight)

    def log_prob(self, output: Tensor, target: Tensor, extra: Extra) -> Tensor:
        """Log density of each example, shape (n,); positions of a sequence are summed."""
        if target.is_floating_point():
            log_probs = F.log_softmax(output, -1)
            if self.class_weight is not None:  # by column, from numbers: no tensor made in a graph
                columns = zip(log_probs.unbind(-1), self.class_weight, strict=True)
                log_probs = torch.stack([column * weight for column, weight in columns], -1)
            per_position = (target * log_probs).sum(-1)
        else:
            flat = F.cross_entropy(
                output.reshape(-1, output.shape[-1]), target.reshape(-1), reduction="none"
            )
            per_position = -flat.view(target.shape)
            for label, weight in enumerate(self.class_weight or ()):
                per_position = torch.where(target == label, weight * per_position, per_position)
        return per_position.flatten(1).sum(1) if per_position.dim() > 1 else per_position

    def check(self, output: Tensor, target: Tensor) -> None:
        """Class numbers must be integers inside the output's range."""
        if output.dim() < 2:
            raise ValueError(
                f"Categorical: the network must return (n, classes), got {tuple(output.shape)}."
            )
        n_classes = output.shape[-1]
        if self.class_weight is not None and len(self.class_weight) != n_classes:
            raise ValueError(
                f"Categorical: class_weight has {len(self.class_weight)} numbers for {n_classes} "
                "classes."
            )
        if target.is_floating_point():
            if target.shape[1:] != output.shape[1:]:
                raise ValueError(
                    f"Categorical: float targets are class probabilities of shape "
                    f"(n, {n_classes}), got {tuple(target.shape)}. Use int64 class numbers "
                    "for hard labels."
                )
            _check_probabilities(target)
            return
        if target.dtype not in (torch.int64, torch.uint8):
            raise ValueError(
                f"Categorical: class numbers must be int64, got {target.dtype}. Use y.long()."
            )
        if target.shape[1:] != output.shape[1:-1]:
            raise ValueError(
                f"Categorical: targets must have shape (n, *{tuple(output.shape[1:-1])}), "
                f"got {tuple(target.shape)}."
            )
        low, high = int(target.min()), int(target.max())
        if low < 0 or high >= n_classes:
            raise ValueError(
                f"Categorical: labels must lie in 0..{n_classes - 1} for a network with "
                f"{n_classes} outputs, got {low}..{high}."
            )


@dataclass(frozen=True)
class Bernoulli(_Classes):
    """Sigmoid of each output; targets are 0 or 1, one per output (a last axis of 1 may lack).

    Args:
        pos_weight: what a target of 1 counts, where a target of 0 counts once.

    Example:
        >>> Bernoulli().log_prob(torch.zeros(1, 1), torch.tensor([1.0]), {}).item()
        -0.6931471824645996
    """

    pos_weight: float = 1.0

    def __post_init__(self) -> None:
        check_positive("Bernoulli", pos_weight=self.pos_weight)

    def log_prob(self, output: Tensor, target: Tensor, extra: Extra) -> Tensor:
        """Log density of each example, shape (n,); several outputs are summed."""
        logits = output.reshape(len(output), -1)
        labels = target.reshape(len(output), -1).to(logits.dtype)
        nll = F.binary_cross_entropy_with_logits(logits, labels, reduction="none")
        if self.pos_weight != 1:
            nll = nll * (1 + (self.pos_weight - 1) * labels)
        return -nll.sum(1)

    def check(self, output: Tensor, target: Tensor) -> None:
        """Targets must be 0 or 1, one per output."""
        if output[0].numel() != target[0].numel():
            raise ValueError(
                f"Bernoulli: the network returns {output[0].numel()} outputs per example but "
                f"targets have {target[0].numel()}; they must agree."
            )
        if not bool(((target == 0) | (target == 1)).all()):
            raise ValueError("Bernoulli: targets must be 0 or 1.")
