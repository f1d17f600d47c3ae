"""The rule of every operation, and the passes that use it: forwards, backwards, rewriting.

The graph has no cycles, so one pass in each direction reaches the fixed point: constants travel
forwards through every layer they can, and what nobody reads travels backwards. Then `Rewriter`
builds the layers that are left.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx, nn

from bayesieve.core.graph import Graph
from bayesieve.core.operations import Kind, reads_size
from bayesieve.sieve.compaction.attention import Attending, HeadAttention
from bayesieve.sieve.compaction.ends import Barrier, Embedded, Source, Table
from bayesieve.sieve.compaction.flow import Channels, Flow, Rule
from bayesieve.sieve.compaction.joins import Arithmetic, Concatenation
from bayesieve.sieve.compaction.mixing import Mixing
from bayesieve.sieve.compaction.separate import Rearranged, Selected, Separate, SizeReader

_TOGETHER = Barrier("reads all channels together", known=True)
_UNKNOWN = Barrier("is not known to treat channels separately")
_SHARED = Barrier("is called twice, hooked or shares its weights")
_RULES: dict[Kind, Rule] = {
    Kind.MIXING: Mixing(),
    Kind.POINTWISE: Separate(),
    Kind.CHANNELWISE: Separate(axis=1),
    Kind.REARRANGING: Rearranged(),
    Kind.RESHAPING: Barrier("fixes sizes, which could name channels"),
    Kind.ARITHMETIC: Arithmetic(),
    Kind.JOINING: Concatenation(),
    Kind.SELECTING: Selected(),
    Kind.EMBEDDING: Embedded(),
    Kind.TOGETHER: _TOGETHER,
    Kind.UNKNOWN: _UNKNOWN,
}


def rule_of(node: fx.Node, graph: Graph) -> Rule:
    """The rule of one node; a barrier if nothing is known about it."""
    if node.op == "placeholder":
        return Source()
    if node.op == "get_attr":
        return Table()
    if node.op == "output":
        return Barrier("must keep its shape", known=True)
    if graph.shape(node) is None:
        return SizeReader() if reads_size(node) else _UNKNOWN
    if any(graph.shape(x) is None and _is_opaque(x) for x in node.all_input_nodes):
        return _UNKNOWN  # one of several results of an unknown operation
    if not graph.tensor_inputs(node):
        return _UNKNOWN
    rule = _RULES[graph.operation(node).kind]
    if node.op == "call_module":
        if type(graph.layer(node)) is HeadAttention:
            rule = Attending()
        if str(node.target) in graph.shared and rule is not _TOGETHER:
            return _SHARED
    return rule


def _is_opaque(node: fx.Node) -> bool:
    return isinstance(node.meta.get("value"), tuple | list | dict) and not reads_size(node)


def analyse(graph: Graph) -> Flow:
    """Find constants and needs of every activation."""
    flow = Flow(graph)
    nodes = graph.nodes
    for node in nodes:
        _forward(node, flow)
    for node in reversed(nodes):
        if node not in flow.channels or flow.settle(node):
            flow.rules[node].backward(node, flow)
    flow.notes[:] = dict.fromkeys(reversed(flow.notes))  # each once, from the input on
    return flow


def _forward(node: fx.Node, flow: Flow) -> None:
    rule = rule_of(node, flow.graph)
    flow.rules[node] = rule
    if flow.graph.shape(node) is None or node.op == "output":
        return
    found = rule.forward(node, flow)
    if isinstance(found, str):
        rule = flow.rules[node] = Barrier(found)
        found = rule.forward(node, flow)
    assert isinstance(found, Channels)
    flow.channels[node] = found
    flow.need[node] = torch.zeros(len(found), dtype=torch.bool)


def read_features(flow: Flow) -> tuple[Tensor, int]:
    """Which input features are read, as indices, and how many there are.

    Features are those of the flattened example if flattening is the first thing that happens.
    """
    source = next(n for n in flow.graph.nodes if n.op == "placeholder")
    if len(flow.shape(source)) < 2:
        return torch.zeros(1, dtype=torch.int64), 1
    users = [u for u in source.users if u in flow.channels]
    flattened = len(users) == 1 and "origin" in users[0].meta
    need = flow.need[users[0] if flattened else source]
    return need.nonzero().flatten(), len(need)


class Rewriter:
    """Writes a new graph from the input to the output; the modules it calls shrink in place.

    Args:
        flow: what the analysis found.
    """

    def __init__(self, flow: Flow) -> None:
        self.flow = flow
        self._module = flow.graph.module
        self._graph = fx.Graph()
        self._new: dict[fx.Node, fx.Node] = {}
        self._held: dict[fx.Node, Tensor] = {}
        self._gathered: dict[tuple[fx.Node, int, tuple[int, ...]], fx.Node] = {}

    def run(self) -> fx.GraphModule:
        """Rewrite every node that is needed and leave out the others."""
        for node in self.flow.graph.nodes:
            if node not in self.flow.channels:
                if all(x in self._new for x in node.all_input_nodes):
                    self._new[node] = self.copy(node)
            elif node.op == "placeholder" or bool(self.flow.need[node].any()):
                self._new[node], self._held[node] = self.flow.rules[node].rewrite(node, self)
        for node in reversed(self._graph.nodes):
            if not node.users and node.op not in ("placeholder", "output"):
                self._graph.erase_node(node)
        self._graph.lint()
        for tensor in (*self._module.parameters(), *self._module.buffers()):
            tensor.data = tensor.data.contiguous()  # selections leave strided views behind
        return fx.GraphModule(self._module, self._graph, "CompactModule")

    def rewritten(self, node: fx.Node) -> fx.Node:
        """What an original node has become."""
        return self._new[node]

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

    def copy(self, node: fx.Node, inputs: dict[fx.Node, fx.Node] | None = None) -> fx.Node:
        """The same operation on rewritten inputs, or on those given for some of them."""
        own = inputs or {}
        return self._graph.node_copy(node, lambda x: own[x] if x in own else self._new[x])

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
