"""Penalties on the weights, never on the biases. Added once per batch, not divided by its size.

    L1   c Σ |W|       gradient c sign(W)
    L2   c/2 Σ W²      gradient c W

The source does not fix the factor of L2. Ours makes a step of gradient descent the one of torch's
`SGD(weight_decay=c)`.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from bayesieve.checks import check_not_negative
from bayesieve.scratch.arrays import Array


class Penalty(Protocol):
    """What the network asks of a penalty."""

    def value(self, weights: Array) -> float:
        """The penalty of a flat vector of weights."""
        ...

    def add_gradient(self, weights: Array, gradient: Array, spare: Array) -> None:
        """Add the penalty's gradient to `gradient`; `spare` is overwritten. All have one shape."""
        ...


@dataclass(frozen=True)
class L1:
    """Strength times the sum of absolute weights.

    Args:
        strength: c above; nats per unit of weight when the loss is a cross-entropy.

    Example:
        >>> L1(0.5).value(np.array([1.0, -3.0]))
        2.0
    """

    strength: float

    def __post_init__(self) -> None:
        check_not_negative("L1", strength=self.strength)

    def value(self, weights: Array) -> float:
        """Return c Σ |W|."""
        return self.strength * float(np.abs(weights).sum())

    def add_gradient(self, weights: Array, gradient: Array, spare: Array) -> None:
        """Add c sign(W)."""
        np.sign(weights, out=spare)
        spare *= self.strength
        gradient += spare


@dataclass(frozen=True)
class L2:
    """Half the strength times the sum of squared weights.

    Args:
        strength: c above. With a loss that is a mean over N examples this is the log density of
            a Normal(0, 1 / (c N)) prior.

    Example:
        >>> L2(0.5).value(np.array([1.0, -3.0]))
        2.5
    """

    strength: float

    def __post_init__(self) -> None:
        check_not_negative("L2", strength=self.strength)

    def value(self, weights: Array) -> float:
        """Return c/2 Σ W²."""
        return self.strength / 2 * float(np.dot(weights, weights))

    def add_gradient(self, weights: Array, gradient: Array, spare: Array) -> None:
        """Add c W."""
        np.multiply(weights, self.strength, out=spare)
        gradient += spare
