"""Store a traced network as plain JSON, and read it back without trusting a word of it.

    {"modules": [[path, layer, arguments], ...],
     "tensors": [[path, "parameter" or "buffer", shape, dtype], ...],   outside layers
     "nodes": [[name, op, target, arguments, keyword arguments], ...]}

`op` is "input", "tensor", "layer", "function", "method" or "output". Arguments are JSON values;
{"node": name} is an earlier result, and {"tuple": [...]}, {"slice": [...]}, {"dtype": name},
{"float": "inf"} and {"ellipsis": true} are values that JSON lacks.

Only the names in `allowed` are ever called. Every other name that reaches the generated module
(nodes, paths, keywords) is a plain identifier, so that no text of a file becomes code.
"""

import copy
import keyword
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from bayesieve.checks import did_you_mean
from bayesieve.core.inputs import Input
from bayesieve.core.storage import dtype_name
from bayesieve.deliver.bundle import allowed
from bayesieve.errors import UnsupportedModelError
from bayesieve.graph.capture import capture
from bayesieve.graph.graph import named_tensors

MAX_NODES = 100_000
MAX_ELEMENTS = 1 << 31  # of one intermediate result, for two examples
MAX_MADE = 1 << 26  # of one that no input is needed for
MAX_INPUTS = 64
_NEW = ("new_full", "new_ones", "new_zeros")
_LIMIT = 1 << 40  # of a whole number in a file
_FX_OPS = {
    "input": "placeholder", "tensor": "get_attr", "layer": "call_module",
    "function": "call_function", "method": "call_method", "output": "output",
}  # fmt: skip
_OPS = {fx_op: op for op, fx_op in _FX_OPS.items()}
_ATOM = re.compile(r"[A-Za-z0-9_-]{1,200}")  # of a path; no character that ends a string


def trace(
    module: nn.Module, example: Input | None = None, *, training: bool = False
) -> fx.GraphModule:
    """A copy of a module as a graph, in eval mode; one that is a graph already stays that graph.

    Args:
        module: what to trace.
        example: inputs, (n, ...). With them a module that torch.fx cannot trace, or that calls what
            a bundle cannot hold, is read as torch.export runs it.
        training: whether to record what it does while it is trained.

    Example:
        >>> print([node.name for node in trace(nn.Sequential(nn.Linear(2, 1))).graph.nodes])
        ['input_1', '_0', 'output']
    """
    if isinstance(module, fx.GraphModule):
        return copy.deepcopy(module).eval()
    accept = None if example is None else graph_to_json
    leaves = tuple(allowed.MODULES.values())
    traced = capture("save", module, example, training=training, leaves=leaves, accept=accept)
    return traced.module.eval()


def is_layer(module: nn.Module) -> bool:
    """Return whether a module is one layer; `trace` then calls it "0"."""
    return type(module) in allowed.MODULES.values()


def first_names(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """For each tensor that stands under a second name: that name, and the first one."""
    first: dict[int, str] = {}
    names = {name: first.setdefault(id(value), name) for name, value in tensors.items()}
    return {name: other for name, other in names.items() if name != other}


def graph_to_json(module: fx.GraphModule) -> dict[str, Any]:
    """Describe a traced module; raises where it holds what a bundle cannot.

    Example:
        >>> graph = graph_to_json(trace(nn.Sequential(nn.Linear(2, 1), nn.ReLU())))
        >>> graph["modules"]
        [['0', 'Linear', {'in_features': 2, 'out_features': 1}], ['1', 'ReLU', {}]]
        >>> graph["nodes"][1]
        ['_0', 'layer', '0', [{'node': 'input_1'}], {}]
    """
    nodes = list(module.graph.nodes)
    inputs = [node for node in nodes if node.op == "placeholder"]
    inputs = [node for node in inputs if node.users or not node.args]  # those without a default
    if not any(node.users for node in inputs):
        raise UnsupportedModelError("save: the network must read an input.")
    if not isinstance(nodes[-1].args[0], fx.Node):
        raise UnsupportedModelError("save: the network must return one tensor.")
    rows = [_node_row(node) for node in nodes if node.op != "placeholder" or node in inputs]
    used = {str(node.target) for node in nodes if node.op == "call_module"}
    layers = [
        [path, *_layer_row(path, layer)]
        for path, layer in module.named_modules(remove_duplicate=False)
        if path in used
    ]
    for path in used:
        _check_path(path, "save")
    loose = []
    for path in dict.fromkeys(str(node.target) for node in nodes if node.op == "get_attr"):
        folder, _, leaf = path.rpartition(".")
        value = getattr(module.get_submodule(folder), leaf)
        if not isinstance(value, Tensor):
            kind = type(value).__name__
            raise UnsupportedModelError(f"save: {path!r} must be a tensor, got {kind}.")
        kind = "parameter" if isinstance(value, nn.Parameter) else "buffer"
        if folder not in used:
            loose.append([path, kind, list(value.shape), dtype_name(value.dtype)])
    return {"modules": layers, "tensors": loose, "nodes": rows}


def _layer_row(path: str, layer: nn.Module) -> tuple[str, dict[str, Any]]:
    names = {kind: name for name, kind in allowed.MODULES.items()}
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
    arguments = {}
    affine = getattr(layer, "affine", getattr(layer, "elementwise_affine", True))
    for name, parameter in allowed.arguments_of(type(layer)).items():
        if name == "bias":
            if not affine:
                continue
            is_attention = isinstance(layer, nn.MultiheadAttention)
            value: Any = getattr(layer, "in_proj_bias" if is_attention else "bias") is not None
        elif name == "add_bias_kv":
            value = getattr(layer, "bias_k", None) is not None
        elif hasattr(layer, name):
            value = getattr(layer, name)
        else:
            continue
        default = parameter.default
        if value == default or (isinstance(value, tuple) and set(value) == {default}):
            continue
        arguments[name] = list(value) if isinstance(value, tuple) else _to_json(value)
    return arguments


def _node_row(node: fx.Node) -> list[Any]:
    target = node.target
    if node.op == "call_function":
        name = allowed.FUNCTION_NAMES.get(target)  # type: ignore[arg-type]
        if name is None:
            what = f"{getattr(target, '__module__', '')}.{getattr(target, '__name__', target)}"
            raise UnsupportedModelError(
                f"save: node {node.name!r} calls {what}, which a bundle cannot hold."
            )
        target = name
    elif node.op == "call_method" and target not in allowed.METHODS:
        raise UnsupportedModelError(
            f"save: node {node.name!r} calls the tensor method {target!r}, which a bundle cannot "
            f"hold.{did_you_mean(str(target), allowed.METHODS)}"
        )
    if node.op not in _OPS:
        raise UnsupportedModelError(f"save: node {node.name!r} is a {node.op}.")
    arguments = [] if node.op == "placeholder" else [_to_json(value) for value in node.args]
    row = [node.name, _OPS[node.op], target, arguments,
           {key: _to_json(value) for key, value in node.kwargs.items()}]  # fmt: skip
    _check_row(row, "save", UnsupportedModelError)
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
        return {"slice": [_to_json(item) for item in (value.start, value.stop, value.step)]}
    if value is Ellipsis:
        return {"ellipsis": True}
    if isinstance(value, tuple):  # also torch.Size
        return {"tuple": [_to_json(item) for item in value]}
    if isinstance(value, list):
        return [_to_json(item) for item in value]
    raise UnsupportedModelError(f"save: a bundle cannot hold {value!r} as an argument.")


# ------------------------------------------------------------------------------------------ reading


def graph_from_json(values: object) -> fx.GraphModule:
    """Rebuild a graph on the meta device, without memory for its weights.

    Args:
        values: what `graph_to_json` returned, or something hostile.

    Raises:
        ValueError: if anything is not on the list of what a graph may hold.

    Example:
        >>> graph = graph_to_json(trace(nn.Sequential(nn.Linear(2, 1))))
        >>> graph_from_json(graph).get_submodule("0").weight.device
        device(type='meta')
    """
    modules, tensors, nodes = _checked_rows(values)
    root = nn.Module()
    layers = {path: build_layer(path, name, row) for path, name, row in modules}
    for path, layer in layers.items():
        _attach(root, path, layer)
    for row in tensors:
        _attach(root, row[0], _build_tensor(*row))
    known = named_tensors(root)
    graph = fx.Graph()
    made: dict[str, fx.Node] = {}
    for row in nodes:
        name, op, target, arguments, keywords = row
        _check_row(row, "load", ValueError)
        if name in made:
            raise ValueError(f"node {name!r} occurs twice")
        if op == "layer" and target not in layers:
            raise ValueError(f"node {name!r} calls the unknown layer {target!r}")
        positional = tuple(_from_json(value, made) for value in arguments)
        named = {key: _from_json(value, made) for key, value in keywords.items()}
        if op == "tensor" and target not in known:
            raise ValueError(f"node {name!r} reads the unknown tensor {target!r}")
        final = allowed.FUNCTIONS[target] if op == "function" else target
        made[name] = graph.create_node(_FX_OPS[op], final, positional, named, name)
    try:
        return fx.GraphModule(root, graph, class_name="Model").eval()
    except (SyntaxError, RuntimeError, TypeError) as error:
        raise ValueError("the graph cannot be put together") from error


def _checked_rows(values: object) -> tuple[list[list[Any]], list[list[Any]], list[list[Any]]]:
    """Rows of the right number and kind of entries; what they hold is checked later."""
    if not isinstance(values, Mapping):
        raise ValueError("the graph must be an object")
    modules = _rows(values, "modules", (str, str, dict))
    tensors = _rows(values, "tensors", (str, str, list, str))
    nodes = _rows(values, "nodes", (str, str, str, list, dict))
    paths = [row[0] for row in (*modules, *tensors)]
    for path in paths:
        _check_path(path, "load")
    if len(set(paths)) != len(paths):
        raise ValueError("a module or tensor of the graph occurs twice")
    ops = [row[1] for row in nodes]
    if not 0 < ops.count("input") <= MAX_INPUTS or ops.count("output") != 1 or ops[-1] != "output":
        raise ValueError("the graph must have inputs, and one output at its end")
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
    fits = all(type(size) is int and 0 <= size < _LIMIT for size in shape)
    fits = fits and kind in ("parameter", "buffer") and dtype in allowed.DTYPES
    if not fits or (kind == "parameter" and not allowed.DTYPES[dtype].is_floating_point):
        raise ValueError(f"tensor {path!r} of the graph is wrongly described")
    try:
        value = torch.empty(shape, dtype=allowed.DTYPES[dtype], device="meta")
    except RuntimeError as error:
        raise ValueError(f"tensor {path!r} of the graph is too large") from error
    return nn.Parameter(value) if kind == "parameter" else value


def build_layer(path: str, name: str, row: Mapping[str, Any]) -> nn.Module:
    """A layer on the meta device, from its kind and its `layer_arguments`."""
    kind = allowed.MODULES.get(name)
    if kind is None:
        raise ValueError(f"module {path!r} is of the unknown layer {name[:80]!r}")
    known = allowed.arguments_of(kind)
    for key, value in row.items():
        if key not in known:
            raise ValueError(f"module {path!r} ({name}) has no argument {key[:80]!r}")
        numbers = value if isinstance(value, list) else [value]
        if len(numbers) > 1024 or not all(_is_scalar(number) for number in numbers):
            raise ValueError(f"module {path!r} ({name}) has a wrong {key}: {str(value)[:80]}")
    arguments = {
        key: tuple(value) if isinstance(value, list) else value for key, value in row.items()
    }
    try:
        with torch.device("meta"):
            return kind(**arguments)
    except (RuntimeError, TypeError, ValueError, AssertionError, OverflowError) as error:
        reason = " ".join(str(error).split())[:160]
        raise ValueError(f"module {path!r} ({name}) cannot be made: {reason}") from error


def _from_json(value: Any, made: Mapping[str, fx.Node]) -> Any:
    if _is_scalar(value):
        return value
    if isinstance(value, list):
        return [_from_json(item, made) for item in value]
    if not isinstance(value, dict) or len(value) != 1:
        raise ValueError(f"a node has a wrong argument: {str(value)[:80]}")
    ((kind, inner),) = value.items()
    if kind == "node" and isinstance(inner, str) and inner in made:
        return made[inner]
    if kind == "tuple" and isinstance(inner, list):
        return tuple(_from_json(item, made) for item in inner)
    if kind == "slice" and isinstance(inner, list) and len(inner) == 3:
        return slice(*(_from_json(item, made) for item in inner))
    if kind == "dtype" and isinstance(inner, str) and inner in allowed.DTYPES:
        return allowed.DTYPES[inner]
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


# -------------------------------------------------------------------------------------------- rules


def _is_reference(value: object) -> bool:
    return isinstance(value, dict) and set(value) == {"node"}


def _is_identifier(name: object) -> bool:
    return (
        isinstance(name, str)
        and _ATOM.fullmatch(name) is not None
        and name.isidentifier()
        and not name.startswith("__")
        and not keyword.iskeyword(name)
        and name != "self"
    )


def _is_scalar(value: object) -> bool:
    if isinstance(value, int) and not isinstance(value, bool):
        return abs(value) < _LIMIT
    return value is None or isinstance(value, bool | float) or (
        isinstance(value, str) and len(value) <= 200
    )  # fmt: skip


def _check_path(path: object, who: str) -> None:
    atoms = path.split(".") if isinstance(path, str) else []
    plain = 0 < len(atoms) <= 50 and all(_ATOM.fullmatch(atom) for atom in atoms)
    if not plain or any(atom.startswith("__") or hasattr(fx.GraphModule, atom) for atom in atoms):
        raise ValueError(f"{who}: {str(path)[:80]!r} is no name of a layer")


def _check_row(row: list[Any], who: str, kind: type[Exception]) -> None:
    """Raise unless a node holds only names that may be called."""
    name, op, target, arguments, keywords = row
    if not (_is_identifier(name) and op in _FX_OPS):
        raise kind(f"{who}: a node of the graph has a wrong name or kind: {str(row)[:80]}")
    if not all(_is_identifier(key) for key in keywords):
        raise kind(f"{who}: node {name!r} has a wrong keyword")
    if op == "input":
        fits = _is_identifier(target) and not arguments and not keywords
    elif op in ("tensor", "layer"):
        _check_path(target, who)
        fits = True
    elif op == "function":
        fits = target in allowed.FUNCTIONS
        if target == "getattr":
            fits = len(arguments) == 2 and arguments[1] in sorted(allowed.ATTRIBUTES)
            fits = fits and not keywords
        elif target in allowed.ARITHMETIC:
            fits = len(arguments) == 2 and not keywords and any(map(_is_reference, arguments))
            fits = fits and (target in allowed.INFIX or _is_reference(arguments[0]))
    elif op == "method":
        fits = target in allowed.METHODS
    else:
        fits = target == "output" and len(arguments) == 1 and not keywords
    if op in ("function", "method") and fits and target not in ("torch.cat", "torch.stack"):
        fits = bool(arguments) or bool(keywords)
    if op == "method" or target == "getattr":
        fits = fits and bool(arguments) and _is_reference(arguments[0])
    if not fits:
        raise kind(f"{who}: node {name!r} calls {op} {target[:80]!r}, which is not allowed")


# ------------------------------------------------------------------------------------------- shapes


def output_shape(
    module: fx.GraphModule,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    others: Sequence[tuple[tuple[int, ...], torch.dtype]] = (),
) -> torch.Size:
    """Infer the shape of the output for two examples without computing anything.

    Args:
        module: on the meta device; its weights get the dtype of the input.
        shape: of one input.
        dtype: of the input.
        others: shape and dtype of the inputs after the first.

    Raises:
        ValueError: if shapes do not fit, or a result would be unreasonably large.
    """
    kinds = {kind for _, kind in ((shape, dtype), *others) if kind.is_floating_point}
    if kinds and kinds != {torch.float32}:
        module.to(kinds.pop())
    try:
        inputs = [torch.empty(2, *size, dtype=kind, device="meta")
                  for size, kind in ((shape, dtype), *others)]  # fmt: skip
        result = _Shapes(module).run(*inputs)
    except (RuntimeError, TypeError, IndexError, AttributeError, OverflowError,
            AssertionError, NotImplementedError, KeyError, ArithmeticError) as error:  # fmt: skip
        reason = " ".join(str(error).split())[:200]
        raise ValueError(f"its shapes do not fit: {reason}") from error
    if not isinstance(result, Tensor):
        raise ValueError("it does not return a tensor")
    return result.shape


class _Shapes(fx.Interpreter):
    """Runs a graph on the meta device and refuses what would take unbounded memory or time."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.extra_traceback = False

    def run_node(self, n: fx.Node) -> Any:
        """Run one node."""
        result = super().run_node(n)
        name = allowed.FUNCTION_NAMES.get(n.target, "")  # type: ignore[arg-type]
        made = n.target in _NEW or name in allowed.MAKING
        most = MAX_MADE if made else MAX_ELEMENTS
        for value in result if isinstance(result, tuple | list) else (result,):
            too_large = (isinstance(value, Tensor) and value.numel() > most) or (
                isinstance(value, int) and abs(value) > _LIMIT
            )
            if too_large:
                raise ValueError(f"node {n.name!r} would be unreasonably large")
        return result

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a function; arithmetic is for tensors and numbers, not for sequences."""
        name = allowed.FUNCTION_NAMES.get(target, "")
        if name in allowed.MAKING:
            kwargs = {**kwargs, "device": "meta"}  # whatever the size
        if name in allowed.ARITHMETIC:
            is_tensor = any(isinstance(value, Tensor) for value in args)
            plain = all(isinstance(value, Tensor | int | float | torch.dtype) for value in args)
            compares = name in ("operator.eq", "operator.ne")
            if kwargs or len(args) != 2 or not (plain or compares):
                raise ValueError(f"{name} is for tensors and numbers")
            if name == "operator.pow" and not is_tensor:
                raise ValueError(f"{name} is for tensors")
        return super().call_function(target, args, kwargs)
