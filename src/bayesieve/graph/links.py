"""Links: pairs of layers where one reads all that the other makes, and nothing else does."""

from dataclasses import dataclass

from torch import fx, nn

from bayesieve.core.layout import Role
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
    pairs = []
    for node in reversed(graph.nodes):
        if not _makes_units(node, graph):
            continue
        reader, flat = _only_reader(node, graph)
        if reader is not None and not {str(node.target), str(reader.target)} & graph.shared:
            pairs.append(_link(network, graph, node, reader, flat=flat))
    return [link for link in pairs if link is not None]


def _link(
    network: Network, graph: Graph, node: fx.Node, reader: fx.Node, *, flat: bool
) -> Link | None:
    """The link between two layers, unless shapes or roles rule it out."""
    producer, consumer = graph.layer(node), graph.layer(reader)
    roles = dict(zip(network.layout.names, network.layout.roles, strict=True))
    weight, bias, read = f"{node.target}.weight", f"{node.target}.bias", f"{reader.target}.weight"
    if roles.get(weight) != Role.PRUNE or read not in roles:
        return None
    n_units = len(producer.get_parameter("weight"))
    n_outputs, n_inputs = consumer.get_parameter("weight").shape[:2]
    if isinstance(producer, nn.Linear):
        fits = isinstance(consumer, nn.Linear) and n_inputs == n_units
    elif flat:
        fits = isinstance(consumer, nn.Linear) and n_inputs % n_units == 0
    else:
        fits = type(consumer) is type(producer) and n_inputs == n_units
    return Link(weight, bias if bias in roles else None, read, n_units, n_outputs) if fits else None


def _only_reader(node: fx.Node, graph: Graph) -> tuple[fx.Node | None, bool]:
    """The one layer that reads a layer's output, and whether it was flattened on the way."""
    n_positions, flat = graph.layer(node).get_parameter("weight").dim() - 2, False
    while True:
        readers = graph.readers(node)
        if len(readers) != 1 or not readers[0].args or readers[0].args[0] is not node:
            return None, flat
        reader = readers[0]
        if reader.op == "call_module" and is_hooked(graph.layer(reader)):
            return None, flat
        if flattens(reader, graph.layer(reader) if reader.op == "call_module" else None):
            flat = True
        elif _makes_units(reader, graph):
            return reader, flat
        elif not _treats_units_separately(graph.operation(reader), 0 if flat else n_positions):
            return None, flat
        node = reader


def _makes_units(node: fx.Node, graph: Graph) -> bool:
    """Whether a node calls a Linear layer or an ungrouped convolution."""
    if graph.operation(node).name not in ("linear", "conv"):
        return False
    layer = graph.layer(node)
    return getattr(layer, "groups", 1) == 1 and not is_hooked(layer)


def _treats_units_separately(operation: Operation, n_positions: int) -> bool:
    """Whether it does so for channels with some number of position axes, 0 for a flat vector."""
    if operation.kind not in (Kind.POINTWISE, Kind.CHANNELWISE):
        return False
    return not operation.positions or n_positions in operation.positions
