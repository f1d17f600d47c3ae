"""Gradient descent and Adam on one flat vector of parameters, in place.

    gradient descent   θ ← θ - η g
    Adam               v ← β₁ v + (1 - β₁) g        s ← β₂ s + (1 - β₂) g²
                       θ ← θ - η (v / (1 - β₁ᵗ)) / (√(s / (1 - β₂ᵗ)) + ε)

t counts batches from 1; a common slip is to count parameters. Reference: [Kingma], algorithm 1.
Symbols: θ params, g gradient, η lr, β₁ mean_decay, β₂ square_decay, ε epsilon.
"""

import math
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import numpy as np

from bayesieve.checks import check_fraction, check_positive
from bayesieve.scratch.arrays import Array

State = TypeVar("State")
_BLOCK = 1 << 14  # entries Adam works on at a time: its five vectors then stay in cache


class Optimiser(Protocol[State]):
    """What training asks of an optimiser: an immutable recipe and a state beside it."""

    @property
    def lr(self) -> float:
        """The learning rate before any schedule."""
        ...

    def init(self, params: Array) -> State:
        """The state before the first step."""
        ...

    def step(self, params: Array, gradient: Array, state: State, lr: float) -> None:
        """Change `params` and `state` in place."""
        ...


@dataclass
class GradientDescentState:
    """One spare vector."""

    change: Array


@dataclass(frozen=True)
class GradientDescent:
    """Plain gradient descent.

    Args:
        lr: learning rate.

    Example:
        >>> params, rule = np.array([1.0, 2.0]), GradientDescent(lr=0.5)
        >>> rule.step(params, np.array([2.0, 0.0]), rule.init(params), rule.lr)
        >>> params.tolist()
        [0.0, 2.0]
    """

    lr: float = 0.01

    def __post_init__(self) -> None:
        check_positive("GradientDescent", lr=self.lr)

    def init(self, params: Array) -> GradientDescentState:
        """Set aside the spare vector."""
        return GradientDescentState(np.empty_like(params))

    def step(self, params: Array, gradient: Array, state: GradientDescentState, lr: float) -> None:
        """θ ← θ - η g."""
        np.multiply(gradient, lr, out=state.change)
        params -= state.change


@dataclass
class AdamState:
    """Running means and the number of steps."""

    mean: Array  # v
    square: Array  # s
    spare: Array = field(repr=False)
    step: int = 0  # t


@dataclass(frozen=True)
class Adam:
    """Adam with bias correction.

    Args:
        lr: learning rate.
        mean_decay: of the running mean of gradients.
        square_decay: of the running mean of squared gradients.
        epsilon: added to the root, against division by zero.

    Example:
        >>> params, rule = np.array([1.0, 2.0]), Adam(lr=0.5)
        >>> rule.step(params, np.array([2.0, -70.0]), rule.init(params), rule.lr)
        >>> params.round(6).tolist()  # the first step has length lr, whatever the gradient
        [0.5, 2.5]
    """

    lr: float = 1e-3
    mean_decay: float = 0.9
    square_decay: float = 0.999
    epsilon: float = 1e-8

    def __post_init__(self) -> None:
        check_positive("Adam", lr=self.lr, epsilon=self.epsilon)
        check_fraction(
            "Adam", open_ends=True, mean_decay=self.mean_decay, square_decay=self.square_decay
        )

    def init(self, params: Array) -> AdamState:
        """Both means start at 0."""
        spare = np.empty(min(_BLOCK, params.size), params.dtype)
        return AdamState(np.zeros_like(params), np.zeros_like(params), spare)

    def step(self, params: Array, gradient: Array, state: AdamState, lr: float) -> None:
        """One step, block by block."""
        state.step += 1
        for start in range(0, params.size, _BLOCK):
            block = slice(start, start + _BLOCK)
            self._step_block(
                params[block], gradient[block], state.mean[block], state.square[block],
                state.spare[: params[block].size], state.step, lr,
            )  # fmt: skip

    def _step_block(
        self, params: Array, gradient: Array, mean: Array, square: Array, spare: Array,
        t: int, lr: float,
    ) -> None:  # fmt: skip
        np.subtract(gradient, mean, out=spare)  # v + (1 - β₁)(g - v)
        spare *= 1 - self.mean_decay
        mean += spare
        np.multiply(gradient, gradient, out=spare)
        spare *= 1 - self.square_decay
        square *= self.square_decay
        square += spare
        np.sqrt(square, out=spare)
        spare *= 1 / math.sqrt(1 - self.square_decay**t)
        spare += self.epsilon
        np.divide(mean, spare, out=spare)
        spare *= lr / (1 - self.mean_decay**t)
        params -= spare
