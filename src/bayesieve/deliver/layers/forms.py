"""Kinds of layers, each with its shapes and with what it computes in torch.

Shapes are without the batch axis. A layer reads its input flat, channels before rows before
columns, as torch lays it out: flattening is no layer.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol, Self

import torch
from torch import Tensor
from torch.nn import functional as F

Shape = tuple[int, ...]
Pair = tuple[int, int]


class Layer(Protocol):
    """One layer."""

    @property
    def source(self) -> Shape:
        """Shape of the input."""
        ...

    @property
    def shape(self) -> Shape:
        """Shape of the output."""
        ...

    @property
    def run(self) -> Callable[[Tensor], Tensor]:
        """The layer in torch, on (n, *source)."""
        ...


class _Weighted:
    """Layers with rows of weights and one bias per row."""

    name: str
    weight: Tensor
    bias: Tensor

    def scaled(self, factor: Tensor, shift: Tensor) -> Self:
        """The layer followed by a factor and a shift per row: a BatchNorm folded in."""
        weight = self.weight * per_row(factor, self.weight)
        return replace(self, weight=weight, bias=self.bias * factor + shift)  # type: ignore[type-var]


@dataclass(frozen=True, eq=False)
class Linear(_Weighted):
    """Rows of weights times the input, plus a bias.

    Args:
        name: of the layer in the module.
        weight: (rows, columns).
        bias: (rows,).
    """

    name: str
    weight: Tensor
    bias: Tensor

    @property
    def source(self) -> Shape:
        """One number per column."""
        return (self.weight.shape[1],)

    @property
    def shape(self) -> Shape:
        """One number per row."""
        return (len(self.weight),)

    def run(self, x: Tensor) -> Tensor:
        """The layer in torch."""
        return F.linear(x, self.weight, self.bias)


@dataclass(frozen=True, eq=False)
class Conv(_Weighted):
    """A convolution of images without padding.

    Args:
        name: of the layer in the module.
        weight: (out, in / groups, height, width).
        bias: (out,).
        source: shape of the input, (channels, height, width).
        stride: rows, columns.
        dilation: rows, columns.
        groups: of channels that do not mix.
    """

    name: str
    weight: Tensor
    bias: Tensor
    source: Shape
    stride: Pair
    dilation: Pair
    groups: int

    @property
    def shape(self) -> Shape:
        """Channels, rows, columns."""
        sides = (
            (side - dilation * (size - 1) - 1) // stride + 1
            for side, size, stride, dilation in zip(
                self.source[1:], self.weight.shape[2:], self.stride, self.dilation, strict=True
            )
        )
        return (len(self.weight), *sides)

    def run(self, x: Tensor) -> Tensor:
        """The layer in torch."""
        return F.conv2d(x, self.weight, self.bias, self.stride, 0, self.dilation, self.groups)


@dataclass(frozen=True)
class Pad:
    """Zeros around an image.

    Args:
        source: shape of the input, (channels, height, width).
        margins: left, right, top, bottom.
    """

    source: Shape
    margins: tuple[int, int, int, int]

    @property
    def shape(self) -> Shape:
        """Channels, rows, columns."""
        left, right, top, bottom = self.margins
        channels, height, width = self.source
        return (channels, top + height + bottom, left + width + right)

    def run(self, x: Tensor) -> Tensor:
        """The layer in torch."""
        return F.pad(x, self.margins)


@dataclass(frozen=True)
class Pool:
    """The largest entry, or the mean, of windows of an image.

    Args:
        source: shape of the input, (channels, height, width).
        kind: "max" or "mean".
        kernel: rows, columns.
        stride: rows, columns.
        padding: rows, columns; the largest entry ignores it, the mean counts it as zeros.
        divisor: of the mean; 0 is the area of the kernel.
    """

    source: Shape
    kind: Literal["max", "mean"]
    kernel: Pair
    stride: Pair
    padding: Pair = (0, 0)
    divisor: int = 0

    @property
    def shape(self) -> Shape:
        """Channels, rows, columns."""
        sides = (
            (side + 2 * padding - size) // stride + 1
            for side, size, stride, padding in zip(
                self.source[1:], self.kernel, self.stride, self.padding, strict=True
            )
        )
        return (self.source[0], *sides)

    @property
    def divided_by(self) -> int:
        """Divisor of the mean."""
        return self.divisor or math.prod(self.kernel)

    def run(self, x: Tensor) -> Tensor:
        """The layer in torch."""
        if self.kind == "max":
            return F.max_pool2d(x, self.kernel, self.stride, self.padding)
        return F.avg_pool2d(
            x, self.kernel, self.stride, self.padding, divisor_override=self.divided_by
        )


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "ReLU": F.relu, "Tanh": torch.tanh, "Sigmoid": torch.sigmoid, "SiLU": F.silu, "GELU": F.gelu,
}  # fmt: skip


@dataclass(frozen=True)
class Activation:
    """A function of every entry.

    Args:
        shape: of input and output.
        kind: name of torch's module: a key of `ACTIVATIONS`, or "LeakyReLU".
        slope: of a leaky ReLU.
    """

    shape: Shape
    kind: str
    slope: float = 0.0

    @property
    def source(self) -> Shape:
        """As the output."""
        return self.shape

    def run(self, x: Tensor) -> Tensor:
        """The layer in torch."""
        if self.kind == "LeakyReLU":
            return F.leaky_relu(x, self.slope)
        return ACTIVATIONS[self.kind](x)


@dataclass(frozen=True, eq=False)
class Scale:
    """A factor and a shift per channel: a BatchNorm with no layer before it to fold into."""

    shape: Shape
    factor: Tensor
    shift: Tensor

    @property
    def source(self) -> Shape:
        """As the output."""
        return self.shape

    def run(self, x: Tensor) -> Tensor:
        """The layer in torch."""
        return x * per_row(self.factor, x[0]) + per_row(self.shift, x[0])


@dataclass(frozen=True, eq=False)
class Select:
    """Some features (or channels) of the input, by number.

    Args:
        source: shape of the input.
        index: which entries of its first axis, (kept,) int64.
    """

    source: Shape
    index: Tensor

    @property
    def shape(self) -> Shape:
        """The selected features."""
        return (len(self.index), *self.source[1:])

    def run(self, x: Tensor) -> Tensor:
        """The layer in torch."""
        return x.index_select(1, self.index)


@dataclass(frozen=True, eq=False)
class Call:
    """An operation that stays torch's.

    Args:
        name: of the call in the traced network.
        source: shape of the input.
        shape: of the output.
        run: the call, on (n, *source).
    """

    name: str
    source: Shape
    shape: Shape
    run: Callable[[Tensor], Tensor]


def run_layers(layers: Sequence[Layer], x: Tensor) -> Tensor:
    """Run layers one after another in torch, on inputs (n, ...)."""
    with torch.no_grad():
        for layer in layers:
            x = layer.run(x.reshape(len(x), *layer.source))
    return x


def per_row(values: Tensor, like: Tensor) -> Tensor:
    """A vector shaped to broadcast along the first axis of `like`."""
    return values.view(-1, *[1] * (like.dim() - 1))
