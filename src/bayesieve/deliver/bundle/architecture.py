"""Write the point model of a bundle as one Python file that needs only torch and safetensors."""

import inspect
import keyword
from collections.abc import Mapping
from importlib import resources
from typing import Any

from bayesieve.deliver.bundle import allowed


def architecture_source(graph: Mapping[str, Any]) -> str:
    """Python source of a graph: a class `Model`, and `load_model` that fills in the weights.

    Example:
        >>> from torch import nn
        >>> from bayesieve.deliver.bundle.graph import graph_to_json, trace
        >>> source = architecture_source(graph_to_json(trace(nn.Sequential(nn.Linear(2, 1)))))
        >>> print(source[source.index("class Model") : source.index("def unpack")].rstrip())
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer_0 = nn.Linear(in_features=2, out_features=1)
        <BLANKLINE>
            def forward(self, input_1):
                _0 = self.layer_0(input_1)
                return _0
        <BLANKLINE>
        <BLANKLINE>
        # names of the layers in model.safetensors
        NAMES = {'0': 'layer_0'}
    """
    names = _attributes(graph)
    lines = []
    ours = {kind for _, kind, _ in graph["modules"]} & set(allowed.OURS)
    lines += [f"\n{inspect.getsource(allowed.OURS[kind])}" for kind in sorted(ours)]
    lines += ["\nclass Model(nn.Module):", "    def __init__(self):", "        super().__init__()"]
    for path, kind, arguments in graph["modules"]:
        constants = {
            key: repr(tuple(value)) if isinstance(value, list) else _expression(value)
            for key, value in arguments.items()
        }
        arguments_text = ", ".join(f"{key}={text}" for key, text in constants.items())
        home = "" if kind in ours else "nn."
        lines.append(f"        self.{names[path]} = {home}{kind}({arguments_text})")
    for path, kind, shape, dtype in graph["tensors"]:
        empty = f"torch.empty({shape}, dtype=torch.{dtype})"
        if kind == "parameter":
            lines.append(f"        self.{names[path]} = nn.Parameter({empty})")
        else:
            lines.append(f'        self.register_buffer("{names[path]}", {empty})')
    lines += ["", *_forward(graph, names)]
    renamed = {path: name for path, name in names.items() if path != name}
    lines += ["\n", "# names of the layers in model.safetensors", f"NAMES = {renamed!r}"]
    place = resources.files("bayesieve.deliver.bundle") / "architecture.txt"
    head, tail = place.read_text(encoding="utf-8").split("{{network}}")
    return "\n".join([head, *lines]) + "\n" + tail


def _attributes(graph: Mapping[str, Any]) -> dict[str, str]:
    """A plain attribute name for every layer and loose tensor."""
    names: dict[str, str] = {}
    for path in (row[0] for row in (*graph["modules"], *graph["tensors"])):
        name = path.replace(".", "_")
        if name[0].isdigit() or keyword.iskeyword(name):
            name = f"layer_{name}"
        while name in names.values():
            name += "_"
        names[path] = name
    return names


def _forward(graph: Mapping[str, Any], names: Mapping[str, str]) -> list[str]:
    inputs = [name for name, op, *_ in graph["nodes"] if op == "input"]
    lines = [f"    def forward(self, {', '.join(inputs)}):"]
    for name, op, target, arguments, keywords in graph["nodes"]:
        values = [_expression(value) for value in arguments]
        named = [f"{key}={_expression(value)}" for key, value in keywords.items()]
        inside = ", ".join([*values, *named])
        if op == "input":
            continue
        if op == "output":
            lines.append(f"        return {values[0]}")
            continue
        if op == "layer":
            call = f"self.{names[target]}({inside})"
        elif op == "tensor":
            owner, _, leaf = target.rpartition(".")
            call = f"self.{names.get(target) or f'{names[owner]}.{leaf}'}"
        elif op == "method":
            call = f"{values[0]}.{target}({', '.join([*values[1:], *named])})"
        elif target == "getattr":
            call = f"{values[0]}.{arguments[1]}"
        elif target in allowed.INFIX:
            left, right = (f"({v})" if v.startswith("-") else v for v in values)
            call = f"{left} {allowed.INFIX[target]} {right}"
        else:
            call = f"{target}({inside})"
        lines.append(f"        {name} = {call}")
    return lines


def _expression(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(_expression(item) for item in value)}]"
    if not isinstance(value, dict):
        return repr(value)
    ((kind, inner),) = value.items()
    if kind == "node":
        return str(inner)
    if kind == "tuple":
        inside = ", ".join(_expression(item) for item in inner)
        return f"({inside},)" if len(inner) == 1 else f"({inside})"
    if kind == "slice":
        return f"slice({', '.join(_expression(item) for item in inner)})"
    if kind == "dtype":
        return f"torch.{inner}"
    return "..." if kind == "ellipsis" else f'float("{inner}")'
