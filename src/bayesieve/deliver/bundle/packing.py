"""Store tensors with many zeros as the places and values of the other entries.

Places have two forms, and the one with fewer bytes is taken:

    gaps  one byte per entry: how many zeros come before it. 255 means 255 zeros and no entry, so
          that longer runs, also the one after the last entry, take several bytes.
    bits  one bit per element, the lowest of a byte first.

Ascending whole numbers (which features a layer reads) are themselves places, and have no values.
So a packed tensor unpacks to at most 255 elements per stored byte, whatever a hostile file says.
-0.0 counts as an entry, so that unpacking is exact bit for bit.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

VALUES, GAPS, BITS = "#values", "#gaps", "#bits"
MAX_BYTES = 4 << 30  # unpacked, of one tensor
_SKIP = 255
_SMALL = 256  # bytes: not worth packing
_WORTH = 0.9  # of the dense bytes
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def pack(name: str, tensor: Tensor) -> tuple[dict[str, Tensor], dict[str, Any] | None]:
    """The tensors to store in place of one, and how: None where it stays as it is.

    Args:
        name: of the tensor.
        tensor: any dtype; a bool tensor has no values, only places.

    Example:
        >>> x = torch.zeros(10, 100)
        >>> x[2, 50] = 7.0
        >>> tensors, how = pack("w", x)
        >>> how, tensors["w#gaps"].tolist(), tensors["w#values"].tolist()
        ({'as': 'gaps', 'shape': [10, 100]}, [250, 255, 255], [7.0])
    """
    tensor = tensor.detach().cpu().contiguous()
    flat = tensor.reshape(-1)
    dense = tensor.numel() * tensor.element_size()
    if dense < _SMALL or dense > MAX_BYTES:
        return {name: tensor.clone()}, None
    is_index = tensor.dim() == 1 and tensor.dtype == torch.int64
    is_index = is_index and bool(tensor[0] >= 0) and bool((tensor.diff() > 0).all())
    bits = flat.view(_INTEGERS[flat.element_size()])  # -0.0 has one
    places = tensor.numpy() if is_index else bits.nonzero().reshape(-1).numpy()
    n = int(places[-1]) + 1 if is_index else len(flat)
    has_values = not is_index and tensor.dtype != torch.bool
    codes, n_bits = gaps_of(places, n), -(-n // 8)
    value_bytes = len(places) * tensor.element_size() if has_values else 0
    if value_bytes + min(len(codes), n_bits) > _WORTH * dense:
        return {name: tensor.clone()}, None
    how: dict[str, Any] = {"as": "gaps" if len(codes) <= n_bits else "bits", "shape": [n]}
    if how["as"] == "bits":
        present = np.zeros(n, dtype=bool)
        present[places] = True
        codes = np.packbits(present, bitorder="little")
    tensors = {f"{name}#{how['as']}": torch.from_numpy(codes)}
    if has_values:
        tensors[name + VALUES] = flat[torch.from_numpy(places)].clone()
    return tensors, how | ({"index": True} if is_index else {"shape": list(tensor.shape)})


def pack_all(weights: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors to store, and how each packed tensor is packed."""
    tensors: dict[str, Tensor] = {}
    packed: dict[str, Any] = {}
    for name, value in weights.items():
        stored, how = pack(name, value)
        tensors |= stored
        if how is not None:
            packed[name] = how
    return tensors, packed


def unpack(name: str, tensors: Mapping[str, Tensor], how: Mapping[str, Any] | None) -> Tensor:
    """The tensor that `pack` stored; raises ValueError if the parts do not fit together.

    Example:
        >>> x = torch.eye(50)
        >>> torch.equal(unpack("w", *pack("w", x)), x)
        True
    """
    if how is None:
        return _part(tensors, name)
    shape = _shape(name, how.get("shape"))
    n = math.prod(shape)
    values = tensors.get(name + VALUES)
    width = 1 if values is None else values.element_size()
    if n * width > MAX_BYTES:
        raise ValueError(f"tensor {name!r} declares {n * width} bytes, more than {MAX_BYTES}")
    if how.get("as") == "gaps":
        places = places_of(name, _codes(tensors, name + GAPS), n)
    elif how.get("as") == "bits":
        places = _bit_places(name, _codes(tensors, name + BITS), n)
    else:
        raise ValueError(f"tensor {name!r} is packed in an unknown way, {how.get('as')!r}")
    if how.get("index") is True:
        return torch.from_numpy(places)
    if values is None:
        flat = torch.zeros(n, dtype=torch.bool)
        flat[torch.from_numpy(places)] = True
    else:
        if values.shape != (len(places),):
            raise ValueError(
                f"tensor {name!r} has {len(places)} places but values of shape "
                f"{tuple(values.shape)}"
            )
        flat = torch.zeros(n, dtype=values.dtype)
        flat[torch.from_numpy(places)] = values
    return flat.reshape(shape)


def gaps_of(places: NDArray[np.int64], n: int) -> NDArray[np.uint8]:
    """Ascending places among n elements as gaps.

    Example:
        >>> gaps_of(np.array([1, 2, 300]), 302).tolist()
        [1, 0, 255, 42]
    """
    gaps = np.diff(places, prepend=-1, append=n) - 1
    ends = np.cumsum(gaps[:-1] // _SKIP + 1)  # the skips of an entry come before its code
    codes = np.full(int(ends[-1]) if len(ends) else 0, _SKIP, dtype=np.uint8)
    codes[ends - 1] = gaps[:-1] % _SKIP
    return np.concatenate([codes, np.full(gaps[-1] // _SKIP, _SKIP, dtype=np.uint8)])


def places_of(name: str, codes: NDArray[np.uint8], n: int) -> NDArray[np.int64]:
    """The places among n elements that gaps say; raises ValueError if they cover another number.

    Example:
        >>> places_of("w", np.array([1, 0, 255, 42], np.uint8), 302).tolist()
        [1, 2, 300]
    """
    is_entry = codes != _SKIP
    ends = np.cumsum(np.where(is_entry, codes.astype(np.int64) + 1, _SKIP))
    rest = n - (int(ends[-1]) if len(ends) else 0)
    if not 0 <= rest < _SKIP:
        raise ValueError(
            f"tensor {name!r} declares {n} elements but its gaps cover {n - rest}: an index is "
            "out of range"
        )
    return ends[is_entry] - 1


def _bit_places(name: str, codes: NDArray[np.uint8], n: int) -> NDArray[np.int64]:
    if len(codes) != -(-n // 8):
        raise ValueError(f"tensor {name!r} declares {n} elements but has {8 * len(codes)} bits")
    bits = np.unpackbits(codes, bitorder="little")
    if bits[n:].any():
        raise ValueError(f"tensor {name!r} has an index out of range")
    return np.flatnonzero(bits)


def _codes(tensors: Mapping[str, Tensor], name: str) -> NDArray[np.uint8]:
    codes = _part(tensors, name)
    if codes.dtype != torch.uint8 or codes.dim() != 1:
        raise ValueError(f"tensor {name!r} must be one row of bytes")
    return codes.numpy()


def _part(tensors: Mapping[str, Tensor], name: str) -> Tensor:
    if name not in tensors:
        raise ValueError(f"tensor {name!r} is missing")
    return tensors[name]


def _shape(name: str, shape: object) -> tuple[int, ...]:
    sizes = shape if isinstance(shape, list) and len(shape) <= 8 else [None]
    if not all(type(size) is int and 0 <= size < 1 << 40 for size in sizes):
        raise ValueError(f"tensor {name!r} has no valid shape")
    return tuple(sizes)
