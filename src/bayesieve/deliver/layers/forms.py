"""Kinds of layers, each with what it computes in torch.

Shapes are without the batch axis. A layer reads its input flat, channels before rows before
columns, as torch lays it out: flattening is no layer.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, Self

import torch
from torch import Tensor
from torch.nn import functional as F

Shape = tuple[int, ...]
Pair = tuple[int, int]


@dataclass(frozen=True, eq=False)
class Layer(ABC):
    """One layer.

    Args:
        source: shape of the input.
    """

    source: Shape

    @abstractmethod
    def run(self, x: Tensor) -> Tensor:
        """The layer in torch, on (n, *source)."""

    @cached_property
    def shape(self) -> Shape:
        """Shape of the output."""
        with torch.no_grad():
            return tuple(self.run(torch.zeros(1, *self.source)).shape[1:])


@dataclass(frozen=True, eq=False)
class Weighted(Layer):
    """Layers with rows of weights and one bias per row.

    Args:
        name: of the layer in the module.
        weight: (rows, ...).
        bias: (rows,).
    """

    name: str
    weight: Tensor
    bias: Tensor

    def scaled(self, factor: Tensor, shift: Tensor) -> Self:
        """The layer followed by a factor and a shift per row: a BatchNorm folded in."""
        weight = self.weight * per_row(factor, self.weight)
        return replace(self, weight=weight, bias=self.bias * factor + shift)


@dataclass(frozen=True, eq=False)
class Linear(Weighted):
    """Rows of weights, (rows, columns), times the input, plus a bias."""

    def run(self, x: Tensor) -> Tensor:
        """Multiply and add."""
        return F.linear(x, self.weight, self.bias)


@dataclass(frozen=True, eq=False)
class Conv(Weighted):
    """A convolution of images, (channels, height, width), without padding.

    Its weight is (out, in / groups, height, width).

    Args:
        stride: rows, columns.
        dilation: rows, columns.
        groups: of channels that do not mix.
    """

    stride: Pair
    dilation: Pair
    groups: int

    def run(self, x: Tensor) -> Tensor:
        """Convolve."""
        return F.conv2d(x, self.weight, self.bias, self.stride, 0, self.dilation, self.groups)


@dataclass(frozen=True, eq=False)
class Pad(Layer):
    """Zeros around an image, (channels, height, width).

    Args:
        margins: left, right, top, bottom.
    """

    margins: tuple[int, int, int, int]

    def run(self, x: Tensor) -> Tensor:
        """Add the margins."""
        return F.pad(x, self.margins)


@dataclass(frozen=True, eq=False)
class Pool(Layer):
    """The largest entry, or the mean, of windows of an image, (channels, height, width).

    Args:
        kind: "max" or "mean".
        kernel: rows, columns.
        stride: rows, columns.
        padding: rows, columns; the largest entry ignores it, the mean counts it as zeros.
        divisor: of the mean; 0 is the area of the kernel.
    """

    kind: Literal["max", "mean"]
    kernel: Pair
    stride: Pair
    padding: Pair = (0, 0)
    divisor: int = 0

    @property
    def divided_by(self) -> int:
        """Divisor of the mean."""
        return self.divisor or math.prod(self.kernel)

    def run(self, x: Tensor) -> Tensor:
        """Pool every window."""
        windows = (self.kernel, self.stride, self.padding)
        if self.kind == "max":
            return F.max_pool2d(x, *windows)
        return F.avg_pool2d(x, *windows, divisor_override=self.divided_by)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "ReLU": F.relu, "Tanh": torch.tanh, "Sigmoid": torch.sigmoid, "SiLU": F.silu, "GELU": F.gelu,
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Activation(Layer):
    """A function of every entry.

    Args:
        kind: name of torch's module: a key of `ACTIVATIONS`, or "LeakyReLU".
        slope: of a leaky ReLU.
    """

    kind: str
    slope: float = 0.0

    def run(self, x: Tensor) -> Tensor:
        """Apply the function."""
        if self.kind == "LeakyReLU":
            return F.leaky_relu(x, self.slope)
        return ACTIVATIONS[self.kind](x)


@dataclass(frozen=True, eq=False)
class Scale(Layer):
    """A factor and a shift per channel: a BatchNorm with no layer before it to fold into."""

    factor: Tensor
    shift: Tensor

    def run(self, x: Tensor) -> Tensor:
        """Multiply and add."""
        return x * per_row(self.factor, x[0]) + per_row(self.shift, x[0])


@dataclass(frozen=True, eq=False)
class Select(Layer):
    """Some features (or channels) of the input, by number.

    Args:
        index: which entries of the first axis, (kept,) int64.
    """

    index: Tensor

    def run(self, x: Tensor) -> Tensor:
        """Take the entries."""
        return x.index_select(1, self.index)


@dataclass(frozen=True, eq=False)
class Call(Layer):
    """An operation that stays torch's.

    Args:
        name: of the call in the traced network.
        function: the call, on (n, *source).
    """

    name: str
    function: Callable[[Tensor], Tensor]

    def run(self, x: Tensor) -> Tensor:
        """Call torch."""
        return self.function(x)


def run_layers(layers: Sequence[Layer], x: Tensor) -> Tensor:
    """Run layers one after another in torch, on inputs (n, ...)."""
    with torch.no_grad():
        for layer in layers:
            x = layer.run(x.reshape(len(x), *layer.source))
    return x


def per_row(values: Tensor, like: Tensor) -> Tensor:
    """A vector shaped to broadcast along the first axis of `like`."""
    return values.view(-1, *[1] * (like.dim() - 1))
