"""The two steps with weights, dense or sparse, in float32 or 8 bits; see `c_steps`."""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from bayesieve.deliver._c_text import Lines, array, indent, index_bytes, loop
from bayesieve.deliver.c_steps import Pair, Shape, Step, per_row
from bayesieve.deliver.quantise import quantise_rows


@dataclass(frozen=True, eq=False)
class Weights:
    """Rows of weights: `values`, times a scale per row where there is one, and a bias per row.

    Args:
        values: (rows, ...), float32, or int8 with a scale.
        bias: (rows,).
        n_read: entries of the array that the rows read from.
        scale: (rows,) or None for 1.
    """

    values: Tensor
    bias: Tensor
    n_read: int
    scale: Tensor | None = None

    def real(self) -> Tensor:
        """The weights as numbers."""
        if self.scale is None:
            return self.values
        return self.values.float() * per_row(self.scale, self.values)

    def scaled(self, factor: Tensor, shift: Tensor) -> "Weights":
        """The rows after an affine map of each output: a BatchNorm folded in."""
        bias = self.bias * factor + shift
        if self.scale is None:
            return replace(self, values=self.values * per_row(factor, self.values), bias=bias)
        return replace(self, scale=self.scale * factor, bias=bias)

    def in_int8(self) -> "Weights":
        """The same rows with 8-bit values."""
        if self.scale is not None:
            return self
        values, scale = quantise_rows(self.values)
        return replace(self, values=values, scale=scale)

    @property
    def is_sparse(self) -> bool:
        """Whether index and value of each nonzero take fewer bytes than all values."""
        size, n_nonzero = self.values.element_size(), int(self.values.count_nonzero())
        sparse = n_nonzero * (size + index_bytes(self.n_read - 1))
        sparse += (len(self.values) + 1) * index_bytes(n_nonzero)
        return sparse < self.values.numel() * size

    def n_stored(self) -> int:
        """Values written out."""
        return int(self.values.count_nonzero()) if self.is_sparse else self.values.numel()

    def arrays(self, name: str, positions: Tensor) -> Lines:
        """Constants: values, the input position of each (sparse only), scales, biases.

        Args:
            name: how they begin.
            positions: (rows, columns), where in the input each weight reads.
        """
        rows = self.values.flatten(1)
        lines = []
        if self.is_sparse:
            kept = rows != 0
            start = torch.cat([torch.zeros(1, dtype=torch.int64), kept.sum(1).cumsum(0)])
            lines += array(f"{name}_start", start) + array(f"{name}_index", positions[kept])
            lines += array(f"{name}_weight", rows[kept])
        else:
            lines += array(f"{name}_weight", rows.flatten())
        if self.scale is not None:
            lines += array(f"{name}_scale", self.scale)
        return lines + array(f"{name}_bias", self.bias)

    def finish(self, name: str, row: str, value: str) -> str:
        """The C expression of a row's output from the sum `value`."""
        scaled = value if self.scale is None else f"{value} * {name}_scale[{row}]"
        return f"{scaled} + {name}_bias[{row}]"


@dataclass(frozen=True, eq=False)
class LinearStep:
    """Rows of weights times the input."""

    weights: Weights

    @property
    def source(self) -> Shape:
        """One number per column."""
        return (self.weights.values.shape[1],)

    @property
    def shape(self) -> Shape:
        """One number per row."""
        return (len(self.weights.values),)

    @property
    def macs(self) -> int:
        """One per stored weight."""
        return self.weights.n_stored()

    def run(self, x: Tensor) -> Tensor:
        """The layer in torch."""
        return F.linear(x, self.weights.real(), self.weights.bias)

    def arrays(self, name: str) -> Lines:
        """Weights."""
        n_rows, n_columns = self.weights.values.shape
        return self.weights.arrays(name, torch.arange(n_columns).expand(n_rows, -1))

    def code(self, name: str, source: str, target: str) -> Lines:
        """A dot product per row."""
        n_rows, n_columns = self.weights.values.shape
        if self.weights.is_sparse:
            head = loop("k", f"{name}_start[i + 1]", f"{name}_start[i]")
            term = f"{name}_weight[k] * {source}[{name}_index[k]]"
        else:
            head = loop("k", n_columns)
            term = f"{name}_weight[i * {n_columns} + k] * {source}[k]"
        return [
            f"{loop('i', n_rows)} {{",
            "    float sum = 0.0f;",
            f"    {head} sum += {term};",
            f"    {target}[i] = {self.weights.finish(name, 'i', 'sum')};",
            "}",
        ]


@dataclass(frozen=True, eq=False)
class ConvStep:
    """A convolution without padding: each weight times a shifted plane of the input.

    Args:
        weights: values (out, in / groups, height, width).
        source: shape of the input, (channels, height, width).
        stride: rows, columns.
        dilation: rows, columns.
        groups: of channels that do not mix.
    """

    weights: Weights
    source: Shape
    stride: Pair
    dilation: Pair
    groups: int

    @property
    def shape(self) -> Shape:
        """Channels, rows, columns."""
        kernel = self.weights.values.shape[2:]
        sides = (
            (side - dilation * (size - 1) - 1) // stride + 1
            for side, size, stride, dilation in zip(
                self.source[1:], kernel, self.stride, self.dilation, strict=True
            )
        )
        return (len(self.weights.values), *sides)

    @property
    def macs(self) -> int:
        """One per stored weight and output position."""
        return self.weights.n_stored() * math.prod(self.shape[1:])

    def run(self, x: Tensor) -> Tensor:
        """The layer in torch."""
        weight, bias = self.weights.real(), self.weights.bias
        return F.conv2d(x, weight, bias, self.stride, 0, self.dilation, self.groups)

    def _positions(self) -> Tensor:
        """Where in the input the weights of each row begin to read, (out, weights of a row)."""
        n_out, n_in, n_high, n_wide = self.weights.values.shape
        _, height, width = self.source
        group = torch.arange(n_out) // (n_out // self.groups)
        channel = group[:, None] * n_in + torch.arange(n_in)
        row = torch.arange(n_high) * self.dilation[0]
        column = torch.arange(n_wide) * self.dilation[1]
        position = channel[..., None] * height + row
        return (position[..., None] * width + column).flatten(1)

    def arrays(self, name: str) -> Lines:
        """Weights."""
        return self.weights.arrays(name, self._positions())

    def code(self, name: str, source: str, target: str) -> Lines:
        """Planes added up weight by weight, so that the inner loop runs along the image."""
        n_out, n_in, n_high, n_wide = self.weights.values.shape
        _, height, width = self.source
        _, out_high, out_wide = self.shape
        area = out_high * out_wide
        read = f"row * {self.stride[0] * width} + col * {self.stride[1]}"
        add = [
            f"{loop('row', out_high)} {{",
            f"    {loop('col', out_wide)} out[row * {out_wide} + col] += v * in[{read}];",
            "}",
        ]
        if self.weights.is_sparse:
            body = [
                f"{loop('k', f'{name}_start[i + 1]', f'{name}_start[i]')} {{",
                f"    const float v = {name}_weight[k];",
                f"    const float *in = {source} + {name}_index[k];",
                *indent(add),
                "}",
            ]
        else:
            per_group = n_out // self.groups
            first = f"(i / {per_group} * {n_in} + c)" if self.groups > 1 else "c"
            steps = self.dilation[0] * width, self.dilation[1]
            start = f"{first} * {height * width} + p * {steps[0]} + q * {steps[1]}"
            body = [
                f"{loop('c', n_in)} {loop('p', n_high)} {loop('q', n_wide)} {{",
                f"    const float v = {name}_weight"
                f"[((i * {n_in} + c) * {n_high} + p) * {n_wide} + q];",
                f"    const float *in = {source} + {start};",
                *indent(add),
                "}",
            ]
        finish = self.weights.finish(name, "i", "out[p]")
        return [
            f"{loop('i', n_out)} {{",
            f"    float *out = {target} + i * {area};",
            f"    {loop('p', area)} out[p] = 0.0f;",
            *indent(body),
            f"    {loop('p', area)} out[p] = {finish};",
            "}",
        ]


def in_int8(step: Step) -> Step:
    """The step with 8-bit weights, if it has weights."""
    if isinstance(step, LinearStep | ConvStep):
        return replace(step, weights=step.weights.in_int8())
    return step
