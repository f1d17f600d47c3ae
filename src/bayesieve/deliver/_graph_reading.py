"""From JSON back to a graph, without trusting a word of it; the format is in `graph_json`."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, fx, nn

from bayesieve.deliver import _allowed
from bayesieve.deliver._graph_rules import FX_OPS, LIMIT, check_path, check_row, is_scalar

MAX_NODES = 100_000


def graph_from_json(values: object) -> fx.GraphModule:
    """Rebuild a graph on the meta device, without memory for its weights.

    Args:
        values: what `graph_to_json` returned, or something hostile.

    Raises:
        ValueError: if anything is not on the list of what a graph may hold.

    Example:
        >>> from bayesieve.deliver.graph_json import graph_to_json, trace
        >>> graph = graph_to_json(trace(nn.Sequential(nn.Linear(2, 1))))
        >>> graph_from_json(graph).get_submodule("0").weight.device
        device(type='meta')
    """
    modules, tensors, nodes = _parts(values)
    root = nn.Module()
    layers = {path: _build_layer(path, name, given) for path, name, given in modules}
    for path, layer in layers.items():
        _attach(root, path, layer)
    for row in tensors:
        _attach(root, row[0], _build_tensor(*row))
    graph = fx.Graph()
    made: dict[str, fx.Node] = {}
    for row in nodes:
        name, op, target, arguments, keywords = row
        check_row(row, "load", ValueError)
        if name in made:
            raise ValueError(f"node {name!r} occurs twice")
        if op == "layer" and target not in layers:
            raise ValueError(f"node {name!r} calls the unknown layer {target!r}")
        own = tuple(_from_json(value, made) for value in arguments)
        named = {key: _from_json(value, made) for key, value in keywords.items()}
        if op == "tensor" and not _has(root, target):
            raise ValueError(f"node {name!r} reads the unknown tensor {target!r}")
        final = _allowed.FUNCTIONS[target] if op == "function" else target
        made[name] = graph.create_node(FX_OPS[op], final, own, named, name)
    try:
        return fx.GraphModule(root, graph, class_name="Model").eval()
    except (SyntaxError, RuntimeError, TypeError) as error:
        raise ValueError("the graph cannot be put together") from error


def _parts(values: object) -> tuple[list[list[Any]], list[list[Any]], list[list[Any]]]:
    """Rows of the right number and kind of entries; what they hold is checked later."""
    if not isinstance(values, Mapping):
        raise ValueError("the graph must be an object")
    modules = _rows(values, "modules", (str, str, dict))
    tensors = _rows(values, "tensors", (str, str, list, str))
    nodes = _rows(values, "nodes", (str, str, str, list, dict))
    paths = [row[0] for row in (*modules, *tensors)]
    for path in paths:
        check_path(path, "load")
    if len(set(paths)) != len(paths):
        raise ValueError("a module or tensor of the graph occurs twice")
    ops = [row[1] for row in nodes]
    if ops.count("input") != 1 or ops.count("output") != 1 or ops[-1] != "output":
        raise ValueError("the graph must have one input, and one output at its end")
    return modules, tensors, nodes


def _rows(values: Mapping[str, Any], name: str, kinds: tuple[type, ...]) -> list[list[Any]]:
    rows = values.get(name)
    if not isinstance(rows, list) or len(rows) > MAX_NODES:
        raise ValueError(f"the graph must have a list of at most {MAX_NODES} {name}")
    for row in rows:
        fits = isinstance(row, list) and len(row) == len(kinds)
        if not (fits and all(isinstance(v, kind) for v, kind in zip(row, kinds, strict=True))):
            raise ValueError(f"the graph has a wrong entry in {name}: {str(row)[:80]}")
    return rows


def _build_tensor(path: str, kind: str, shape: list[int], dtype: str) -> Tensor:
    sizes = all(type(size) is int and 0 <= size < LIMIT for size in shape)
    if kind not in ("parameter", "buffer") or dtype not in _allowed.DTYPES or not sizes:
        raise ValueError(f"tensor {path!r} of the graph is wrongly described")
    try:
        value = torch.empty(shape, dtype=_allowed.DTYPES[dtype], device="meta")
    except RuntimeError as error:
        raise ValueError(f"tensor {path!r} of the graph is too large") from error
    if kind == "parameter" and not value.is_floating_point():
        raise ValueError(f"tensor {path!r} of the graph is wrongly described")
    return nn.Parameter(value) if kind == "parameter" else value


def _build_layer(path: str, name: str, given: Mapping[str, Any]) -> nn.Module:
    kind = _allowed.modules().get(name)
    if kind is None:
        raise ValueError(f"module {path!r} is of the unknown layer {name[:80]!r}")
    known = _allowed.arguments_of(kind)
    for key, value in given.items():
        if key not in known:
            raise ValueError(f"module {path!r} ({name}) has no argument {key[:80]!r}")
        numbers = value if isinstance(value, list) else [value]
        if len(numbers) > 1024 or not all(is_scalar(number) for number in numbers):
            raise ValueError(f"module {path!r} ({name}) has a wrong {key}: {str(value)[:80]}")
    arguments = {
        key: tuple(value) if isinstance(value, list) else value for key, value in given.items()
    }
    try:
        with torch.device("meta"):
            return kind(**arguments)
    except (RuntimeError, TypeError, ValueError, AssertionError, OverflowError) as error:
        reason = " ".join(str(error).split())[:160]
        raise ValueError(f"module {path!r} ({name}) cannot be made: {reason}") from error


def _from_json(value: Any, made: Mapping[str, fx.Node]) -> Any:
    if is_scalar(value):
        return value
    if isinstance(value, list):
        return [_from_json(part, made) for part in value]
    if not isinstance(value, dict) or len(value) != 1:
        raise ValueError(f"a node has a wrong argument: {str(value)[:80]}")
    ((kind, inner),) = value.items()
    if kind == "node" and isinstance(inner, str) and inner in made:
        return made[inner]
    if kind == "tuple" and isinstance(inner, list):
        return tuple(_from_json(part, made) for part in inner)
    if kind == "slice" and isinstance(inner, list) and len(inner) == 3:
        return slice(*(_from_json(part, made) for part in inner))
    if kind == "dtype" and isinstance(inner, str) and inner in _allowed.DTYPES:
        return _allowed.DTYPES[inner]
    if kind == "float" and inner in ("inf", "-inf", "nan"):
        return float(inner)
    if kind == "ellipsis" and inner is True:
        return ...
    raise ValueError(f"a node has a wrong argument: {str(value)[:80]}")


def _attach(root: nn.Module, path: str, thing: nn.Module | Tensor) -> None:
    *folders, leaf = path.split(".")
    owner = root
    for atom in folders:
        if atom not in owner._modules:
            _add(owner, atom, nn.Module(), path)
        inner = owner._modules[atom]
        assert inner is not None
        owner = inner
    _add(owner, leaf, thing, path)


def _add(owner: nn.Module, name: str, thing: nn.Module | Tensor, path: str) -> None:
    if name in owner._modules or hasattr(owner, name):
        raise ValueError(f"{path!r} occurs twice, or is no name of a layer")
    if isinstance(thing, nn.Module):
        owner.add_module(name, thing)
    elif isinstance(thing, nn.Parameter):
        owner.register_parameter(name, thing)
    else:
        owner.register_buffer(name, thing)


def _has(root: nn.Module, path: str) -> bool:
    folder, _, leaf = path.rpartition(".")
    try:
        owner = root.get_submodule(folder)
    except AttributeError:
        return False
    return leaf in owner._parameters or leaf in owner._buffers
