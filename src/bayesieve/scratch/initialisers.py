"""Starting values of one layer: a weight matrix of shape (n_in, n_out) and its biases.

    random     W, b ~ U(-w, w)
    gaussian   W, b ~ N(0, s²)
    glorot     W ~ U(-w, w) with w = √(6 / (n_in + n_out)), b = 0; variance 2 / (n_in + n_out)

Numbers are drawn in float64 and then rounded, so a float32 net starts where its float64 twin does.

Departures: the source gives neither a range nor a scale; U(0, 1) and N(0, 1) saturate every unit of
a layer of 500, so ours are small.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from bayesieve.checks import check_positive
from bayesieve.scratch.arrays import Array


class Initialiser(Protocol):
    """What the network asks of an initialiser."""

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
