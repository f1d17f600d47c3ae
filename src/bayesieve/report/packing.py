"""Arrays inside JSON: little-endian bytes in base64, with their type and shape.

    {"type": "u2", "shape": [2, 3], "data": "AQACAAMABAAFAAYA"}

`type` is one of u1, u2, u4 (unsigned integers of so many bytes), i2 (signed) and f4 (float32).
"""

import base64
import math
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Json = dict[str, Any]  # plain data: strings, numbers, booleans, None, lists and dicts of them
Kind = Literal["u1", "u2", "u4", "i2", "f4"]


def pack(values: Tensor | NDArray[Any], kind: Kind) -> Json:
    """Encode an array; integers must fit their type.

    Example:
        >>> pack(torch.tensor([[1, 2, 3], [4, 5, 6]]), "u2")["data"]
        'AQACAAMABAAFAAYA'
    """
    array = values.detach().cpu().numpy() if isinstance(values, Tensor) else values
    whole = np.ascontiguousarray(array.astype(f"<{kind}"))
    if kind != "f4" and not np.array_equal(whole, array):
        raise ValueError(f"report: numbers do not fit the type {kind}.")
    data = base64.b64encode(whole.tobytes()).decode()
    return {"type": kind, "shape": list(array.shape), "data": data}


def unpack(packed: Json) -> Tensor:
    """The array of a packed one, as float32 or int64.

    Example:
        >>> unpack(pack(torch.tensor([[0.5, -1.0]]), "f4"))
        tensor([[ 0.5000, -1.0000]])
    """
    kind = packed["type"]
    if kind not in get_args(Kind):
        raise ValueError(f"report: an array must have a type of {get_args(Kind)}, got {kind!r}.")
    array = np.frombuffer(base64.b64decode(packed["data"]), dtype=f"<{kind}")
    if array.size != math.prod(packed["shape"]):
        raise ValueError(
            f"report: an array of shape {packed['shape']} must hold {math.prod(packed['shape'])} "
            f"numbers, got {array.size}."
        )
    whole = array.astype(np.float32 if kind == "f4" else np.int64)
    return torch.from_numpy(whole).reshape(packed["shape"])


def rounded(values: Tensor | NDArray[Any], digits: int = 6) -> list[Any]:
    """Numbers as nested lists with so many significant digits, None where not finite.

    Example:
        >>> rounded(torch.tensor([1 / 3, 1e-9]), 3)
        [0.333, 1e-09]
    """
    array = values.detach().cpu().double().numpy() if isinstance(values, Tensor) else values
    return _round(array.tolist(), digits)


def short(value: float, digits: int = 6) -> float | None:
    """A number with so many significant digits; None, which JSON can say, if it is not finite.

    Example:
        >>> short(2 / 3, 3), short(math.inf)
        (0.667, None)
    """
    return float(f"{value:.{digits}g}") if math.isfinite(value) else None


def spread_out(n: int, most: int) -> Tensor:
    """At most so many places of n, first and last among them.

    Example:
        >>> spread_out(10, 4)
        tensor([0, 3, 6, 9])
    """
    return torch.linspace(0, n - 1, min(n, most)).round().long()


def _round(value: Any, digits: int) -> Any:
    if isinstance(value, list):
        return [_round(item, digits) for item in value]
    return short(value, digits)
