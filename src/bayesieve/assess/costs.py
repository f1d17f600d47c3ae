"""Costs of a network, counted: units, multiply-adds, memory and bytes."""

import gzip
import weakref
from typing import Any, NamedTuple

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
    layers = (layer for layer in module.modules() if isinstance(layer, (nn.Linear, *_CONVS)))
    return sum(len(layer.get_parameter("weight")) for layer in layers)


class WeightUse(NamedTuple):
    """A weight tensor, or some rows of it, and how often one example passes through it."""

    name: str
    weight: Tensor
    positions: int


def weight_uses(module: nn.Module, example: Tensor) -> tuple[list[WeightUse], int]:
    """The weights that one example passes through, and the multiply-adds that need no weight.

    Seen are calls of Linear, convolution and attention modules; attention also multiplies
    queries, keys and values with each other. What a module computes with bare functions is not
    seen, and biases, norms and activations are free.

    Args:
        module: in eval mode.
        example: one input, (1, ...).
    """
    names = {layer: f"{name}." if name else "" for name, layer in module.named_modules()}
    uses: list[WeightUse] = []
    free = 0

    def layer_call(layer: nn.Module, _: Any, output: Tensor) -> None:
        weight = layer.get_parameter("weight")
        uses.append(WeightUse(f"{names[layer]}weight", weight, output.numel() // len(weight)))

    def attention_call(layer: nn.Module, inputs: Any, _: Any) -> None:
        nonlocal free
        assert isinstance(layer, nn.MultiheadAttention)
        axis = 1 if layer.batch_first and inputs[0].dim() == 3 else 0
        queries, keys = (int(tensor.shape[axis]) for tensor in inputs[:2])
        if layer.in_proj_weight is not None:
            leaves = ["in_proj_weight"] * 3
            weights = layer.in_proj_weight.chunk(3)
        else:
            leaves = ["q_proj_weight", "k_proj_weight", "v_proj_weight"]
            weights = tuple(layer.get_parameter(leaf) for leaf in leaves)
        for leaf, weight, n in zip(leaves, weights, (queries, keys, keys), strict=True):
            uses.append(WeightUse(names[layer] + leaf, weight, n))
        uses.append(WeightUse(f"{names[layer]}out_proj.weight", layer.out_proj.weight, queries))
        free += 2 * queries * keys * layer.embed_dim  # scores, and the mixture of values

    hooks = []
    for layer in names:
        if isinstance(layer, (nn.Linear, *_CONVS)):
            hooks.append(layer.register_forward_hook(layer_call))
        elif isinstance(layer, nn.MultiheadAttention):
            hooks.append(layer.register_forward_hook(attention_call))
    try:
        with torch.no_grad():
            module(example)
    finally:
        for hook in hooks:
            hook.remove()
    return uses, free


def count_macs(module: nn.Module, example: Tensor) -> tuple[int, int]:
    """Multiply-adds of one example: all of them, and those with a weight that is not 0.

    Args:
        module: in eval mode; see `weight_uses` for what is seen of it.
        example: one input, (1, ...).

    Example:
        >>> layer = nn.Conv2d(1, 2, 3, bias=False)
        >>> with torch.no_grad():
        ...     _ = layer.weight[0].zero_()
        >>> count_macs(layer, torch.zeros(1, 1, 5, 5))  # 9 positions, 9 weights, 2 channels
        (162, 81)
    """
    uses, free = weight_uses(module, example)
    total = sum(use.positions * use.weight.numel() for use in uses)
    nonzero = sum(use.positions * int(use.weight.count_nonzero()) for use in uses)
    return total + free, nonzero + free


def peak_bytes(module: nn.Module, batch: Tensor) -> int:
    """Bytes of weights and buffers plus the most that intermediate tensors take at once.

    Example:
        >>> peak_bytes(nn.Sequential(nn.Linear(4, 3), nn.ReLU()), torch.zeros(2, 4))
        108
    """
    tensors = (*module.parameters(), *module.buffers())
    stored = {tensor.untyped_storage()._cdata: tensor.nbytes for tensor in tensors}
    live = _LiveBytes({*stored, batch.untyped_storage()._cdata})
    with torch.no_grad(), live:
        module(batch)
    return sum(stored.values()) + live.most


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
