"""Activations a = g(z), and how a gradient passes back through them.

`backward(a, upstream)` turns dL/da into dL/dz. Each derivative is written in terms of the output a,
so that z need not be kept:

    ReLU     max(0, z)            1[a > 0]                 (0 at 0)
    sigmoid  1 / (1 + exp(-z))    a (1 - a)
    tanh     tanh(z)              1 - a²
    linear   z                    1
    softmax  exp(z) / Σ exp(z)    diag(a) - a aᵀ           (a matrix for each row)

Every function takes an `out` array and then allocates nothing of the layer's size. `out` may be z
itself in a call; in `backward` it must be neither a nor upstream.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from bayesieve.scratch.arrays import Array


class Activation(Protocol):
    """What the network asks of an activation."""

    def __call__(self, z: Array, out: Array | None = None) -> Array:
        """Return a = g(z), shape (B, n)."""
        ...

    def backward(self, a: Array, upstream: Array, out: Array | None = None) -> Array:
        """Return dL/dz from the output a and dL/da, shape (B, n)."""
        ...


@dataclass(frozen=True)
class ReLU:
    """max(0, z).

    Example:
        >>> ReLU()(np.array([[-1.0, 0.0, 2.0]])).tolist()
        [[0.0, 0.0, 2.0]]
    """

    def __call__(self, z: Array, out: Array | None = None) -> Array:
        """Return max(0, z)."""
        return np.maximum(z, 0, out=out)

    def backward(self, a: Array, upstream: Array, out: Array | None = None) -> Array:
        """Return dL/da where a > 0, else 0."""
        return np.multiply(upstream, a > 0, out=out)


@dataclass(frozen=True)
class Sigmoid:
    """1 / (1 + exp(-z)), computed as (1 + tanh(z / 2)) / 2, which cannot overflow.

    Example:
        >>> Sigmoid()(np.array([[-1000.0, 0.0, 1000.0]])).tolist()
        [[0.0, 0.5, 1.0]]
    """

    def __call__(self, z: Array, out: Array | None = None) -> Array:
        """Return (1 + tanh(z / 2)) / 2."""
        out = np.multiply(z, 0.5, out=out)
        np.tanh(out, out=out)
        out += 1
        out *= 0.5
        return out

    def backward(self, a: Array, upstream: Array, out: Array | None = None) -> Array:
        """Return dL/da · a (1 - a)."""
        out = np.subtract(1, a, out=out)
        out *= a
        out *= upstream
        return out


@dataclass(frozen=True)
class Tanh:
    """tanh(z).

    Example:
        >>> Tanh()(np.array([[0.0, 100.0]])).tolist()
        [[0.0, 1.0]]
    """

    def __call__(self, z: Array, out: Array | None = None) -> Array:
        """Return tanh(z)."""
        return np.tanh(z, out=out)

    def backward(self, a: Array, upstream: Array, out: Array | None = None) -> Array:
        """Return dL/da · (1 - a²)."""
        out = np.multiply(a, a, out=out)
        np.subtract(1, out, out=out)
        out *= upstream
        return out


@dataclass(frozen=True)
class Linear:
    """The identity, for regression outputs.

    Example:
        >>> Linear()(np.array([[-3.0]])).tolist()
        [[-3.0]]
    """

    def __call__(self, z: Array, out: Array | None = None) -> Array:
        """Return z."""
        return np.positive(z, out=out)

    def backward(self, a: Array, upstream: Array, out: Array | None = None) -> Array:
        """Return dL/da."""
        return np.positive(upstream, out=out)


@dataclass(frozen=True)
class Softmax:
    """exp(z) / Σ exp(z) over each row; subtracting the row's maximum changes nothing else.

    Example:
        >>> Softmax()(np.array([[10_000.0, 10_000.0]])).tolist()
        [[0.5, 0.5]]
    """

    def __call__(self, z: Array, out: Array | None = None) -> Array:
        """Return exp(z - max z) / Σ exp(z - max z)."""
        out = np.subtract(z, z.max(axis=1, keepdims=True), out=out)
        np.exp(out, out=out)
        out /= out.sum(axis=1, keepdims=True)
        return out

    def backward(self, a: Array, upstream: Array, out: Array | None = None) -> Array:
        """Return a (dL/da - <dL/da, a>): the Jacobian's product without the Jacobian."""
        inner = np.einsum("ij,ij->i", upstream, a)[:, None]
        out = np.subtract(upstream, inner, out=out)
        out *= a
        return out

    def jacobian(self, a: Array) -> Array:
        """The whole Jacobian diag(a) - a aᵀ of each row, shape (B, n, n); training never forms it.

        Example:
            >>> Softmax().jacobian(np.array([[0.25, 0.75]])).tolist()
            [[[0.1875, -0.1875], [-0.1875, 0.1875]]]
        """
        identity = np.eye(a.shape[1], dtype=a.dtype)
        return a[:, :, None] * identity - a[:, :, None] * a[:, None, :]
