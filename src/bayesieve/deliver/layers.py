"""A network as a list of layers: the form that the C export, the runtime and the page share.

`read_layers` traces a module whose layers follow one another and returns one object per layer, in
the order of the calls. Every layer knows the shapes of its input and output and computes the same
as the module in torch, so that each user can check its translation.

Shapes are without the batch axis. A layer reads its input flat, channels before rows before
columns, as torch lays it out: flattening is no layer.
"""

import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, NoReturn

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from bayesieve.errors import UnsupportedModelError
from bayesieve.graph.graph import Graph, trace
from bayesieve.graph.operations import reads_size

Shape = tuple[int, ...]
Pair = tuple[int, int]


@dataclass(frozen=True, eq=False)
class Layer(ABC):
    """One layer.

    Args:
        source: shape of the input.
    """

    source: Shape

    @abstractmethod
    def run(self, x: Tensor) -> Tensor:
        """The layer in torch, on (n, *source)."""

    def __call__(self, x: Tensor) -> Tensor:
        """The same on inputs (n, ...) with as many entries, flat or not."""
        return self.run(x.reshape(len(x), *self.source))

    @cached_property
    def shape(self) -> Shape:
        """Shape of the output."""
        with torch.no_grad():
            return tuple(self.run(torch.zeros(1, *self.source)).shape[1:])


@dataclass(frozen=True, eq=False)
class Weighted(Layer):
    """Layers with rows of weights and one bias per row.

    Args:
        name: of the layer in the module.
        weight: (rows, ...).
        bias: (rows,).
    """

    name: str
    weight: Tensor
    bias: Tensor


@dataclass(frozen=True, eq=False)
class Linear(Weighted):
    """Rows of weights, (rows, columns), times the input, plus a bias."""

    def run(self, x: Tensor) -> Tensor:
        """Multiply and add."""
        return F.linear(x, self.weight, self.bias)


@dataclass(frozen=True, eq=False)
class Conv(Weighted):
    """A convolution of images, (channels, height, width), without padding.

    Its weight is (out, in / groups, height, width).

    Args:
        stride: rows, columns.
        dilation: rows, columns.
        groups: of channels that do not mix.
    """

    stride: Pair
    dilation: Pair
    groups: int

    def run(self, x: Tensor) -> Tensor:
        """Convolve."""
        return F.conv2d(x, self.weight, self.bias, self.stride, 0, self.dilation, self.groups)


@dataclass(frozen=True, eq=False)
class Pad(Layer):
    """Zeros around an image, (channels, height, width).

    Args:
        margins: left, right, top, bottom.
    """

    margins: tuple[int, int, int, int]

    def run(self, x: Tensor) -> Tensor:
        """Add the margins."""
        return F.pad(x, self.margins)


@dataclass(frozen=True, eq=False)
class Pool(Layer):
    """The largest entry, or the mean, of windows of an image, (channels, height, width).

    Args:
        kind: "max" or "mean".
        kernel: rows, columns.
        stride: rows, columns.
        padding: rows, columns; the largest entry ignores it, the mean counts it as zeros.
        divisor: of the mean, such as the area of the kernel.
    """

    kind: Literal["max", "mean"]
    kernel: Pair
    stride: Pair
    padding: Pair
    divisor: int

    def run(self, x: Tensor) -> Tensor:
        """Pool every window."""
        windows = (self.kernel, self.stride, self.padding)
        if self.kind == "max":
            return F.max_pool2d(x, *windows)
        return F.avg_pool2d(x, *windows, divisor_override=self.divisor)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "ReLU": F.relu, "Tanh": torch.tanh, "Sigmoid": torch.sigmoid, "SiLU": F.silu, "GELU": F.gelu,
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Activation(Layer):
    """A function of every entry.

    Args:
        kind: name of torch's module: a key of `ACTIVATIONS`, or "LeakyReLU".
        slope: of a leaky ReLU.
    """

    kind: str
    slope: float = 0.0

    def run(self, x: Tensor) -> Tensor:
        """Apply the function."""
        if self.kind == "LeakyReLU":
            return F.leaky_relu(x, self.slope)
        return ACTIVATIONS[self.kind](x)


@dataclass(frozen=True, eq=False)
class Scale(Layer):
    """A factor and a shift per channel: a BatchNorm with no layer before it to fold into."""

    factor: Tensor
    shift: Tensor

    def run(self, x: Tensor) -> Tensor:
        """Multiply and add."""
        return x * per_row(self.factor, x[0]) + per_row(self.shift, x[0])


@dataclass(frozen=True, eq=False)
class Select(Layer):
    """Some features (or channels) of the input, by number.

    Args:
        index: which entries of the first axis, (kept,) int64.
    """

    index: Tensor

    def run(self, x: Tensor) -> Tensor:
        """Take the entries."""
        return x.index_select(1, self.index)


@dataclass(frozen=True, eq=False)
class Call(Layer):
    """An operation that stays torch's.

    Args:
        name: of the call in the traced network.
        function: the call, on (n, *source).
    """

    name: str
    function: Callable[[Tensor], Tensor]

    def run(self, x: Tensor) -> Tensor:
        """Call torch."""
        return self.function(x)


def run_layers(layers: Sequence[Layer], x: Tensor) -> Tensor:
    """Run layers one after another in torch, on inputs (n, ...)."""
    with torch.no_grad():
        for layer in layers:
            x = layer(x)
    return x


def per_row(values: Tensor, like: Tensor) -> Tensor:
    """A vector shaped to broadcast along the first axis of `like`."""
    return values.view(-1, *[1] * (like.dim() - 1))


# ---------------------------------------------------------------------------------------- reading

_SUPPORTED = (
    "Linear, Conv2d, BatchNorm1d, BatchNorm2d, ReLU, Tanh, Sigmoid, SiLU, MaxPool2d, AvgPool2d, "
    "AdaptiveAvgPool2d, Flatten, Dropout, Identity, index_select of features, "
    "add of a number per channel"
)
_ALWAYS = {"linear", "flatten", "view", "reshape", "identity", "dropout", "index_select", "getitem",
           "relu", "tanh", "sigmoid", "silu"}  # fmt: skip
_OF_IMAGES = {"conv", "batch_norm", "max_pool", "avg_pool", "adaptive_avg_pool", "add"}

# Functions by operation: the layer that computes the same, and the layer's arguments in order.
_POOL = ("kernel_size", "stride", "padding")
_FUNCTIONS: dict[str, tuple[type[nn.Module], tuple[str, ...]]] = {
    "relu": (nn.ReLU, ()),
    "tanh": (nn.Tanh, ()),
    "sigmoid": (nn.Sigmoid, ()),
    "silu": (nn.SiLU, ()),
    "gelu": (nn.GELU, ("approximate",)),
    "leaky_relu": (nn.LeakyReLU, ("negative_slope",)),
    "flatten": (nn.Flatten, ("start_dim", "end_dim")),
    "max_pool": (nn.MaxPool2d, (*_POOL, "dilation", "ceil_mode")),
    "avg_pool": (nn.AvgPool2d, (*_POOL, "ceil_mode", "count_include_pad", "divisor_override")),
    "adaptive_avg_pool": (nn.AdaptiveAvgPool2d, ("output_size",)),
}


def read_layers(who: str, module: nn.Module, shape: Shape, *, calls: bool = False) -> list[Layer]:
    """The layers of a module in eval mode, in the order of their calls.

    BatchNorm is folded into the layer before it. Dropout and flattening leave no layer.

    Args:
        who: the caller, for errors.
        module: maps one tensor to one tensor; each operation reads only the one before it.
        shape: of one input.
        calls: whether operations other than those of a perceptron become a `Call`; otherwise
            those on images are translated too, and any other is an error.

    Raises:
        UnsupportedModelError: the network branches, or holds an operation without translation.

    Example:
        >>> net = nn.Sequential(nn.Flatten(), nn.Linear(6, 4), nn.BatchNorm1d(4), nn.ReLU())
        >>> [(type(layer).__name__, layer.shape) for layer in read_layers("me", net, (2, 3))]
        [('Linear', (4,)), ('Activation', (4,))]
    """
    reader = _Reader(who, trace(who, module), shape, calls)
    for node in reader.graph.nodes:
        reader.add(node)
    return reader.layers


def as_layer(graph: Graph, node: fx.Node) -> nn.Module | None:
    """The layer that a node calls, or that computes the same as its function; None if none does."""
    if node.op == "call_module":
        return graph.layer(node)
    name = graph.operation(node).name
    if name not in _FUNCTIONS:
        return None
    kind, names = _FUNCTIONS[name]
    arguments = dict(zip(names, node.args[1:], strict=False))
    arguments |= {k: v for k, v in node.kwargs.items() if k in names and v is not None}
    return kind(**arguments)


def folded_norm(norm: Any) -> tuple[Tensor, Tensor]:
    """Factor and shift, (channels,) each, of a BatchNorm in eval mode.

    Example:
        >>> factor, shift = folded_norm(nn.BatchNorm1d(1, eps=3.0))
        >>> factor.item(), shift.item()  # 1 / √(1 + 3)
        (0.5, 0.0)
    """
    factor = (norm.running_var.double() + norm.eps).rsqrt()
    shift = -norm.running_mean.double() * factor
    if norm.affine:
        weight, bias = norm.weight.detach().double(), norm.bias.detach().double()
        factor, shift = factor * weight, shift * weight + bias
    return factor.float(), shift.float()


class _Reader:
    """The layers so far, the node they compute, and the shape of its value."""

    def __init__(self, who: str, graph: Graph, shape: Shape, calls: bool) -> None:
        self.who, self.graph, self.shape, self.calls = who, graph, shape, calls
        self.operations = _ALWAYS | ({"gelu", "leaky_relu"} if calls else _OF_IMAGES)
        self.layers: list[Layer] = []
        self.node: fx.Node | None = None

    def add(self, node: fx.Node) -> None:
        """Read the next node."""
        if node.op == "get_attr" or _is_size(node):
            return
        if node.op != "placeholder":
            values = [n for n in node.all_input_nodes if n.op != "get_attr" and not _is_size(n)]
            if values != [self.node] or node.args[0] is not self.node:
                raise UnsupportedModelError(
                    f"{self.who}: the network branches at '{node.name}'; only layers that follow "
                    "one another are supported."
                )
        if node.op not in ("placeholder", "output"):
            self._operation(node)
        self.node = node

    def _operation(self, node: fx.Node) -> None:
        name = self.graph.operation(node).name
        layer = self.graph.layer(node) if node.op == "call_module" else None
        try:
            if name not in self.operations or not self._translated(node, name, layer):
                where = node.name if layer is None else str(node.target)
                self._refuse(where, self.graph.spelling(node))
        except UnsupportedModelError:
            if not self.calls:
                raise
            self._append(self._call(node, layer))

    def _translated(self, node: fx.Node, name: str, layer: nn.Module | None) -> bool:
        """Whether the node has a translation, which is then appended."""
        if layer is not None:
            self._layer(str(node.target), layer)
        elif name in _FUNCTIONS:
            self._layer(node.name, as_layer(self.graph, node))
        elif name in ("index_select", "getitem"):
            return self._select(node, name)
        elif name == "add":
            return self._shift(node)
        elif name in ("view", "reshape") and self._merges_all(node.args[1:]):
            self.shape = (math.prod(self.shape),)
        else:
            on = node.kwargs.get("training", node.args[2] if len(node.args) > 2 else True)
            dropouts = (F.dropout, F.dropout2d, F.alpha_dropout)
            off = name == "dropout" and node.target in dropouts and on is False
            return name == "identity" or off
        return True

    def _layer(self, name: str, layer: nn.Module | None) -> None:
        if layer is None or type(layer) not in _LAYERS:
            self._refuse(name, type(layer).__name__)
        _LAYERS[type(layer)](self, name, layer)

    def _append(self, layer: Layer) -> None:
        self.layers.append(layer)
        self.shape = layer.shape

    # ------------------------------------------------------------------------ layers of torch.nn

    def linear(self, name: str, layer: Any) -> None:
        if len(self.shape) != 1:
            self._refuse(name, "Linear", f"on inputs of shape {self.shape}; flatten them first")
        self._append(Linear(self.shape, name, layer.weight.detach(), _bias(layer)))

    def conv(self, name: str, layer: Any) -> None:
        if len(layer.kernel_size) != 2 or len(self.shape) != 3:
            self._refuse(name, "Conv", f"on inputs of shape {self.shape}")
        if layer.padding_mode != "zeros":
            self._refuse(name, "Conv2d", f"with padding_mode {layer.padding_mode!r}")
        margins = margins_of(layer)
        if any(margins):
            self._append(Pad(self.shape, margins))
        weight, bias = layer.weight.detach(), _bias(layer)
        self._append(
            Conv(self.shape, name, weight, bias, layer.stride, layer.dilation, layer.groups)
        )

    def batch_norm(self, name: str, norm: Any) -> None:
        if norm.running_mean is None:
            self._refuse(name, type(norm).__name__, "without running statistics")
        self._rescale(*folded_norm(norm))

    def pool(self, name: str, pool: Any) -> None:
        kind = type(pool).__name__
        if len(self.shape) != 3:
            self._refuse(name, kind, f"on inputs of shape {self.shape}")
        if pool.ceil_mode or getattr(pool, "return_indices", False):
            self._refuse(name, kind, "with ceil_mode or return_indices")
        kernel, stride, padding = (pair(v) for v in (pool.kernel_size, pool.stride, pool.padding))
        if isinstance(pool, nn.MaxPool2d):
            if pair(pool.dilation) != (1, 1):
                self._refuse(name, kind, "with dilation")
            self._append(Pool(self.shape, "max", kernel, stride, padding, math.prod(kernel)))
            return
        if any(padding) and not pool.count_include_pad and not pool.divisor_override:
            self._refuse(name, kind, "with padding that is not counted")
        divisor = pool.divisor_override or math.prod(kernel)
        self._append(Pool(self.shape, "mean", kernel, stride, padding, divisor))

    def adaptive_pool(self, name: str, pool: Any) -> None:
        sides = pair(pool.output_size)
        pairs = list(zip(self.shape[1:], sides, strict=False))  # None keeps a side as it is
        if len(self.shape) != 3 or any(n % (m or n) for n, m in pairs):
            why = f"from {self.shape[1:]} to {sides}: sides must divide"
            self._refuse(name, "AdaptiveAvgPool2d", why)
        high, wide = (n // (m or n) for n, m in pairs)
        kernel = (high, wide)
        self._append(Pool(self.shape, "mean", kernel, kernel, (0, 0), high * wide))

    def activation(self, name: str, layer: Any) -> None:
        if getattr(layer, "approximate", "none") != "none":
            self._refuse(name, "GELU", f"with approximate {layer.approximate!r}")
        slope = float(getattr(layer, "negative_slope", 0.0))
        self._append(Activation(self.shape, type(layer).__name__, slope))

    def flatten(self, name: str, layer: Any) -> None:
        if layer.start_dim != 1:
            self._refuse(name, "Flatten", f"from axis {layer.start_dim}; use 1")
        whole = torch.empty(1, *self.shape, device="meta")
        self.shape = tuple(whole.flatten(1, layer.end_dim).shape[1:])

    def nothing(self, name: str, layer: Any) -> None:
        """Dropout in eval mode, or an identity."""

    # ------------------------------------------------------------------------------------- calls

    def _select(self, node: fx.Node, name: str) -> bool:
        """Whether a call takes entries of axis 1 by a constant index."""
        arguments = node.args[1:]
        if name == "index_select":
            index = arguments[1] if len(arguments) == 2 and arguments[0] == 1 else None
        else:
            key = arguments[0]
            is_pair = isinstance(key, tuple) and len(key) == 2 and key[0] == slice(None)
            index = key[1] if is_pair else None  # type: ignore[index]
        if not (isinstance(index, fx.Node) and index.op == "get_attr"):
            return False
        self._append(Select(self.shape, self.graph.tensor(index).detach().long()))
        return True

    def _shift(self, node: fx.Node) -> bool:
        """Whether a call adds one number to each channel, as compaction leaves behind."""
        value = node.args[1]
        if not (isinstance(value, fx.Node) and value.op == "get_attr"):
            return False
        numbers = self.graph.tensor(value).detach()
        if numbers.shape != (self.shape[0], *[1] * (len(self.shape) - 1)):
            self._refuse(node.name, "add", f"of shape {tuple(numbers.shape)} to {self.shape}")
        shift = numbers.flatten().float()
        self._rescale(torch.ones_like(shift), shift)
        return True

    def _rescale(self, factor: Tensor, shift: Tensor) -> None:
        """A factor and a shift per channel, folded into the layer before where there is one."""
        last = self.layers[-1] if self.layers else None
        if isinstance(last, Weighted) and last.shape == self.shape:
            weight, bias = last.weight * per_row(factor, last.weight), last.bias * factor + shift
            self.layers[-1] = replace(last, weight=weight, bias=bias)
        else:
            self._append(Scale(self.shape, factor, shift))

    def _merges_all(self, sizes: tuple[Any, ...]) -> bool:
        """Whether a reshape merges all but the batch axis."""
        if len(sizes) != 2 or not (isinstance(sizes[0], fx.Node) or sizes[0] == -1):
            return False
        return sizes[1] == math.prod(self.shape) or (sizes[1] == -1 and sizes[0] != -1)

    def _call(self, node: fx.Node, layer: nn.Module | None) -> Call:
        """The node as a function of its first argument."""
        if any(_is_size(n) for n in node.all_input_nodes):
            self._refuse(node.name, self.graph.spelling(node), "with sizes of its input")
        args, kwargs = fx.map_arg((node.args[1:], dict(node.kwargs)), self.graph.tensor)

        def run(x: Tensor) -> Tensor:
            if layer is not None:
                return layer(x, *args, **kwargs)
            if node.op == "call_method":
                return getattr(x, str(node.target))(*args, **kwargs)
            return node.target(x, *args, **kwargs)  # type: ignore[operator]

        return Call(self.shape, node.name, run)

    def _refuse(self, name: str, kind: str, why: str = "") -> NoReturn:
        refused = f"layer '{name}' ({kind}) is not supported{why and f' {why}'}"
        raise UnsupportedModelError(f"{self.who}: {refused}; supported: {_SUPPORTED}.")


_LAYERS: dict[type[nn.Module], Callable[[_Reader, str, Any], None]] = {
    nn.Linear: _Reader.linear,
    nn.Conv2d: _Reader.conv,
    nn.BatchNorm1d: _Reader.batch_norm,
    nn.BatchNorm2d: _Reader.batch_norm,
    nn.MaxPool2d: _Reader.pool,
    nn.AvgPool2d: _Reader.pool,
    nn.AdaptiveAvgPool2d: _Reader.adaptive_pool,
    nn.Flatten: _Reader.flatten,
    **dict.fromkeys(
        (nn.ReLU, nn.LeakyReLU, nn.Tanh, nn.Sigmoid, nn.SiLU, nn.GELU), _Reader.activation
    ),
    **dict.fromkeys(
        (nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout),
        _Reader.nothing,
    ),
}


def _bias(layer: Any) -> Tensor:
    return torch.zeros(len(layer.weight)) if layer.bias is None else layer.bias.detach()


def margins_of(layer: Any) -> tuple[int, int, int, int]:
    """Zeros that a convolution adds to an image: left, right, top, bottom."""
    if layer.padding == "valid":
        return (0, 0, 0, 0)
    if layer.padding == "same":
        high, wide = (d * (k - 1) for d, k in zip(layer.dilation, layer.kernel_size, strict=True))
        return (wide // 2, wide - wide // 2, high // 2, high - high // 2)
    high, wide = layer.padding
    return (wide, wide, high, high)


def pair(value: Any) -> tuple[Any, Any]:
    """A setting for rows and columns, from a pair or one number for both."""
    return tuple(value) if isinstance(value, tuple | list) else (value, value)


def _is_size(node: fx.Node) -> bool:
    """Whether a node is a size of a value, or one entry of it."""
    is_item = node.target is operator.getitem and isinstance(node.args[0], fx.Node)
    return reads_size(node) or (is_item and _is_size(node.args[0]))  # type: ignore[arg-type]
