"""Functions of a perceptron, each beside its derivative: activations, penalties, losses, starts.

Arrays are float32 or float64; rows are examples. B is the batch size, K the number of outputs.

Activations a = g(z). `backward(a, upstream)` turns dL/da into dL/dz. Each derivative is written in
terms of the output a, so that z need not be kept:

    ReLU     max(0, z)            1[a > 0]                 (0 at 0)
    sigmoid  1 / (1 + exp(-z))    a (1 - a)
    tanh     tanh(z)              1 - a²
    linear   z                    1
    softmax  exp(z) / Σ exp(z)    diag(a) - a aᵀ           (a matrix for each row)

Every activation takes an `out` array and then allocates nothing of the layer's size. `out` may be z
itself in a call; in `backward` it must be neither a nor upstream.

Penalties on the weights, never on the biases, added once per batch and not divided by its size:

    L1   c Σ |W|       gradient c sign(W)
    L2   c/2 Σ W²      gradient c W

The source does not fix the factor of L2. This one makes a step of gradient descent equal to torch's
`SGD(weight_decay=c)`.

Losses of predictions p against targets y, both (B, K):

    squared error   1/(BK) Σ (p - y)²      gradient 2 (p - y) / (BK)
    cross-entropy   -1/B Σ y log p         gradient -y / (p B)

Calling a loss gives the data term; the network adds the penalty, which needs the weights. The
source does not say whether the squared error is averaged over outputs; here it is. A probability
that underflowed to 0 counts as the smallest number of its dtype, so that its logarithm is finite.

Starting values of one layer, a weight matrix (n_in, n_out) and its biases:

    random     W, b ~ U(-w, w)
    gaussian   W, b ~ N(0, s²)
    glorot     W ~ U(-w, w) with w = √(6 / (n_in + n_out)), b = 0; variance 2 / (n_in + n_out)

Numbers are drawn in float64 and then rounded, so a float32 net starts where its float64 twin does.
The source gives neither a range nor a scale; U(0, 1) and N(0, 1) saturate every unit of a layer of
500, so these are small.
"""

from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from bayesieve.checks import check_not_negative, check_positive

Array: TypeAlias = NDArray[np.floating[Any]]  # float32 or float64, rows are examples
Labels: TypeAlias = NDArray[np.integer[Any]]  # class numbers, shape (N,)


class Activation(Protocol):
    """Protocol of an activation."""

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


class Penalty(Protocol):
    """Protocol of a penalty."""

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


class Loss(Protocol):
    """Protocol of a loss."""

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


class Initialiser(Protocol):
    """Protocol of an initialiser."""

    def fill(self, weight: Array, bias: Array, rng: np.random.Generator) -> None:
        """Overwrite a layer's weight, shape (n_in, n_out), and bias, shape (n_out,)."""
        ...


@dataclass(frozen=True)
class Random:
    """Uniform weights and biases.

    Args:
        half_width: w above.

    Example:
        >>> weight, bias = np.empty((2, 3)), np.empty(3)
        >>> Random(0.1).fill(weight, bias, np.random.default_rng(0))
        >>> bool(np.abs(weight).max() <= 0.1)
        True
    """

    half_width: float = 0.05

    def __post_init__(self) -> None:
        check_positive("Random", half_width=self.half_width)

    def fill(self, weight: Array, bias: Array, rng: np.random.Generator) -> None:
        """Draw W, then b."""
        weight[:] = rng.uniform(-self.half_width, self.half_width, weight.shape)
        bias[:] = rng.uniform(-self.half_width, self.half_width, bias.shape)


@dataclass(frozen=True)
class Gaussian:
    """Normal weights and biases.

    Args:
        std: s above.

    Example:
        >>> weight, bias = np.empty((200, 300)), np.empty(300)
        >>> Gaussian(0.1).fill(weight, bias, np.random.default_rng(0))
        >>> round(float(weight.std()), 3)
        0.1
    """

    std: float = 0.01

    def __post_init__(self) -> None:
        check_positive("Gaussian", std=self.std)

    def fill(self, weight: Array, bias: Array, rng: np.random.Generator) -> None:
        """Draw W, then b."""
        weight[:] = rng.normal(0, self.std, weight.shape)
        bias[:] = rng.normal(0, self.std, bias.shape)


@dataclass(frozen=True)
class Glorot:
    """Uniform weights of a width that keeps signals of one size through the layers; zero biases.

    Example:
        >>> weight, bias = np.empty((2, 4)), np.empty(4)
        >>> Glorot().fill(weight, bias, np.random.default_rng(0))
        >>> bool(np.abs(weight).max() <= 1), bias.tolist()
        (True, [0.0, 0.0, 0.0, 0.0])
    """

    def fill(self, weight: Array, bias: Array, rng: np.random.Generator) -> None:
        """Draw W; b = 0."""
        half_width = np.sqrt(6 / sum(weight.shape))
        weight[:] = rng.uniform(-half_width, half_width, weight.shape)
        bias[:] = 0
