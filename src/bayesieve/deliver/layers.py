"""A network as a list of layers: the form that the C export, the runtime and the page share.

`read_layers` traces a module whose layers follow one another and returns one object per layer, in
the order of the calls. Every layer knows the shapes of its input and output and computes the same
as the module in torch, so that each user can check its translation.

Shapes are without the batch axis. A layer reads its input flat, channels before rows before
columns, as torch lays it out: flattening is no layer.
"""

import inspect
import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, NoReturn

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from bayesieve.errors import UnsupportedModelError
from bayesieve.graph.capture import capture
from bayesieve.graph.graph import Graph
from bayesieve.graph.operations import OPERATIONS, UNCHANGING, Kind, Operation, reads_size

Shape = tuple[int, ...]
Pair = tuple[int, int]
PoolKind = Literal["max", "mean"]
ACTIVATIONS = ("relu", "leaky_relu", "tanh", "sigmoid", "silu", "gelu")  # operations with a form


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

    kind: PoolKind
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


@dataclass(frozen=True, eq=False)
class Activation(Layer):
    """A function of every entry.

    Args:
        kind: name of torch's layer, such as "ReLU".
        slope: of a leaky ReLU.
    """

    kind: str
    slope: float = 0.0

    def run(self, x: Tensor) -> Tensor:
        """Apply the function."""
        slope = (self.slope,) if self.kind == "LeakyReLU" else ()
        return getattr(nn, self.kind)(*slope)(x)


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


def run_layers(layers: Sequence[Callable[[Tensor], Tensor]], x: Tensor) -> Tensor:
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
_OF_IMAGES = {"conv", "batch_norm", "max_pool", "avg_pool", "adaptive_avg_pool", "add"}
_OF_CALLS = {"gelu", "leaky_relu"}  # that C and the page do not know


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
    reader = _Reader(who, capture(who, module), shape, calls)
    for node in reader.graph.nodes:
        reader.add(node)
    return reader.layers


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
        self.readers = {
            name: read
            for name, read in _READERS.items()
            if name not in (_OF_IMAGES if calls else _OF_CALLS)
        }
        self.layers: list[Layer] = []
        self.node: fx.Node | None = None

    def add(self, node: fx.Node) -> None:
        """Read the next node."""
        if node.op == "get_attr" or is_size(node):
            return
        if node.op != "placeholder":
            values = [n for n in node.all_input_nodes if n.op != "get_attr" and not is_size(n)]
            if values != [self.node] or node.args[0] is not self.node:
                raise UnsupportedModelError(
                    f"{self.who}: the network branches at '{node.name}'; only layers that follow "
                    "one another are supported."
                )
        if node.op not in ("placeholder", "output"):
            self._operation(node)
        self.node = node

    def _operation(self, node: fx.Node) -> None:
        read = self.readers.get(self.graph.operation(node).name)
        try:
            if read is None:
                self._refuse(node)
            read(self, node, as_layer(self.graph, node))
        except UnsupportedModelError:
            if not self.calls:
                raise
            self._append(self._call(node))

    def _append(self, layer: Layer) -> None:
        self.layers.append(layer)
        self.shape = layer.shape

    def linear(self, node: fx.Node, layer: Any) -> None:
        if len(self.shape) != 1:
            self._refuse(node, f"on inputs of shape {self.shape}; flatten them first")
        name, weight = str(node.target), layer.weight.detach()
        self._append(Linear(self.shape, name, weight, _bias(layer)))

    def conv(self, node: fx.Node, layer: Any) -> None:
        if len(layer.kernel_size) != 2 or len(self.shape) != 3:
            self._refuse(node, f"on inputs of shape {self.shape}")
        if layer.padding_mode != "zeros":
            self._refuse(node, f"with padding_mode {layer.padding_mode!r}")
        margins = margins_of(layer)
        if any(margins):
            self._append(Pad(self.shape, margins))
        weighted = (str(node.target), layer.weight.detach(), _bias(layer))
        self._append(Conv(self.shape, *weighted, layer.stride, layer.dilation, layer.groups))

    def batch_norm(self, node: fx.Node, norm: Any) -> None:
        if norm.running_mean is None:
            self._refuse(node, "without running statistics")
        self._rescale(*folded_norm(norm))

    def pool(self, node: fx.Node, pool: Any) -> None:
        if len(self.shape) != 3:
            self._refuse(node, f"on inputs of shape {self.shape}")
        windows = windows_of(pool, self.shape[1:])
        if isinstance(windows, str):
            self._refuse(node, windows)
        self._append(Pool(self.shape, *windows))

    def activation(self, node: fx.Node, layer: Any) -> None:
        if getattr(layer, "approximate", "none") != "none":
            self._refuse(node, f"with approximate {layer.approximate!r}")
        slope = float(getattr(layer, "negative_slope", 0.0))
        self._append(Activation(self.shape, type(layer).__name__, slope))

    def flatten(self, node: fx.Node, layer: Any) -> None:
        if layer.start_dim != 1:
            self._refuse(node, f"from axis {layer.start_dim}; use 1")
        whole = torch.empty(1, *self.shape, device="meta")
        self.shape = tuple(whole.flatten(1, layer.end_dim).shape[1:])

    def reshape(self, node: fx.Node, layer: None) -> None:
        """A view that merges all but the batch axis."""
        sizes, n = node.args[1:], math.prod(self.shape)
        if len(sizes) != 2 or not (isinstance(sizes[0], fx.Node) or sizes[0] == -1):
            self._refuse(node)
        if not (sizes[1] == n or (sizes[1] == -1 and sizes[0] != -1)):
            self._refuse(node)
        self.shape = (n,)

    def nothing(self, node: fx.Node, layer: nn.Module | None) -> None:
        """An identity, or dropout in eval mode; a call of dropout that is on stays."""
        if layer is None and self.graph.operation(node).name == "dropout":
            self._refuse(node)

    def select(self, node: fx.Node, layer: None) -> None:
        """Entries of axis 1 by a constant index."""
        arguments: Any = node.args[1:]
        if node.target is operator.getitem:
            key = arguments[0]
            is_pair = isinstance(key, tuple) and len(key) == 2 and key[0] == slice(None)
            arguments = (1, key[1]) if is_pair else ()
        if len(arguments) != 2 or arguments[0] != 1 or not _is_tensor(arguments[1]):
            self._refuse(node)
        self._append(Select(self.shape, self.graph.tensor(arguments[1]).detach().long()))

    def shift(self, node: fx.Node, layer: None) -> None:
        """A sum with one number for each channel, as compaction leaves behind."""
        value: Any = node.args[1]
        if not _is_tensor(value):
            self._refuse(node)
        numbers = self.graph.tensor(value).detach()
        if numbers.shape != (self.shape[0], *[1] * (len(self.shape) - 1)):
            self._refuse(node, f"of shape {tuple(numbers.shape)} to {self.shape}")
        shift = numbers.flatten().float()
        self._rescale(torch.ones_like(shift), shift)

    def _rescale(self, factor: Tensor, shift: Tensor) -> None:
        """A factor and a shift per channel, folded into the layer before where there is one."""
        last = self.layers[-1] if self.layers else None
        if isinstance(last, Weighted) and last.shape == self.shape:
            weight, bias = last.weight * per_row(factor, last.weight), last.bias * factor + shift
            self.layers[-1] = replace(last, weight=weight, bias=bias)
        else:
            self._append(Scale(self.shape, factor, shift))

    def _call(self, node: fx.Node) -> Call:
        """The node as a function of its first argument."""
        if any(is_size(n) for n in node.all_input_nodes):
            self._refuse(node, "with sizes of its input")
        first, *others = node.all_input_nodes
        constants = {other: self.graph.tensor(other) for other in others}

        def run(x: Tensor) -> Tensor:
            return self.graph.run(node, {first: x, **constants})

        if not isinstance(run(torch.zeros(1, *self.shape)), Tensor):
            self._refuse(node, "that returns several tensors")
        return Call(self.shape, node.name, run)

    def _refuse(self, node: fx.Node, why: str = "") -> NoReturn:
        name = str(node.target) if node.op == "call_module" else node.name
        refused = f"layer '{name}' ({self.graph.spelling(node)}) is not supported"
        raise UnsupportedModelError(
            f"{self.who}: {refused}{why and f' {why}'}; supported: {_SUPPORTED}."
        )


_READERS: dict[str, Callable[[_Reader, fx.Node, Any], None]] = {
    "linear": _Reader.linear,
    "conv": _Reader.conv,
    "batch_norm": _Reader.batch_norm,
    "flatten": _Reader.flatten,
    "add": _Reader.shift,
    **dict.fromkeys(("max_pool", "avg_pool", "adaptive_avg_pool"), _Reader.pool),
    **dict.fromkeys(("view", "reshape"), _Reader.reshape),
    **dict.fromkeys(("index_select", "getitem"), _Reader.select),
    **dict.fromkeys(ACTIVATIONS, _Reader.activation),
    **dict.fromkeys(UNCHANGING, _Reader.nothing),
}


def windows_of(pool: Any, size: Shape) -> tuple[PoolKind, Pair, Pair, Pair, int] | str:
    """Kind, kernel, stride, padding and divisor of a pool of images, or why it has none of these.

    Example:
        >>> windows_of(nn.AdaptiveAvgPool2d(2), (4, 6))
        ('mean', (2, 3), (2, 3), (0, 0), 6)
    """
    if isinstance(pool, nn.AdaptiveAvgPool2d):
        sides = pair(pool.output_size)  # None keeps a side as it is
        if any(n % (m or n) for n, m in zip(size, sides, strict=True)):
            return f"from {size} to {sides}: sides must divide"
        kernel = (size[0] // (sides[0] or size[0]), size[1] // (sides[1] or size[1]))
        return "mean", kernel, kernel, (0, 0), math.prod(kernel)
    if pool.ceil_mode or getattr(pool, "return_indices", False):
        return "with ceil_mode or return_indices"
    kernel, stride, padding = (pair(v) for v in (pool.kernel_size, pool.stride, pool.padding))
    if isinstance(pool, nn.MaxPool2d):
        if pair(pool.dilation) != (1, 1):
            return "with dilation"
        return "max", kernel, stride, padding, math.prod(kernel)
    if any(padding) and not pool.count_include_pad and not pool.divisor_override:
        return "with padding that is not counted"
    return "mean", kernel, stride, padding, pool.divisor_override or math.prod(kernel)


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


def _is_tensor(value: object) -> bool:
    """Return whether an argument is a tensor of the module."""
    return isinstance(value, fx.Node) and value.op == "get_attr"


def is_size(node: fx.Node) -> bool:
    """Return whether a node is a size of a value, or one entry of it."""
    is_item = node.target is operator.getitem and isinstance(node.args[0], fx.Node)
    return reads_size(node) or (is_item and is_size(node.args[0]))  # type: ignore[arg-type]


_LAYERS: Mapping[Operation, type[nn.Module]] = {  # the first layer of each row
    row: kind for kind, row in reversed([*OPERATIONS.items()]) if isinstance(kind, type)
}


def as_layer(graph: Graph, node: fx.Node) -> nn.Module | None:
    """The layer that a node calls, or one without weights that computes the same, if any."""
    if node.op == "call_module":
        return graph.layer(node)
    operation = graph.operation(node)
    kind, is_flatten = _LAYERS.get(operation), operation.name == "flatten"
    apart = operation.kind in (Kind.POINTWISE, Kind.CHANNELWISE)
    if kind is None or operation.name in UNCHANGING or not (apart or is_flatten):
        return None
    names = [n for n in inspect.signature(kind).parameters if n != "return_indices"]
    given: dict[str, Any] = {"start_dim": 0} if is_flatten else {}
    given |= dict(zip(names, node.args[1:], strict=False))
    given |= {k: v for k, v in node.kwargs.items() if k in names and v is not None}
    return None if any(isinstance(v, fx.Node) for v in given.values()) else kind(**given)
