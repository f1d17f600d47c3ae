"""Operations that keep channels apart: one by one, moved, selected, read from a table.

Whether a constant channel stays constant, and at which value, is found by running the operation
on a tensor of the constants. Where each output channel comes from is found by running it on a
tensor of channel numbers. So activations, pooling, normalisation, flatten,
permute, averages over positions and indexing need no formula of their own. What must be known is
that the call still means the same with fewer channels.
"""

import operator
from typing import Any, cast

import torch
from torch import Tensor, fx, nn

from bayesieve.graph.operations import reads_size
from bayesieve.sieve.compaction.flow import (
    Channels,
    Coupling,
    Flow,
    Rewriter,
    Rewritten,
    Rule,
    constants_of,
    indices,
    likely_axis,
    mask_of,
    spread,
    varying,
)

_PER_CHANNEL = ("weight", "bias", "running_mean", "running_var")
_COUNTS = ("num_features", "num_parameters")


class Rearranged(Rule):
    """Every output channel is a copy of one input channel, noted as the node's "origin"."""

    def forward(self, node: fx.Node, flow: Flow) -> Channels | str:
        """The constants, moved."""
        if len(flow.graph.tensor_inputs(node)) != 1:
            return "reads a second tensor"
        why = _not_safe(node, flow)
        if why is not None:
            return why
        traced = _origin(node, flow)
        if traced is None:
            return "does not keep channels apart"
        axis, origin = traced
        (x,) = flow.graph.tensor_inputs(node)
        node.meta["origin"] = origin
        return Channels(axis, flow.channels[x].value[origin])

    def fixed(self, node: fx.Node, flow: Flow) -> Tensor:
        """Return the fixed channels of the output."""
        return flow.fixed[flow.graph.tensor_inputs(node)[0]][node.meta["origin"]]

    def backward(self, node: fx.Node, flow: Flow) -> None:
        """Every channel that some needed output comes from."""
        x = flow.graph.tensor_inputs(node)[0]
        wanted = mask_of(node.meta["origin"][flow.need[node]], len(flow.channels[x]))
        flow.request(x, flow.channels[x].axis, wanted)

    def rewrite(self, node: fx.Node, to: Rewriter) -> Rewritten:
        """The same call on fewer channels."""
        x = to.flow.graph.tensor_inputs(node)[0]
        known = to.flow.channels[x]
        held = mask_of(to.held(x, known.axis), len(known))
        return to.copy(node), indices(held[node.meta["origin"]])

    def couple(self, node: fx.Node, to: Coupling) -> None:
        """Copies go with what they are copies of."""
        x = to.flow.graph.tensor_inputs(node)[0]
        to.labels[node] = to.labels[x][node.meta["origin"]]


class Separate(Rearranged):
    """One output channel for each input channel, on the same axis.

    Args:
        axis: the axis of channels for the operation itself; None if it works on any.
    """

    def __init__(self, axis: int | None = None) -> None:
        super().__init__()
        self.axis = axis

    def forward(self, node: fx.Node, flow: Flow) -> Channels | str:
        """Run the operation on the constants."""
        x, *others = flow.graph.tensor_inputs(node)
        known = flow.channels[x]
        if others:
            return "reads a second tensor"
        if self.axis not in (None, known.axis):
            return f"works along axis {self.axis} while channels are on axis {known.axis}"
        shape = flow.shape(x)
        node.meta["origin"] = torch.arange(len(known))
        if len(node.all_input_nodes) > 1:  # a size, which may change with the batch
            if flow.shape(node)[known.axis :][:1] != (len(known),):
                return "changes the number of channels"
            silent = (known.value == 0) & _pads_zeros(node, flow)
            return Channels(known.axis, known.value.where(silent, torch.nan))
        filled = spread(known.value.nan_to_num(0.0), known.axis, shape)
        out = flow.graph.run(node, {x: filled.to(x.meta["dtype"])})
        if len(out.shape) != len(shape) or out.shape[known.axis] != len(known):
            return "changes the number of channels"
        if not out.is_floating_point():
            return varying(known.axis, len(known))
        value = constants_of(out, known.axis)
        return Channels(known.axis, torch.where(known.constant, value, torch.nan))

    def rewrite(self, node: fx.Node, to: Rewriter) -> Rewritten:
        """Slice per-channel numbers to the channels that come in."""
        new, held = super().rewrite(node, to)
        n = len(to.flow.channels[node])
        if node.op == "call_module" and len(held) < n:
            layer = to.flow.graph.layer(node)
            for name in _PER_CHANNEL:
                tensor = getattr(layer, name, None)
                if isinstance(tensor, Tensor) and tensor.shape == (n,):
                    _select(layer, name, 0, held)
            for name in _COUNTS:
                if getattr(layer, name, 1) == n:
                    setattr(layer, name, len(held))
        return new, held

    def couple(self, node: fx.Node, to: Coupling) -> None:
        """A channel's own numbers (scale and shift of a normalisation) go with it."""
        super().couple(node, to)
        if node.op == "call_module":
            for leaf, tensor in to.flow.graph.layer(node).named_parameters():
                if tensor.shape == to.labels[node].shape:
                    to.own(to.labels[node], f"{node.target}.{leaf}")


def _pads_zeros(node: fx.Node, flow: Flow) -> bool:
    """Return whether a node is `F.pad` with zeros, however many."""
    is_plain = len(node.args) < 3 and node.kwargs.get("mode", "constant") == "constant"
    return flow.graph.operation(node).name == "pad" and is_plain and not node.kwargs.get("value")


class Across(Separate):
    """A softmax over positions: one output channel for each input channel, none of them known."""

    def forward(self, node: fx.Node, flow: Flow) -> Channels | str:
        """The same channels, if the axis that is read is another."""
        (x,) = flow.graph.tensor_inputs(node)
        known, dim = flow.channels[x], _softmax_dim(node, flow)
        if dim is None or dim % len(flow.shape(x)) == known.axis:
            return "reads all channels together"
        node.meta["origin"] = torch.arange(len(known))
        return varying(known.axis, len(known))


def _softmax_dim(node: fx.Node, flow: Flow) -> int | None:
    dim: Any = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
    if node.op == "call_module":
        dim = getattr(flow.graph.layer(node), "dim", None)
    return dim if isinstance(dim, int) else None


class Viewed(Rearranged):
    """`view` and `reshape` that leave channels on one axis: its size is named anew."""

    def forward(self, node: fx.Node, flow: Flow) -> Channels | str:
        """The constants, moved."""
        if not _view_sizes(node):
            return "fixes sizes, which could name channels"
        return super().forward(node, flow)

    def rewrite(self, node: fx.Node, to: Rewriter) -> Rewritten:
        """The same call with the number of channels that are left."""
        new, held = super().rewrite(node, to)
        if len(held) < len(to.flow.channels[node]):
            sizes = list(_view_sizes(new))
            sizes[to.flow.channels[node].axis] = len(held)
            new.args = (new.args[0], tuple(sizes))
        return new, held


def _view_sizes(node: fx.Node) -> tuple[Any, ...]:
    """The sizes that a view names, numbers or nodes; empty if they are one node or a keyword."""
    sizes = node.args[1:]
    if len(sizes) == 1 and isinstance(sizes[0], tuple | list):
        return tuple(sizes[0])
    return sizes if len(sizes) > 1 or (sizes and isinstance(sizes[0], int)) else ()


class Blocked(Rule):
    """`unflatten(axis, (-1, width))`: blocks of channels, such as heads, become channels."""

    def forward(self, node: fx.Node, flow: Flow) -> Channels | str:
        """A block is constant if all its channels are, with one value."""
        if not is_blocking(node):
            return "fixes sizes, which could name channels"
        (x,) = flow.graph.tensor_inputs(node)
        axis, width = _block(node, flow)
        if flow.channels[x].axis != axis:
            return "divides another axis than the channels"
        value = flow.channels[x].value.unflatten(0, (-1, width))
        same = (value == value[:, :1]).all(1)
        return Channels(axis, torch.where(same, value[:, 0], torch.nan))

    def backward(self, node: fx.Node, flow: Flow) -> None:
        """All channels of a block."""
        (x,) = flow.graph.tensor_inputs(node)
        axis, width = _block(node, flow)
        flow.request(x, axis, flow.need[node].repeat_interleave(width))

    def rewrite(self, node: fx.Node, to: Rewriter) -> Rewritten:
        """Fewer blocks."""
        (x,) = to.flow.graph.tensor_inputs(node)
        axis, width = _block(node, to.flow)
        whole = to.flow.need[node]
        wanted = indices(whole.repeat_interleave(width))
        return to.copy(node, {x: to.gather(x, axis, wanted, node)}), indices(whole)

    def couple(self, node: fx.Node, to: Coupling) -> None:
        """The channels of a block go together."""
        (x,) = to.flow.graph.tensor_inputs(node)
        blocks = to.labels[x].unflatten(0, (-1, _block(node, to.flow)[1]))
        to.labels[node] = to.join(*blocks.unbind(1))


def is_blocking(node: fx.Node) -> bool:
    """Return whether a node is `unflatten(axis, (-1, width))`."""
    sizes: Any = node.args[2] if len(node.args) == 3 else None
    return isinstance(sizes, tuple | list) and len(sizes) == 2 and sizes[0] == -1


def _block(node: fx.Node, flow: Flow) -> tuple[int, int]:
    """Axis and width of the blocks."""
    x, axis, (_, width) = cast(tuple[fx.Node, int, tuple[int, int]], node.args)
    return axis % len(flow.shape(x)), width


class Selected(Rearranged):
    """`torch.index_select` along the channels, by an index that is a buffer."""

    def forward(self, node: fx.Node, flow: Flow) -> Channels | str:
        """The constants of what is selected."""
        x, dim, index = node.args if len(node.args) == 3 and not node.kwargs else (None,) * 3
        if (
            not (isinstance(x, fx.Node) and isinstance(index, fx.Node) and index.op == "get_attr")
            or not isinstance(dim, int)
            or dim % len(flow.shape(x)) != flow.channels[x].axis
        ):
            return "selects by an index that is not a buffer, or not along the channels"
        origin = node.meta["origin"] = flow.graph.tensor(index)
        return Channels(flow.channels[x].axis, flow.channels[x].value[origin])

    def backward(self, node: fx.Node, flow: Flow) -> None:
        """The channels that are selected and needed."""
        flow.request_all(node.all_input_nodes[1])
        super().backward(node, flow)

    def rewrite(self, node: fx.Node, to: Rewriter) -> Rewritten:
        """A selection from what is left."""
        x, origin = node.all_input_nodes[0], node.meta["origin"]
        known, kept = to.flow.channels[x], indices(to.flow.need[node])
        if len(to.held(x, known.axis)) == len(known) and len(kept) == len(origin):
            return to.copy(node), kept  # nothing has changed
        return to.gather(x, known.axis, origin[kept], node), kept


class Indexed(Rearranged):
    """`x[:, 2:5]`: some positions, or some channels that follow each other; `table[buffer]`."""

    def forward(self, node: fx.Node, flow: Flow) -> Channels | str:
        """The constants of what is taken."""
        x, *others = flow.graph.tensor_inputs(node)
        if others and node.args == (x, others[0]) and flow.channels[x].axis > 0:
            (index,) = others
            if index.meta["dtype"] == torch.int64:  # rows of a table
                node.meta["origin"] = torch.arange(len(flow.channels[x]))
                axis = flow.channels[x].axis - 1 + len(flow.shape(index))
                return Channels(axis, flow.channels[x].value)
        return super().forward(node, flow)

    def backward(self, node: fx.Node, flow: Flow) -> None:
        """The channels that are taken and needed, and all of the index."""
        super().backward(node, flow)
        for index in flow.graph.tensor_inputs(node)[1:]:
            flow.request_all(index)

    def rewrite(self, node: fx.Node, to: Rewriter) -> Rewritten:
        """The same call on fewer channels; those it takes are selected first."""
        x = to.flow.graph.tensor_inputs(node)[0]
        axis, n_axes = to.flow.channels[x].axis, len(to.flow.shape(x))
        at = _place(_index(node, n_axes) or (), axis)
        if at is None:
            return super().rewrite(node, to)
        kept = indices(to.flow.need[node])
        new = to.copy(node, {x: to.gather(x, axis, node.meta["origin"][kept], node)})
        index = list(_index(new, n_axes) or ())
        index[at] = slice(None)
        new.args = (new.args[0], tuple(index))
        return new, kept


class SizeReader(Rule):
    """`x.size(0)`, `x.shape[2]`, `x.dim()`: a number of channels is written as it was."""

    def backward(self, node: fx.Node, flow: Flow) -> None:
        """The tensor must exist, whole if its shape is read in a way that is not known."""
        (x,) = node.all_input_nodes
        if _reads_whole_shape(node):
            flow.note(node, "reads the number of channels, so all of them stay")
            flow.request_all(x)
        flow.request_any(x)

    def couple(self, node: fx.Node, to: Coupling) -> None:
        """A shape that is read as a whole cannot change."""
        (x,) = node.all_input_nodes
        if _reads_whole_shape(node):
            to.fix(to.labels[x], node, "reads the number of channels")


def _reads_whole_shape(node: fx.Node) -> bool:
    """Return whether a node reads a shape for more than single sizes."""
    is_shape = node.target == "size" or (node.target is getattr and node.args[1] == "shape")
    if not is_shape or len(node.args) + len(node.kwargs) > 1 + (node.target is getattr):
        return False
    picks = [u.args[1] if u.target is operator.getitem else None for u in node.users]
    return not all(isinstance(pick, int) for pick in picks)


def size_before(node: fx.Node, flow: Flow) -> int | None:
    """The number of channels that a node reads, as it was; None if it reads something else."""
    shape = node
    dim: Any = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
    if node.target is operator.getitem and isinstance(node.args[0], fx.Node):
        shape = node.args[0]
    elif node.op != "call_method" or node.target != "size":
        return None
    x = shape.args[0] if reads_size(shape) else None
    if not isinstance(x, fx.Node) or x not in flow.channels or not isinstance(dim, int):
        return None
    n_axes = len(flow.shape(x))
    return flow.shape(x)[dim] if dim % n_axes == flow.channels[x].axis else None


class Table(Rule):
    """A tensor of the network itself that is read directly, such as a positional embedding."""

    def forward(self, node: fx.Node, flow: Flow) -> Channels | str:
        """Channels that hold one number are constants."""
        tensor = flow.graph.tensor(node)
        long = [i for i, size in enumerate(tensor.shape) if size > 1]
        axis = long[0] if len(long) == 1 else max(tensor.dim() - 1, 0)
        made = not isinstance(tensor, nn.Parameter) and tensor.dim() > 2 and len(long) > 1
        if made and bool((tensor == tensor.flatten()[0]).all()):
            axis = likely_axis(node, flow)  # zeros for the heads of attention, say
        if not tensor.is_floating_point() or tensor.dim() == 0:
            return varying(axis, tensor.shape[axis] if tensor.dim() else 1)
        return Channels(axis, constants_of(tensor, axis))

    def rewrite(self, node: fx.Node, to: Rewriter) -> Rewritten:
        """Slice it."""
        graph, need = to.flow.graph, to.flow.need[node]
        if str(node.target) not in graph.shared and not bool(need.all()):
            path, _, leaf = str(node.target).rpartition(".")
            owner = graph.module.get_submodule(path)
            _select(owner, leaf, to.flow.channels[node].axis, indices(need))
            return to.copy(node), indices(need)
        return to.copy(node), torch.arange(len(need))

    def couple(self, node: fx.Node, to: Coupling) -> None:
        """Its channels are its own."""
        channels, name = to.flow.channels[node], str(node.target)
        to.labels[node] = to.fresh(len(channels))
        if to.flow.graph.tensor(node).dim() and name not in to.flow.graph.shared:
            to.own(to.labels[node], name, channels.axis)


class Embedded(Rule):
    """`nn.Embedding`: one channel per column; tokens are needed in any case."""

    def forward(self, node: fx.Node, flow: Flow) -> Channels | str:
        """Columns that hold one number are constants."""
        layer = flow.graph.layer(node)
        if getattr(layer, "max_norm", None) is not None:
            return "rescales its rows by their norm"
        weight = layer.get_parameter("weight")
        return Channels(len(flow.shape(node)) - 1, constants_of(weight, 1))

    def rewrite(self, node: fx.Node, to: Rewriter) -> Rewritten:
        """Drop columns."""
        kept, layer = indices(to.flow.need[node]), to.flow.graph.layer(node)
        _select(layer, "weight", 1, kept)
        layer.embedding_dim = len(kept)  # type: ignore[assignment]
        return to.copy(node), kept

    def couple(self, node: fx.Node, to: Coupling) -> None:
        """Its columns are its own."""
        to.labels[node] = to.fresh(len(to.flow.channels[node]))
        to.own(to.labels[node], f"{node.target}.weight", 1)


def _select(owner: nn.Module, leaf: str, axis: int, kept: Tensor) -> None:
    """Reduce a parameter or buffer of a module to some entries along an axis."""
    old = getattr(owner, leaf)
    small = old.detach().index_select(axis, kept)
    is_weight = isinstance(old, nn.Parameter)
    setattr(owner, leaf, nn.Parameter(small, old.requires_grad) if is_weight else small)


def _origin(node: fx.Node, flow: Flow) -> tuple[int, Tensor] | None:
    """Output axis of the channels and the input channel each comes from, by trial."""
    (x,) = flow.graph.tensor_inputs(node)
    known, shape = flow.channels[x], flow.shape(x)
    number = torch.arange(len(known), dtype=torch.float64)
    out = flow.graph.run(node, {x: spread(number, known.axis, shape)})
    # a second labelling, which averages and maxima over channels do not carry over
    again = flow.graph.run(node, {x: spread(-number.square(), known.axis, shape)})
    for axis in (*range(1, out.dim()), 0):
        origin = constants_of(out, axis).round()
        if bool(origin.isnan().any()):
            continue
        other = constants_of(again, axis)
        if bool(((other + origin.square()).abs() <= 1e-9 * origin.square() + 1e-12).all()):
            return axis, origin.long()
    return None


def _not_safe(node: fx.Node, flow: Flow) -> str | None:
    """Why a call could mean something else with fewer channels."""
    (x,) = flow.graph.tensor_inputs(node)
    axis, n_axes = flow.channels[x].axis, len(flow.shape(x))
    name, args = flow.graph.spelling(node), cast(tuple[Any, ...], node.args[1:])
    if name == "squeeze":
        dims = args[0] if args else node.kwargs.get("dim")
        if not isinstance(dims, int) or dims % n_axes == axis:
            return "removes axes of size 1, which could be channels"
    elif name == "expand":
        offset = len(args) - n_axes
        if not args or args[axis + offset] != -1:
            return "fixes sizes, which could name channels"
    elif name == "roll":
        rolled: Any = args[1] if len(args) > 1 else node.kwargs.get("dims", range(n_axes))
        if axis in [dim % n_axes for dim in ([rolled] if isinstance(rolled, int) else rolled)]:
            return "moves channels by their number"
    elif name == "getitem":
        index = _index(node, n_axes)
        if index is None:
            return "indexes in a way that is not known"
        at = _place(index, axis)
        if at is not None and not isinstance(index[at], slice):
            return "takes one channel by number"
        if at is not None and any(isinstance(i, fx.Node) for i in _ends(index[at])):
            return "takes as many channels as a size says"
    return None


def _index(node: fx.Node, n_axes: int) -> tuple[Any, ...] | None:
    """The numbers, slices and None (a new axis) of `x[...]`, None if it has anything else."""
    index: Any = node.args[1] if isinstance(node.args[1], tuple) else node.args[1:]
    if sum(i is ... for i in index) == 1:
        n_named = sum(i is not None and i is not ... for i in index)
        at = index.index(...)
        index = (*index[:at], *[slice(None)] * (n_axes - n_named), *index[at + 1 :])
    plain = all(i is None or isinstance(i, int | slice) for i in index)
    return tuple(index) if plain else None


def _place(index: tuple[Any, ...], axis: int) -> int | None:
    """Where an index names an axis, None if it does not: that axis stays whole."""
    named = [at for at, i in enumerate(index) if i is not None]
    whole = axis >= len(named) or index[named[axis]] == slice(None)
    return None if whole else named[axis]


def _ends(part: slice) -> tuple[Any, ...]:
    return part.start, part.stop, part.step
