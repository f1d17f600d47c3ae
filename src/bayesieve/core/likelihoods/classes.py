"""Likelihoods of class labels."""

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, ClassVar

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from bayesieve.checks import check_positive
from bayesieve.core.likelihoods.base import (
    Channel,
    Likelihood,
    Numbers,
    Task,
    diagonal_roots,
    number,
)
from bayesieve.core.likelihoods.prediction import (
    IGNORED,
    ClassPrediction,
    Drawn,
    entropy,
    information,
    log_mean_prob,
    missing_entropy,
    wrong_share,
)
from bayesieve.errors import UnsupportedModelError

_SUM_ERROR = 1e-3  # of the probabilities of a row
_FEW = 16  # classes, below which torch does not fill a register with those of one row


def log_softmax(x: Tensor) -> Tensor:
    """Log softmax over the last axis.

    On a CPU few classes are turned to the front and back, so that a register holds many rows: ten
    classes of some thousand rows take a seventh of the time. An exported graph stays plain.
    """
    few = x.device.type == "cpu" and x.shape[-1] < _FEW
    if not few or torch.compiler.is_compiling():
        return F.log_softmax(x, -1)
    return F.log_softmax(x.movedim(-1, 0).contiguous(), 0).movedim(0, -1).contiguous()


class ClassLikelihood(Likelihood):
    """A likelihood of class labels."""

    task: ClassVar[Task] = "classification"
    delivered: ClassVar[tuple[str, ...]] = ("probability", "entropy", "mutual_information")

    @abstractmethod
    def log_probs(self, outputs: Tensor) -> Tensor:
        """Log class probabilities of outputs (S, n, ...): (S, n, C), or (S, n, ..., C)."""

    def predictive(self, outputs: Tensor, numbers: Numbers) -> ClassPrediction:
        """Class probabilities under every weight vector."""
        return ClassPrediction(self.log_probs(outputs))

    def summary(
        self, outputs: Tensor, numbers: Numbers, drawn: Drawn = "all"
    ) -> tuple[Tensor, ...]:
        """Mean probability (n, ..., C), its entropy and the mutual information, (n, ...) each."""
        log_p = self.log_probs(outputs)
        log_mean, missing = log_mean_prob(log_p), missing_entropy(log_p, drawn)
        return log_mean.exp(), entropy(log_mean) + missing, information(log_p) + missing

    def to_dict(self, numbers: Numbers | None = None) -> dict[str, Any]:
        """Name and those settings that are not the usual ones, ready for JSON."""
        usual = {f.name: f.default for f in fields(self)}  # type: ignore[arg-type]
        row = super().to_dict(numbers)
        return {name: value for name, value in row.items() if usual.get(name, MISSING) != value}


@dataclass(frozen=True)
class Categorical(ClassLikelihood):
    """Softmax over one output axis; targets are class numbers or rows of probabilities.

    Outputs are (n, C), or have positions: (n, ..., C) for sequences, (n, C, ...) for pixels with
    `class_axis=1`. Targets are then class numbers (n, ...), one label for each position. With
    probability rows the log density is Σ_c target_c log p_c, which is what training on softened
    labels (self-distillation) maximises.

    Args:
        class_weight: what an example of each class counts; None counts all once.
        class_axis: of the outputs that holds the classes: -1, the last, or 1, after the examples.
        ignore: class number of positions that do not count (padding, unlabelled pixels), such as
            -100; None counts all.

    Example:
        >>> Categorical().log_prob(torch.zeros(1, 4), torch.tensor([2]), {}).item()
        -1.3862943649291992
        >>> Categorical((1.0, 3.0)).log_prob(torch.zeros(2, 2), torch.tensor([0, 1]), {}).tolist()
        [-0.6931471824645996, -2.079441547393799]
        >>> padded = torch.tensor([[1, 0, -100]])
        >>> Categorical(ignore=-100).log_prob(torch.zeros(1, 3, 2), padded, {}).exp().item()
        0.25
    """

    channel: ClassVar[Channel | None] = "probit-product"
    soft_targets: ClassVar[bool] = True

    class_weight: tuple[float, ...] | None = None
    class_axis: int = -1
    ignore: int | None = None

    def __post_init__(self) -> None:
        if self.class_weight is not None:
            check_positive("Categorical", class_weight=self.class_weight)
        if self.class_axis not in (-1, 1):
            raise ValueError(f"Categorical: class_axis must be -1 or 1, got {self.class_axis}.")

    def _classes_last(self, output: Tensor) -> Tensor:
        """Outputs of examples, (n, ...), with the classes last."""
        return output if self.class_axis == -1 else output.movedim(self.class_axis, -1)

    def log_prob(self, output: Tensor, target: Tensor, numbers: Numbers) -> Tensor:
        """Log density of each example, shape (n,); positions that count are summed."""
        output = self._classes_last(output)
        if target.is_floating_point():
            log_probs = F.log_softmax(output, -1)
            if self.class_weight is not None:  # by column, from numbers: no tensor made in a graph
                columns = zip(log_probs.unbind(-1), self.class_weight, strict=True)
                log_probs = torch.stack([column * weight for column, weight in columns], -1)
            per_position = (self._classes_last(target) * log_probs).sum(-1)
        else:
            flat = F.cross_entropy(
                output.reshape(-1, output.shape[-1]),
                target.reshape(-1),
                reduction="none",
                ignore_index=-100 if self.ignore is None else self.ignore,
            )
            per_position = -flat.view(target.shape)
            for label, weight in enumerate(self.class_weight or ()):
                per_position = torch.where(target == label, weight * per_position, per_position)
        return per_position.flatten(1).sum(1) if per_position.dim() > 1 else per_position

    def check(self, output: Tensor, target: Tensor) -> None:
        """Class numbers must be integers inside the output's range, or the number to ignore."""
        if output.dim() < 2:
            raise ValueError(
                f"Categorical: the network must return (n, classes), got {tuple(output.shape)}."
            )
        n_classes, positions = output.shape[self.class_axis], self._classes_last(output).shape[1:-1]
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
            rows = self._classes_last(target)
            wrong = (rows < 0).any(-1) | ((rows.sum(-1) - 1).abs() > _SUM_ERROR)
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
        if target.shape[1:] != positions:
            other, hint = output.movedim(-self.class_axis, -1).shape[1:-1], ""
            if target.shape[1:] == other:
                hint = f" Are the classes on the other axis? Then class_axis={-self.class_axis}."
            raise ValueError(
                f"Categorical: targets must have shape (n, *{tuple(positions)}), "
                f"got {tuple(target.shape)}.{hint}"
            )
        counted = target if self.ignore is None else target[target != self.ignore]
        if not len(counted):
            raise ValueError(f"Categorical: every target is {self.ignore}, which is ignored.")
        low, high = int(counted.min()), int(counted.max())
        if low < 0 or high >= n_classes:
            hint = " Name the number to leave out by `ignore`." if positions else ""
            raise ValueError(
                f"Categorical: labels must lie in 0..{n_classes - 1} for a network with "
                f"{n_classes} outputs, got {low}..{high}.{hint}"
            )

    def log_probs(self, outputs: Tensor) -> Tensor:
        """Log softmax, (S, n, ..., C)."""
        if outputs.dim() < 3:
            raise ValueError(
                "predict: class predictions need one row of outputs per input, got shape "
                f"{tuple(outputs.shape[1:])} for {outputs.shape[1]} inputs."
            )
        return log_softmax(outputs.movedim(-1 if self.class_axis == -1 else 2, -1))

    def labels(self, target: Tensor) -> Tensor:
        """Class numbers, (n, ...), `IGNORED` where a position does not count."""
        if target.is_floating_point():
            return self._classes_last(target).argmax(-1)
        found = target.long()
        return found if self.ignore is None else found.masked_fill(found == self.ignore, IGNORED)

    def counted(self, target: Tensor) -> Tensor | None:
        """True for outputs of positions that count, with one entry on the class axis."""
        if self.ignore is None or target.is_floating_point():
            return None
        return (target != self.ignore).unsqueeze(self.class_axis)

    def mistakes(self, output: Tensor, target: Tensor, numbers: Numbers) -> Tensor:
        """Share of the positions that count with a wrong label, (n,)."""
        return wrong_share(self._classes_last(output).argmax(-1), self.labels(target))

    def curvature(
        self, output: Tensor, numbers: Numbers, generator: Generator | None = None
    ) -> Iterator[Tensor]:
        """Yield √p_c (e_c - p) for each position and class c; or e_c - p for labels c drawn from p.

        Labels of different positions are independent, and e_c - p has mean 0: one draw at every
        position at once has the right mean square.
        """
        p = self._classes_last(output).softmax(-1).contiguous()
        rows = p.view(-1, p.shape[-1])
        if generator is not None:
            label = torch.multinomial(rows, 1, generator=generator)
            root = torch.zeros_like(rows).scatter_(1, label, 1.0).view_as(p) - p
            yield root.movedim(-1, self.class_axis)
            return
        by_position = p.view(len(p), -1, p.shape[-1])
        for t in range(by_position.shape[1]):
            for c in range(p.shape[-1]):
                root, here = torch.zeros_like(by_position), by_position[:, t]
                root[:, t] = -here
                root[:, t, c] += 1
                root[:, t] *= here[:, c : c + 1].sqrt()
                yield root.view_as(p).movedim(-1, self.class_axis)

    @classmethod
    def from_dict(cls, row: Mapping[str, Any]) -> "Categorical":
        """The likelihood of `to_dict`."""
        values = row.get("class_weight")
        weights = None
        if values is not None:
            if not isinstance(values, list) or not values:
                raise ValueError(
                    f"class_weight must be a list of numbers, got {str(values)[:40]!r}."
                )
            weights = tuple(number({"class_weight": value}, "class_weight") for value in values)
        ignore = None if row.get("ignore") is None else int(number(row, "ignore"))
        return cls(weights, int(number(row, "class_axis", -1)), ignore)

    def page(self) -> dict[str, Any]:
        """A softmax."""
        if self.class_axis != -1:
            raise UnsupportedModelError("the page shows networks with one label for each input")
        return {"output": "categorical"}


@dataclass(frozen=True)
class Bernoulli(ClassLikelihood):
    """Sigmoid of each output; targets are 0 or 1, one per output (a last axis of 1 may lack).

    With several outputs each is a question of its own (multi-label): predictions then have a
    position for every output.

    Args:
        pos_weight: what a target of 1 counts, where a target of 0 counts once.
        ignore: target of outputs that do not count, such as -1; None counts all.

    Example:
        >>> Bernoulli().log_prob(torch.zeros(1, 1), torch.tensor([1.0]), {}).item()
        -0.6931471824645996
        >>> Bernoulli(ignore=-1).mistakes(torch.ones(1, 3), torch.tensor([[1, 0, -1]]), {}).item()
        0.5
    """

    channel: ClassVar[Channel | None] = "probit"

    pos_weight: float = 1.0
    ignore: int | None = None

    def __post_init__(self) -> None:
        check_positive("Bernoulli", pos_weight=self.pos_weight)
        if self.ignore in (0, 1):
            raise ValueError(f"Bernoulli: ignore must not be an answer, got {self.ignore}.")

    def log_prob(self, output: Tensor, target: Tensor, numbers: Numbers) -> Tensor:
        """Log density of each example, shape (n,); several outputs are summed."""
        logits = output.reshape(len(output), -1)
        labels = target.reshape(len(output), -1).to(logits.dtype)
        nll = F.binary_cross_entropy_with_logits(logits, labels, reduction="none")
        if self.pos_weight != 1:
            nll = nll * (1 + (self.pos_weight - 1) * labels)
        if self.ignore is not None:
            nll = torch.where(labels == self.ignore, 0, nll)
        return -nll.sum(1)

    def check(self, output: Tensor, target: Tensor) -> None:
        """Targets must be 0 or 1, one per output, or the number to ignore."""
        if output[0].numel() != target[0].numel():
            raise ValueError(
                f"Bernoulli: the network returns {output[0].numel()} outputs per example but "
                f"targets have {target[0].numel()}; they must agree."
            )
        known = (target == 0) | (target == 1)
        if self.ignore is not None:
            if not bool(known.any()):
                raise ValueError(f"Bernoulli: every target is {self.ignore}, which is ignored.")
            known |= target == self.ignore
        if not bool(known.all()):
            also = "" if self.ignore is None else f", or {self.ignore} to be ignored"
            raise ValueError(f"Bernoulli: targets must be 0 or 1{also}.")

    def log_probs(self, outputs: Tensor) -> Tensor:
        """Log probabilities of the classes 0 and 1: (S, n, 2), or (S, n, ..., 2) of several."""
        logit = outputs.flatten(1) if outputs[0, 0].numel() == 1 else outputs
        return torch.stack([F.logsigmoid(-logit), F.logsigmoid(logit)], -1)

    def labels(self, target: Tensor) -> Tensor:
        """Class numbers 0 and 1, (n,) or (n, ...) of several outputs, or `IGNORED`."""
        found = (target.flatten() if target[0].numel() == 1 else target).long()
        return found if self.ignore is None else found.masked_fill(found == self.ignore, IGNORED)

    def counted(self, target: Tensor) -> Tensor | None:
        """True for outputs that count; of the shape of the targets."""
        return None if self.ignore is None else target != self.ignore

    def mistakes(self, output: Tensor, target: Tensor, numbers: Numbers) -> Tensor:
        """Share of the outputs that count on the wrong side, (n,)."""
        labels = self.labels(target.reshape(len(target), -1)).reshape(len(target), -1)
        return wrong_share(output.reshape(len(target), -1).gt(0).long(), labels)

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
        ignore = None if row.get("ignore") is None else int(number(row, "ignore"))
        return cls(number(row, "pos_weight", 1.0), ignore)

    def page(self) -> dict[str, Any]:
        """A sigmoid."""
        return {"output": "bernoulli"}
