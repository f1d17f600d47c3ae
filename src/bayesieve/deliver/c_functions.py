"""C99 text, and functions around a network: raw pixels in, names of classes, familiarity.

The formulas of the familiarity are those of `uncertainty.familiarity`, in the same order and in
float32.
"""

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, tril_indices

from bayesieve.uncertainty.familiarity import COSINES, Familiarity

Lines = list[str]
_WIDTH = 100
_LENGTHS = ("mean", "scale", "floor", "shift", "spread", "knots", "levels")


def loop(variable: str, stop: int | str, start: int | str = 0) -> str:
    """The head of a C loop."""
    return f"for (int32_t {variable} = {start}; {variable} < {stop}; {variable}++)"


def indent(lines: Sequence[str]) -> Lines:
    """The lines, four columns further right."""
    return ["    " + line for line in lines]


def number(value: float) -> str:
    """A C literal that reads back as the same float32."""
    single = torch.tensor(value, dtype=torch.float32).numpy()[()]
    text = str(single)
    return f"{text}f" if "." in text or "e" in text else f"{text}.0f"


def array(name: str, values: Tensor) -> Lines:
    """A constant array; integers in the narrowest type that holds them."""
    if values.numel() == 0:  # no array is empty in C; this entry is never read
        values = values.new_zeros(1)
    if values.is_floating_point():
        kind, items = "float", [number(v) for v in values.tolist()]
    else:
        items = [str(v) for v in values.tolist()]
        size = index_bytes(int(values.max()))
        kind = {1: "uint8_t", 2: "uint16_t", 4: "int32_t"}[size]
        kind = "int8_t" if values.dtype == torch.int8 else kind
    rows = textwrap.wrap(", ".join(items), _WIDTH - 4, break_on_hyphens=False)
    return [f"static const {kind} {name}[{len(items)}] = {{", *indent(rows), "};"]


def index_bytes(largest: int) -> int:
    """Bytes of the narrowest type that `array` writes whole numbers up to `largest` in."""
    return 1 if largest < 2**8 else 2 if largest < 2**16 else 4


def raw_function(name: str, recipe: Mapping[str, Any]) -> Lines:
    """`NAME_predict_raw(const uint8_t *, float *)`: pixels as cameras and files have them.

    Args:
        name: of the header.
        recipe: of images, {"kind": "image", "shape", "scale", "mean", "std"}; see
            `data.images`.
    """
    channels, height, width = recipe["shape"]
    scale = recipe["scale"]
    center, spread = (
        torch.tensor([value * scale for value in recipe[key]], dtype=torch.float32)
        for key in ("mean", "std")
    )
    n = height * width
    prepared = f"((float)pixels[i * {channels} + c] - {name}_center[c]) / {name}_spread[c]"
    return [
        f"/* Raw pixels: {height} rows of {width}, {channels} channels of a pixel side by side. */",
        *array(f"{name}_center", center),
        *array(f"{name}_spread", spread),
        "",
        f"static inline void {name}_predict_raw(const uint8_t *pixels, float *y) {{",
        f"    float x[{math.prod(recipe['shape'])}];",
        f"    {loop('c', channels)} {{",
        f"        {loop('i', n)} x[c * {n} + i] = {prepared};",
        "    }",
        f"    {name}_predict(x, y);",
        "}",
    ]  # fmt: skip


def class_function(name: str, classes: Sequence[str]) -> Lines:
    """`const char *NAME_class(int32_t)`: the name of an output, in UTF-8; NULL beyond the last."""
    names = [f'"{_escaped(text)}",' for text in classes]
    return [
        f"static inline const char *{name}_class(int32_t i) {{",
        f"    static const char *const names[{len(names)}] = {{",
        *indent(indent(names)),
        "    };",
        f"    return i >= 0 && i < {len(names)} ? names[i] : 0;",
        "}",
    ]


def _escaped(text: str) -> str:
    """The inside of a C string: plain ASCII as it is, every other byte in octal."""
    plain = set(range(32, 127)) - set(b'"\\?')  # ? begins trigraphs
    return "".join(chr(b) if b in plain else f"\\{b:03o}" for b in text.encode())


def familiarity_function(name: str, known: Familiarity) -> Lines:
    """Constants and `static inline float NAME_familiarity(const float *x)`.

    Args:
        name: first part of all C names.
        known: what training inputs look like.

    Example:
        >>> import torch
        >>> known = Familiarity.of(torch.randn(60, 2))
        >>> familiarity_function("net", known)[-1], known.axes.shape
        ('}', torch.Size([2, 2]))
    """
    lower = tril_indices(*known.roots.shape[1:])
    values = {key: getattr(known, key) for key in _LENGTHS}
    values |= {"axes": known.axes, "centres": known.centres, "roots": known.roots[:, *lower]}
    (q, m), (k, f) = known.axes.shape, known.centres.shape
    n, n_inputs = f"{name}_known", known.mean.numel()
    scale = f"{n}_scale[i]" if known.scale.numel() > 1 else f"{n}_scale[0]"
    body = [
        f"float z[{n_inputs}], feature[{f}];",
        f"{loop('i', n_inputs)} {{",
        f"    const float v = (x[i] - {n}_mean[i]) / {scale};",
        "    z[i] = v < -1e6f ? -1e6f : v > 1e6f ? 1e6f : v;",
        "}",
    ]
    coarse, arrays = "z", []
    if len(known.shape) == 3:
        coarse = "coarse"
        values |= {"rows": known.rows, "columns": known.columns}
        body += _waves(n, known, m)
    body += [
        f"{loop('i', q)} {{",
        "    feature[i] = 0.0f;",
        f"    {loop('p', m)} feature[i] += {coarse}[p] * {n}_axes[i * {m} + p];",
        "}",
    ]
    if q < m:
        body += [
            "float left = 0.0f;",
            f"{loop('p', m)} {{",
            f"    float v = {coarse}[p];",
            f"    {loop('i', q)} v -= feature[i] * {n}_axes[i * {m} + p];",
            "    left += v * v;",
            "}",
            f"feature[{q}] = left;",
        ]
    first = f - len(known.bands)
    for i, (top, bottom, begin, end) in enumerate(known.bands):
        at = f"energy[row * {known.shape[2]} + col]"
        body += [
            f"feature[{first + i}] = 0.0f;",
            f"{loop('row', bottom, top)} {loop('col', end, begin)} feature[{first + i}] += {at};",
        ]
    body += [
        f"{loop('i', f, q)} feature[i] = logf(feature[i] + {n}_floor[i - {q}]);",
        f"{loop('i', f)} feature[i] = (feature[i] - {n}_shift[i]) / {n}_spread[i];",
        "float nearest = INFINITY;",
        f"{loop('c', k)} {{",
        f"    float gap[{f}] = {{0.0f}}, sum = 0.0f;",
        f"    const float *root = {n}_roots + c * {f * (f + 1) // 2};",
        f"    {loop('i', f)} {{",
        f"        const float v = feature[i] - {n}_centres[c * {f} + i];",
        f"        {loop('p', 'i + 1')} gap[p] += v * *root++;",
        "    }",
        f"    {loop('i', f)} sum += gap[i] * gap[i];",
        "    if (sum < nearest || sum != sum) nearest = sum;",
        "}",
        "float share = 1.0f;",
        "nearest = sqrtf(nearest);",
        f"{loop('i', known.knots.numel() - 1)} {{",
        f"    const float gap = {n}_knots[i + 1] - {n}_knots[i];",
        f"    const float v = (nearest - {n}_knots[i]) / (gap < 1e-12f ? 1e-12f : gap);",
        "    const float passed = v < 0.0f ? 0.0f : v > 1.0f ? 1.0f : v;",
        f"    share -= passed * ({n}_levels[i] - {n}_levels[i + 1]);",
        "}",
        "return share;",
    ]
    for key, tensor in values.items():
        arrays += array(f"{n}_{key}", tensor.flatten())
    head = f"static inline float {name}_familiarity(const float *x) {{"
    return [*arrays, "", head, *indent(body), "}"]


def _waves(n: str, known: Familiarity, m: int) -> Lines:
    """The cosines of an image: the lowest of every channel, and the energy of all."""
    channels, height, width = known.shape
    high, wide = min(COSINES, height), min(COSINES, width)
    return [
        f"float coarse[{m}], energy[{height * width}] = {{0.0f}};",
        f"{loop('c', channels)} {loop('i', height)} {{",
        f"    float line[{width}] = {{0.0f}};",
        f"    {loop('row', height)} {loop('col', width)} {{",
        f"        const float v = z[(c * {height} + row) * {width} + col];",
        f"        line[col] += {n}_rows[i * {height} + row] * v;",
        "    }",
        f"    {loop('p', width)} {{",
        "        float v = 0.0f;",
        f"        {loop('col', width)} v += {n}_columns[p * {width} + col] * line[col];",
        f"        energy[i * {width} + p] += v * v;",
        f"        if (i < {high} && p < {wide}) coarse[(c * {high} + i) * {wide} + p] = v;",
        "    }",
        "}",
    ]
