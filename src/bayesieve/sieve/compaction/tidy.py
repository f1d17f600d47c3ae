"""Other ways to write the same graph: less overwriting, fewer fixed sizes."""

import operator
from typing import Any

import torch
from torch import fx
from torch.nn import functional as F

_VIEWS = {"view", "reshape", torch.reshape}
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

    Calls that overwrite their input become calls that do not, and whoever read the input later
    reads their result. Views that merge the last axes become `torch.flatten`, which names no size.
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
        if not node.all_input_nodes or not _overwrites(node, traced):
            continue
        x = node.all_input_nodes[0]
        for user in list(x.users):
            if order[user] > order[node]:
                user.replace_input_with(x, node)
        _do_not_overwrite(node)
    for module in traced.modules():
        if hasattr(module, "inplace"):
            module.inplace = False  # type: ignore[assignment]


def _overwrites(node: fx.Node, traced: fx.GraphModule) -> bool:
    """Whether a node writes to its first input."""
    if node.op == "call_module":
        return bool(getattr(traced.get_submodule(str(node.target)), "inplace", False))
    if node.op == "call_method":
        return str(node.target).endswith("_") and not str(node.target).endswith("__")
    if node.op != "call_function":
        return False
    return node.target in _OUT_OF_PLACE or bool(node.kwargs.get("inplace"))


def _do_not_overwrite(node: fx.Node) -> None:
    if node.op == "call_method":
        plain = str(node.target).removesuffix("_")
        node.target = plain if hasattr(torch.Tensor, plain) else node.target
    elif node.target in _OUT_OF_PLACE:
        node.target = _OUT_OF_PLACE[node.target]
    elif node.op == "call_function":
        node.kwargs = {**node.kwargs, "inplace": False}


def _flatten_views(graph: fx.Graph) -> None:
    for node in list(graph.nodes):
        if node.target not in _VIEWS or "shape" not in node.meta:
            continue
        x = node.args[0]
        start = _flattened_from(x.meta.get("shape"), node.meta["shape"])
        if start is not None:
            with graph.inserting_before(node):
                new = graph.call_function(torch.flatten, (x, start))
            new.meta = node.meta
            node.replace_all_uses_with(new)
            graph.erase_node(node)


def _flattened_from(before: torch.Size | None, after: torch.Size) -> int | None:
    """The axis from which `flatten` gives the same shape, or None."""
    start = len(after) - 1
    if before is None or not 0 < start < len(before) or before[:start] != after[:start]:
        return None
    return start if before[start:].numel() == after[-1] else None
