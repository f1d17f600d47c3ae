"""C functions around a network: one that takes raw pixels, and one that names classes."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from bayesieve.deliver.c_text import Lines, array, indent, loop


def raw_function(name: str, recipe: Mapping[str, Any]) -> Lines:
    """`NAME_predict_raw(const uint8_t *, float *)`: pixels as cameras and files have them.

    Args:
        name: of the header.
        recipe: of images, {"kind": "image", "shape", "scale", "mean", "std"}; see
            `data.preprocessing`.
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
