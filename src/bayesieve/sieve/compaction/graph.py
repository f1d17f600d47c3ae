"""A module as a graph of operations with the shape of every activation."""

import copy
from collections import Counter
from typing import Any

import torch
from torch import Tensor, fx, nn

from bayesieve.errors import UnsupportedModelError
from bayesieve.sieve.compaction.expand import expand_attention, plain_encoder
from bayesieve.sieve.compaction.modules import HeadAttention
from bayesieve.sieve.compaction.tidy import tidy


class Traced:
    """A traced copy of a module; `graph` and `module` are free to be changed.

    Args:
        module: the traced module.

    Shapes of tensors, and the values of what is no tensor, come from one run on the example.
    """

    def __init__(self, module: fx.GraphModule) -> None:
        self.module = module
        self.graph = module.graph
        self.shared = _shared(module)

    def shape(self, node: fx.Node) -> torch.Size | None:
        """Shape of a node's output on the example, or None if that is no tensor."""
        return node.meta.get("shape")

    def layer(self, node: fx.Node) -> nn.Module:
        """The module a node calls."""
        return self.module.get_submodule(str(node.target))

    def tensor_inputs(self, node: fx.Node) -> list[fx.Node]:
        """The different tensors a node reads."""
        return [n for n in node.all_input_nodes if self.shape(n) is not None]

    def run(self, node: fx.Node, inputs: dict[fx.Node, Tensor]) -> Any:
        """Evaluate one operation on other tensors than those of the example."""

        def argument(n: fx.Node) -> Any:
            return inputs[n] if n in inputs else n.meta.get("value")

        args, kwargs = fx.map_arg(node.args, argument), fx.map_arg(node.kwargs, argument)
        with torch.no_grad():
            if node.op == "call_module":
                return self.layer(node)(*args, **kwargs)
            if node.op == "call_method":
                return getattr(args[0], str(node.target))(*args[1:], **kwargs)
            assert callable(node.target)
            return node.target(*args, **kwargs)

    def place(self, node: fx.Node) -> str:
        """Where a node is, for people: its module, or the module whose forward it is part of."""
        if node.op == "call_module":
            return str(node.target)
        stack = node.meta.get("nn_module_stack") or {}
        inside = [name.removeprefix(_PREFIX) for name in stack if name.startswith(_PREFIX)]
        return inside[-1] if inside else node.name


class _Tracer(fx.Tracer):
    """Stops at torch's modules and at our own attention."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, HeadAttention) or super().is_leaf_module(m, module_qualified_name)


class _OneInput(nn.Module):
    """Calls a network with one argument, so that others take their default values."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Any:
        return self.network(x)


_PREFIX = "network."  # of every module inside


class _Recorder(fx.Interpreter):
    """Runs a graph once and notes what each node returns; tensors by shape only."""

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        n.meta = {key: n.meta[key] for key in ("nn_module_stack",) if key in n.meta}
        if isinstance(result, Tensor):
            n.meta["shape"], n.meta["dtype"] = result.shape, result.dtype
        else:
            n.meta["value"] = result
        return result


def trace(module: nn.Module, example: Tensor) -> Traced:
    """Trace a module in eval mode and run it once.

    Args:
        module: without parametrisations; it is not changed, a copy is traced.
        example: inputs, (n, ...).
    """
    own = plain_encoder(copy.deepcopy(module).eval())
    tracer = _Tracer()
    if tracer.is_leaf_module(own, ""):
        own = nn.Sequential(own)
    try:
        graph = tracer.trace(_OneInput(own).eval())
    except Exception as error:  # the user's forward meets a symbolic input and may raise anything
        raise _untraceable(own, tracer, error) from error
    traced = fx.GraphModule(own, _without_prefix(graph))
    expand_attention(traced)
    result = measure(traced, example)
    tidy(traced)
    return result


def measure(module: fx.GraphModule, example: Tensor) -> Traced:
    """Run a traced module once, on inputs (n, ...), and note all shapes."""
    try:
        with torch.no_grad():
            _Recorder(module, garbage_collect_values=True).run(example.clone())
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        reason = str(error).partition("\n")[0].rstrip(".")  # torch.fx adds where it was
        raise ValueError(
            f"compact: the network does not run on an example of shape {tuple(example.shape)} and "
            f"{example.dtype}: {reason}."
        ) from error
    return Traced(module)


def _without_prefix(graph: fx.Graph) -> fx.Graph:
    """The same graph, seen from inside `_OneInput`."""
    new, copies = fx.Graph(), dict[fx.Node, fx.Node]()
    for node in graph.nodes:
        target, name = node.target, node.name.removeprefix("network_")
        if node.op in ("call_module", "get_attr"):
            target = str(target).removeprefix(_PREFIX)
        args = fx.map_arg(node.args, copies.__getitem__)
        kwargs = fx.map_arg(node.kwargs, copies.__getitem__)
        copies[node] = new.create_node(node.op, target, args, kwargs, name)
        copies[node].meta = node.meta
    return new


def _untraceable(module: nn.Module, tracer: fx.Tracer, error: Exception) -> UnsupportedModelError:
    nodes = list(tracer.graph.nodes) if hasattr(tracer, "graph") else []
    where = f" beyond node {nodes[-1].name!r}" if nodes else ""
    reason = str(error).strip().rstrip(".")
    if "'len' is not supported" in reason:
        reason = "len(x) of a tensor has no symbol; write x.shape[0]"
    return UnsupportedModelError(
        f"compact: {type(module).__name__} cannot be traced{where}: {reason}. "
        "Keep Python branches and loops independent of the values of tensors, or compact the "
        "part of the network that is."
    )


def _shared(module: fx.GraphModule) -> set[str]:
    """Modules called twice, hooked, or with parameters that something else uses as well."""
    uses: Counter[int] = Counter()
    for _, parameter in module.named_parameters(remove_duplicate=False):
        uses[id(parameter)] += 1
    calls = Counter(id(module.get_submodule(str(n.target))) for n in _calls(module))
    read = Counter(str(n.target) for n in module.graph.nodes if n.op == "get_attr")
    shared = {name for name, times in read.items() if times > 1}
    for name, owner in module.named_modules(remove_duplicate=False):
        own = list(owner.named_parameters(recurse=False))
        twice = calls[id(owner)] > 1 and bool(own)
        tied = any(uses[id(p)] > 1 or f"{name}.{leaf}" in read for leaf, p in own)
        hooked = bool(owner._forward_hooks or owner._forward_pre_hooks)
        if name and (twice or tied or hooked):
            shared.add(name)
    return shared


def _calls(module: fx.GraphModule) -> list[fx.Node]:
    return [n for n in module.graph.nodes if n.op == "call_module"]
