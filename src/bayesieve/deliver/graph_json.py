"""A traced network as plain JSON, and back.

    {"modules": [[path, layer, arguments], ...],
     "tensors": [[path, "parameter" or "buffer", shape, dtype], ...],   outside layers
     "nodes": [[name, op, target, arguments, keyword arguments], ...]}

`op` is "input", "tensor", "layer", "function", "method" or "output". Arguments are JSON values;
{"node": name} is an earlier result, and {"tuple": [...]}, {"slice": [...]}, {"dtype": name},
{"float": "inf"} and {"ellipsis": true} stand for what JSON lacks.

Only the names in `_allowed` are ever called. Every other name that reaches the generated module
(nodes, paths, keywords) is a plain identifier, so that no text of a file becomes code.
"""

import copy
import math
from typing import Any

import torch
from torch import Tensor, fx, nn

from bayesieve.checks import did_you_mean
from bayesieve.core.graph import trace as read_graph
from bayesieve.deliver import _allowed
from bayesieve.deliver._files import dtype_name
from bayesieve.deliver._graph_reading import graph_from_json
from bayesieve.deliver._graph_rules import FX_OPS, check_path, check_row
from bayesieve.deliver._graph_shapes import output_shape
from bayesieve.errors import UnsupportedModelError

__all__ = [
    "graph_from_json",
    "graph_to_json",
    "is_layer",
    "layer_arguments",
    "output_shape",
    "trace",
]

GraphJson = dict[str, Any]
_OPS = {name: own for own, name in FX_OPS.items()}


def trace(module: nn.Module) -> fx.GraphModule:
    """A copy of a module in eval mode as a graph; one that is a graph already stays that graph.

    Example:
        >>> print([node.name for node in trace(nn.Sequential(nn.Linear(2, 1))).graph.nodes])
        ['input_1', '_0', 'output']
    """
    if isinstance(module, fx.GraphModule):
        return copy.deepcopy(module).eval()
    return read_graph("save", module, leaves=_leaves()).module.eval()


def is_layer(module: nn.Module) -> bool:
    """Whether a module is one layer; `trace` then calls it "0"."""
    return type(module) in _leaves()


def _leaves() -> tuple[type[nn.Module], ...]:
    return tuple(_allowed.modules().values())


def graph_to_json(module: fx.GraphModule) -> GraphJson:
    """Describe a traced module; raises where it holds what a bundle cannot.

    Example:
        >>> graph = graph_to_json(trace(nn.Sequential(nn.Linear(2, 1), nn.ReLU())))
        >>> graph["modules"]
        [['0', 'Linear', {'in_features': 2, 'out_features': 1}], ['1', 'ReLU', {}]]
        >>> graph["nodes"][1]
        ['_0', 'layer', '0', [{'node': 'input_1'}], {}]
    """
    nodes = list(module.graph.nodes)
    inputs = [node for node in nodes if node.op == "placeholder" and node.users]
    if len(inputs) != 1:
        raise UnsupportedModelError(f"save: the network must have one input, got {len(inputs)}.")
    output = nodes[-1]
    if not isinstance(output.args[0], fx.Node):
        raise UnsupportedModelError("save: the network must return one tensor.")
    rows = [_node_row(node) for node in nodes if node.op != "placeholder" or node in inputs]
    used = {str(node.target) for node in nodes if node.op == "call_module"}
    layers = [
        [path, *_layer_row(path, layer)]
        for path, layer in module.named_modules(remove_duplicate=False)
        if path in used
    ]
    for path in used:
        check_path(path, "save")
    read = {str(node.target): None for node in nodes if node.op == "get_attr"}
    loose = [path for path in read if path.rpartition(".")[0] not in used]
    return {"modules": layers, "tensors": [_tensor_row(module, p) for p in loose], "nodes": rows}


def _tensor_row(module: nn.Module, path: str) -> list[Any]:
    folder, _, leaf = path.rpartition(".")
    value = getattr(module.get_submodule(folder), leaf)
    if not isinstance(value, Tensor):
        raise UnsupportedModelError(f"save: {path!r} must be a tensor, got {type(value).__name__}.")
    kind = "parameter" if isinstance(value, nn.Parameter) else "buffer"
    return [path, kind, list(value.shape), dtype_name(value.dtype)]


def _layer_row(path: str, layer: nn.Module) -> tuple[str, dict[str, Any]]:
    names = {kind: name for name, kind in _allowed.modules().items()}
    if type(layer) not in names:
        raise UnsupportedModelError(
            f"save: layer {path!r} ({type(layer).__name__}) cannot be stored in a bundle. "
            "Supported: layers of torch.nn without state of their own; compact bakes "
            "parametrisations in. For others, recurrent ones among them, use export_onnx or "
            "export_pt2."
        )
    if layer._forward_hooks or layer._forward_pre_hooks:
        raise UnsupportedModelError(f"save: layer {path!r} has hooks; remove them first.")
    return names[type(layer)], layer_arguments(layer)


def layer_arguments(layer: nn.Module) -> dict[str, Any]:
    """The constructor's arguments of a layer that differ from their defaults.

    Example:
        >>> layer_arguments(nn.Conv2d(1, 4, 3, bias=False))
        {'in_channels': 1, 'out_channels': 4, 'kernel_size': [3, 3], 'bias': False}
    """
    found = {}
    affine = getattr(layer, "affine", getattr(layer, "elementwise_affine", True))
    for name, parameter in _allowed.arguments_of(type(layer)).items():
        if name == "bias":
            if not affine:
                continue
            value: Any = _has_bias(layer)
        elif name == "add_bias_kv":
            value = getattr(layer, "bias_k", None) is not None
        elif hasattr(layer, name):
            value = getattr(layer, name)
        else:
            continue
        default = parameter.default
        if value == default or (isinstance(value, tuple) and set(value) == {default}):
            continue
        found[name] = list(value) if isinstance(value, tuple) else _to_json(value)
    return found


def _has_bias(layer: nn.Module) -> bool:
    name = "in_proj_bias" if isinstance(layer, nn.MultiheadAttention) else "bias"
    return getattr(layer, name) is not None


def _node_row(node: fx.Node) -> list[Any]:
    target = node.target
    if node.op == "call_function":
        name = _allowed.name_of_function().get(target)  # type: ignore[arg-type]
        if name is None:
            what = f"{getattr(target, '__module__', '')}.{getattr(target, '__name__', target)}"
            raise UnsupportedModelError(
                f"save: node {node.name!r} calls {what}, which a bundle cannot hold."
            )
        target = name
    elif node.op == "call_method" and target not in _allowed.METHODS:
        raise UnsupportedModelError(
            f"save: node {node.name!r} calls the tensor method {target!r}, which a bundle cannot "
            f"hold.{did_you_mean(str(target), _allowed.METHODS)}"
        )
    if node.op not in _OPS:
        raise UnsupportedModelError(f"save: node {node.name!r} is a {node.op}.")
    arguments = [] if node.op == "placeholder" else [_to_json(value) for value in node.args]
    row = [node.name, _OPS[node.op], target, arguments,
           {key: _to_json(value) for key, value in node.kwargs.items()}]  # fmt: skip
    check_row(row, "save", UnsupportedModelError)
    return row


def _to_json(value: Any) -> Any:
    if isinstance(value, fx.Node):
        return {"node": value.name}
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, torch.dtype):
        return {"dtype": dtype_name(value)}
    if isinstance(value, slice):
        return {"slice": [_to_json(part) for part in (value.start, value.stop, value.step)]}
    if value is Ellipsis:
        return {"ellipsis": True}
    if isinstance(value, tuple):  # also torch.Size
        return {"tuple": [_to_json(part) for part in value]}
    if isinstance(value, list):
        return [_to_json(part) for part in value]
    raise UnsupportedModelError(f"save: a bundle cannot hold {value!r} as an argument.")
