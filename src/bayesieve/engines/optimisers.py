"""Adam and AdaBelief on flat tensors, written so that they fuse with the gradient they consume.

    Adam:       m ← β₁m + (1-β₁)g,   s ← β₂s + (1-β₂)g²,             step = lr · m̂ / (√ŝ + ε)
    AdaBelief:  m ← β₁m + (1-β₁)g,   s ← β₂s + (1-β₂)(g - m)² + ε,   step = lr · m̂ / (√ŝ + ε)

AdaBelief divides by the distance of a gradient from its forecast m. Hats mark corrected bias.

Reference: Kingma and Ba (2015), algorithm 1; Zhuang et al. (2020), algorithm 2, with ε = 1e-16 in
both places.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

BETA_1, BETA_2 = 0.9, 0.999
ADAM_EPS, ADABELIEF_EPS = 1e-8, 1e-16


@dataclass
class Moments:
    """Running averages of a gradient and its square, each of the parameter's shape."""

    first: Tensor
    second: Tensor

    @classmethod
    def zeros_like(cls, parameter: Tensor) -> "Moments":
        """Both averages at 0."""
        return cls(torch.zeros_like(parameter), torch.zeros_like(parameter))

    def part(self, columns: slice) -> "Moments":
        """Views of some columns."""
        return Moments(self.first[:, columns], self.second[:, columns])


class Pace(NamedTuple):
    """Learning rate of a step with the bias of the moments corrected; scalar, (k, 1) or (k, d)."""

    length: Tensor  # lr / (1 - β₁ᵗ)
    second_factor: Tensor  # 1 / √(1 - β₂ᵗ)


def pace_of(lr: Tensor, step: Tensor) -> Pace:
    """The pace of step t ≥ 1.

    Kept out of the fused update: there the powers would be taken once per weight.
    """
    return Pace(lr / (1 - BETA_1**step), (1 - BETA_2**step).rsqrt())


def adam_(
    parameter: Tensor, grad: Tensor, moments: Moments, pace: Pace, trained: Tensor | None = None
) -> None:
    """One Adam step in place where `trained`."""
    first, second = moments.first, moments.second
    first.mul_(BETA_1).add_(grad, alpha=1 - BETA_1)
    second.mul_(BETA_2).addcmul_(grad, grad, value=1 - BETA_2)
    step = pace.length * first / (second.sqrt() * pace.second_factor + ADAM_EPS)
    parameter.sub_(step if trained is None else step * trained)


def adabelief_(
    parameter: Tensor, grad: Tensor, moments: Moments, pace: Pace, trained: Tensor | None = None
) -> None:
    """One AdaBelief step in place where `trained`."""
    first, second = moments.first, moments.second
    first.mul_(BETA_1).add_(grad, alpha=1 - BETA_1)
    surprise = grad - first
    second.mul_(BETA_2).addcmul_(surprise, surprise, value=1 - BETA_2).add_(ADABELIEF_EPS)
    step = pace.length * first / (second.sqrt() * pace.second_factor + ADABELIEF_EPS)
    parameter.sub_(step if trained is None else step * trained)
