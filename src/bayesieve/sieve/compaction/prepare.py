"""A masked module as a measured graph that is ready for compaction.

Masks are baked in, the module is traced, attention is expanded into projections and heads, and
one run on an example notes all shapes. Then the graph is tidied: operations that overwrite their
input or fix sizes are replaced by equal ones that do not.
"""

import copy
import operator
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F
from torch.nn.utils import parametrize, prune

from bayesieve.core.graph import Graph, trace
from bayesieve.core.operations import operation_of
from bayesieve.sieve.compaction.attention import HeadAttention, expand_attention


def prepare(module: nn.Module, example: Tensor) -> Graph:
    """Trace a module in eval mode and run it once.

    Args:
        module: without parametrisations; it is not changed, a copy is traced.
        example: inputs, (n, ...).
    """
    graph = trace("compact", module, leaves=(HeadAttention,))
    expand_attention(graph.module)
    measured(graph.module, example)
    tidy(graph.module)
    return Graph(graph.module)


def measured(module: fx.GraphModule, example: Tensor) -> Graph:
    """The graph of a traced module after one run on inputs, (n, ...)."""
    graph = Graph(module)
    try:
        graph.measure(example)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        reason = str(error).partition("\n")[0].rstrip(".")  # torch.fx adds where it was
        raise ValueError(
            f"compact: the network does not run on an example of shape {tuple(example.shape)} and "
            f"{example.dtype}: {reason}."
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


_OUT_OF_PLACE: dict[Any, Any] = {
    operator.iadd: operator.add,
    operator.isub: operator.sub,
    operator.imul: operator.mul,
    operator.itruediv: operator.truediv,
    torch.relu_: torch.relu,
    F.relu_: torch.relu,
}


def tidy(traced: fx.GraphModule) -> None:
    """Rewrite a graph whose nodes know their shapes (meta "shape"), in place.

    Calls that overwrite their input become calls that do not, and nodes that read the input
    later read their result. Views that merge the last axes become `torch.flatten`, which names
    no size.
    """
    _write_elsewhere(traced)
    _flatten_views(traced.graph)
    for node in reversed(traced.graph.nodes):
        if node.op in ("call_function", "call_method") and not node.users:
            traced.graph.erase_node(node)
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
    """Whether a node writes to its first input; functions and methods then stop doing so."""
    name = str(node.target)
    if node.op == "call_module":
        return bool(getattr(traced.get_submodule(name), "inplace", False))
    if node.op == "call_method" and name.endswith("_") and not name.endswith("__"):
        plain = name.removesuffix("_")
        node.target = plain if hasattr(torch.Tensor, plain) else name
    elif node.op == "call_function" and node.target in _OUT_OF_PLACE:
        node.target = _OUT_OF_PLACE[node.target]
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
