"""Channels of every activation, what is known about them, and the form of a rule.

Every activation is a list of channels along one axis. `Flow` notes for each node which channels
are constants and which ones are still read. A `Rule` says what one kind of operation does
to channels: forwards, backwards, in the smaller network, which `Rewriter` builds, and which ones
go together (`Coupling`). The plain `Rule` assumes nothing: the operation is a barrier.
"""

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from bayesieve.graph.capture import BufferTracer
from bayesieve.graph.graph import Graph


@dataclass(frozen=True)
class Channels:
    """The entries of a tensor along its channel axis.

    Args:
        axis: which axis of the tensor, counted from the front.
        value: (n,) float64; where a channel is the same number for every example and position,
            that number, and NaN where it varies.
    """

    axis: int
    value: Tensor

    def __len__(self) -> int:
        return len(self.value)

    @property
    def constant(self) -> Tensor:
        """Which channels are constants, (n,) bool."""
        return ~self.value.isnan()


def varying(axis: int, n: int) -> Channels:
    """N channels of which nothing is known."""
    return Channels(axis, torch.full((n,), torch.nan, dtype=torch.float64))


def spread(values: Tensor, axis: int, shape: torch.Size) -> Tensor:
    """A tensor of some shape filled with one value per channel, (n,) -> shape.

    Example:
        >>> spread(torch.tensor([1.0, 2.0]), 1, torch.Size([1, 2, 3]))
        tensor([[[1., 1., 1.],
                 [2., 2., 2.]]])
    """
    return values.view(-1, *[1] * (len(shape) - axis - 1)).expand(shape).clone()


def constants_of(x: Tensor, axis: int) -> Tensor:
    """The value of each channel where it is the same all over a tensor, else NaN, (n,) float64.

    Example:
        >>> constants_of(torch.tensor([[[1.0, 1.0], [2.0, 3.0]]]), 1)
        tensor([1., nan], dtype=torch.float64)
    """
    rows = x.detach().movedim(axis, 0).reshape(x.shape[axis], -1)
    low, high = rows.amin(1), rows.amax(1)
    rounding = 8 * torch.finfo(x.dtype).eps * torch.maximum(low.abs(), high.abs())
    same = (high - low <= rounding) & high.isfinite() & low.isfinite()
    return torch.where(same, rows[:, 0], torch.nan).double()


def evened(wanted: Tensor, rows: Tensor) -> Tensor:
    """Fill up rows to the width of the longest, at least 1, from the left.

    Args:
        wanted: (r, n) bool.
        rows: (r,) bool; the other rows are emptied.

    Example:
        >>> evened(torch.tensor([[0, 1, 1], [0, 0, 1]]).bool(), torch.tensor([True, True])).int()
        tensor([[0, 1, 1],
                [1, 0, 1]], dtype=torch.int32)
    """
    wanted = wanted & rows[:, None]
    width = max(int(wanted.sum(1).max()), 1)
    first = (~wanted).int().argsort(dim=1, stable=True)[:, :width]
    return torch.zeros_like(wanted).scatter_(1, first, True) & rows[:, None]


def indices(mask: Tensor) -> Tensor:
    """Where a mask is True, ascending, int64."""
    return mask.nonzero().flatten()


def mask_of(index: Tensor, n: int) -> Tensor:
    """The mask of length n that is True at some indices."""
    mask = torch.zeros(n, dtype=torch.bool)
    mask[index] = True
    return mask


def plural(n: int, noun: str) -> str:
    """A count with its noun: "1 channel", "2 channels"."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


class Flow:
    """The channels of each node, who reads them, and what had to stay.

    Args:
        graph: the network.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.channels: dict[fx.Node, Channels] = {}
        self.rules: dict[fx.Node, Rule] = {}
        self.need: dict[fx.Node, Tensor] = {}  # (n,) bool: must exist in the compacted network
        self.fixed: dict[fx.Node, Tensor] = {}  # (n,) bool: the same for every example
        self.sizes: dict[fx.Node, int] = {}  # numbers of channels that are read, as they were
        self.notes: list[str] = []
        self.learned: set[fx.Node] = set()  # that weights have a part in
        self._present: set[fx.Node] = set()
        self._patterns: dict[fx.Node, Tensor] = {}

    def pattern(self, node: fx.Node) -> Tensor:
        """Values of an activation, (*positions, n) float64; right where channels are fixed."""
        return self._patterns[node]

    def find_patterns(self, nodes: list[fx.Node]) -> None:
        """Note the values of activations, channels last, before the network changes."""
        inputs = [torch.zeros(self.shape(n), dtype=n.meta["dtype"])
                  for n in self.graph.nodes if n.op == "placeholder"]  # fmt: skip
        values = _Values(self.graph.module, {*nodes})
        with torch.no_grad():
            values.run(*inputs)
        self._patterns = {n: v[0].double() for n, v in values.met.items()}

    def shape(self, node: fx.Node) -> torch.Size:
        """Shape of a node that is known to be a tensor."""
        shape = self.graph.shape(node)
        assert shape is not None
        return shape

    def values(self, node: fx.Node, axis: int) -> Tensor:
        """Constants along any axis of a tensor, (n,); NaN if its channels are on another."""
        if self.channels[node].axis == axis:
            return self.channels[node].value
        return varying(axis, self.shape(node)[axis]).value

    def request(self, node: fx.Node, axis: int, wanted: Tensor) -> None:
        """Ask for entries, (n,) bool, along an axis; for all if channels are on another."""
        if self.channels[node].axis == axis:
            self.need[node] |= wanted
        else:
            self.request_all(node)

    def request_all(self, node: fx.Node) -> None:
        """Ask for every channel of a tensor."""
        self.need[node].fill_(True)

    def request_any(self, node: fx.Node) -> None:
        """Ask that a tensor exists, with whatever channels others need, and at least one."""
        self._present.add(node)

    def settle(self, node: fx.Node) -> bool:
        """After all readers have asked: make sure of one channel; whether the node is needed."""
        if node in self._present and not bool(self.need[node].any()):
            self.need[node][0] = True
        return bool(self.need[node].any())

    def note(self, node: fx.Node, what: str) -> None:
        """Say why something stays."""
        self.notes.append(f"{self.graph.place(node)} {what}")

    def note_useless(
        self, node: fx.Node, useless: Tensor, noun: str, why: str, keeps: str = "keeps"
    ) -> None:
        """Say why channels of no use, bool, stay; nothing if there are none."""
        n = int(useless.sum())
        if n:
            self.note(node, f"{keeps} {plural(n, noun)} alive: {why}")


class _Values(fx.Interpreter):
    """Runs a graph and notes what some nodes return."""

    def __init__(self, module: fx.GraphModule, wanted: set[fx.Node]) -> None:
        super().__init__(module)
        self.wanted, self.met = wanted, dict[fx.Node, Tensor]()

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        if n in self.wanted:
            self.met[n] = result
        return result


Rewritten = tuple[fx.Node, Tensor]  # a node of the new graph; original channels, ascending


_ON_NUMBERS = (
    operator.add, operator.sub, operator.mul, operator.floordiv, operator.truediv, operator.mod,
    operator.pow,
)  # fmt: skip


class Rewriter:
    """Writes a new graph from the input to the output; the modules it calls shrink in place.

    Args:
        flow: the result of the analysis.
    """

    def __init__(self, flow: Flow) -> None:
        self.flow = flow
        self._module = flow.graph.module
        self._graph = fx.Graph(tracer_cls=BufferTracer)
        self._new: dict[fx.Node, Any] = {}  # nodes, or numbers
        self._held: dict[fx.Node, Tensor] = {}
        self._gathered: dict[tuple[fx.Node, int, tuple[int, ...]], fx.Node] = {}

    def run(self) -> fx.GraphModule:
        """Rewrite every node that is needed and leave out the others."""
        for node in self.flow.graph.nodes:
            if node in self.flow.sizes:
                self._new[node] = self.flow.sizes[node]
            elif node not in self.flow.channels:
                if all(x in self._new for x in node.all_input_nodes):
                    self._new[node] = self._number(node)
            elif node.op == "placeholder" or bool(self.flow.need[node].any()):
                self._new[node], self._held[node] = self.flow.rules[node].rewrite(node, self)
        for node in reversed(self._graph.nodes):
            if not node.users and node.op not in ("placeholder", "output"):
                self._graph.erase_node(node)
        self._graph.lint()
        for tensor in (*self._module.parameters(), *self._module.buffers()):
            tensor.data = tensor.data.contiguous()  # selections leave strided views behind
        return fx.GraphModule(self._module, self._graph, "CompactModule")

    def _number(self, node: fx.Node) -> Any:
        """Value of a node that is no tensor: a number where sizes have become numbers."""
        args = fx.map_arg(node.args, self._new.__getitem__)
        is_plain = all(isinstance(arg, int | float) for arg in args) and not node.kwargs
        if node.op == "call_function" and is_plain and node.target in _ON_NUMBERS:
            return node.target(*args)
        return self.copy(node)

    def held(self, node: fx.Node, axis: int) -> Tensor:
        """Which original entries a rewritten tensor still has along an axis, ascending."""
        if self.flow.channels[node].axis != axis:
            return torch.arange(self.flow.shape(node)[axis])
        return self._held[node]

    def gather(self, node: fx.Node, axis: int, wanted: Tensor, reader: fx.Node) -> fx.Node:
        """The rewritten tensor with the wanted original entries only, for one reader."""
        held, new = self.held(node, axis), self._new[node]
        if torch.equal(held, wanted):
            return new
        key = (new, axis, tuple(wanted.tolist()))
        if key not in self._gathered:
            name = self._free_name(f"{reader.name}_inputs")
            self._module.register_buffer(name, torch.searchsorted(held, wanted))
            self._gathered[key] = self.call(
                torch.index_select, new, axis, self._graph.get_attr(name)
            )
        return self._gathered[key]

    def copy(self, node: fx.Node, inputs: Mapping[fx.Node, fx.Node] | None = None) -> fx.Node:
        """The same operation on rewritten inputs, or on others in place of some of them."""
        new = {**self._new, **(inputs or {})}
        return self._graph.node_copy(node, new.__getitem__)

    def call(self, function: Callable[..., Any], *args: Any) -> fx.Node:
        """A new operation on rewritten tensors."""
        return self._graph.call_function(function, args)

    def parameter(self, name: str, value: Tensor) -> fx.Node:
        """A new trainable tensor."""
        name = self._free_name(name)
        self._module.register_parameter(name, nn.Parameter(value))
        return self._graph.get_attr(name)

    def _free_name(self, name: str) -> str:
        while hasattr(self._module, name):
            name += "_"
        return name


class Coupling:
    """Labels of the channels of every activation, and the entries of w that belong to each label.

    Each channel of each activation has a label. A layer with weights gives its outputs new labels.
    An operation that keeps channels apart hands its input's labels on, and one that matches
    channels of several tensors (a sum, a product, a depthwise convolution, the heads of attention)
    makes their labels equal. So the channels of a residual stream, whoever writes to it, end with
    one label each. What an operation does to labels is the method `couple` of its rule. A label
    that meets a barrier (the output, an unknown operation) is fixed: its channels stay, and the
    barrier is named.

    Args:
        flow: with the channels of each node.
        entries: of each parameter of the graph that is in w, by name: the place of each number,
            in the parameter's shape.
        movable: (d,) bool, the entries of w that may be 0 because their layer loses an output.
    """

    def __init__(self, flow: Flow, entries: Mapping[str, Tensor], movable: Tensor) -> None:
        self.flow = flow
        self.entries = entries
        self.movable = movable
        self.labels: dict[fx.Node, Tensor] = {}
        self.owned: list[tuple[Tensor, Tensor]] = []  # labels (n,), entries (n, m)
        self.fixed: list[tuple[Tensor, str]] = []
        self._equal: list[Tensor] = []  # (2, n) pairs
        self._n = 0

    def fresh(self, n: int) -> Tensor:
        """N new labels."""
        self._n += n
        return torch.arange(self._n - n, self._n)

    def along(self, x: fx.Node, axis: int, reader: fx.Node) -> Tensor:
        """Labels of a tensor along an axis; all are fixed if its channels are on another."""
        if self.flow.channels[x].axis == axis:
            return self.labels[x]
        self.fix(self.labels[x], reader, f"reads axis {axis}, not the channels")
        labels = self.fresh(self.flow.shape(x)[axis])
        self.fix(labels, reader, f"reads axis {axis}, not the channels")
        return labels

    def join(self, *labels: Tensor) -> Tensor:
        """Make labels equal, each (n,), and return the first."""
        self._equal += [torch.stack([labels[0], other]) for other in labels[1:]]
        return labels[0]

    def fix(self, labels: Tensor, node: fx.Node, why: str) -> None:
        """Keep channels, and say which operation needs them."""
        graph = self.flow.graph
        what = graph.place(node) if node.op == "output" else graph.described(node)
        self.fixed.append((labels, f"{what} {why}"))

    def own(self, labels: Tensor, name: str, axis: int = 0) -> None:
        """Give labels, (n,), what a parameter has along an axis; nothing if it is not in w."""
        if name in self.entries:
            self.own_entries(labels, self.entries[name].movedim(axis, 0))

    def own_entries(self, labels: Tensor, entries: Tensor) -> None:
        """Give labels, (n,), entries of w, (n, ...)."""
        self.owned.append((labels, entries.reshape(len(labels), -1)))

    def components(self) -> Tensor:
        """The smallest label that each label equals, (labels,)."""
        root = torch.arange(self._n)
        if not self._equal:
            return root
        a, b = torch.cat(self._equal, 1)
        while True:
            ends = root[a], root[b]
            low = torch.minimum(*ends)
            new = root.clone()
            for end in ends:
                new.scatter_reduce_(0, end, low, "amin")
            while not torch.equal(new, new[new]):
                new = new[new]
            if torch.equal(new, root):
                return root
            root = new


class Rule:
    """The treatment of channels by one kind of operation.

    This one is a barrier: nothing is assumed, the operation reads and returns every channel.
    Other rules know better.

    Args:
        why: what to say of a barrier.
        known: an operation that needs all channels by definition, such as layer normalisation
            or the network's input; it is mentioned only if it keeps something alive that could
            go otherwise.
    """

    def __init__(self, why: str = "", *, known: bool = False) -> None:
        self.why = why
        self.known = known

    def forward(self, node: fx.Node, flow: Flow) -> Channels | str:
        """The channels of the output, or in words why this rule does not apply."""
        axis, shape = likely_axis(node, flow), flow.shape(node)
        return varying(axis, shape[axis] if shape else 1)

    def fixed(self, node: fx.Node, flow: Flow) -> Tensor:
        """Channels that no input of the network reaches, (n,) bool; positions may differ."""
        return flow.channels[node].constant

    def backward(self, node: fx.Node, flow: Flow) -> None:
        """Ask the inputs for what the needed channels of the output are made of."""
        inputs = flow.graph.tensor_inputs(node)
        for x in inputs:
            flow.request_all(x)
        what = self.why if node.op == "output" else f"({flow.graph.spelling(node)}) {self.why}"
        n_dead = sum(int(flow.channels[x].constant.sum()) for x in inputs)
        if inputs and not self.known and flow.learned.intersection((node, *inputs)):
            flow.note(node, f"{what}: all its channels stay")
        elif n_dead:
            flow.note(node, f"{what}: it keeps {plural(n_dead, 'constant channel')} alive")

    def rewrite(self, node: fx.Node, to: Rewriter) -> Rewritten:
        """Write the shrunk operation, which may change modules; say what its output has."""
        return to.copy(node), torch.arange(len(to.flow.channels[node]))

    def couple(self, node: fx.Node, to: Coupling) -> None:
        """Label the channels of the output, and say which inputs go with them."""
        why = self.why or "has no rule"
        for x in to.flow.graph.tensor_inputs(node):
            to.fix(to.labels[x], node, why)
        if node in to.flow.channels:
            to.labels[node] = to.fresh(len(to.flow.channels[node]))
            to.fix(to.labels[node], node, why)


def likely_axis(node: fx.Node, flow: Flow) -> int:
    """Where the first layer that reads a tensor takes its channels: the last axis, or axis 1."""
    n_axes = len(flow.shape(node))
    if n_axes < 3 or (node.op == "call_module" and _is_last(flow.graph.layer(node))):
        return max(n_axes - 1, 0)
    ahead, met = list(node.users), set()
    while ahead:
        user = ahead.pop(0)
        if flow.graph.operation(user).name == "index_select":
            return int(str(user.args[1])) % n_axes
        if (
            user in met
            or flow.graph.operation(user).name in _MOVING
            or flow.graph.shape(user) is None
        ):
            continue
        met.add(user)
        if user.op == "call_module" and len(flow.shape(user)) == n_axes:
            layer = flow.graph.layer(user)
            if _is_last(layer):
                return n_axes - 1
            if next(layer.parameters(), None) is not None:
                return 1
        if flow.shape(user) == flow.shape(node):
            ahead += user.users
    return 1


def _is_last(layer: nn.Module) -> bool:
    return isinstance(layer, nn.Linear | nn.LayerNorm | nn.MultiheadAttention)


_MOVING = ("permute", "transpose", "movedim")
