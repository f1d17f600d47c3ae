"""Reading files that may be damaged or hostile: sizes first, then content, one clear message."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from bayesieve.errors import DamagedFileError, damaged

MAX_JSON_BYTES = 64 << 20
MAX_HEADER_BYTES = 16 << 20
MAX_DEPTH = 64
_TOKENS = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[{]|[\]}]', re.S)
_WIDTHS = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1,
    "BOOL": 1,
}  # fmt: skip


def require_file(path: Path) -> None:
    """Raise unless a file is there."""
    if not path.is_file():
        raise DamagedFileError(
            f"load: {path.parent} is no bundle: the file {path.name} is missing."
        )


def read_json(path: Path) -> dict[str, Any]:
    """One JSON object from a file of bounded size and depth.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "a.json"
        >>> _ = path.write_text('{"a": [1]}')
        >>> read_json(path)
        {'a': [1]}
    """
    require_file(path)
    size = path.stat().st_size
    if size > MAX_JSON_BYTES:
        raise damaged(path, f"it has {size} bytes, more than {MAX_JSON_BYTES}")
    return _object(path, path.read_bytes(), "it")


def read_tensors(path: Path) -> tuple[dict[str, Tensor], Mapping[str, str]]:
    """Every tensor of a safetensors file, and its metadata.

    What the header declares is compared with the size of the file before anything is allocated.
    """
    require_file(path)
    _check_header(path)
    try:
        with safe_open(path, framework="pt") as stream:
            names = list(stream.keys())
            # cloned: otherwise the tensors are a window on the file, and change with it
            return {name: stream.get_tensor(name).clone() for name in names}, (
                stream.metadata() or {}
            )
    except (SafetensorError, OSError, ValueError, OverflowError, RuntimeError) as error:
        raise damaged(path, f"it is cut off or no safetensors file ({error})") from error


def _check_header(path: Path) -> None:
    size = path.stat().st_size
    with path.open("rb") as stream:
        start = stream.read(8)
        length = int.from_bytes(start, "little")
        if len(start) < 8 or length > min(size - 8, MAX_HEADER_BYTES):
            raise damaged(path, "it is cut off or no safetensors file")
        header = _object(path, stream.read(length), "its header")
    header.pop("__metadata__", None)
    room = size - 8 - length
    for name, row in header.items():
        declared = _declared(row)
        if declared is None:
            raise damaged(path, f"tensor {name[:80]!r} is not described as safetensors demand")
        if declared > room:
            raise damaged(
                path, f"tensor {name[:80]!r} declares {declared} bytes, but only {room} follow"
            )


def _declared(row: object) -> int | None:
    """Bytes that one entry of the header promises; None if it contradicts itself."""
    if not isinstance(row, dict) or row.get("dtype") not in _WIDTHS:
        return None
    shape: Any = row.get("shape")
    offsets: Any = row.get("data_offsets")
    if not _are_sizes(shape) or not _are_sizes(offsets) or len(offsets) != 2 or len(shape) > 8:
        return None
    n = _WIDTHS[row["dtype"]]
    for length in shape:
        n *= length
    return n if n == offsets[1] - offsets[0] else None


def _are_sizes(values: Any) -> bool:
    return isinstance(values, list) and all(type(v) is int and 0 <= v < 1 << 48 for v in values)


def _object(path: Path, text: bytes, what: str) -> dict[str, Any]:
    depth = 0
    for token in _TOKENS.finditer(text):
        if token[0] in (b"[", b"{"):
            depth += 1
        elif token[0] in (b"]", b"}"):
            depth -= 1
        if depth > MAX_DEPTH:
            raise damaged(path, f"{what} is nested deeper than {MAX_DEPTH} levels")
    try:
        values = json.loads(text.decode("utf-8"), parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise damaged(path, f"{what} is no JSON ({str(error)[:120]})") from error
    if not isinstance(values, dict):
        raise damaged(path, f"{what} must hold one JSON object")
    return values


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is no JSON number")


def dtype_name(dtype: torch.dtype) -> str:
    """The name of a dtype without "torch."."""
    return str(dtype).removeprefix("torch.")
