"""Loops, numbers and constant arrays as C99 text."""

import textwrap
from collections.abc import Sequence

import torch
from torch import Tensor

Lines = list[str]
_WIDTH = 100


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
