"""Two passes over a traced network: which channels are constant, and which are needed.

The graph has no cycles, so one pass in each direction reaches the fixed point: constants travel
forwards through every layer they can, and what nobody reads travels backwards.
"""

import torch
from torch import Tensor, fx

from bayesieve.sieve.compaction.channels import Channels
from bayesieve.sieve.compaction.ends import Barrier
from bayesieve.sieve.compaction.flow import Flow
from bayesieve.sieve.compaction.graph import Traced
from bayesieve.sieve.compaction.table import rule_of


def analyse(traced: Traced) -> Flow:
    """Find constants and needs of every activation."""
    flow = Flow(traced)
    nodes = list(traced.graph.nodes)
    for node in nodes:
        _forward(node, flow)
    for node in reversed(nodes):
        if node not in flow.channels or flow.settle(node):
            flow.rules[node].backward(node, flow)
    flow.notes[:] = dict.fromkeys(reversed(flow.notes))  # each once, from the input on
    return flow


def _forward(node: fx.Node, flow: Flow) -> None:
    rule = rule_of(node, flow)
    flow.rules[node] = rule
    if flow.traced.shape(node) is None or node.op == "output":
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
    source = next(n for n in flow.traced.graph.nodes if n.op == "placeholder")
    if len(flow.shape(source)) < 2:
        return torch.zeros(1, dtype=torch.int64), 1
    users = [u for u in source.users if u in flow.channels]
    flattened = len(users) == 1 and "origin" in users[0].meta
    need = flow.need[users[0] if flattened else source]
    return need.nonzero().flatten(), len(need)
