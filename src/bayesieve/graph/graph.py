"""Operations of a network, the tensors that each reads, and the links between layers.

`graph.capture` makes a `Graph` of any `nn.Module`; `graph.operations` describes each operation.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, fx, nn

from bayesieve.core.inputs import Input, tensors_of
from bayesieve.core.network import is_hooked
from bayesieve.graph.operations import (
    Operation,
    operation_of,
    reads_size,
)

PREFIX = "network."  # of the modules of a graph in `nn_module_stack`


class Graph:
    """A traced copy of a module, free to be changed.

    Args:
        module: the traced module.

    Attributes:
        shared: names of layers that are called twice, hooked, or have parameters that something
            else uses as well, and of tensors that are read twice. They must keep their shape.
        tied: nodes of embeddings and of the linear layers that have the same weight, one tuple for
            each weight. If they are known to lose the same columns, they are not shared.
    """

    def __init__(self, module: fx.GraphModule, *, follow_ties: bool = False) -> None:
        self.module = module
        self.shared = _shared(module)
        self.tied = _tied(module) if follow_ties else []
        self.shared -= {str(node.target) for nodes in self.tied for node in nodes}

    @property
    def nodes(self) -> list[fx.Node]:
        """All operations, each after those it reads."""
        return list(self.module.graph.nodes)

    def layer(self, node: fx.Node) -> nn.Module:
        """The module that a node calls."""
        return self.module.get_submodule(str(node.target))

    def operation(self, node: fx.Node) -> Operation:
        """The row of the table of operations that describes a node."""
        return operation_of(node, self.layer(node) if node.op == "call_module" else None)

    def spelling(self, node: fx.Node) -> str:
        """The class of the layer or the name of the function that a node calls, for people."""
        if node.op == "call_module":
            return type(self.layer(node)).__name__
        return str(getattr(node.target, "__name__", node.target))

    def tensor(self, node: fx.Node) -> Tensor:
        """The parameter or buffer that a "get_attr" node reads."""
        path, _, leaf = str(node.target).rpartition(".")
        tensor = getattr(self.module.get_submodule(path), leaf)
        assert isinstance(tensor, Tensor)
        return tensor

    def readers(self, node: fx.Node) -> list[fx.Node]:
        """The nodes that read a node's values; those that ask for its size do not."""
        return [user for user in node.users if not reads_size(user)]

    def shape(self, node: fx.Node) -> torch.Size | None:
        """Shape of a node's output on the example of `measure`, None if it is no tensor."""
        return node.meta.get("shape")

    def tensor_inputs(self, node: fx.Node) -> list[fx.Node]:
        """The different tensors that a node reads, after `measure`."""
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

    def measure(self, example: Input) -> None:
        """Run the graph once on inputs, (n, ...), and note the shape and dtype of every node.

        Of a node that returns no tensor, such as a size, the value itself is noted.
        """
        copies = [tensor.clone() for tensor in tensors_of(example)]
        with torch.no_grad():
            _Recorder(self.module, garbage_collect_values=True).run(*copies)

    def place(self, node: fx.Node) -> str:
        """Where a node is, for people: its module, or the module whose forward it is part of."""
        if node.op == "call_module":
            return str(node.target)
        stack = node.meta.get("nn_module_stack") or {}
        inside = [name.removeprefix(PREFIX) for name in stack if name.startswith(PREFIX)]
        return inside[-1] if inside else node.name

    def described(self, node: fx.Node) -> str:
        """A node for people: where it is, and what it calls, such as "act (ReLU)"."""
        return f"{self.place(node)} ({self.spelling(node)})"


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


def _shared(module: fx.GraphModule) -> set[str]:
    called = [
        module.get_submodule(str(n.target)) for n in module.graph.nodes if n.op == "call_module"
    ]
    calls = Counter(id(layer) for layer in called)
    read = Counter(str(n.target) for n in module.graph.nodes if n.op == "get_attr")
    uses: Counter[int] = Counter()  # of each parameter, by what the graph runs
    for layer in {id(layer): layer for layer in called}.values():
        uses.update(id(parameter) for parameter in layer.parameters())
    uses.update(id(_read(module, name)) for name in read)
    shared = {name for name, times in read.items() if times > 1}
    for name, owner in module.named_modules(remove_duplicate=False):
        tensors = list(owner.parameters(recurse=False))
        twice = calls[id(owner)] > 1 and bool(tensors)
        tied = any(uses[id(parameter)] > 1 for parameter in tensors)
        if name and (twice or tied or is_hooked(owner)):
            shared.add(name)
    return shared


def _tied(module: fx.GraphModule) -> list[tuple[fx.Node, ...]]:
    """Calls of embeddings and linear layers that share a weight with nothing else."""
    users: dict[int, list[fx.Node | None]] = {}
    for node in module.graph.nodes:
        if node.op == "get_attr" and isinstance(value := _read(module, str(node.target)), Tensor):
            users.setdefault(id(value), []).append(None)
        elif node.op == "call_module":
            layer = module.get_submodule(str(node.target))
            plain = type(layer) in (nn.Embedding, nn.Linear) and not is_hooked(layer)
            for leaf, parameter in layer.named_parameters():
                user = node if plain and leaf == "weight" else None
                users.setdefault(id(parameter), []).append(user)
    tied = []
    for nodes in users.values():
        called = [node for node in nodes if node is not None]
        layers = {str(node.target): module.get_submodule(str(node.target)) for node in called}
        embeds = any(type(layer) is nn.Embedding for layer in layers.values())
        if embeds and len(layers) == len(nodes) > 1:
            tied.append(tuple(called))
    return tied


def _read(module: nn.Module, name: str) -> object:
    path, _, leaf = name.rpartition(".")
    return getattr(module.get_submodule(path), leaf, None)


def named_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers of a module, under every name that they have."""
    parameters = module.named_parameters(remove_duplicate=False)
    return {**dict(parameters), **dict(module.named_buffers(remove_duplicate=False))}


def replace_tensor(module: nn.Module, name: str, value: Tensor) -> None:
    """Put another parameter or buffer in the place of one."""
    path, _, leaf = name.rpartition(".")
    owner = module.get_submodule(path)
    home = owner._parameters if leaf in owner._parameters else owner._buffers
    home[leaf] = value  # type: ignore[assignment]


def refill_(module: nn.Module, fill: Callable[[str, Tensor], Tensor | None]) -> None:
    """Replace parameters and buffers; one that has several names stays one.

    Args:
        module: to be changed.
        fill: returns the new value of a tensor under its first name, None to leave it.
    """
    made: dict[int, Tensor | None] = {}
    for name, old in named_tensors(module).items():
        if id(old) not in made:
            value = made[id(old)] = fill(name, old)
            if value is not None and isinstance(old, nn.Parameter):
                made[id(old)] = nn.Parameter(value)
        new = made[id(old)]
        if new is not None:
            replace_tensor(module, name, new)


@contextmanager
def evaluating(*modules: nn.Module) -> Iterator[None]:
    """Put modules into eval mode for a while, exported ones too, whose `eval` refuses."""
    modes = {layer: layer.training for module in modules for layer in module.modules()}
    try:
        for layer in modes:
            layer.training = False
        yield
    finally:
        for layer, training in modes.items():
            layer.training = training
