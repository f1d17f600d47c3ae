"""What a network costs, counted: units, multiply-adds, memory and bytes."""

import gzip
import weakref
from typing import Any

import torch
from safetensors.torch import save as tensors_to_bytes
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_CONVS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


def count_units(module: nn.Module) -> int:
    """Outputs of all Linear and convolution layers, those of attention included.

    Example:
        >>> count_units(nn.Sequential(nn.Conv2d(1, 6, 5), nn.Flatten(), nn.Linear(24, 10)))
        16
    """
    layers = (own for own in module.modules() if isinstance(own, (nn.Linear, *_CONVS)))
    return sum(int(_weight(own).shape[0]) for own in layers)


def count_macs(module: nn.Module, example: Tensor) -> tuple[int, int]:
    """Multiply-adds of one example: all of them, and those with a weight that is not 0.

    Counted where they happen, in calls of Linear, convolution and attention modules; what a
    module computes with bare functions is not seen, and biases, norms and activations are free.

    Args:
        module: what to count in; in eval mode.
        example: one input, (1, ...).

    Example:
        >>> layer = nn.Conv2d(1, 2, 3, bias=False)
        >>> with torch.no_grad():
        ...     _ = layer.weight[0].zero_()
        >>> count_macs(layer, torch.zeros(1, 1, 5, 5))  # 9 positions, 9 weights, 2 channels
        (162, 81)
    """
    total = nonzero = 0

    def add(weight: Tensor, positions: int) -> None:
        nonlocal total, nonzero
        total += positions * weight.numel()
        nonzero += positions * int(weight.count_nonzero())

    def layer(own: nn.Module, _inputs: Any, output: Tensor) -> None:
        weight = _weight(own)
        add(weight, output.numel() // int(weight.shape[0]))

    def attention(own: nn.Module, inputs: Any, output: Any) -> None:
        nonlocal total, nonzero
        assert isinstance(own, nn.MultiheadAttention)
        axis = 1 if own.batch_first and inputs[0].dim() == 3 else 0
        queries, keys = (int(tensor.shape[axis]) for tensor in inputs[:2])
        if own.in_proj_weight is not None:
            parts = own.in_proj_weight.chunk(3)
        else:
            parts = (own.q_proj_weight, own.k_proj_weight, own.v_proj_weight)
        for part, positions in zip(parts, (queries, keys, keys), strict=True):
            add(part, positions)
        add(own.out_proj.weight, queries)
        products = 2 * queries * keys * own.embed_dim  # scores, and the mixture of values
        total, nonzero = total + products, nonzero + products

    hooks = []
    for own in module.modules():
        if isinstance(own, (nn.Linear, *_CONVS)):
            hooks.append(own.register_forward_hook(layer))
        elif isinstance(own, nn.MultiheadAttention):
            hooks.append(own.register_forward_hook(attention))
    try:
        with torch.no_grad():
            module(example)
    finally:
        for hook in hooks:
            hook.remove()
    return total, nonzero


def _weight(layer: nn.Module) -> Tensor:
    weight = layer.weight
    assert isinstance(weight, Tensor)
    return weight


def peak_bytes(module: nn.Module, batch: Tensor) -> int:
    """Bytes of weights and buffers plus the most that intermediate tensors take at once.

    Example:
        >>> peak_bytes(nn.Sequential(nn.Linear(4, 3), nn.ReLU()), torch.zeros(2, 4))
        108
    """
    own = {p.untyped_storage()._cdata: p.nbytes for p in (*module.parameters(), *module.buffers())}
    live = _LiveBytes({*own, batch.untyped_storage()._cdata})
    with torch.no_grad(), live:
        module(batch)
    return sum(own.values()) + live.most


class _LiveBytes(TorchDispatchMode):
    """Adds up the storages that operations make, while tensors hold on to them."""

    def __init__(self, known: set[int]) -> None:
        super().__init__()
        self._known, self._holders = known, dict[int, int]()
        self._now = self.most = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                self._see(tensor)
        return result

    def _see(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self._known:
            return
        if key not in self._holders:
            self._holders[key] = 0
            self._now += size
            self.most = max(self.most, self._now)
        self._holders[key] += 1
        weakref.finalize(tensor, self._drop, key, size)

    def _drop(self, key: int, size: int) -> None:
        self._holders[key] -= 1
        if self._holders[key] == 0:
            del self._holders[key]
            self._now -= size


def serialised(module: nn.Module) -> bytes:
    """The state of a module as a safetensors file; tied tensors are written once."""
    seen: set[int] = set()
    tensors = {}
    for name, value in module.state_dict().items():
        if value.numel() and value.data_ptr() in seen:
            continue
        seen.add(value.data_ptr())
        tensors[name] = value.detach().cpu().clone().contiguous()
    return tensors_to_bytes(tensors)


def gzipped(data: bytes) -> int:
    """Bytes of data after gzip."""
    return len(gzip.compress(data, mtime=0))
