"""Builds the smaller network from what the analysis found."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx, nn

from bayesieve.sieve.compaction.flow import Flow


class Rewriter:
    """Writes a new graph from the input to the output; the modules it calls shrink in place.

    Args:
        flow: what the analysis found.
    """

    def __init__(self, flow: Flow) -> None:
        self.flow = flow
        self._module = flow.traced.module
        self._graph = fx.Graph()
        self._new: dict[fx.Node, fx.Node] = {}
        self._held: dict[fx.Node, Tensor] = {}
        self._gathered: dict[tuple[fx.Node, int, tuple[int, ...]], fx.Node] = {}

    def run(self) -> fx.GraphModule:
        """Rewrite every node that is needed and leave out the others."""
        for node in self.flow.traced.graph.nodes:
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
