"""Functions of a perceptron, each beside its derivative: activations, penalties, losses, starts.

Arrays are float32 or float64; rows are examples. B is the batch size, K the number of outputs.

Activations a = g(z). `backward(a, upstream)` turns dL/da into dL/dz. Each derivative is written in
terms of the output a, so that z need not be kept:

    ReLU     max(0, z)            1[a > 0]                 (0 at 0)
    sigmoid  1 / (1 + exp(-z))    a (1 - a)
    tanh     tanh(z)              1 - a²
    linear   z                    1
    softmax  exp(z) / Σ exp(z)    diag(a) - a aᵀ           (a matrix for each row)

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

    def __call__(self, z: Array) -> Array:
        """Return a = g(z), shape (B, n)."""

    def backward(self, a: Array, upstream: Array) -> Array:
        """Return dL/dz from the output a and dL/da, shape (B, n)."""


@dataclass(frozen=True)
class ReLU:
    """max(0, z).

    Example:
        >>> ReLU()(np.array([[-1.0, 0.0, 2.0]])).tolist()
        [[0.0, 0.0, 2.0]]
    """

    def __call__(self, z: Array) -> Array:
        """Return max(0, z)."""
        return np.maximum(z, 0)

    def backward(self, a: Array, upstream: Array) -> Array:
        """Return dL/da where a > 0, else 0."""
        return upstream * (a > 0)


@dataclass(frozen=True)
class Sigmoid:
    """1 / (1 + exp(-z)), computed as (1 + tanh(z / 2)) / 2, which cannot overflow.

    Example:
        >>> Sigmoid()(np.array([[-1000.0, 0.0, 1000.0]])).tolist()
        [[0.0, 0.5, 1.0]]
    """

    def __call__(self, z: Array) -> Array:
        """Return (1 + tanh(z / 2)) / 2."""
        return 0.5 * (1 + np.tanh(0.5 * z))

    def backward(self, a: Array, upstream: Array) -> Array:
        """Return dL/da · a (1 - a)."""
        return (1 - a) * a * upstream


@dataclass(frozen=True)
class Tanh:
    """tanh(z).

    Example:
        >>> Tanh()(np.array([[0.0, 100.0]])).tolist()
        [[0.0, 1.0]]
    """

    def __call__(self, z: Array) -> Array:
        """Return tanh(z)."""
        return np.tanh(z)

    def backward(self, a: Array, upstream: Array) -> Array:
        """Return dL/da · (1 - a²)."""
        return (1 - a * a) * upstream


@dataclass(frozen=True)
class Linear:
    """The identity, for regression outputs.

    Example:
        >>> Linear()(np.array([[-3.0]])).tolist()
        [[-3.0]]
    """

    def __call__(self, z: Array) -> Array:
        """Return z."""
        return z

    def backward(self, a: Array, upstream: Array) -> Array:
        """Return dL/da."""
        return upstream


@dataclass(frozen=True)
class Softmax:
    """exp(z) / Σ exp(z) over each row; subtracting the row's maximum changes nothing else.

    Example:
        >>> Softmax()(np.array([[10_000.0, 10_000.0]])).tolist()
        [[0.5, 0.5]]
    """

    def __call__(self, z: Array) -> Array:
        """Return exp(z - max z) / Σ exp(z - max z)."""
        powers: Array = np.exp(z - z.max(axis=1, keepdims=True))
        return powers / powers.sum(axis=1, keepdims=True)

    def backward(self, a: Array, upstream: Array) -> Array:
        """Return a (dL/da - <dL/da, a>): the Jacobian's product without the Jacobian."""
        inner = np.einsum("ij,ij->i", upstream, a)[:, None]
        return (upstream - inner) * a


class Penalty(Protocol):
    """Protocol of a penalty."""

    def value(self, weights: Array) -> float:
        """The penalty of a flat vector of weights."""

    def gradient(self, weights: Array) -> Array:
        """The gradient of the penalty, of the shape of the weights."""


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

    def gradient(self, weights: Array) -> Array:
        """Return c sign(W)."""
        return self.strength * np.sign(weights)


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

    def gradient(self, weights: Array) -> Array:
        """Return c W."""
        return self.strength * weights


class Loss(Protocol):
    """Protocol of a loss."""

    @property
    def penalty(self) -> Penalty | None:
        """The penalty on the weights, if any."""

    def __call__(self, predicted: Array, target: Array) -> float:
        """Return the mean loss of a batch."""

    def gradient(self, predicted: Array, target: Array) -> Array:
        """Return d loss / d predicted, shape (B, K)."""


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

    def gradient(self, predicted: Array, target: Array) -> Array:
        """Return 2 (p - y) / (BK)."""
        return (predicted - target) * (2 / predicted.size)


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

    def gradient(self, predicted: Array, target: Array) -> Array:
        """Return -y / (p B), the gradient with respect to probabilities."""
        return target / np.maximum(predicted, _least(predicted)) * (-1 / len(predicted))

    def gradient_before_softmax(self, predicted: Array, target: Array) -> Array:
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
        return (predicted - target) * (1 / len(predicted))


def _least(predicted: Array) -> float:
    return float(np.finfo(predicted.dtype).tiny)


class Initialiser(Protocol):
    """Protocol of an initialiser."""

    def fill(self, weight: Array, bias: Array, rng: np.random.Generator) -> None:
        """Overwrite a layer's weight, shape (n_in, n_out), and bias, shape (n_out,)."""


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
