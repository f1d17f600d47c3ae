"""Layers that a network writes by hand become torch's layers.

`F.batch_norm(x, self.running_mean, ...)` computes what `nn.BatchNorm2d` does, and so on for each
function of the table below: the call becomes a layer with the same parameters. A module of the
user that computes a linear map or an RMS norm is recognised by what it does: it is tried.
"""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import fx, nn
from torch.func import functional_call
from torch.nn import functional as F

from bayesieve.core.layout import acts_as_linear, matrix_of
from bayesieve.core.network import is_hooked
from bayesieve.graph.graph import Graph

Arguments = dict[str, Any]  # of a call by name; tensors of the network as themselves


def _linear(a: Arguments, n_axes: int) -> nn.Module:
    n_out, n_in = a["weight"].shape
    return nn.Linear(n_in, n_out, bias=a["bias"] is not None, device="meta")


def _conv(a: Arguments, n_axes: int) -> nn.Module:
    weight, kinds = a["weight"], (nn.Conv1d, nn.Conv2d, nn.Conv3d)
    kind: Any = kinds[weight.dim() - 3]
    groups = a["groups"]
    return kind(
        weight.shape[1] * groups, weight.shape[0], tuple(weight.shape[2:]), a["stride"],
        a["padding"], a["dilation"], groups, a["bias"] is not None, device="meta",
    )  # fmt: skip


def _batch_norm(a: Arguments, n_axes: int) -> nn.Module:
    if a["running_mean"] is None or a["training"] is not False:
        raise _NotALayerError
    kind: Any = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}[n_axes]
    affine = a["weight"] is not None
    layer = kind(len(a["running_mean"]), a["eps"], a["momentum"], affine, device="meta")
    layer.num_batches_tracked = torch.zeros((), dtype=torch.int64)
    return layer


def _layer_norm(a: Arguments, n_axes: int) -> nn.Module:
    shape, affine, bias = tuple(a["normalized_shape"]), a["weight"] is not None, a["bias"]
    return nn.LayerNorm(shape, a["eps"], affine, bias=bias is not None, device="meta")


def _group_norm(a: Arguments, n_axes: int) -> nn.Module:
    if a["weight"] is None or a["bias"] is None:
        raise _NotALayerError
    return nn.GroupNorm(a["num_groups"], len(a["weight"]), a["eps"], device="meta")


def _rms_norm(a: Arguments, n_axes: int) -> nn.Module:
    affine = a["weight"] is not None
    return nn.RMSNorm(list(a["normalized_shape"]), a["eps"], affine, device="meta")


def _embedding(a: Arguments, n_axes: int) -> nn.Module:
    if a["max_norm"] is not None:
        raise _NotALayerError
    n_rows, width = a["weight"].shape
    return nn.Embedding(n_rows, width, device="meta")


class _NotALayerError(Exception):
    """The call has no layer that computes the same."""


_LIFTS: dict[Any, Callable[[Arguments, int], nn.Module]] = {
    F.linear: _linear,
    **dict.fromkeys((F.conv1d, F.conv2d, F.conv3d), _conv),
    F.batch_norm: _batch_norm,
    F.layer_norm: _layer_norm,
    F.group_norm: _group_norm,
    F.rms_norm: _rms_norm,
    F.embedding: _embedding,
}
_BUILT_IN = {"input": None, "weight": None, "bias": None, "stride": 1, "padding": 0, "dilation": 1,
             "groups": 1}  # fmt: skip


def _defaults(function: Any) -> dict[str, Any]:
    """Arguments of a function with their defaults, None where there is none."""
    if not inspect.isfunction(function):  # linear and convolutions have no signature
        return _BUILT_IN
    parameters = inspect.signature(function).parameters.values()
    return {p.name: None if p.default is p.empty else p.default for p in parameters}


def lift(graph: Graph) -> None:
    """Replace calls of functions by layers, in place; the graph has been measured."""
    traced, moved = graph.module, set[str]()
    for node in list(traced.graph.nodes):
        if node.op == "call_function" and node.target in _LIFTS:
            moved |= _lift(node, graph)
    for node in reversed(traced.graph.nodes):
        if node.op == "get_attr" and not node.users:
            traced.graph.erase_node(node)
    used = {str(n.target) for n in traced.graph.nodes if n.op in ("get_attr", "call_module")}
    for name in moved - used:
        if name.rpartition(".")[0] not in used:
            _forget(name, traced)
    traced.recompile()


def _forget(name: str, traced: fx.GraphModule) -> None:
    """Take a tensor from the module that had it before it became part of a layer."""
    path, _, leaf = name.rpartition(".")
    owner = traced.get_submodule(path)
    owner._parameters.pop(leaf, None)
    owner._buffers.pop(leaf, None)


def _lift(node: fx.Node, graph: Graph) -> set[str]:
    """Make one call a layer; the names of its tensors that are elsewhere too."""
    make, defaults = _LIFTS[node.target], _defaults(node.target)
    if len(node.args) > len(defaults) or not set(node.kwargs) <= set(defaults):
        return set()
    given = dict(zip(defaults, node.args, strict=False)) | node.kwargs
    tensors = {k: v for k, v in given.items() if isinstance(v, fx.Node) and k != "input"}
    x = given.get("input")
    if not isinstance(x, fx.Node) or not tensors or graph.shape(x) is None:
        return set()
    if any(v.op != "get_attr" or not _read_by_layers(v) for v in tensors.values()):
        return set()  # computed, or read by others too
    values = {k: graph.tensor(v) for k, v in tensors.items()}
    try:
        layer = make({**defaults, **given, **values}, len(graph.shape(x) or ()))
    except (_NotALayerError, KeyError):
        return set()
    for leaf, value in values.items():
        if isinstance(value, nn.Parameter):
            layer._parameters[leaf] = value
        else:
            layer._buffers[leaf] = value
    if any(tensor.is_meta for tensor in (*layer.parameters(), *layer.buffers())):
        return set()
    name = _home(str(tensors["weight" if "weight" in tensors else "running_mean"].target), graph)
    graph.module.set_submodule(name, layer.train(graph.module.training))
    with graph.module.graph.inserting_before(node):
        new = graph.module.graph.call_module(name, (x,))
    new.meta = dict(node.meta)
    node.replace_all_uses_with(new)
    graph.module.graph.erase_node(node)
    return {str(t.target) for t in tensors.values() if str(t.target).rpartition(".")[0] != name}


def _read_by_layers(node: fx.Node) -> bool:
    """Return whether a tensor is read once, or by an embedding and the layer that is tied to it."""
    return len(node.users) == 1 or {u.target for u in node.users} <= {F.linear, F.embedding}


def _home(target: str, graph: Graph) -> str:
    """Where a layer goes: to the module that had its weight, if that has nothing else to do."""
    path = target.rpartition(".")[0]
    prefix = f"{path}." if path else ""
    called = any(n.op == "call_module" and f"{n.target}.".startswith(prefix)
                 for n in graph.module.graph.nodes)  # fmt: skip
    n_read = sum(n.op == "get_attr" and str(n.target).startswith(prefix)
                 and "." not in str(n.target).removeprefix(prefix)
                 and str(n.target).endswith(("weight", "in_proj_weight"))
                 for n in graph.module.graph.nodes)  # fmt: skip
    if path and not called and n_read <= 1:
        return path
    name = f"{prefix}{target.rpartition('.')[2]}_layer"
    while any(n.target == name for n in graph.module.graph.nodes):
        name += "_"
    return name


# ---------------------------------------------------------------------------------- other modules


def plain_layers(module: nn.Module) -> nn.Module:
    """Replace modules that compute a linear map or an RMS norm by torch's layers, in place."""
    for name, child in list(module.named_children()):
        module._modules[name] = plain_layers(child)
    is_leaf = not (module._modules or module._buffers or is_hooked(module))
    if not is_leaf or type(module).__module__.startswith("torch.nn"):
        return module
    return (_plain_linear(module) or _plain_norm(module) or module).train(module.training)


def _plain_linear(module: nn.Module) -> nn.Linear | None:
    if not acts_as_linear(module):
        return None
    matrix = matrix_of(module)
    layer = nn.Linear(matrix.shape[1], matrix.shape[0], bias=False, device="meta")
    layer.weight = nn.Parameter(matrix.clone(), module.get_parameter("weight").requires_grad)
    layer._parameters["bias"] = module._parameters.get("bias")
    return layer


def _plain_norm(module: nn.Module) -> nn.RMSNorm | None:
    weights = list(module.named_parameters())
    if len(weights) != 1 or weights[0][0] != "weight" or weights[0][1].dim() != 1:
        return None
    (leaf, weight) = weights[0]
    x = torch.linspace(-2.0, 3.0, 6 * len(weight)).sin().view(2, 3, -1)
    scale = torch.linspace(0.5, 1.5, len(weight))
    found = None
    for eps in {value for value in vars(module).values() if isinstance(value, float)}:
        try:
            with torch.no_grad():
                same = [
                    torch.allclose(
                        functional_call(module, {leaf: scale}, (size * x,)),
                        F.rms_norm(size * x, (len(weight),), scale, eps),
                        rtol=1e-5, atol=1e-6,
                    )
                    for size in (1.0, 10 * eps**0.5)
                ]  # fmt: skip
        except (RuntimeError, TypeError, ValueError, IndexError, AttributeError):
            return None  # takes other inputs
        if all(same):
            found = eps
    if found is None:
        return None
    norm = nn.RMSNorm(len(weight), found, device="meta")
    norm.weight = weight
    return norm
