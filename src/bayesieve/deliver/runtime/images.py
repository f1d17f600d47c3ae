"""A network of images as steps of the compiled kernel: sparse convolutions and pools.

`read_images` follows a traced network from its input to the operation that flattens it. What acts
on each channel alone is folded: a BatchNorm into the convolution before it, an activation and a
residual sum into the step that makes their input. Channels that are selected, joined or padded are
only renamed: a value is a list of planes, and a step reads the planes it needs.
"""

import math
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, fx, nn
from torch.nn import functional as F

from bayesieve.deliver.layers import (
    ACTIVATIONS,
    PoolKind,
    as_layer,
    folded_norm,
    is_size,
    margins_of,
    pair,
    windows_of,
)
from bayesieve.errors import UnsupportedModelError
from bayesieve.graph.capture import capture
from bayesieve.graph.graph import Graph
from bayesieve.graph.operations import UNCHANGING

Pair = tuple[int, int]
Plane = tuple[int, int] | None  # the step that makes it and its number there; None is all zeros
INPUT = -1  # the "step" whose planes are the channels of the input
_FLATTENING = ("flatten", "view", "reshape", "squeeze", "mean")


@dataclass(frozen=True)
class Value:
    """Images of one size, a plane for each channel."""

    planes: tuple[Plane, ...]
    size: Pair  # rows, columns

    @property
    def made_by(self) -> int:
        """The last step that makes one of the planes."""
        return max((plane[0] for plane in self.planes if plane is not None), default=INPUT)


@dataclass
class Convolution:
    """Sums over windows of planes: one output plane for each row of weights.

    Args:
        source: what it reads.
        size: rows and columns of the output.
        weight: (out, in, rows, columns); zeros cost nothing.
        bias: (out,).
        stride: rows, columns.
        dilation: rows, columns.
        padding: rows above and columns to the left of the source.
        added: planes to add before the activation, one for each output plane.
        activation: name of torch's module; "none" until one is folded in.
        slope: of a leaky ReLU.
    """

    source: Value
    size: Pair
    weight: NDArray[np.float32]
    bias: NDArray[np.float32]
    stride: Pair = (1, 1)
    dilation: Pair = (1, 1)
    padding: Pair = (0, 0)
    added: Value | None = None
    activation: str = "none"
    slope: float = 0.0

    @property
    def n_planes(self) -> int:
        """Planes that it makes."""
        return len(self.bias)

    @property
    def window(self) -> Pair:
        """Rows and columns that one output depends on."""
        (down, across), (high, wide) = self.dilation, self.weight.shape[2:]
        return down * (high - 1) + 1, across * (wide - 1) + 1


@dataclass
class Pool:
    """The largest entry, or the sum over a divisor, of windows of every plane."""

    source: Value
    size: Pair
    kind: PoolKind
    window: Pair
    stride: Pair
    padding: Pair
    divisor: int

    @property
    def n_planes(self) -> int:
        """Planes that it makes."""
        return len(self.source.planes)


Step = Convolution | Pool


@dataclass(frozen=True)
class Images:
    """A network up to where it flattens its images.

    Args:
        channels: of the input.
        size: rows and columns of the input.
        steps: in order.
        value: the images that leave.
        tail: the rest of the network, on flat vectors; None if the images are its output.
    """

    channels: int
    size: Pair
    steps: tuple[Step, ...]
    value: Value
    tail: nn.Module | None


def read_images(who: str, module: nn.Module, example: Tensor) -> Images:
    """Read a network of images, (n, channels, rows, columns).

    Raises:
        UnsupportedModelError: it holds an operation on images without a translation.

    Example:
        >>> net = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.Flatten(),
        ...                     nn.Linear(32, 3)).eval()
        >>> images = read_images("example", net, torch.zeros(1, 1, 4, 4))
        >>> [(step.n_planes, step.activation) for step in images.steps], images.value.size
        ([(2, 'ReLU')], (4, 4))
    """
    if example.dim() != 4:
        raise UnsupportedModelError(f"{who}: inputs are no images, (n, channels, rows, columns).")
    graph = capture(who, module)
    graph.measure(example[:1])
    return _Reader(who, graph).read()


class _Reader:
    """Values of the nodes so far, and the steps that make them."""

    def __init__(self, who: str, graph: Graph) -> None:
        self.who, self.graph = who, graph
        self.values: dict[fx.Node, Value] = {}
        self.steps: list[Step] = []
        self.channels, self.size = 0, (0, 0)

    def read(self) -> Images:
        """Read nodes until the images are flattened or leave."""
        for node in self.graph.nodes:
            if node.op == "get_attr" or is_size(node):
                continue
            if node.op == "placeholder":
                self.channels, *size = self.graph.shape(node)[1:]  # type: ignore[index]
                self.size = (size[0], size[1])
                planes = tuple((INPUT, i) for i in range(self.channels))
                self.values[node] = Value(planes, self.size)
                continue
            value = self._source(node)
            if node.op == "output":
                return self._images(value, None)
            name = self.graph.operation(node).name
            if name == "mean":
                value = self._mean(node, value)
            if name in _FLATTENING and self._flattens(node, value):
                return self._images(value, self._rest(node))
            self.values[node] = value if name == "mean" else self._operation(node, name, value)
        raise AssertionError("a traced network has an output")

    def _images(self, value: Value, tail: nn.Module | None) -> Images:
        return Images(self.channels, self.size, tuple(self.steps), value, tail)

    def _source(self, node: fx.Node) -> Value:
        first = node.args[0]
        if isinstance(first, list | tuple):  # of a concatenation
            first = first[0]
        if not isinstance(first, fx.Node) or first not in self.values:
            self._refuse(node)
        return self.values[first]

    def _operation(self, node: fx.Node, name: str, value: Value) -> Value:
        if name in UNCHANGING:
            return value
        if name in ("index_select", "getitem"):
            return self._selected(node, name, value)
        if name == "cat":
            return self._joined(node)
        if name == "pad":
            return self._padded(node, value)
        if name == "add":
            return self._sum(node, value)
        layer = as_layer(self.graph, node)
        if name == "conv" and isinstance(layer, nn.Conv2d):
            return self._convolution(node, layer, value)
        if name == "batch_norm" and isinstance(layer, nn.BatchNorm2d):
            if layer.running_mean is None:
                self._refuse(node, "without running statistics")
            return self._rescaled(node, value, *folded_norm(layer))
        if name in ACTIVATIONS and layer is not None:
            return self._activated(node, layer, value)
        if name in ("max_pool", "avg_pool", "adaptive_avg_pool") and layer is not None:
            return self._pooled(node, layer, value)
        self._refuse(node)

    # --------------------------------------------------------------------------- steps

    def _append(self, step: Step) -> Value:
        self.steps.append(step)
        number = len(self.steps) - 1
        return Value(tuple((number, i) for i in range(step.n_planes)), step.size)

    def _convolution(self, node: fx.Node, layer: nn.Conv2d, value: Value) -> Value:
        if layer.padding_mode != "zeros":
            self._refuse(node, f"with padding_mode {layer.padding_mode!r}")
        left, _, top, _ = margins_of(layer)
        weight = layer.weight.detach()
        n_out, n_in = len(weight), len(value.planes)
        if layer.groups > 1:  # rows of zeros where groups do not mix: they cost nothing
            whole = weight.new_zeros(n_out, n_in, *weight.shape[2:])
            out, inside = n_out // layer.groups, n_in // layer.groups
            for g in range(layer.groups):
                rows = slice(g * out, (g + 1) * out)
                whole[rows, g * inside : (g + 1) * inside] = weight[rows]
            weight = whole
        bias = torch.zeros(n_out) if layer.bias is None else layer.bias.detach()
        return self._append(
            Convolution(
                value, self._size(node), weight.numpy(), bias.numpy(), pair(layer.stride),
                pair(layer.dilation), (top, left),
            )
        )  # fmt: skip

    def _whole(self, value: Value) -> Value:
        """The same value with planes of zeros in memory, for steps that read every plane."""
        return self._append(self._pointwise(value)) if None in value.planes else value

    def _pooled(self, node: fx.Node, pool: Any, value: Value) -> Value:
        size, value = self._size(node), self._whole(value)
        windows = windows_of(pool, value.size)
        if isinstance(windows, str):
            self._refuse(node, windows)
        kind, kernel, stride, padding, divisor = windows
        if kind == "max" and any(padding) and not self._not_negative(value):
            self._refuse(node, "with padding, unless a ReLU comes before")
        return self._append(Pool(value, size, kind, kernel, stride, padding, divisor))

    def _mean(self, node: fx.Node, value: Value) -> Value:
        axes = node.kwargs.get("dim", node.args[1] if len(node.args) > 1 else None)
        if not isinstance(axes, list | tuple) or {int(a) % 4 for a in axes} != {2, 3}:
            self._refuse(node, "unless over rows and columns")
        n, value = math.prod(value.size), self._whole(value)
        return self._append(Pool(value, (1, 1), "mean", value.size, value.size, (0, 0), n))

    def _not_negative(self, value: Value) -> bool:
        steps = [self.steps[plane[0]] for plane in value.planes if plane and plane[0] != INPUT]
        known = all(isinstance(step, Convolution) and step.activation == "ReLU" for step in steps)
        return known and len(steps) == sum(plane is not None for plane in value.planes)

    # ------------------------------------------------------- what is folded into a step

    def _folds(self, node: fx.Node, value: Value) -> Convolution | None:
        """The convolution that makes all of a value that only this node reads, without an end."""
        number = value.made_by
        step = self.steps[number] if number != INPUT else None
        if not isinstance(step, Convolution) or step.activation != "none":
            return None
        whole = value.planes == tuple((number, i) for i in range(step.n_planes))
        makers = [n for n in self.values if self.values[n].made_by == number]
        read_once = all(set(self.graph.readers(n)) <= {node, *makers} for n in makers)
        return step if whole and read_once else None

    def _pointwise(self, value: Value, factor: Tensor | None = None) -> Convolution:
        """A copy of a value, each plane times a factor."""
        n = len(value.planes)
        weight = np.zeros((n, n, 1, 1), np.float32)
        weight[range(n), range(n), 0, 0] = 1 if factor is None else factor.numpy()
        return Convolution(value, value.size, weight, np.zeros(n, np.float32))

    def _rescaled(self, node: fx.Node, value: Value, factor: Tensor, shift: Tensor) -> Value:
        step = self._folds(node, value)
        if step is not None and step.added is None:
            by_row = factor.numpy()
            step.weight = step.weight * by_row[:, None, None, None]
            step.bias = step.bias * by_row + shift.numpy()
            return value
        step = self._pointwise(value, factor)
        step.bias = shift.numpy()
        return self._append(step)

    def _activated(self, node: fx.Node, layer: nn.Module, value: Value) -> Value:
        if getattr(layer, "approximate", "none") != "none":
            self._refuse(node, f"with approximate {layer.approximate!r}")
        step = self._folds(node, value)
        if step is None:
            step = self._pointwise(value)
            value = self._append(step)
        step.activation = type(layer).__name__
        step.slope = float(getattr(layer, "negative_slope", 0.0))
        return value

    def _sum(self, node: fx.Node, value: Value) -> Value:
        other = node.args[1]
        if isinstance(other, fx.Node) and other.op == "get_attr":  # a number for each channel
            numbers = self.graph.tensor(other).detach().float()
            if numbers.shape[-3:] != (len(value.planes), 1, 1):
                self._refuse(node, f"of shape {tuple(numbers.shape)}")
            return self._rescaled(node, value, torch.ones(len(value.planes)), numbers.flatten())
        if not isinstance(other, fx.Node) or other not in self.values or node.kwargs:
            self._refuse(node)
        early, late = sorted((value, self.values[other]), key=lambda v: v.made_by)
        if early.size != late.size or len(early.planes) != len(late.planes):
            self._refuse(node, "of different shapes")
        step = self._folds(node, late)  # of the later one: the other's planes are there by then
        if step is None or step.added is not None or early.made_by == late.made_by:
            step = self._pointwise(late)
            late = self._append(step)
        step.added = early
        return late

    # ------------------------------------------------------------------ renamed channels

    def _selected(self, node: fx.Node, name: str, value: Value) -> Value:
        arguments = node.args[1:]
        if name == "index_select":
            index = arguments[1] if arguments[0] == 1 else None
        else:
            key = arguments[0] if isinstance(arguments[0], tuple) else ()
            if len(key) == 4 and all(isinstance(k, slice) for k in key):
                return self._subsampled(node, key, value)
            index = key[1] if len(key) == 2 and key[0] == slice(None) else None
        if not (isinstance(index, fx.Node) and index.op == "get_attr"):
            self._refuse(node)
        numbers = self.graph.tensor(index).tolist()
        return Value(tuple(value.planes[i] for i in numbers), value.size)

    def _subsampled(self, node: fx.Node, key: tuple[Any, ...], value: Value) -> Value:
        """Every second row and column, say: a convolution by one weight per plane."""
        if key[:2] != (slice(None), slice(None)) or any(k.start or k.stop for k in key[2:]):
            self._refuse(node)
        step = self._pointwise(value)
        step.size, step.stride = self._size(node), (key[2].step or 1, key[3].step or 1)
        return self._append(step)

    def _joined(self, node: fx.Node) -> Value:
        axis = node.kwargs.get("dim", node.args[1] if len(node.args) > 1 else 0)
        parts = node.args[0]
        if axis not in (1, -3) or not all(n in self.values for n in parts):  # type: ignore[union-attr]
            self._refuse(node)
        values = [self.values[n] for n in parts]  # type: ignore[union-attr,index]
        planes = tuple(plane for part in values for plane in part.planes)
        return Value(planes, values[0].size)

    def _padded(self, node: fx.Node, value: Value) -> Value:
        sides: Any = node.args[1] if len(node.args) > 1 else None
        zeros = node.kwargs.get("mode") in (None, "constant") and not node.kwargs.get("value")
        plain = node.target is F.pad and zeros and len(node.args) == 2
        if not plain or len(sides) != 6 or any(sides[:4]) or min(sides[4:]) < 0:
            self._refuse(node, "other than by channels of zeros")
        before, after = sides[4:]
        return Value((None,) * before + value.planes + (None,) * after, value.size)

    # ----------------------------------------------------------------------- the rest

    def _flattens(self, node: fx.Node, value: Value) -> bool:
        shape = self.graph.shape(node)
        n = len(value.planes) * math.prod(value.size)
        return shape is not None and shape[1:] == (n,)

    def _rest(self, flat: fx.Node) -> nn.Module | None:
        """The network after a node, as a module of its value; None if nothing follows."""
        graph = fx.Graph()
        known = {flat: graph.placeholder("x")}
        following = self.graph.nodes[self.graph.nodes.index(flat) + 1 :]
        if following[0].op == "output":
            return None
        for node in (n for n in self.graph.nodes if n.op == "get_attr"):
            known[node] = graph.node_copy(node)
        for node in following:
            if node.op == "get_attr":
                continue
            missing = [n for n in node.all_input_nodes if n not in known]
            if missing:
                self._refuse(node, "after images are flattened")
            known[node] = graph.node_copy(node, lambda n: known[n])
        rest = fx.GraphModule(self.graph.module, graph)
        rest.graph.eliminate_dead_code()
        rest.recompile()
        return rest.eval()

    def _size(self, node: fx.Node) -> Pair:
        shape = self.graph.shape(node)
        assert shape is not None
        return shape[2], shape[3]

    def _refuse(self, node: fx.Node, why: str = "") -> NoReturn:
        raise UnsupportedModelError(
            f"{self.who}: {self.graph.described(node)}{why and f' {why}'} has no sparse kernel."
        )
