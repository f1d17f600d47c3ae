"""Links: pairs of layers where one reads all that the other makes, and nothing else does.

A hidden unit with no kept outgoing weight loses its bias and incoming weights; while it has one,
its bias counts as kept. The network's function does not change. Removal travels backwards only,
so one pass from the output to the input reaches the fixed point. Where layers are not linked
nothing is removed, and biases simply count as kept.

No example of an input is needed. Coupled units (`groups`) need one.
"""

import weakref
from dataclasses import dataclass

import torch
from torch import Tensor, fx, nn

from bayesieve.core.layout import Layout, Role
from bayesieve.core.network import Network, is_hooked
from bayesieve.errors import UnsupportedModelError
from bayesieve.graph.capture import capture
from bayesieve.graph.graph import Graph
from bayesieve.graph.operations import Kind, Operation, flattens


@dataclass(frozen=True)
class Link:
    """Units that one layer makes and only one other layer reads.

    Args:
        producer: name of the weight whose rows lead into the units.
        bias: name of the producer's trainable bias, or None.
        consumer: name of the weight whose columns leave the units, in blocks of equal length.
        n_units: number of units (channels of a convolution).
        n_outputs: number of rows of the consumer.
    """

    producer: str
    bias: str | None
    consumer: str
    n_units: int
    n_outputs: int


@dataclass(frozen=True)
class Units:
    """Units of the linked layers of a network, from the output to the input.

    Args:
        layout: the slice of w of each tensor.
        links: each consumer comes before its producers.
    """

    layout: Layout
    links: tuple[Link, ...]

    def clean(self, values: Tensor) -> Tensor:
        """Drop biases and incoming weights of units without a kept outgoing weight.

        Args:
            values: (..., d), a bool mask with True = kept, or numbers of which larger ones are
                kept longer: every threshold of the result is then the cleaned threshold of the
                argument.

        Returns:
            A new tensor of the same shape.

        Example:
            >>> from bayesieve.core.likelihoods import Gaussian
            >>> network = Network.of(nn.Sequential(nn.Linear(1, 2), nn.Linear(2, 1)), Gaussian())
            >>> keep = torch.ones(7, dtype=torch.bool)  # 2 + 2 weights, 2 + 1 biases
            >>> keep[3] = False  # all that leaves the second hidden unit
            >>> units_of(network).clean(keep).int()
            tensor([1, 0, 1, 0, 1, 0, 1], dtype=torch.int32)
        """
        values = values.clone()
        for link in self.links:
            alive = self.outgoing(values, link).amax((-3, -1))
            incoming = self.incoming(values, link)
            incoming.copy_(torch.minimum(incoming, alive[..., None]))
            if link.bias is not None:
                bias = values[..., self.layout.slices[link.bias]]
                bias.copy_(torch.minimum(bias, alive))
        return values

    def fed(self, keep: Tensor) -> Tensor:
        """Remove from a mask, (..., d), what leaves units that no kept weight leads to."""
        keep = keep.clone()
        for link in reversed(self.links):
            reached = self.incoming(keep, link).amax(-1)
            outgoing = self.outgoing(keep, link)
            outgoing.copy_(outgoing & reached[..., None, :, None])
        return keep

    def incoming(self, values: Tensor, link: Link) -> Tensor:
        """View of the weights into the units of a link, (..., d) -> (..., units, fan_in)."""
        return values[..., self.layout.slices[link.producer]].unflatten(-1, (link.n_units, -1))

    def outgoing(self, values: Tensor, link: Link) -> Tensor:
        """View of the weights out of them, (..., d) -> (..., outputs, units, block)."""
        weights = values[..., self.layout.slices[link.consumer]]
        return weights.unflatten(-1, (link.n_outputs, link.n_units, -1))


_UNITS: weakref.WeakKeyDictionary[Network, Units] = weakref.WeakKeyDictionary()


def units_of(network: Network) -> Units:
    """The units of a network; traced on first use, remembered while the network lives.

    Example:
        >>> from torch import nn
        >>> from bayesieve.core.likelihoods import Gaussian
        >>> model = nn.Sequential(nn.Conv1d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 1))
        >>> [(k.producer, k.consumer) for k in units_of(Network.of(model, Gaussian())).links]
        [('0.weight', '3.weight')]
    """
    if network not in _UNITS:
        _UNITS[network] = Units(network.layout, links(network))
    return _UNITS[network]


def links(network: Network) -> tuple[Link, ...]:
    """The links of a network in training and in evaluation mode, from the output to the input.

    A pair of layers A -> B is linked when A's output reaches only B, through operations that
    treat units separately. Residual and branching paths, grouped and transposed convolutions,
    shared or frozen layers and networks that cannot be traced have no link.
    """
    in_training = _links_in_mode(network, training=True)
    in_evaluation = _links_in_mode(network, training=False)
    return tuple(link for link in in_training if link in in_evaluation)


def _links_in_mode(network: Network, *, training: bool) -> list[Link]:
    try:
        graph = capture("links", network.skeleton, training=training)
    except UnsupportedModelError:
        return []
    roles, found = dict(zip(network.layout.names, network.layout.roles, strict=True)), []
    for node in reversed(graph.nodes):
        reader = _only_reader(node, graph) if _makes_units(node, graph) else None
        if reader is None or {str(node.target), str(reader.target)} & graph.shared:
            continue
        weight, bias, read = (f"{node.target}.weight", f"{node.target}.bias",
                              f"{reader.target}.weight")  # fmt: skip
        if roles.get(weight) == Role.PRUNE and read in roles:
            n_units, n_outputs = (len(_weight(n, graph)) for n in (node, reader))
            bias_or_none = bias if bias in roles else None
            found.append(Link(weight, bias_or_none, read, n_units, n_outputs))
    return found


def _only_reader(maker: fx.Node, graph: Graph) -> fx.Node | None:
    """The one layer that reads a layer's output, if each of its inputs belongs to one unit."""
    n_units, *rest = _weight(maker, graph).shape
    node, flat = maker, False
    while True:
        readers = graph.readers(node)
        if len(readers) != 1 or not readers[0].args or readers[0].args[0] is not node:
            return None
        node = readers[0]
        layer = graph.layer(node) if node.op == "call_module" else None
        if layer is not None and is_hooked(layer):
            return None
        if flattens(node, layer):
            flat = True
        elif _makes_units(node, graph):
            n_inputs, by_column = _weight(node, graph).shape[1], isinstance(layer, nn.Linear)
            if type(layer) is type(graph.layer(maker)):
                return node if n_inputs == n_units and (by_column or not flat) else None
            return node if flat and by_column and n_inputs % n_units == 0 else None
        elif not _treats_units_separately(graph.operation(node), 0 if flat else len(rest) - 1):
            return None


def _weight(node: fx.Node, graph: Graph) -> Tensor:
    return graph.layer(node).get_parameter("weight")


def _makes_units(node: fx.Node, graph: Graph) -> bool:
    """Return whether a node calls a Linear layer or an ungrouped convolution."""
    if graph.operation(node).name not in ("linear", "conv"):
        return False
    layer = graph.layer(node)
    return getattr(layer, "groups", 1) == 1 and not is_hooked(layer)


def _treats_units_separately(operation: Operation, n_positions: int) -> bool:
    """Return whether it does so for channels with so many position axes, 0 for a flat vector."""
    if operation.kind not in (Kind.POINTWISE, Kind.CHANNELWISE):
        return False
    return not operation.positions or n_positions in operation.positions
