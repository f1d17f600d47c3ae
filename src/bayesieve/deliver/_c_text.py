"""Pieces of C source."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

Lines = list[str]
_WIDTH = 100


def loop(variable: str, stop: int | str, start: int | str = 0) -> str:
    """The head of a C loop.

    Example:
        >>> loop("i", 3)
        'for (int32_t i = 0; i < 3; i++)'
    """
    return f"for (int32_t {variable} = {start}; {variable} < {stop}; {variable}++)"


def indent(lines: Sequence[str]) -> Lines:
    """The lines, four columns further right."""
    return ["    " + line for line in lines]


def number(value: float) -> str:
    """A C literal that reads back as the same float32.

    Example:
        >>> number(0.1), number(-2.0), number(1e-10)
        ('0.1f', '-2.0f', '1e-10f')
    """
    single = torch.tensor(value, dtype=torch.float32).numpy()[()]
    text = str(single)
    return f"{text}f" if "." in text or "e" in text else f"{text}.0f"


def array(name: str, values: Tensor) -> Lines:
    """A constant array; integers in the narrowest type that holds them.

    Example:
        >>> array("a", torch.tensor([0, 7]))
        ['static const uint8_t a[2] = {', '    0, 7', '};']
    """
    if values.numel() == 0:  # no array is empty in C; this entry is never read
        values = values.new_zeros(1)
    if values.is_floating_point():
        kind, items = "float", [number(v) for v in values.tolist()]
    else:
        items = [str(v) for v in values.tolist()]
        size = index_bytes(int(values.max()))
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


def index_bytes(largest: int) -> int:
    """Bytes of the narrowest type that `array` writes whole numbers up to `largest` in."""
    return 1 if largest < 2**8 else 2 if largest < 2**16 else 4
