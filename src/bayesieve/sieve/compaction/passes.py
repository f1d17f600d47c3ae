"""The rule of every operation, and the passes that use it: forwards and backwards.

The graph has no cycles, so one pass in each direction reaches the fixed point: constants travel
forwards through every layer they can, and channels that no layer reads are found backwards.
`couple` goes forwards too, and finds which channels can only go together.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, fx, nn

from bayesieve.graph.graph import Graph
from bayesieve.graph.operations import Kind, reads_size
from bayesieve.sieve.compaction.attention import Attending, HeadAttention
from bayesieve.sieve.compaction.flow import Channels, Coupling, Flow, Rule
from bayesieve.sieve.compaction.joins import Arithmetic, Concatenation, Paired, terms
from bayesieve.sieve.compaction.mixing import Mixing
from bayesieve.sieve.compaction.norms import FOLDED, Normed
from bayesieve.sieve.compaction.separate import (
    Across,
    Blocked,
    Embedded,
    Indexed,
    Rearranged,
    Selected,
    Separate,
    SizeReader,
    Table,
    Viewed,
    size_before,
)

_NAMED: dict[str, Rule] = {  # of single operations
    "view": Viewed(),
    "reshape": Viewed(),
    "getitem": Indexed(),
    "unflatten": Blocked(),
    "layer_norm": Normed(),
    "group_norm": Normed(),
    "rms_norm": Normed(),
    "softmax": Across(),
    "log_softmax": Across(),
}
_TOGETHER = Rule("reads all channels together", known=True)
_UNKNOWN = Rule("is not known to treat channels separately")
_SHARED = Rule("is called twice, hooked or shares its weights")
_OURS: dict[type, Rule] = {HeadAttention: Attending(), **dict.fromkeys(FOLDED, Normed())}
_RULES: dict[Kind, Rule] = {
    Kind.MIXING: Mixing(),
    Kind.POINTWISE: Separate(),
    Kind.CHANNELWISE: Separate(axis=1),
    Kind.REARRANGING: Rearranged(),
    Kind.RESHAPING: Rule("fixes sizes, which could name channels"),
    Kind.RESIZING: Separate(),
    Kind.ARITHMETIC: Arithmetic(),
    Kind.PAIRING: Paired(),
    Kind.JOINING: Concatenation(),
    Kind.SELECTING: Selected(),
    Kind.EMBEDDING: Embedded(known=True),
    Kind.TOGETHER: _TOGETHER,
    Kind.UNKNOWN: _UNKNOWN,
}


def rule_of(node: fx.Node, graph: Graph) -> Rule:
    """The rule of one node; a barrier if nothing is known about it."""
    if node.op == "placeholder":
        return Rule("is the input", known=True)
    if node.op == "get_attr":
        return Table()
    if node.op == "output":
        return Rule("must keep its shape", known=True)
    if graph.shape(node) is None:
        return SizeReader() if reads_size(node) else _UNKNOWN
    results = [x for x in node.all_input_nodes if not reads_size(x)]
    opaque = any(isinstance(x.meta.get("value"), tuple | list | dict) for x in results)
    if not graph.tensor_inputs(node) or opaque:
        return _UNKNOWN
    kind = graph.operation(node).kind
    if kind == Kind.ARITHMETIC and sum(graph.shape(x) is not None for x in terms(node)) == 1:
        kind = Kind.POINTWISE  # with a number
    rule = _NAMED.get(graph.operation(node).name, _RULES[kind])
    if node.op == "call_module":
        rule = _OURS.get(type(graph.layer(node)), rule)
        if str(node.target) in graph.shared and rule is not _TOGETHER:
            return _SHARED
    elif type(rule) is Normed:
        return _TOGETHER
    return rule


def forwards(graph: Graph) -> Flow:
    """Find the rule, the channels and the constants of every activation."""
    flow = Flow(graph)
    for node in graph.nodes:
        rule = flow.rules[node] = rule_of(node, graph)
        if _has_weights(node, graph) or flow.learned.intersection(node.all_input_nodes):
            flow.learned.add(node)
        if graph.shape(node) is None or node.op == "output":
            size = size_before(node, flow)
            if size is not None:
                flow.sizes[node] = size
            continue
        channels = rule.forward(node, flow)
        if isinstance(channels, str):
            known = graph.operation(node).kind == Kind.TOGETHER  # by definition
            rule = flow.rules[node] = Rule(channels, known=known)
            channels = rule.forward(node, flow)
        assert isinstance(channels, Channels)
        flow.channels[node] = channels
        flow.need[node] = torch.zeros(len(channels), dtype=torch.bool)
        flow.fixed[node] = rule.fixed(node, flow)
        if node.op != "placeholder" and all(
            x in flow.fixed and bool(flow.fixed[x].all()) for x in node.all_input_nodes
        ):
            flow.fixed[node].fill_(True)  # a table, or made of nothing else
    return flow


def _has_weights(node: fx.Node, graph: Graph) -> bool:
    if node.op == "call_module":
        return next(graph.layer(node).parameters(), None) is not None
    return node.op == "get_attr" and isinstance(graph.tensor(node), nn.Parameter)


def analyse(graph: Graph) -> Flow:
    """Find constants and needs of every activation."""
    flow = forwards(graph)
    for node in reversed(graph.nodes):
        if node not in flow.channels or flow.settle(node):
            flow.rules[node].backward(node, flow)
    normed = [n.all_input_nodes[0] for n, rule in flow.rules.items() if type(rule) is Normed]
    if fixed := [x for x in normed if bool((flow.fixed[x] & ~flow.channels[x].constant).any())]:
        flow.find_patterns(fixed)
    flow.notes[:] = dict.fromkeys(reversed(flow.notes))  # each once, from the input on
    return flow


def couple(graph: Graph, entries: Mapping[str, Tensor], movable: Tensor) -> Coupling:
    """Find the coupled channels; arguments as for `Coupling`."""
    flow = forwards(graph)
    coupling = Coupling(flow, entries, movable)
    for node in graph.nodes:
        flow.rules[node].couple(node, coupling)
    for nodes in graph.tied:
        is_linear = [graph.operation(node).name == "linear" for node in nodes]
        columns = [n.all_input_nodes[0] if linear else n
                   for n, linear in zip(nodes, is_linear, strict=True)]  # fmt: skip
        coupling.join(*(coupling.labels[node] for node in columns))
    return coupling


def read_features(flow: Flow) -> tuple[Tensor, int]:
    """Which input features are read, as indices, and how many there are.

    Features are those of the flattened example if flattening is the first thing that happens.
    """
    source = next(n for n in flow.graph.nodes if n.op == "placeholder")
    if len(flow.shape(source)) < 2:
        return torch.zeros(1, dtype=torch.int64), 1
    users = [u for u in source.users if u in flow.channels]
    flattened = len(users) == 1 and type(flow.rules[users[0]]) is Rearranged
    need = flow.need[users[0] if flattened else source]
    return need.nonzero().flatten(), len(need)
