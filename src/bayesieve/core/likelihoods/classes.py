"""Likelihoods of class labels."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from bayesieve.checks import check_positive
from bayesieve.core.likelihoods.base import (
    Channel,
    ClassLikelihood,
    Numbers,
    diagonal_roots,
    number,
)

_SUM_ERROR = 1e-3  # of the probabilities of a row


@dataclass(frozen=True)
class Categorical(ClassLikelihood):
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

    channel: ClassVar[Channel | None] = "probit-product"
    soft_targets: ClassVar[bool] = True

    class_weight: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if self.class_weight is not None:
            check_positive("Categorical", class_weight=self.class_weight)

    def log_prob(self, output: Tensor, target: Tensor, numbers: Numbers) -> Tensor:
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
            wrong = (target < 0).any(-1) | ((target.sum(-1) - 1).abs() > _SUM_ERROR)
            if bool(wrong.any()):
                where = int(wrong.nonzero()[0, 0])
                raise ValueError(
                    f"Categorical: float targets are class probabilities, >= 0 and with sum 1; "
                    f"those of example {where} are not. Use int64 class numbers for hard labels."
                )
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

    def log_probs(self, outputs: Tensor) -> Tensor:
        """Log softmax, (S, n, C)."""
        if outputs.dim() != 3:
            raise ValueError(
                "predict: class predictions need one row of outputs per input, got shape "
                f"{tuple(outputs.shape[1:])} for {outputs.shape[1]} inputs."
            )
        return F.log_softmax(outputs, -1)

    def mistakes(self, output: Tensor, target: Tensor, numbers: Numbers) -> Tensor:
        """Share of positions with a wrong label, (n,)."""
        labels = target.argmax(-1) if target.is_floating_point() else target
        return (output.argmax(-1) != labels).reshape(len(target), -1).double().mean(1)

    def curvature(
        self, output: Tensor, numbers: Numbers, generator: Generator | None = None
    ) -> Iterator[Tensor]:
        """Yield √p_c (e_c - p) for each position and class c; or e_c - p for labels c drawn from p.

        Labels of different positions are independent, and e_c - p has mean 0: one draw at every
        position at once has the right mean square.
        """
        p = output.softmax(-1)
        rows = p.view(-1, p.shape[-1])
        if generator is not None:
            label = torch.multinomial(rows, 1, generator=generator)
            yield torch.zeros_like(rows).scatter_(1, label, 1.0).view_as(p) - p
            return
        by_position = p.view(len(p), -1, p.shape[-1])
        for t in range(by_position.shape[1]):
            for c in range(p.shape[-1]):
                root, here = torch.zeros_like(by_position), by_position[:, t]
                root[:, t] = -here
                root[:, t, c] += 1
                root[:, t] *= here[:, c : c + 1].sqrt()
                yield root.view_as(p)

    @classmethod
    def from_dict(cls, row: Mapping[str, Any]) -> "Categorical":
        """The likelihood of `to_dict`."""
        values = row.get("class_weight")
        if values is None:
            return cls()
        if not isinstance(values, list) or not values:
            raise ValueError(f"class_weight must be a list of numbers, got {str(values)[:40]!r}.")
        return cls(tuple(number({"class_weight": value}, "class_weight") for value in values))

    def page(self) -> dict[str, Any]:
        """A softmax."""
        return {"output": "categorical"}


@dataclass(frozen=True)
class Bernoulli(ClassLikelihood):
    """Sigmoid of each output; targets are 0 or 1, one per output (a last axis of 1 may lack).

    Args:
        pos_weight: what a target of 1 counts, where a target of 0 counts once.

    Example:
        >>> Bernoulli().log_prob(torch.zeros(1, 1), torch.tensor([1.0]), {}).item()
        -0.6931471824645996
    """

    channel: ClassVar[Channel | None] = "probit"

    pos_weight: float = 1.0

    def __post_init__(self) -> None:
        check_positive("Bernoulli", pos_weight=self.pos_weight)

    def log_prob(self, output: Tensor, target: Tensor, numbers: Numbers) -> Tensor:
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

    def log_probs(self, outputs: Tensor) -> Tensor:
        """Log probabilities of the classes 0 and 1, (S, n, 2)."""
        logit = outputs.reshape(*outputs.shape[:2], -1)
        if logit.shape[-1] != 1:
            raise ValueError(
                f"predict: class predictions of a Bernoulli need one output, got {logit.shape[-1]}."
            )
        return torch.cat([F.logsigmoid(-logit), F.logsigmoid(logit)], -1)

    def mistakes(self, output: Tensor, target: Tensor, numbers: Numbers) -> Tensor:
        """Share of outputs on the wrong side, (n,)."""
        n = len(target)
        return (output.reshape(n, -1).gt(0) != target.reshape(n, -1).bool()).double().mean(1)

    def curvature(
        self, output: Tensor, numbers: Numbers, generator: Generator | None = None
    ) -> Iterator[Tensor]:
        """Yield √(p (1 - p)) e for each output."""
        p = output.sigmoid()
        return diagonal_roots((p * (1 - p)).sqrt(), generator)

    def n_outputs(self, n: int) -> int:
        """One output for two classes."""
        return 1

    @classmethod
    def from_dict(cls, row: Mapping[str, Any]) -> "Bernoulli":
        """The likelihood of `to_dict`."""
        return cls(number(row, "pos_weight", 1.0))

    def page(self) -> dict[str, Any]:
        """A sigmoid."""
        return {"output": "bernoulli"}
