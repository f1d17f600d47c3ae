"""The C of each kind of layer: constant arrays, and statements from one flat array to another."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from bayesieve.deliver.layers import (
    Activation,
    Conv,
    Layer,
    Linear,
    Pad,
    Pool,
    Scale,
    Select,
    Weighted,
    per_row,
)

Lines = list[str]
_WIDTH = 100
_LEVELS = 127  # of an 8-bit integer, each side of 0
_ACTIVATIONS = {
    "ReLU": "v < 0.0f ? 0.0f : v",
    "Tanh": "tanhf(v)",
    "Sigmoid": "1.0f / (1.0f + expf(-v))",
    "SiLU": "v / (1.0f + expf(-v))",
}


@dataclass(frozen=True)
class Piece:
    """One layer in C.

    Args:
        body: statements from the array it reads to the array it writes.
        arrays: declarations of its constants.
        macs: multiplications with a weight, per input.
    """

    body: Lines
    arrays: Lines
    macs: int = 0


def write_layer(layer: Layer, name: str, source: str, target: str, *, int8: bool) -> Piece:
    """Translate a layer.

    Args:
        layer: any but a `Call`.
        name: how its constants begin.
        source: the array that it reads.
        target: the array that it writes.
        int8: whether weights become 8-bit integers.
    """
    if isinstance(layer, Weighted):
        n_read = math.prod(layer.source)
        rows = _Rows(layer.weight, layer.bias, n_read)
        if int8:
            whole, scale = quantise_rows(layer.weight)
            rows = _Rows(whole, layer.bias, n_read, scale)
        write = _linear if isinstance(layer, Linear) else _conv
        return write(layer, rows, name, source, target)  # type: ignore[arg-type]
    return _WRITERS[type(layer)](layer, name, source, target)


# --------------------------------------------------------------------------------------- weights


def quantise_rows(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Round weights to 8-bit integers q with one scale s_r per row.

        w ≈ s_r q,   s_r = max |w_r| / 127,   q = round(w / s_r) in -127..127                (1)

    The error of a weight is at most s_r / 2, and zeros stay exact zeros.

    Returns:
        Integers, int8 of the weight's shape, and scales, (rows,).

    Example:
        >>> whole, scale = quantise_rows(torch.tensor([[1.0, -0.5, 0.0], [0.0, 0.0, 0.0]]))
        >>> whole.tolist(), [round(s, 5) for s in scale.tolist()]
        ([[127, -64, 0], [0, 0, 0]], [0.00787, 1.0])
    """
    if not bool(weight.isfinite().all()):
        raise ValueError("quantise: weights must be finite; this layer holds inf or NaN.")
    rows = weight.detach().flatten(1)
    scale = rows.abs().amax(1) / _LEVELS
    scale = torch.where(scale > 0, scale, torch.ones_like(scale))  # a row of zeros
    whole = (rows / scale[:, None]).round().clamp(-_LEVELS, _LEVELS).to(torch.int8)
    return whole.view(weight.shape), scale


def rounded(layer: Layer) -> Layer:
    """The layer with its weights as 8-bit integers can state them (eq. 1)."""
    if not isinstance(layer, Weighted):
        return layer
    whole, scale = quantise_rows(layer.weight)
    return replace(layer, weight=whole.float() * per_row(scale, whole))


@dataclass(frozen=True, eq=False)
class _Rows:
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

    @property
    def is_sparse(self) -> bool:
        """Whether index and value of each nonzero take fewer bytes than all values."""
        size, n_nonzero = self.values.element_size(), int(self.values.count_nonzero())
        sparse = n_nonzero * (size + _index_bytes(self.n_read - 1))
        sparse += (len(self.values) + 1) * _index_bytes(n_nonzero)
        return sparse < self.values.numel() * size

    @property
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
            lines += _array(f"{name}_start", start) + _array(f"{name}_index", positions[kept])
            lines += _array(f"{name}_weight", rows[kept])
        else:
            lines += _array(f"{name}_weight", rows.flatten())
        if self.scale is not None:
            lines += _array(f"{name}_scale", self.scale)
        return lines + _array(f"{name}_bias", self.bias)

    def finish(self, name: str, row: str, value: str) -> str:
        """The C expression of a row's output from the sum `value`."""
        scaled = value if self.scale is None else f"{value} * {name}_scale[{row}]"
        return f"{scaled} + {name}_bias[{row}]"


def _linear(layer: Linear, rows: _Rows, name: str, source: str, target: str) -> Piece:
    """A dot product per row."""
    n_rows, n_columns = layer.weight.shape
    if rows.is_sparse:
        head = _loop("k", f"{name}_start[i + 1]", f"{name}_start[i]")
        product = f"{name}_weight[k] * {source}[{name}_index[k]]"
    else:
        head = _loop("k", n_columns)
        product = f"{name}_weight[i * {n_columns} + k] * {source}[k]"
    body = [
        f"{_loop('i', n_rows)} {{",
        "    float sum = 0.0f;",
        f"    {head} sum += {product};",
        f"    {target}[i] = {rows.finish(name, 'i', 'sum')};",
        "}",
    ]
    positions = torch.arange(n_columns).expand(n_rows, -1)
    return Piece(body, rows.arrays(name, positions), rows.n_stored)


def _conv(layer: Conv, rows: _Rows, name: str, source: str, target: str) -> Piece:
    """Planes added up weight by weight, so that the inner loop runs along the image."""
    n_out, n_in, n_high, n_wide = layer.weight.shape
    _, height, width = layer.source
    _, out_high, out_wide = layer.shape
    area = out_high * out_wide
    read = f"row * {layer.stride[0] * width} + col * {layer.stride[1]}"
    add = [
        f"{_loop('row', out_high)} {{",
        f"    {_loop('col', out_wide)} out[row * {out_wide} + col] += v * in[{read}];",
        "}",
    ]
    if rows.is_sparse:
        planes = [
            f"{_loop('k', f'{name}_start[i + 1]', f'{name}_start[i]')} {{",
            f"    const float v = {name}_weight[k];",
            f"    const float *in = {source} + {name}_index[k];",
            *indent(add),
            "}",
        ]
    else:
        first = f"(i / {n_out // layer.groups} * {n_in} + c)" if layer.groups > 1 else "c"
        steps = layer.dilation[0] * width, layer.dilation[1]
        start = f"{first} * {height * width} + p * {steps[0]} + q * {steps[1]}"
        planes = [
            f"{_loop('c', n_in)} {_loop('p', n_high)} {_loop('q', n_wide)} {{",
            f"    const float v = {name}_weight[((i * {n_in} + c) * {n_high} + p) * {n_wide} + q];",
            f"    const float *in = {source} + {start};",
            *indent(add),
            "}",
        ]
    body = [
        f"{_loop('i', n_out)} {{",
        f"    float *out = {target} + i * {area};",
        f"    {_loop('p', area)} out[p] = 0.0f;",
        *indent(planes),
        f"    {_loop('p', area)} out[p] = {rows.finish(name, 'i', 'out[p]')};",
        "}",
    ]
    return Piece(body, rows.arrays(name, _positions(layer)), rows.n_stored * area)


def _positions(layer: Conv) -> Tensor:
    """Where in the input the weights of each row begin to read, (out, weights of a row)."""
    n_out, n_in, n_high, n_wide = layer.weight.shape
    _, height, width = layer.source
    group = torch.arange(n_out) // (n_out // layer.groups)
    channel = group[:, None] * n_in + torch.arange(n_in)
    row = torch.arange(n_high) * layer.dilation[0]
    column = torch.arange(n_wide) * layer.dilation[1]
    position = channel[..., None] * height + row
    return (position[..., None] * width + column).flatten(1)


# -------------------------------------------------------------------------------- other layers


def _pad(layer: Pad, name: str, source: str, target: str) -> Piece:
    """All zeros, then the image."""
    channels, height, width = layer.source
    _, high, wide = layer.shape
    into = f"(i * {high} + row + {layer.margins[2]}) * {wide} + col + {layer.margins[0]}"
    body = [
        f"{_loop('i', math.prod(layer.shape))} {target}[i] = 0.0f;",
        f"{_loop('i', channels)} {_loop('row', height)} {_loop('col', width)} {{",
        f"    {target}[{into}] = {source}[(i * {height} + row) * {width} + col];",
        "}",
    ]
    return Piece(body, [])


def _pool(layer: Pool, name: str, source: str, target: str) -> Piece:
    """A window at a time."""
    _, height, width = layer.source
    channels, out_high, out_wide = layer.shape
    row = f"row * {layer.stride[0]} + p - {layer.padding[0]}"
    column = f"col * {layer.stride[1]} + q - {layer.padding[1]}"
    window = [f"const int32_t r = {row}, c = {column};"]
    if any(layer.padding):
        window.append(f"if (r < 0 || r >= {height} || c < 0 || c >= {width}) continue;")
    value = f"{source}[(i * {height} + r) * {width} + c]"
    if layer.kind == "max":
        window += [f"const float v = {value};", "if (v > best) best = v;"]
        begin, end = "float best = -FLT_MAX;", "best"
    else:
        window.append(f"sum += {value};")
        begin, end = "float sum = 0.0f;", f"sum * {_number(1 / layer.divided_by)}"
    body = [
        f"{_loop('i', channels)} {_loop('row', out_high)} {_loop('col', out_wide)} {{",
        f"    {begin}",
        f"    {_loop('p', layer.kernel[0])} {_loop('q', layer.kernel[1])} {{",
        *indent(indent(window)),
        "    }",
        f"    {target}[(i * {out_high} + row) * {out_wide} + col] = {end};",
        "}",
    ]
    return Piece(body, [])


def _activation(layer: Activation, name: str, source: str, target: str) -> Piece:
    """Entry by entry."""
    body = [
        f"{_loop('i', math.prod(layer.shape))} {{",
        f"    const float v = {source}[i];",
        f"    {target}[i] = {_ACTIVATIONS[layer.kind]};",
        "}",
    ]
    return Piece(body, [])


def _scale(layer: Scale, name: str, source: str, target: str) -> Piece:
    """Channel by channel."""
    block = math.prod(layer.shape[1:])
    at = f"i * {block} + k"
    body = [
        f"{_loop('i', layer.shape[0])} {_loop('k', block)} {{",
        f"    {target}[{at}] = {source}[{at}] * {name}_factor[i] + {name}_shift[i];",
        "}",
    ]
    arrays = _array(f"{name}_factor", layer.factor) + _array(f"{name}_shift", layer.shift)
    return Piece(body, arrays, math.prod(layer.shape))


def _select(layer: Select, name: str, source: str, target: str) -> Piece:
    """Block by block."""
    block = math.prod(layer.source[1:])
    body = [
        f"{_loop('i', len(layer.index))} {_loop('k', block)} {{",
        f"    {target}[i * {block} + k] = {source}[{name}_index[i] * {block} + k];",
        "}",
    ]
    return Piece(body, _array(f"{name}_index", layer.index))


_WRITERS: dict[type, Callable[[Any, str, str, str], Piece]] = {
    Pad: _pad,
    Pool: _pool,
    Activation: _activation,
    Scale: _scale,
    Select: _select,
}


# ------------------------------------------------------------------------------- pieces of text


def _loop(variable: str, stop: int | str, start: int | str = 0) -> str:
    """The head of a C loop.

    Example:
        >>> _loop("i", 3)
        'for (int32_t i = 0; i < 3; i++)'
    """
    return f"for (int32_t {variable} = {start}; {variable} < {stop}; {variable}++)"


def indent(lines: Sequence[str]) -> Lines:
    """The lines, four columns further right."""
    return ["    " + line for line in lines]


def _number(value: float) -> str:
    """A C literal that reads back as the same float32.

    Example:
        >>> _number(0.1), _number(-2.0), _number(1e-10)
        ('0.1f', '-2.0f', '1e-10f')
    """
    single = torch.tensor(value, dtype=torch.float32).numpy()[()]
    text = str(single)
    return f"{text}f" if "." in text or "e" in text else f"{text}.0f"


def _array(name: str, values: Tensor) -> Lines:
    """A constant array; integers in the narrowest type that holds them.

    Example:
        >>> _array("a", torch.tensor([0, 7]))
        ['static const uint8_t a[2] = {', '    0, 7', '};']
    """
    if values.numel() == 0:  # no array is empty in C; this entry is never read
        values = values.new_zeros(1)
    if values.is_floating_point():
        kind, items = "float", [_number(v) for v in values.tolist()]
    else:
        items = [str(v) for v in values.tolist()]
        size = _index_bytes(int(values.max()))
        kind = {1: "uint8_t", 2: "uint16_t", 4: "int32_t"}[size]
        kind = "int8_t" if values.dtype == torch.int8 else kind
    return [f"static const {kind} {name}[{len(items)}] = {{", *_wrapped(items), "};"]


def _wrapped(items: Iterable[str]) -> Lines:
    lines: Lines = []
    current = ""
    for item in items:
        if len(current) + len(item) + 6 > _WIDTH:
            lines.append(f"    {current},")
            current = item
        else:
            current = f"{current}, {item}" if current else item
    return [*lines, f"    {current}"]


def _index_bytes(largest: int) -> int:
    """Bytes of the narrowest type that `array` writes whole numbers up to `largest` in."""
    return 1 if largest < 2**8 else 2 if largest < 2**16 else 4
