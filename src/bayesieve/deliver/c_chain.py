"""From a module to a chain of steps, by symbolic tracing."""

import math
import operator
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NoReturn

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from bayesieve.deliver.c_steps import (
    ACTIVATIONS,
    ActivationStep,
    AffineStep,
    PadStep,
    PoolStep,
    SelectStep,
    Shape,
    Step,
)
from bayesieve.deliver.c_weights import ConvStep, LinearStep, Weights
from bayesieve.deliver.quantise import QuantisedConv, QuantisedLinear
from bayesieve.errors import UnsupportedModelError

SUPPORTED = (
    "Linear, Conv2d, BatchNorm1d, BatchNorm2d, ReLU, Tanh, Sigmoid, SiLU, MaxPool2d, AvgPool2d, "
    "AdaptiveAvgPool2d, Flatten, Dropout, Identity, index_select of features, "
    "add of a number per channel"
)
_DROPPED = (nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.AlphaDropout)
_CALLS: dict[Any, type[nn.Module]] = {
    F.relu: nn.ReLU, torch.relu: nn.ReLU, torch.relu_: nn.ReLU, "relu": nn.ReLU, "relu_": nn.ReLU,
    F.tanh: nn.Tanh, torch.tanh: nn.Tanh, "tanh": nn.Tanh,
    F.sigmoid: nn.Sigmoid, torch.sigmoid: nn.Sigmoid, "sigmoid": nn.Sigmoid,
    F.silu: nn.SiLU, torch.flatten: nn.Flatten, "flatten": nn.Flatten,
    F.max_pool2d: nn.MaxPool2d, torch.max_pool2d: nn.MaxPool2d,
    F.avg_pool2d: nn.AvgPool2d, F.adaptive_avg_pool2d: nn.AdaptiveAvgPool2d,
}  # fmt: skip
_ARGUMENTS: dict[type[nn.Module], tuple[str, ...]] = {
    nn.MaxPool2d: ("kernel_size", "stride", "padding", "dilation", "ceil_mode"),
    nn.AvgPool2d: (
        "kernel_size", "stride", "padding", "ceil_mode", "count_include_pad", "divisor_override",
    ),
    nn.AdaptiveAvgPool2d: ("output_size",),
    nn.Flatten: ("start_dim", "end_dim"),
}  # fmt: skip


class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        quantised = isinstance(m, QuantisedLinear | QuantisedConv)
        return quantised or super().is_leaf_module(m, module_qualified_name)


def chain_of(module: nn.Module, shape: Shape) -> list[Step]:
    """The steps of a module in eval mode for inputs of the given shape, without the batch axis."""
    if type(module) in _LAYERS:  # a lone layer would be traced through
        module = nn.Sequential(module)
    try:
        graph = _Tracer().trace(module)
    except Exception as error:  # the user's forward meets a symbolic input and may raise anything
        raise UnsupportedModelError(
            f"export_c: the module cannot be traced: {error}. Use a chain of layers "
            "such as nn.Sequential."
        ) from error
    chain = _Chain(module, shape)
    for node in graph.nodes:
        chain.add(node)
    return chain.steps


class _Chain:
    """The steps so far, the node they compute, and the shape of its value."""

    def __init__(self, root: nn.Module, shape: Shape) -> None:
        self.root, self.shape, self.steps = root, shape, list[Step]()
        self.node: fx.Node | None = None

    def add(self, node: fx.Node) -> None:
        if node.op == "get_attr" or _reads_size(node):
            return
        if node.op == "placeholder":
            if self.node is not None:
                raise UnsupportedModelError("export_c: the module must take one input, got more.")
            self.node = node
            return
        if not node.args or node.args[0] is not self.node:
            raise UnsupportedModelError(
                f"export_c: the network branches at '{node.name}'; only chains of layers are "
                "supported."
            )
        if node.op == "call_module":
            name = str(node.target)
            self.layer(name, self.root.get_submodule(name))
        elif node.op != "output":
            self.call(node)
        self.node = node

    def layer(self, name: str, layer: nn.Module) -> None:
        make = _LAYERS.get(type(layer))
        if make is None:
            _refuse(name, type(layer).__name__)
        for step in make(name, layer, self):
            self.steps.append(step)
            self.shape = step.shape

    def call(self, node: fx.Node) -> None:
        kind, rest = _CALLS.get(node.target), node.args[1:]
        if kind is not None:
            keywords = dict(zip(_ARGUMENTS.get(kind, ()), rest, strict=False)) | {
                key: value
                for key, value in node.kwargs.items()
                if key in _ARGUMENTS.get(kind, ()) and value is not None
            }
            self.layer(node.name, kind(**keywords))
        elif node.target in (torch.index_select, "index_select") and rest[0] == 1:
            self.select(node, rest[1])
        elif node.target is operator.getitem and _is_column_choice(rest[0]):
            self.select(node, rest[0][1])  # type: ignore[index]
        elif node.target in (torch.add, operator.add) and self.is_constant(rest[0]):
            self.shift(node, rest[0])
        elif node.target in ("view", "reshape") and self.flattens(rest):
            self.shape = (math.prod(self.shape),)
        elif node.target != "contiguous" and not _drops_nothing(node):
            target = node.target
            _refuse(node.name, target if isinstance(target, str) else target.__name__)

    def flattens(self, sizes: tuple[Any, ...]) -> bool:
        """Whether a reshape merges all but the batch axis."""
        if len(sizes) != 2 or not (isinstance(sizes[0], fx.Node) or sizes[0] == -1):
            return False
        return sizes[1] == math.prod(self.shape) or (sizes[1] == -1 and sizes[0] != -1)

    def is_constant(self, value: object) -> bool:
        return isinstance(value, fx.Node) and value.op == "get_attr"

    def constant(self, value: Any) -> Tensor:
        owner, _, leaf = str(value.target).rpartition(".")
        tensor: Tensor = getattr(self.root.get_submodule(owner), leaf)
        return tensor.detach()

    def select(self, node: fx.Node, index: object) -> None:
        if not self.is_constant(index):
            _refuse(node.name, "index_select", "with numbers that are not a buffer")
        step = SelectStep(self.shape, self.constant(index).long())
        self.steps.append(step)
        self.shape = step.shape

    def shift(self, node: fx.Node, value: object) -> None:
        """One number added to each channel, as compaction leaves behind."""
        numbers = self.constant(value)
        if numbers.shape != (self.shape[0], *[1] * (len(self.shape) - 1)):
            _refuse(node.name, "add", f"of shape {tuple(numbers.shape)} to {self.shape}")
        shift = numbers.flatten().float()
        self.rescale(torch.ones_like(shift), shift)

    def rescale(self, factor: Tensor, shift: Tensor) -> None:
        """A factor and a shift per channel, folded into the layer before where there is one."""
        last = self.steps[-1] if self.steps else None
        if isinstance(last, LinearStep | ConvStep) and last.shape == self.shape:
            self.steps[-1] = replace(last, weights=last.weights.scaled(factor, shift))
        else:
            self.steps.append(AffineStep(self.shape, factor, shift))


def _linear(name: str, layer: nn.Module, chain: _Chain) -> list[Step]:
    if len(chain.shape) != 1:
        _refuse(name, "Linear", f"on inputs of shape {chain.shape}; flatten them first")
    return [LinearStep(_weights(layer, math.prod(chain.shape)))]


def _conv(name: str, layer: nn.Module, chain: _Chain) -> list[Step]:
    if len(layer.kernel_size) != 2 or len(chain.shape) != 3:  # type: ignore[arg-type]
        _refuse(name, "Conv", f"on inputs of shape {chain.shape}")
    if layer.padding_mode != "zeros":
        _refuse(name, "Conv2d", f"with padding_mode {layer.padding_mode!r}")
    steps: list[Step] = []
    margins = _margins(layer)
    shape: Any = chain.shape  # three numbers: checked above
    if any(margins):
        steps.append(PadStep(shape, margins))
        shape = steps[0].shape
    weights = _weights(layer, math.prod(shape))
    conv: Any = layer
    return [*steps, ConvStep(weights, shape, conv.stride, conv.dilation, conv.groups)]


def _margins(layer: Any) -> tuple[int, int, int, int]:
    """Left, right, top, bottom."""
    if layer.padding == "valid":
        return (0, 0, 0, 0)
    if layer.padding == "same":
        total = [d * (k - 1) for d, k in zip(layer.dilation, layer.kernel_size, strict=True)]
        high, wide = total
        return (wide // 2, wide - wide // 2, high // 2, high - high // 2)
    high, wide = layer.padding
    return (wide, wide, high, high)


def _weights(layer: Any, n_read: int) -> Weights:
    values, scale = layer.weight.detach(), None
    if isinstance(layer, QuantisedLinear | QuantisedConv):
        scale = layer.scale.float()
    else:
        values = values.float()
    bias = torch.zeros(len(values)) if layer.bias is None else layer.bias.detach().float()
    return Weights(values, bias, n_read, scale)


def _batch_norm(name: str, layer: nn.Module, chain: _Chain) -> list[Step]:
    norm: Any = layer
    if norm.running_mean is None:
        _refuse(name, type(layer).__name__, "without running statistics")
    mean, variance = norm.running_mean.double(), norm.running_var.double()
    factor = (variance + norm.eps).rsqrt()
    shift = -mean * factor
    if norm.affine:
        weight, bias = norm.weight.detach().double(), norm.bias.detach().double()
        factor, shift = factor * weight, shift * weight + bias
    chain.rescale(factor.float(), shift.float())
    return []


def _pool(name: str, layer: nn.Module, chain: _Chain) -> list[Step]:
    pool: Any = layer
    kind = type(layer).__name__
    if len(chain.shape) != 3:
        _refuse(name, kind, f"on inputs of shape {chain.shape}")
    if pool.ceil_mode or getattr(pool, "return_indices", False):
        _refuse(name, kind, "with ceil_mode or return_indices")
    kernel, stride, padding = (_pair(v) for v in (pool.kernel_size, pool.stride, pool.padding))
    if isinstance(layer, nn.MaxPool2d):
        if _pair(pool.dilation) != (1, 1):
            _refuse(name, kind, "with dilation")
        return [PoolStep(chain.shape, "max", kernel, stride, padding)]
    if any(padding) and not pool.count_include_pad and not pool.divisor_override:
        _refuse(name, kind, "with padding that is not counted")
    divisor = pool.divisor_override or 0
    return [PoolStep(chain.shape, "mean", kernel, stride, padding, divisor)]


def _adaptive_pool(name: str, layer: nn.Module, chain: _Chain) -> list[Step]:
    pool: Any = layer
    sides = _pair(pool.output_size)
    if len(chain.shape) != 3 or any(
        n % (m or n) for n, m in zip(chain.shape[1:], sides, strict=True)
    ):
        _refuse(name, "AdaptiveAvgPool2d", f"from {chain.shape[1:]} to {sides}: sides must divide")
    high, wide = (n // (m or n) for n, m in zip(chain.shape[1:], sides, strict=True))
    return [PoolStep(chain.shape, "mean", (high, wide), (high, wide))]


def _activation(name: str, layer: nn.Module, chain: _Chain) -> list[Step]:
    return [ActivationStep(chain.shape, type(layer).__name__)]


def _flatten(name: str, layer: nn.Module, chain: _Chain) -> list[Step]:
    flatten: Any = layer
    if flatten.start_dim != 1:
        _refuse(name, "Flatten", f"from axis {flatten.start_dim}; use 1")
    whole = torch.empty(1, *chain.shape, device="meta")
    chain.shape = tuple(whole.flatten(1, flatten.end_dim).shape[1:])
    return []


def _nothing(name: str, layer: nn.Module, chain: _Chain) -> list[Step]:
    return []


_LAYERS: dict[type[nn.Module], Callable[[str, nn.Module, _Chain], list[Step]]] = {
    nn.Linear: _linear,
    QuantisedLinear: _linear,
    nn.Conv2d: _conv,
    QuantisedConv: _conv,
    nn.BatchNorm1d: _batch_norm,
    nn.BatchNorm2d: _batch_norm,
    nn.MaxPool2d: _pool,
    nn.AvgPool2d: _pool,
    nn.AdaptiveAvgPool2d: _adaptive_pool,
    nn.Flatten: _flatten,
    **{getattr(nn, kind): _activation for kind in ACTIVATIONS},
    **dict.fromkeys(_DROPPED, _nothing),
}


def _refuse(name: str, kind: str, why: str = "") -> NoReturn:
    detail = f" {why}" if why else ""
    raise UnsupportedModelError(
        f"export_c: layer '{name}' ({kind}) is not supported{detail}; supported: {SUPPORTED}."
    )


def _reads_size(node: fx.Node) -> bool:
    if node.op == "call_method":
        return node.target in ("size", "dim")
    if node.target is getattr:
        return node.args[1] in ("shape", "ndim")
    is_item = node.target is operator.getitem and isinstance(node.args[0], fx.Node)
    return is_item and _reads_size(node.args[0])  # type: ignore[arg-type]


def _drops_nothing(node: fx.Node) -> bool:
    """Whether a call is a dropout that is switched off."""
    training = node.kwargs.get("training", node.args[2] if len(node.args) > 2 else True)
    return node.target in (F.dropout, F.dropout2d, F.alpha_dropout) and training is False


def _is_column_choice(key: object) -> bool:
    is_pair = isinstance(key, tuple) and len(key) == 2
    return is_pair and key[0] == slice(None) and isinstance(key[1], fx.Node)  # type: ignore[index]


def _pair(value: Any) -> tuple[Any, Any]:
    return tuple(value) if isinstance(value, tuple | list) else (value, value)
