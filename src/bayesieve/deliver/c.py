"""A network as one C99 header: constant arrays and a function, for small machines.

The header needs `stdint.h`, and `math.h` where a layer does; it allocates nothing, has no state,
and may be included in several files. Weights of a layer are stored as index and value of the
nonzeros, row by row, where that takes fewer bytes than all of them. NaN and infinity go through a
layer as in torch, except that a weight of 0 that is not stored keeps them from its output.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from bayesieve import __version__
from bayesieve.core.inputs import one_input
from bayesieve.deliver.c_functions import (
    Lines,
    array,
    class_function,
    familiarity_function,
    indent,
    index_bytes,
    loop,
    number,
    raw_function,
)
from bayesieve.deliver.export import (
    check_arguments,
    check_same,
    first_output,
    on_cpu,
    outputs_of,
)
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
    read_layers,
    run_layers,
)
from bayesieve.errors import UnsupportedModelError
from bayesieve.files import write_atomically
from bayesieve.uncertainty.familiarity import Familiarity

_WHO = "export_c"
_LIMIT = 20_000_000  # weights written out as text: about 200 MB of C
_BYTES = {"float": 4, "int32_t": 4, "uint16_t": 2, "uint8_t": 1, "int8_t": 1}
_LEVELS = 127  # of an 8-bit integer, each side of 0
_ACTIVATIONS = {
    "ReLU": "v < 0.0f ? 0.0f : v",
    "Tanh": "tanhf(v)",
    "Sigmoid": "1.0f / (1.0f + expf(-v))",
    "SiLU": "v / (1.0f + expf(-v))",
}


def export_c(
    module: nn.Module,
    path: Path | str,
    example: Tensor,
    *,
    int8: bool = False,
    familiarity: Familiarity | None = None,
    preprocessing: Mapping[str, Any] | None = None,
    classes: Sequence[str] | None = None,
) -> Path:
    """Write a network as a C99 header with `void NAME_predict(const float *, float *)`.

    NAME is the file's name without its ending. Macros NAME_N_INPUTS, NAME_N_OUTPUTS, NAME_MACS
    (multiplications per input), NAME_WEIGHT_BYTES and NAME_STACK_BYTES, in capitals, state the
    sizes. One input is one flat array in torch's order. BatchNorm is folded into the layer before
    it; float64 weights become float32.

    The translated layers are checked against the module in torch (1e-4 of the output's scale)
    before anything is written. With `int8` the header's first lines state the largest error of an
    output on the example.

    Args:
        module: `nn.Sequential`, or any module that `torch.fx` traces to layers that follow one
            another; it is not changed.
        path: of the header; an existing one is replaced in one step.
        example: some inputs, shape (n, ...), of the kind the model will meet.
        int8: whether weights are rounded to 8 bits with one scale per output channel.
        familiarity: of inputs, for `float NAME_familiarity(const float *)`.
        preprocessing: how raw inputs were prepared; that of images gives
            `void NAME_predict_raw(const uint8_t *, float *)`, which takes pixels.
        classes: their names, for `const char *NAME_class(int32_t)`.

    Returns:
        The path.

    Raises:
        UnsupportedModelError: a layer has no translation, or the network branches.
        VerificationError: the translated layers compute something else; nothing was written.

    Example:
        >>> import tempfile, torch
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = export_c(nn.Linear(3, 2), f"{folder}/tiny.h", torch.randn(4, 3))
        ...     lines = path.read_text().splitlines()
        >>> for line in lines[8:13]:
        ...     print(line)
        #define TINY_N_INPUTS 3
        #define TINY_N_OUTPUTS 2
        #define TINY_MACS 6
        #define TINY_WEIGHT_BYTES 32
        #define TINY_STACK_BYTES 0
    """
    path, inputs = check_arguments(_WHO, path, example)
    example = one_input(_WHO, inputs)
    name = path.stem
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise ValueError(
            f"{_WHO}: the file's name gives the C names, so it must be letters, digits and _, "
            f"got {path.name!r}."
        )
    if not example.is_floating_point():
        raise TypeError(f"{_WHO}: example must be floating point, got {example.dtype}.")
    module, example = on_cpu(module).float(), example.float()
    n_weights = sum(p.numel() for p in (*module.parameters(), *module.buffers()))
    if n_weights > _LIMIT:
        raise UnsupportedModelError(
            f"{_WHO}: a C header is for small networks, at most {_LIMIT:,} weights, "
            f"got {n_weights:,}. Use export_onnx."
        )
    output = first_output(_WHO, module, example)
    layers = read_layers(_WHO, module, tuple(example.shape[1:]))
    if not layers:
        raise UnsupportedModelError(f"{_WHO}: the module has no layer that computes anything.")
    check_same(_WHO, outputs_of(module), outputs_of(partial(run_layers, layers)), example)
    note = ""
    if int8:
        after = run_layers([_rounded(layer) for layer in layers], example)
        error, scale = float((output - after).abs().max()), float(output.abs().max())
        note = (
            f"\n * Weights are 8-bit integers; on {len(output)} examples the largest error of an "
            f"output\n * is {error:.2e}, where the largest output is {scale:.2e}."
        )
    known = [] if familiarity is None else familiarity_function(name, familiarity)
    shape = tuple(example.shape[1:])
    if preprocessing is not None and preprocessing.get("kind") == "image":
        if tuple(preprocessing["shape"]) != shape:
            raise ValueError(
                f"{_WHO}: preprocessing is of images {tuple(preprocessing['shape'])}, but the "
                f"example's inputs are {shape}."
            )
        known = [*known, *raw_function(name, preprocessing)]
    elif preprocessing is not None:
        note += "\n * Inputs are prepared ones: columns of the table, encoded as in training."
    if classes is not None:
        known = [*known, *class_function(name, classes)]
    text = "\n".join(_header(name, layers, shape, note, known, int8=int8))
    return write_atomically(path, text)


def _header(
    name: str,
    layers: Sequence[Layer],
    shape: tuple[int, ...],
    note: str,
    known: Lines,
    *,
    int8: bool,
) -> Lines:
    names = cycle("ab")  # two arrays between the layers, used in turn
    targets = [*(next(names) for _ in layers[:-1]), "y"]
    pieces = [
        _write_layer(layer, f"{name}_{i}", source, target, int8=int8)
        for i, (layer, source, target) in enumerate(
            zip(layers, ["x", *targets], targets, strict=False)
        )
    ]
    buffers: dict[str, int] = {}
    for layer, target in zip(layers[:-1], targets, strict=False):
        buffers[target] = max(buffers.get(target, 0), math.prod(layer.shape))
    arrays = [line for piece in pieces for line in piece.arrays]
    body = [line for piece in pieces for line in piece.body]
    declared = re.findall(r"^static const (\w+) \w+\[(\d+)\]", "\n".join(arrays), re.MULTILINE)
    macros = {
        "N_INPUTS": math.prod(shape),
        "N_OUTPUTS": math.prod(layers[-1].shape),
        "MACS": sum(piece.macs for piece in pieces),
        "WEIGHT_BYTES": sum(_BYTES[kind] * int(count) for kind, count in declared),
        "STACK_BYTES": 4 * sum(buffers.values()),
    }
    code = "\n".join(body)
    includes = ["<stdint.h>"]
    code += "\n".join(known)
    needs_math = any(word in code for word in ("expf(", "tanhf(", "logf(", "sqrtf(", "INFINITY"))
    includes += ["<math.h>"] if needs_math else []
    capitals = name.upper()
    return [
        f"/* {name}: made by bayesieve {__version__}; plain C99.{note}",
        f" * {name}_predict reads {capitals}_N_INPUTS numbers, shape {shape},",
        f" * and writes {capitals}_N_OUTPUTS; x and y must not overlap. */",
        f"#ifndef {capitals}_H",
        f"#define {capitals}_H",
        "",
        *(f"#include {file}" for file in includes),
        "",
        *(f"#define {capitals}_{key} {value}" for key, value in macros.items()),
        "",
        *arrays,
        "",
        f"static inline void {name}_predict(const float *x, float *y) {{",
        *indent([f"float {buffer}[{size}];" for buffer, size in buffers.items()]),
        *indent(body),
        "}",
        "",
        *([*known, ""] if known else []),
        f"#endif /* {capitals}_H */",
        "",
    ]


# ---------------------------------------------------------------------------------------- layers


class _Piece(NamedTuple):
    """One layer in C: statements, declarations of constants, multiplications with a weight."""

    body: Lines
    arrays: Lines
    macs: int = 0


def _write_layer(layer: Layer, name: str, source: str, target: str, *, int8: bool) -> _Piece:
    """A layer whose constants begin with `name`, from the array `source` to the array `target`."""
    if not isinstance(layer, Weighted):
        return _WRITERS[type(layer)](layer, name, source, target)
    values, scale = quantise_rows(layer.weight) if int8 else (layer.weight, None)
    rows = _Rows(values, layer.bias, math.prod(layer.source), scale)
    write = _linear if isinstance(layer, Linear) else _conv
    return write(layer, rows, name, source, target)  # type: ignore[arg-type]


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


def _rounded(layer: Layer) -> Layer:
    """The layer with its weights as 8-bit integers can state them (eq. 1)."""
    if not isinstance(layer, Weighted):
        return layer
    whole, scale = quantise_rows(layer.weight)
    return replace(layer, weight=whole.float() * per_row(scale, whole))


class _Rows(NamedTuple):
    """Rows of weights: `values`, times a scale per row where there is one, and a bias per row."""

    values: Tensor  # (rows, ...), float32, or int8 with a scale
    bias: Tensor  # (rows,)
    n_read: int  # entries of the array that the rows read from
    scale: Tensor | None  # (rows,)

    @property
    def is_sparse(self) -> bool:
        """Return whether index and value of each nonzero take fewer bytes than all values."""
        size, n_nonzero = self.values.element_size(), int(self.values.count_nonzero())
        sparse = n_nonzero * (size + index_bytes(self.n_read - 1))
        sparse += (len(self.values) + 1) * index_bytes(n_nonzero)
        return sparse < self.values.numel() * size

    @property
    def n_stored(self) -> int:
        """Values written out."""
        return int(self.values.count_nonzero()) if self.is_sparse else self.values.numel()

    def arrays(self, name: str, positions: Tensor) -> Lines:
        """Constants: values, scales, biases, and of sparse rows where in the input each reads."""
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


def _linear(layer: Linear, rows: _Rows, name: str, source: str, target: str) -> _Piece:
    """A dot product per row."""
    n_rows, n_columns = layer.weight.shape
    if rows.is_sparse:
        head = loop("k", f"{name}_start[i + 1]", f"{name}_start[i]")
        product = f"{name}_weight[k] * {source}[{name}_index[k]]"
    else:
        head = loop("k", n_columns)
        product = f"{name}_weight[i * {n_columns} + k] * {source}[k]"
    body = [
        f"{loop('i', n_rows)} {{",
        "    float sum = 0.0f;",
        f"    {head} sum += {product};",
        f"    {target}[i] = {rows.finish(name, 'i', 'sum')};",
        "}",
    ]
    positions = torch.arange(n_columns).expand(n_rows, -1)
    return _Piece(body, rows.arrays(name, positions), rows.n_stored)


def _conv(layer: Conv, rows: _Rows, name: str, source: str, target: str) -> _Piece:
    """Planes added up weight by weight, so that the inner loop runs along the image."""
    n_out, n_in, n_high, n_wide = layer.weight.shape
    _, height, width = layer.source
    _, out_high, out_wide = layer.shape
    area = out_high * out_wide
    read = f"row * {layer.stride[0] * width} + col * {layer.stride[1]}"
    if rows.is_sparse:
        head = loop("k", f"{name}_start[i + 1]", f"{name}_start[i]")
        weight, start = f"{name}_weight[k]", f"{name}_index[k]"
    else:
        head = f"{loop('c', n_in)} {loop('p', n_high)} {loop('q', n_wide)}"
        weight = f"{name}_weight[((i * {n_in} + c) * {n_high} + p) * {n_wide} + q]"
        first = f"(i / {n_out // layer.groups} * {n_in} + c)" if layer.groups > 1 else "c"
        steps = layer.dilation[0] * width, layer.dilation[1]
        start = f"{first} * {height * width} + p * {steps[0]} + q * {steps[1]}"
    body = [
        f"{loop('i', n_out)} {{",
        f"    float *out = {target} + i * {area};",
        f"    {loop('p', area)} out[p] = 0.0f;",
        f"    {head} {{",
        f"        const float v = {weight};",
        f"        const float *in = {source} + {start};",
        f"        {loop('row', out_high)} {{",
        f"            {loop('col', out_wide)} out[row * {out_wide} + col] += v * in[{read}];",
        "        }",
        "    }",
        f"    {loop('p', area)} out[p] = {rows.finish(name, 'i', 'out[p]')};",
        "}",
    ]
    return _Piece(body, rows.arrays(name, _positions(layer)), rows.n_stored * area)


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


def _pad(layer: Pad, name: str, source: str, target: str) -> _Piece:
    """All zeros, then the image."""
    channels, height, width = layer.source
    _, high, wide = layer.shape
    into = f"(i * {high} + row + {layer.margins[2]}) * {wide} + col + {layer.margins[0]}"
    body = [
        f"{loop('i', math.prod(layer.shape))} {target}[i] = 0.0f;",
        f"{loop('i', channels)} {loop('row', height)} {loop('col', width)} {{",
        f"    {target}[{into}] = {source}[(i * {height} + row) * {width} + col];",
        "}",
    ]
    return _Piece(body, [])


def _pool(layer: Pool, name: str, source: str, target: str) -> _Piece:
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
        window += [f"const float v = {value};", "if (v > best || v != v) best = v;"]
        begin, end = "float best = -INFINITY;", "best"
    else:
        window.append(f"sum += {value};")
        begin, end = "float sum = 0.0f;", f"sum * {number(1 / layer.divisor)}"
    body = [
        f"{loop('i', channels)} {loop('row', out_high)} {loop('col', out_wide)} {{",
        f"    {begin}",
        f"    {loop('p', layer.kernel[0])} {loop('q', layer.kernel[1])} {{",
        *indent(indent(window)),
        "    }",
        f"    {target}[(i * {out_high} + row) * {out_wide} + col] = {end};",
        "}",
    ]
    return _Piece(body, [])


def _activation(layer: Activation, name: str, source: str, target: str) -> _Piece:
    """Entry by entry."""
    body = [
        f"{loop('i', math.prod(layer.shape))} {{",
        f"    const float v = {source}[i];",
        f"    {target}[i] = {_ACTIVATIONS[layer.kind]};",
        "}",
    ]
    return _Piece(body, [])


def _scale(layer: Scale, name: str, source: str, target: str) -> _Piece:
    """Channel by channel."""
    block = math.prod(layer.shape[1:])
    at = f"i * {block} + k"
    body = [
        f"{loop('i', layer.shape[0])} {loop('k', block)} {{",
        f"    {target}[{at}] = {source}[{at}] * {name}_factor[i] + {name}_shift[i];",
        "}",
    ]
    arrays = array(f"{name}_factor", layer.factor) + array(f"{name}_shift", layer.shift)
    return _Piece(body, arrays, math.prod(layer.shape))


def _select(layer: Select, name: str, source: str, target: str) -> _Piece:
    """Block by block."""
    block = math.prod(layer.source[1:])
    body = [
        f"{loop('i', len(layer.index))} {loop('k', block)} {{",
        f"    {target}[i * {block} + k] = {source}[{name}_index[i] * {block} + k];",
        "}",
    ]
    return _Piece(body, array(f"{name}_index", layer.index))


_WRITERS: dict[type, Callable[[Any, str, str, str], _Piece]] = {
    Pad: _pad,
    Pool: _pool,
    Activation: _activation,
    Scale: _scale,
    Select: _select,
}
