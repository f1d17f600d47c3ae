"""A masked module as a measured graph that is ready for compaction.

Masks are baked in, the module is traced, attention is expanded into projections and heads, and
one run on an example notes all shapes. Then the graph is tidied: operations that overwrite their
input or fix sizes are replaced by equal ones that do not, and layers written by hand by torch's.
"""

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F
from torch.nn.utils import parametrize, prune

from bayesieve.core.inputs import Input, shown
from bayesieve.graph.capture import attention_dropout, capture, switch_dropout_
from bayesieve.graph.graph import Graph
from bayesieve.graph.operations import MAKING, OUT_OF_PLACE, Kind, operation_of
from bayesieve.sieve.compaction.attention import (
    DropoutRate,
    HeadAttention,
    expand_attention,
    switch_attention_dropout_,
)
from bayesieve.sieve.compaction.lifting import lift, plain_layers
from bayesieve.sieve.compaction.norms import FOLDED


def prepare(module: nn.Module, example: Input, *, follow_ties: bool = False) -> Graph:
    """Trace a module in eval mode and run it once.

    Args:
        module: without parametrisations; it is not changed, a copy is traced.
        example: inputs, (n, ...).
        follow_ties: whether an embedding and the linear layer with its weight may shrink.
    """
    traced = opened("compact", plain_layers(copy.deepcopy(module)), example)
    if any(n.target is F.scaled_dot_product_attention for n in traced.graph.nodes):
        switch_attention_dropout_(traced, attention_dropout(module, example))
    return tidied(traced, example, follow_ties=follow_ties)


def opened(
    who: str,
    module: nn.Module,
    example: Input,
    before_export: Callable[[nn.Module], object] | None = None,
) -> fx.GraphModule:
    """Capture a module in eval mode and write out its attention; weights may have any values."""
    leaves = (HeadAttention, DropoutRate, *FOLDED)
    graph = capture(who, module, example, leaves=leaves, before_export=before_export)
    expand_attention(graph.module)
    return graph.module


def tidied(traced: fx.GraphModule, example: Input, *, follow_ties: bool = False) -> Graph:
    """Run an opened module once on inputs, (n, ...), and tidy its graph."""
    switch_dropout_(traced)
    graph = measured(traced, example)
    tidy(traced)
    lift(graph)
    rearrange(graph)
    return measured(traced, example, follow_ties=follow_ties)


def measured(module: fx.GraphModule, example: Input, *, follow_ties: bool = False) -> Graph:
    """The graph of a traced module after one run on inputs, (n, ...)."""
    graph = Graph(module, follow_ties=follow_ties)
    try:
        graph.measure(example)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        reason = str(error).partition("\n")[0].rstrip(".")  # torch.fx adds where it was
        raise ValueError(
            f"compact: the network does not run on an example of {shown(example)}: {reason}."
        ) from error
    return graph


def plain_copy(module: nn.Module) -> nn.Module:
    """A copy with parametrisations and the masks of `torch.nn.utils.prune` baked in."""
    memo: dict[int, object] = {}
    for owner in module.modules():  # such a mask leaves a computed tensor, which cannot be copied
        for value in vars(owner).values():
            if isinstance(value, Tensor):
                memo[id(value)] = value.detach().clone()
    module = copy.deepcopy(module, memo)
    for owner in list(module.modules()):
        if parametrize.is_parametrized(owner):
            # Not `remove_parametrizations`: it changes the class, which a copy shares.
            leaves: Any = owner.parametrizations
            values = {leaf: getattr(owner, leaf) for leaf in leaves}
            del owner.parametrizations
            owner.__class__ = type(owner).__bases__[0]
            for leaf, value in values.items():
                owner.register_parameter(leaf, nn.Parameter(value.detach().clone()))
        for hook in list(owner._forward_pre_hooks.values()):
            if isinstance(hook, prune.BasePruningMethod):
                prune.remove(owner, hook._tensor_name)
    return module


def tidy(traced: fx.GraphModule) -> None:
    """Rewrite a graph whose nodes know their shapes (meta "shape"), in place.

    Calls that overwrite their input become calls that do not, and nodes that read the input
    later read their result. Views that merge the last axes become `torch.flatten`, which names
    no size. Tensors that are made of numbers alone become buffers, which move with the network.
    """
    keep_made_(traced)
    _write_elsewhere(traced)
    _flatten_views(traced.graph)
    _drop_unread(traced)


def _drop_unread(traced: fx.GraphModule) -> None:
    for node in reversed(traced.graph.nodes):
        computes = node.op in ("call_function", "call_method")
        if node.op == "call_module":
            computes = isinstance(traced.get_submodule(str(node.target)), nn.Identity)
        if computes and not node.users:
            traced.graph.erase_node(node)
    traced.recompile()


def keep_made_(traced: fx.GraphModule) -> None:
    """Turn tensors that are made of numbers alone into buffers, in place."""
    for node in list(traced.graph.nodes):
        sized = any(x.args[1:] != ("device",) for x in node.all_input_nodes)
        if node.target not in MAKING or sized:
            continue
        name = f"{node.name}_made"
        while hasattr(traced, name):
            name += "_"
        made = node.target(*node.args, **{**node.kwargs, "device": None})
        traced.register_buffer(name, made)
        with traced.graph.inserting_before(node):
            new = traced.graph.get_attr(name)
        new.meta = node.meta
        node.replace_all_uses_with(new)
        devices = node.all_input_nodes
        for idle in (node, *(x for x in devices if len(x.users) == 1)):
            traced.graph.erase_node(idle)
    traced.recompile()


def _write_elsewhere(traced: fx.GraphModule) -> None:
    order = {node: i for i, node in enumerate(traced.graph.nodes)}
    for node in order:
        if node.all_input_nodes and _made_out_of_place(node, traced):
            x = node.all_input_nodes[0]
            for user in list(x.users):
                if order[user] > order[node]:
                    user.replace_input_with(x, node)
    for module in traced.modules():
        if hasattr(module, "inplace"):
            module.inplace = False  # type: ignore[assignment]


def _made_out_of_place(node: fx.Node, traced: fx.GraphModule) -> bool:
    """Return whether a node writes to its first input; functions and methods then stop doing so."""
    name = str(node.target)
    if node.op == "call_module":
        return bool(getattr(traced.get_submodule(name), "inplace", False))
    if node.op == "call_method" and name.endswith("_") and not name.endswith("__"):
        plain = name.removesuffix("_")
        node.target = plain if hasattr(torch.Tensor, plain) else name
    elif node.op == "call_function" and node.target in OUT_OF_PLACE:
        node.target = OUT_OF_PLACE[node.target]  # type: ignore[assignment]
    elif node.op == "call_function" and node.kwargs.get("inplace"):
        node.kwargs = {**node.kwargs, "inplace": False}
    else:
        return False
    return True


def _flatten_views(graph: fx.Graph) -> None:
    for node in list(graph.nodes):
        if operation_of(node).name not in ("view", "reshape") or "shape" not in node.meta:
            continue
        x, after = node.args[0], node.meta["shape"]
        before, start = x.meta.get("shape", ()), len(after) - 1
        if not 0 < start < len(before) or before[:start] != after[:start]:
            continue
        if before[start:].numel() == after[-1]:  # the last axes become one
            with graph.inserting_before(node):
                new = graph.call_function(torch.flatten, (x, start))
            new.meta = node.meta
            node.replace_all_uses_with(new)
            graph.erase_node(node)


# ---------------------------------------------------------------------------------- rearranging

_MOVES = {
    "view", "reshape", "unflatten", "flatten", "permute", "transpose", "movedim", "squeeze",
    "unsqueeze", "expand", "getitem", "identity", "chunk", "split", "unbind", "repeat_interleave",
    "channel_shuffle",
}  # fmt: skip
_HARD = {
    "view", "reshape", "unflatten", "chunk", "split", "unbind", "expand", "repeat_interleave",
    "channel_shuffle",
}  # fmt: skip


def rearrange(graph: Graph) -> None:
    """Write moves of entries that name sizes as a selection, `unflatten` and `permute`, in place.

    The heads of attention are made by views, splits and transpositions in any order. Each such
    sequence is run on the numbers of the entries of its input, which shows what it does. If it
    divides one axis of the input into at most two, it becomes

        index_select(x, axis, index) -> unflatten(axis, (-1, width)) -> permute

    of which only the width is a number. Other sequences stay as they are.
    """
    module = graph.module
    for node in list(module.graph.nodes):
        if graph.shape(node) is None or not _moves(node, graph) or not _is_end(node, graph):
            continue
        moves, source = [node], node.args[0]
        while _moves(source, graph):
            moves.append(source)
            source = source.args[0]
        names = {graph.operation(move).name for move in moves}
        shape = graph.shape(source)
        if not names & _HARD or shape is None:
            continue
        plan = _plan(_numbered(moves[::-1], source, graph), shape, _made_along(source, graph))
        if plan is not None:
            _write(plan, source, node, module)
    _drop_unread(module)


def _moves(node: object, graph: Graph) -> bool:
    """Return whether a node moves entries of one tensor, or of one list of tensors."""
    if not isinstance(node, fx.Node) or graph.operation(node).name not in _MOVES:
        return False
    first = node.args[0] if node.args else None
    if not isinstance(first, fx.Node):
        return False
    is_list = graph.shape(first) is None and graph.operation(first).name in _MOVES
    tensors = graph.tensor_inputs(node)
    return (tensors == [first]) or (is_list and not tensors)


def _is_end(node: fx.Node, graph: Graph) -> bool:
    return any(not _moves(user, graph) or user.args[0] is not node for user in graph.readers(node))


def _numbered(moves: list[fx.Node], source: fx.Node, graph: Graph) -> Tensor:
    """The place in the source of each entry of the last result."""
    shape = graph.shape(source)
    assert shape is not None
    results: dict[fx.Node, Any] = {source: torch.arange(shape.numel()).view(shape)}
    for move in moves:
        results[move] = graph.run(move, results)
    return results[moves[-1]]


@dataclass(frozen=True)
class _Plan:
    """A rearrangement as steps: select along an axis, divide it, permute, add axes."""

    axis: int
    index: Tensor
    width: int | None  # of the blocks, None if the axis stays one
    copies: Tensor  # which block each block of the result is
    order: tuple[int, ...]
    new_axes: tuple[int, ...]  # of size 1, in the result


def _made_along(node: fx.Node, graph: Graph) -> int | None:
    """The axis on which a layer puts the channels of a tensor; None if none is met."""
    behind, met = [node], set[fx.Node]()
    while behind:
        node = behind.pop()
        met.add(node)
        operation, shape = graph.operation(node), graph.shape(node)
        if operation.name in _MAKERS and node.op == "call_module":
            return _MAKERS[operation.name] % len(shape or (1,))
        if operation.kind in _KEEPING:
            n_axes = len(shape or ())
            alike = [x for x in node.all_input_nodes if len(graph.shape(x) or ()) == n_axes]
            behind += [x for x in alike if x not in met]
    return None


_KEEPING = (Kind.POINTWISE, Kind.RESIZING, Kind.ARITHMETIC)
_MAKERS = {"linear": -1, "layer_norm": -1, "rms_norm": -1, "conv": 1, "batch_norm": 1}


def _plan(places: Tensor, shape: torch.Size, made_along: int | None) -> _Plan | None:
    """The plan that gives these places in a tensor of some shape; None if there is none.

    Channels are divided, on the axis where they were made if it is known.
    """
    new_axes = tuple(i for i, size in enumerate(places.shape) if size == 1)
    core = places.squeeze() if len(shape) > 1 and 1 not in shape else None
    if core is None or not core.dim():
        return None
    axes = (len(shape) - 1, *range(1, len(shape) - 1)) if made_along is None else (made_along,)
    for axis in axes:
        plan = _plan_along(core, shape, axis, new_axes)
        if plan is not None:
            return plan
    return None


def _plan_along(
    core: Tensor, shape: torch.Size, axis: int, new_axes: tuple[int, ...]
) -> _Plan | None:
    coordinates = torch.unravel_index(core, shape)
    found: dict[int, int] = {}  # the axis of the result that each other axis of the source becomes
    for i in range(len(shape)):
        if i == axis:
            continue
        for j in range(core.dim()):
            steps = torch.arange(core.shape[j]).view(-1, *[1] * (core.dim() - j - 1))
            if core.shape[j] == shape[i] and torch.equal(coordinates[i], steps.expand_as(core)):
                found[i] = j
        if i not in found:
            return None
    rest = [j for j in range(core.dim()) if j not in found.values()]
    if len(rest) not in (1, 2):
        return None
    of_axis = coordinates[axis].permute(*rest, *found.values())
    index = of_axis.flatten(len(rest))
    if not torch.equal(index, index[..., :1].expand_as(index)):
        return None
    index = index[..., 0]
    width, copies = None, torch.arange(len(index))
    if len(rest) == 2:
        width = index.shape[1]
        first = [(index == row).all(1).int().argmax() for row in index]  # of equal blocks
        kept, copies = torch.stack(first).unique(return_inverse=True)
        index = index[kept]
        if len(index) == 1 or len(index.unique()) < index.numel():
            return None  # copies side by side, which are no blocks
    made = [*range(axis), *([axis, axis] if width else [axis]), *range(axis + 1, len(shape))]
    parts, order = list(rest), [0] * core.dim()
    for position, i in enumerate(made):
        order[parts.pop(0) if i == axis else found[i]] = position
    return _Plan(axis, index.flatten(), width, copies, tuple(order), new_axes)


def _write(plan: _Plan, source: fx.Node, node: fx.Node, module: fx.GraphModule) -> None:
    graph, new, n = module.graph, source, source.meta["shape"][plan.axis]
    with graph.inserting_before(node):
        new = _selected(new, plan.axis, plan.index, n, f"{node.name}_entries", module)
        if plan.width is not None:
            new = graph.call_function(torch.unflatten, (new, plan.axis, (-1, plan.width)))
            n_blocks = len(plan.index) // plan.width
            new = _selected(new, plan.axis, plan.copies, n_blocks, f"{node.name}_blocks", module)
        if plan.order != tuple(range(len(plan.order))):
            new = graph.call_function(torch.permute, (new, plan.order))
        for axis in plan.new_axes:
            new = graph.call_function(torch.unsqueeze, (new, axis))
    for at in _written(new, source):
        at.meta["nn_module_stack"] = node.meta.get("nn_module_stack")
    node.replace_all_uses_with(new, delete_user_cb=lambda user: user is not new)


def _selected(
    x: fx.Node, axis: int, index: Tensor, n: int, name: str, module: fx.GraphModule
) -> fx.Node:
    """Some of n entries along an axis; the tensor itself if these are all of them in order."""
    if torch.equal(index, torch.arange(n)):
        return x
    while hasattr(module, name):
        name += "_"
    module.register_buffer(name, index)
    where = module.graph.get_attr(name)
    return module.graph.call_function(torch.index_select, (x, axis, where))


def _written(last: fx.Node, source: fx.Node) -> Iterator[fx.Node]:
    while last is not source:
        yield last
        last = last.all_input_nodes[0]
