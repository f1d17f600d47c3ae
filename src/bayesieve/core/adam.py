"""Adam on flat tensors, written so that it fuses with the gradient it consumes.

Reference: Kingma and Ba (2015), algorithm 1; decoupled weight decay by Loshchilov and Hutter.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

BETA_1, BETA_2, EPS = 0.9, 0.999, 1e-8


@dataclass
class Moments:
    """Running averages of a gradient and its square, each of the parameter's shape."""

    first: Tensor
    second: Tensor

    @classmethod
    def zeros_like(cls, parameter: Tensor) -> "Moments":
        """Both averages at 0."""
        return cls(torch.zeros_like(parameter), torch.zeros_like(parameter))


def bias_corrected(lr: Tensor, step: Tensor) -> tuple[Tensor, Tensor]:
    """Step length lr / (1 - β₁ᵗ) and the factor 1 / √(1 - β₂ᵗ) at step t ≥ 1.

    Kept out of the fused update: there the powers would be taken once per weight.
    """
    return lr / (1 - BETA_1**step), (1 - BETA_2**step).rsqrt()


def adam_(
    parameter: Tensor,
    grad: Tensor,
    first: Tensor,
    second: Tensor,
    step_length: Tensor,
    second_factor: Tensor,
    trained: Tensor | None = None,
) -> None:
    """One Adam step in place where `trained`; lengths are scalar or (k, 1)."""
    first.mul_(BETA_1).add_(grad, alpha=1 - BETA_1)
    second.mul_(BETA_2).addcmul_(grad, grad, value=1 - BETA_2)
    step = step_length * first / (second.sqrt() * second_factor + EPS)
    parameter.sub_(step if trained is None else step * trained)
