"""Adam on flat tensors, written so that it fuses with the gradient it consumes.

    m ← β₁m + (1-β₁)g,   s ← β₂s + (1-β₂)g²,   step = lr · m̂ / (√ŝ + ε)

Hats mark corrected bias.

The moments of Adam may be kept in bfloat16, half the memory. A step changes s by a thousandth, less
than a digit of bfloat16, so that rounding to the nearest would never move it: results are rounded
up or down at random, by chances that make them right on average. The random bits are a function of
place, step and value, so that runs repeat themselves.

Reference: Kingma and Ba (2015), algorithm 1.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from bayesieve.core.random import mix

BETA_1, BETA_2 = 0.9, 0.999
ADAM_EPS = 1e-8


@dataclass
class Moments:
    """Running averages of a gradient and its square, each of the parameter's shape."""

    first: Tensor
    second: Tensor

    @classmethod
    def zeros_like(cls, parameter: Tensor, dtype: torch.dtype | None = None) -> "Moments":
        """Averages at 0, of the parameter's dtype unless given."""
        if dtype is not None and parameter.dtype != torch.float32:
            raise ValueError(f"moments in bfloat16 are for float32, not {parameter.dtype}.")
        first = torch.zeros_like(parameter, dtype=dtype)
        return cls(first, torch.zeros_like(first))

    def part(self, columns: slice) -> "Moments":
        """Views of some columns."""
        return Moments(self.first[:, columns], self.second[:, columns])


class Pace(NamedTuple):
    """Learning rate of a step with the bias of the moments corrected; scalar, (k, 1) or (k, d)."""

    length: Tensor  # lr / (1 - β₁ᵗ)
    second_factor: Tensor  # 1 / √(1 - β₂ᵗ)
    step: Tensor | None = None  # t, for moments in bfloat16


def pace_of(lr: Tensor, step: Tensor) -> Pace:
    """The pace of step t ≥ 1.

    Kept out of the fused update: there the powers would be taken once per weight. In float32
    1 - β₂ᵗ would lose four digits at first.
    """
    first, second = (-torch.expm1(step * math.log(beta)) for beta in (BETA_1, BETA_2))
    return Pace(lr / first, second.rsqrt(), step)


def rounded(value: Tensor, step: Tensor) -> Tensor:
    """Round float32 to numbers of bfloat16, up or down at random, right on average.

    Example:
        >>> value = torch.full((10_000,), 1 + 1 / 512)  # a quarter of the way from 1 to the next
        >>> found = rounded(value, torch.tensor(1.0))
        >>> torch.equal(found, found.bfloat16().float()), round(found.mean().item(), 3)
        (True, 1.002)
    """
    bits = value.view(torch.int32)
    places = torch.arange(value.numel(), dtype=torch.int32, device=value.device)
    key = mix(places.view(value.shape) ^ mix(step.to(torch.int32))) ^ bits
    return ((bits + (mix(key) & 0xFFFF)) & -0x10000).view(torch.float32)


def adam_(
    parameter: Tensor, grad: Tensor, moments: Moments, pace: Pace, trained: Tensor | None = None
) -> None:
    """One Adam step in place where `trained`."""
    small = moments.first.dtype != parameter.dtype
    first, second = moments.first, moments.second
    if small:
        first, second = first.to(parameter.dtype), second.to(parameter.dtype)
    first.mul_(BETA_1).add_(grad, alpha=1 - BETA_1)
    second.mul_(BETA_2).addcmul_(grad, grad, value=1 - BETA_2)
    step = pace.length * first / (second.sqrt() * pace.second_factor + ADAM_EPS)
    parameter.sub_(step if trained is None else step * trained)
    if small:
        assert pace.step is not None
        moments.first.copy_(rounded(first, pace.step))
        moments.second.copy_(rounded(second, -pace.step))
