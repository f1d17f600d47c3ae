"""The steps of a chain of layers: what each computes in torch, and the C that does the same.

Every step reads one flat array and writes another, channels before rows before columns, as torch
lays them out. `run` is the step in torch: it checks the translation of the layers, while the
translation to C is checked by compiling it. Steps with weights are in `c_weights`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from bayesieve.deliver._c_text import Lines, array, indent, loop, number

Shape = tuple[int, ...]
Pair = tuple[int, int]


class Step(Protocol):
    """One loop nest of the C function."""

    @property
    def source(self) -> Shape:
        """Of the input, without the batch axis."""
        ...

    @property
    def shape(self) -> Shape:
        """Of the output, without the batch axis."""
        ...

    @property
    def macs(self) -> int:
        """Multiplications with a weight, per input."""
        ...

    def run(self, x: Tensor) -> Tensor:
        """The step in torch, on (n, ...)."""
        ...

    def arrays(self, name: str) -> Lines:
        """Declarations of its constants, which begin with `name`."""
        ...

    def code(self, name: str, source: str, target: str) -> Lines:
        """Statements from array `source` to array `target`."""
        ...


@dataclass(frozen=True)
class PadStep:
    """Zeros around an image.

    Args:
        source: shape of the input, (channels, height, width).
        margins: left, right, top, bottom.
    """

    source: Shape
    margins: tuple[int, int, int, int]
    macs: int = 0

    @property
    def shape(self) -> Shape:
        """Channels, rows, columns."""
        left, right, top, bottom = self.margins
        channels, height, width = self.source
        return (channels, top + height + bottom, left + width + right)

    def run(self, x: Tensor) -> Tensor:
        """Zeros around an image."""
        return F.pad(x, self.margins)

    def arrays(self, name: str) -> Lines:
        """None."""
        return []

    def code(self, name: str, source: str, target: str) -> Lines:
        """All zeros, then the image."""
        channels, height, width = self.source
        _, high, wide = self.shape
        into = f"(i * {high} + row + {self.margins[2]}) * {wide} + col + {self.margins[0]}"
        return [
            f"{loop('i', math.prod(self.shape))} {target}[i] = 0.0f;",
            f"{loop('i', channels)} {loop('row', height)} {loop('col', width)} {{",
            f"    {target}[{into}] = {source}[(i * {height} + row) * {width} + col];",
            "}",
        ]


@dataclass(frozen=True)
class PoolStep:
    """The largest or the mean entry of windows of an image.

    Args:
        source: shape of the input, (channels, height, width).
        kind: which of the two.
        kernel: rows, columns.
        stride: rows, columns.
        padding: rows, columns; outside the image the largest entry ignores, the mean counts zeros.
        divisor: of the mean: `kernel`'s area, unless told otherwise.
    """

    source: Shape
    kind: Literal["max", "mean"]
    kernel: Pair
    stride: Pair
    padding: Pair = (0, 0)
    divisor: int = 0
    macs: int = 0

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

    def run(self, x: Tensor) -> Tensor:
        """The layer in torch."""
        if self.kind == "max":
            return F.max_pool2d(x, self.kernel, self.stride, self.padding)
        return F.avg_pool2d(
            x, self.kernel, self.stride, self.padding, divisor_override=self._divisor
        )

    @property
    def _divisor(self) -> int:
        return self.divisor or self.kernel[0] * self.kernel[1]

    def arrays(self, name: str) -> Lines:
        """None."""
        return []

    def code(self, name: str, source: str, target: str) -> Lines:
        """A window at a time."""
        _, height, width = self.source
        channels, out_high, out_wide = self.shape
        row = f"row * {self.stride[0]} + p - {self.padding[0]}"
        column = f"col * {self.stride[1]} + q - {self.padding[1]}"
        window = [f"const int32_t r = {row}, c = {column};"]
        if any(self.padding):
            window.append(f"if (r < 0 || r >= {height} || c < 0 || c >= {width}) continue;")
        value = f"{source}[(i * {height} + r) * {width} + c]"
        if self.kind == "max":
            window += [f"const float v = {value};", "if (v > best) best = v;"]
            begin, end = "float best = -FLT_MAX;", "best"
        else:
            window.append(f"sum += {value};")
            begin, end = "float sum = 0.0f;", f"sum * {number(1 / self._divisor)}"
        return [
            f"{loop('i', channels)} {loop('row', out_high)} {loop('col', out_wide)} {{",
            f"    {begin}",
            f"    {loop('p', self.kernel[0])} {loop('q', self.kernel[1])} {{",
            *indent(indent(window)),
            "    }",
            f"    {target}[(i * {out_high} + row) * {out_wide} + col] = {end};",
            "}",
        ]


@dataclass(frozen=True)
class ActivationStep:
    """A function of every entry."""

    shape: Shape
    kind: str
    macs: int = 0

    @property
    def source(self) -> Shape:
        """As the output."""
        return self.shape

    def run(self, x: Tensor) -> Tensor:
        """The layer in torch."""
        functions: dict[str, Callable[[Tensor], Tensor]] = {
            "ReLU": F.relu, "Tanh": torch.tanh, "Sigmoid": torch.sigmoid, "SiLU": F.silu,
        }  # fmt: skip
        return functions[self.kind](x)

    def arrays(self, name: str) -> Lines:
        """None."""
        return []

    def code(self, name: str, source: str, target: str) -> Lines:
        """Entry by entry."""
        return [
            f"{loop('i', math.prod(self.shape))} {{",
            f"    const float v = {source}[i];",
            f"    {target}[i] = {ACTIVATIONS[self.kind]};",
            "}",
        ]


ACTIVATIONS = {
    "ReLU": "v < 0.0f ? 0.0f : v",
    "Tanh": "tanhf(v)",
    "Sigmoid": "1.0f / (1.0f + expf(-v))",
    "SiLU": "v / (1.0f + expf(-v))",
}


@dataclass(frozen=True, eq=False)
class AffineStep:
    """A factor and a shift per channel: a BatchNorm with no layer before it to fold into."""

    shape: Shape
    factor: Tensor
    shift: Tensor

    @property
    def macs(self) -> int:
        """One per entry."""
        return math.prod(self.shape)

    @property
    def source(self) -> Shape:
        """As the output."""
        return self.shape

    def run(self, x: Tensor) -> Tensor:
        """The layer in torch."""
        return x * per_row(self.factor, x[0]) + per_row(self.shift, x[0])

    def arrays(self, name: str) -> Lines:
        """Factors and shifts."""
        return array(f"{name}_factor", self.factor) + array(f"{name}_shift", self.shift)

    def code(self, name: str, source: str, target: str) -> Lines:
        """Channel by channel."""
        block = math.prod(self.shape[1:])
        at = f"i * {block} + k"
        return [
            f"{loop('i', self.shape[0])} {loop('k', block)} {{",
            f"    {target}[{at}] = {source}[{at}] * {name}_factor[i] + {name}_shift[i];",
            "}",
        ]


@dataclass(frozen=True, eq=False)
class SelectStep:
    """Some features (or channels) of the input, by number.

    Args:
        source: shape of the input.
        index: which entries of its first axis, (kept,).
    """

    source: Shape
    index: Tensor
    macs: int = 0

    @property
    def shape(self) -> Shape:
        """The kept features."""
        return (len(self.index), *self.source[1:])

    def run(self, x: Tensor) -> Tensor:
        """The selection in torch."""
        return x.index_select(1, self.index)

    def arrays(self, name: str) -> Lines:
        """The numbers."""
        return array(f"{name}_index", self.index)

    def code(self, name: str, source: str, target: str) -> Lines:
        """Block by block."""
        block = math.prod(self.source[1:])
        return [
            f"{loop('i', len(self.index))} {loop('k', block)} {{",
            f"    {target}[i * {block} + k] = {source}[{name}_index[i] * {block} + k];",
            "}",
        ]


def per_row(values: Tensor, like: Tensor) -> Tensor:
    """A vector shaped to broadcast along the first axis of `like`."""
    return values.view(-1, *[1] * (like.dim() - 1))
