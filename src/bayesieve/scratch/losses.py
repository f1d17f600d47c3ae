"""Losses of predictions against targets, both of shape (B, K), with an optional penalty.

    squared error   1/(BK) Σ (p - y)²      gradient 2 (p - y) / (BK)
    cross-entropy   -1/B Σ y log p         gradient -y / (p B)

Calling a loss gives the data term; the network adds the penalty, which knows the weights.

Departures: the source leaves open whether the squared error is averaged over outputs; ours is. A
probability that underflowed to 0 counts as the smallest number of its dtype, so that its logarithm
is finite.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from bayesieve.scratch.arrays import Array
from bayesieve.scratch.penalties import Penalty


class Loss(Protocol):
    """What the network asks of a loss."""

    @property
    def penalty(self) -> Penalty | None:
        """The penalty on the weights, if any."""
        ...

    def __call__(self, predicted: Array, target: Array) -> float:
        """Return the mean loss of a batch."""
        ...

    def gradient(self, predicted: Array, target: Array, out: Array | None = None) -> Array:
        """Return d loss / d predicted, shape (B, K)."""
        ...


@dataclass(frozen=True)
class SquaredError:
    """Mean squared error over examples and outputs.

    Args:
        penalty: `L1(...)`, `L2(...)` or None.

    Example:
        >>> SquaredError()(np.array([[1.0, 2.0]]), np.array([[0.0, 4.0]]))
        2.5
    """

    penalty: Penalty | None = None

    def __call__(self, predicted: Array, target: Array) -> float:
        """Return 1/(BK) Σ (p - y)²."""
        return float(np.square(predicted - target).mean(dtype=np.float64))

    def gradient(self, predicted: Array, target: Array, out: Array | None = None) -> Array:
        """Return 2 (p - y) / (BK)."""
        out = np.subtract(predicted, target, out=out)
        out *= 2 / predicted.size
        return out


@dataclass(frozen=True)
class CrossEntropy:
    """Cross-entropy of class probabilities, in nats per example.

    Args:
        penalty: `L1(...)`, `L2(...)` or None.

    Example:
        >>> certain, half = [1.0, 0.0], [0.5, 0.5]
        >>> round(CrossEntropy()(np.array([half, certain]), np.array([certain, certain])), 4)
        0.3466
    """

    penalty: Penalty | None = None

    def __call__(self, predicted: Array, target: Array) -> float:
        """Return -1/B Σ y log p."""
        log_p = np.log(np.maximum(predicted, _least(predicted)))
        return -float((target * log_p).sum(dtype=np.float64)) / len(predicted)

    def gradient(self, predicted: Array, target: Array, out: Array | None = None) -> Array:
        """Return -y / (p B), the gradient with respect to probabilities."""
        out = np.maximum(predicted, _least(predicted), out=out)
        np.divide(target, out, out=out)
        out *= -1 / len(predicted)
        return out

    def gradient_before_softmax(
        self, predicted: Array, target: Array, out: Array | None = None
    ) -> Array:
        """Return (p - y) / B: `gradient` passed back through a softmax, fused into one formula.

        The row sum of y, which is 1, has been used; the division by p, which may be tiny, is gone.

        Example:
            >>> from bayesieve.scratch import Softmax
            >>> p, y = np.array([[0.2, 0.8]]), np.array([[1.0, 0.0]])
            >>> loss = CrossEntropy()
            >>> loss.gradient_before_softmax(p, y).tolist()
            [[-0.8, 0.8]]
            >>> Softmax().backward(p, loss.gradient(p, y)).tolist()
            [[-0.8, 0.8]]
        """
        out = np.subtract(predicted, target, out=out)
        out *= 1 / len(predicted)
        return out


def _least(predicted: Array) -> float:
    return float(np.finfo(predicted.dtype).tiny)
