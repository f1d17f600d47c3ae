"""A network as one C99 header: constant arrays and a function, for small machines.

The header needs `stdint.h`, and `math.h` or `float.h` where a layer does; it allocates nothing,
has no state, and may be included in several files. Weights of a layer are stored as index and value
of the nonzeros, row by row, where that takes fewer bytes than all of them.
"""

import math
import re
from collections.abc import Sequence
from functools import partial
from itertools import cycle
from pathlib import Path

from torch import Tensor, nn

from bayesieve import __version__
from bayesieve.deliver.c.code import Lines, indent, rounded, write_layer
from bayesieve.deliver.export_checks import (
    check_arguments,
    check_same,
    first_output,
    on_cpu,
    outputs_of,
)
from bayesieve.deliver.layers import Layer, read_layers, run_layers
from bayesieve.errors import UnsupportedModelError
from bayesieve.files import write_atomically

_WHO = "export_c"
_LIMIT = 20_000_000  # weights written out as text: about 200 MB of C


def export_c(module: nn.Module, path: Path | str, example: Tensor, *, int8: bool = False) -> Path:
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
    path, example = check_arguments(_WHO, path, example)
    name = _check_name(path)
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
        after = run_layers([rounded(layer) for layer in layers], example)
        note = _int8_note(output, after)
    text = "\n".join(_header(name, layers, tuple(example.shape[1:]), note, int8=int8))
    return write_atomically(path, text)


def _header(
    name: str, layers: Sequence[Layer], shape: tuple[int, ...], note: str, *, int8: bool
) -> Lines:
    names = cycle("ab")  # two arrays between the layers, used in turn
    targets = [*(next(names) for _ in layers[:-1]), "y"]
    pieces = [
        write_layer(layer, f"{name}_{i}", source, target, int8=int8)
        for i, (layer, source, target) in enumerate(
            zip(layers, ["x", *targets], targets, strict=False)
        )
    ]
    buffers: dict[str, int] = {}
    for layer, target in zip(layers[:-1], targets, strict=False):
        buffers[target] = max(buffers.get(target, 0), math.prod(layer.shape))
    arrays = [line for piece in pieces for line in piece.arrays]
    body = [line for piece in pieces for line in piece.body]
    macros = {
        "N_INPUTS": math.prod(shape),
        "N_OUTPUTS": math.prod(layers[-1].shape),
        "MACS": sum(piece.macs for piece in pieces),
        "WEIGHT_BYTES": _n_bytes(arrays),
        "STACK_BYTES": 4 * sum(buffers.values()),
    }
    code = "\n".join(body)
    includes = ["<stdint.h>"]
    includes += ["<math.h>"] if "expf(" in code or "tanhf(" in code else []
    includes += ["<float.h>"] if "FLT_MAX" in code else []
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
        f"#endif /* {capitals}_H */",
        "",
    ]


def _n_bytes(arrays: Sequence[str]) -> int:
    declared = re.findall(r"^static const (\w+) \w+\[(\d+)\]", "\n".join(arrays), re.MULTILINE)
    sizes = {"float": 4, "int32_t": 4, "uint16_t": 2, "uint8_t": 1, "int8_t": 1}
    return sum(sizes[kind] * int(count) for kind, count in declared)


def _int8_note(before: Tensor, after: Tensor) -> str:
    error, scale = float((before - after).abs().max()), float(before.abs().max())
    return (
        f"\n * Weights are 8-bit integers; on {len(before)} examples the largest error of an output"
        f"\n * is {error:.2e}, where the largest output is {scale:.2e}."
    )


def _check_name(path: Path) -> str:
    name = path.stem
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise ValueError(
            f"{_WHO}: the file's name gives the C names, so it must be letters, digits and _, "
            f"got {path.name!r}."
        )
    return name
