"""p(y | network output): one conditional distribution each, plus what a predictive needs.

A likelihood is a frozen dataclass without tensors. Numbers it learns (a noise level) are point
parameters appended to the flat vector under `likelihood.<name>`, so engines need not know of them.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.nn import functional as F

from bayesieve.checks import check_positive

Extra = Mapping[str, Tensor]
Task = Literal["classification", "regression"]


@runtime_checkable
class Likelihood(Protocol):
    """What a problem asks of a likelihood; outputs carry the batch axis first."""

    @property
    def task(self) -> Task:
        """Whether predictions are class probabilities or real numbers."""
        ...

    def parameters(self) -> dict[str, Tensor]:
        """Initial values of learned numbers (empty for most)."""
        ...

    def log_prob(self, output: Tensor, target: Tensor, extra: Extra) -> Tensor:
        """Log density of each example, shape (n,)."""
        ...

    def check(self, output: Tensor, target: Tensor) -> None:
        """Raise unless the network's output and the targets fit this likelihood."""
        ...


class _Classes:
    """What likelihoods of class labels share."""

    @property
    def task(self) -> Task:
        """Class probabilities."""
        return "classification"

    def parameters(self) -> dict[str, Tensor]:
        """Nothing is learned here."""
        return {}


@dataclass(frozen=True)
class Categorical(_Classes):
    """Softmax over the last output axis; targets are class numbers or rows of probabilities.

    With probability rows the log density is Σ_c target_c log p_c, which is what training on
    softened labels (self-distillation) maximises.

    Example:
        >>> Categorical().log_prob(torch.zeros(1, 4), torch.tensor([2]), {}).item()
        -1.3862943649291992
    """

    def log_prob(self, output: Tensor, target: Tensor, extra: Extra) -> Tensor:
        """Log density of each example, shape (n,); positions of a sequence are summed."""
        if target.is_floating_point():
            per_position = (target * F.log_softmax(output, -1)).sum(-1)
        else:
            flat = F.cross_entropy(
                output.reshape(-1, output.shape[-1]), target.reshape(-1), reduction="none"
            )
            per_position = -flat.view(target.shape)
        return per_position.flatten(1).sum(1) if per_position.dim() > 1 else per_position

    def check(self, output: Tensor, target: Tensor) -> None:
        """Class numbers must be integers inside the output's range."""
        if output.dim() < 2:
            raise ValueError(
                f"Categorical: the network must return (n, classes), got {tuple(output.shape)}."
            )
        n_classes = output.shape[-1]
        if target.is_floating_point():
            if target.shape[1:] != output.shape[1:]:
                raise ValueError(
                    f"Categorical: float targets are class probabilities of shape "
                    f"(n, {n_classes}), got {tuple(target.shape)}. Use int64 class numbers "
                    "for hard labels."
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


@dataclass(frozen=True)
class Bernoulli(_Classes):
    """Sigmoid of each output; targets are 0 or 1, one per output (a last axis of 1 may lack).

    Example:
        >>> Bernoulli().log_prob(torch.zeros(1, 1), torch.tensor([1.0]), {}).item()
        -0.6931471824645996
    """

    def log_prob(self, output: Tensor, target: Tensor, extra: Extra) -> Tensor:
        """Log density of each example, shape (n,); several outputs are summed."""
        logits = output.reshape(len(output), -1)
        labels = target.reshape(len(output), -1).to(logits.dtype)
        return -F.binary_cross_entropy_with_logits(logits, labels, reduction="none").sum(1)

    def check(self, output: Tensor, target: Tensor) -> None:
        """Targets must be 0 or 1, one per output."""
        if output[0].numel() != target[0].numel():
            raise ValueError(
                f"Bernoulli: the network returns {output[0].numel()} outputs per example but "
                f"targets have {target[0].numel()}; they must agree."
            )
        if not bool(((target == 0) | (target == 1)).all()):
            raise ValueError("Bernoulli: targets must be 0 or 1.")


@dataclass(frozen=True)
class Gaussian:
    """Normal noise around the output, with one standard deviation for all outputs.

    Args:
        noise_std: standard deviation of the noise, in units of the (standardised) targets; the
            starting value when it is learned.
        learned: whether log noise_std is a point parameter trained with the weights.

    Example:
        >>> Gaussian(noise_std=1.0).log_prob(torch.zeros(1, 1), torch.zeros(1), {}).item()
        -0.9189385175704956
    """

    noise_std: float = 1.0
    learned: bool = False

    def __post_init__(self) -> None:
        check_positive("Gaussian", noise_std=self.noise_std)

    @property
    def task(self) -> Task:
        """Real numbers."""
        return "regression"

    def parameters(self) -> dict[str, Tensor]:
        """The log noise standard deviation, when it is learned."""
        return {"log_noise_std": torch.tensor(math.log(self.noise_std))} if self.learned else {}

    def log_noise(self, extra: Extra) -> Tensor | float:
        """Log noise standard deviation in force, scalar or (k,) for a population."""
        return extra["log_noise_std"] if self.learned else math.log(self.noise_std)

    def log_prob(self, output: Tensor, target: Tensor, extra: Extra) -> Tensor:
        """Log density of each example, shape (n,); several outputs are summed."""
        mean = output.reshape(len(output), -1)
        residual = target.reshape(len(output), -1) - mean
        log_noise = self.log_noise(extra)
        scaled = residual * (
            log_noise.neg().exp() if isinstance(log_noise, Tensor) else math.exp(-log_noise)
        )
        per_output = -0.5 * scaled.square() - log_noise - 0.5 * math.log(2 * math.pi)
        return per_output.sum(1)

    def check(self, output: Tensor, target: Tensor) -> None:
        """Targets must be real and as many as the outputs."""
        if not target.is_floating_point():
            raise ValueError(
                f"Gaussian: targets must be floating point, got {target.dtype}. "
                "Use Categorical for class numbers."
            )
        if output[0].numel() != target[0].numel():
            raise ValueError(
                f"Gaussian: the network returns {output[0].numel()} outputs per example but "
                f"targets have {target[0].numel()} columns; they must agree."
            )
