"""Where channels begin, and where nothing can be removed: inputs, tables, barriers."""

import torch
from torch import fx, nn

from bayesieve.sieve.compaction.flow import (
    Channels,
    Flow,
    Rewriter,
    Rewritten,
    constants_of,
    indices,
    plural,
    varying,
)


class Barrier:
    """An operation of which nothing is assumed: it reads and returns every channel.

    Args:
        why: what to say of it.
        known: an operation that needs all channels by definition, such as layer normalisation
            or the network's input; it is mentioned only if it keeps something alive that could
            go otherwise.
    """

    def __init__(self, why: str, *, known: bool = False) -> None:
        self.why = why
        self.known = known

    def forward(self, node: fx.Node, flow: Flow) -> Channels | str:
        """Nothing is known of the output."""
        axis, shape = _likely_axis(node, flow), flow.shape(node)
        return varying(axis, shape[axis] if shape else 1)

    def backward(self, node: fx.Node, flow: Flow) -> None:
        """Everything."""
        inputs = flow.graph.tensor_inputs(node)
        for x in inputs:
            flow.request_all(x)
        what = self.why if node.op == "output" else f"({_kind(node, flow)}) {self.why}"
        n_dead = sum(int(flow.channels[x].constant.sum()) for x in inputs)
        if inputs and not self.known:
            flow.note(node, f"{what}: all its channels stay")
        elif n_dead:
            flow.note(node, f"{what}: it keeps {plural(n_dead, 'constant channel')} alive")

    def rewrite(self, node: fx.Node, to: Rewriter) -> Rewritten:
        """Leave it as it is."""
        return Rewritten(to.copy(node), torch.arange(len(to.flow.channels[node])))


class Table:
    """A tensor of the network itself that is read directly, such as a positional embedding."""

    def forward(self, node: fx.Node, flow: Flow) -> Channels | str:
        """Channels that hold one number are constants."""
        tensor = flow.graph.tensor(node)
        long = [i for i, size in enumerate(tensor.shape) if size > 1]
        axis = long[0] if len(long) == 1 else max(tensor.dim() - 1, 0)
        if not tensor.is_floating_point() or tensor.dim() == 0:
            return varying(axis, tensor.shape[axis] if tensor.dim() else 1)
        return Channels(axis, constants_of(tensor, axis))

    def backward(self, node: fx.Node, flow: Flow) -> None:
        """It has no inputs to ask."""

    def rewrite(self, node: fx.Node, to: Rewriter) -> Rewritten:
        """Slice it."""
        flow, need = to.flow, to.flow.need[node]
        if str(node.target) in flow.graph.shared or bool(need.all()):
            return Rewritten(to.copy(node), torch.arange(len(need)))
        tensor, kept = flow.graph.tensor(node), indices(need)
        path, _, leaf = str(node.target).rpartition(".")
        owner = flow.graph.module.get_submodule(path)
        small = tensor.detach().index_select(flow.channels[node].axis, kept)
        is_weight = isinstance(tensor, nn.Parameter)
        setattr(owner, leaf, nn.Parameter(small, tensor.requires_grad) if is_weight else small)
        return Rewritten(to.copy(node), kept)


class Embedded:
    """`nn.Embedding`: one channel per column."""

    def forward(self, node: fx.Node, flow: Flow) -> Channels | str:
        """Columns that hold one number are constants."""
        layer = flow.graph.layer(node)
        if getattr(layer, "max_norm", None) is not None:
            return "rescales its rows by their norm"
        weight = layer.get_parameter("weight")
        return Channels(len(flow.shape(node)) - 1, constants_of(weight, 1))

    def backward(self, node: fx.Node, flow: Flow) -> None:
        """Tokens are needed in any case."""
        for x in flow.graph.tensor_inputs(node):
            flow.request_all(x)

    def rewrite(self, node: fx.Node, to: Rewriter) -> Rewritten:
        """Drop columns."""
        kept = indices(to.flow.need[node])
        layer = to.flow.graph.layer(node)
        assert isinstance(layer, nn.Embedding)
        small = layer.weight.detach()[:, kept].clone()
        layer.weight = nn.Parameter(small, layer.weight.requires_grad)
        layer.embedding_dim = len(kept)
        return Rewritten(to.copy(node), kept)


def _kind(node: fx.Node, flow: Flow) -> str:
    if node.op == "call_module":
        return type(flow.graph.layer(node)).__name__
    return str(getattr(node.target, "__name__", node.target))


def _likely_axis(node: fx.Node, flow: Flow) -> int:
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
