"""Structure of a network: its traced graph and the links between layers.

`trace` turns any `nn.Module` into a `Graph` of operations; `graph.operations` says what each
operation does. Everything that needs to know how a network is wired reads it from here:

    Graph               every operation and what it reads: compaction, delivery
    links               pairs of layers where one reads only the other: pruning of units
"""

import copy
import inspect
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from bayesieve.core.inputs import Input, logits_of, tensors_of
from bayesieve.core.layout import Role
from bayesieve.core.network import Network, is_hooked
from bayesieve.core.turns import own_turn
from bayesieve.errors import UnsupportedModelError
from bayesieve.graph.operations import Kind, Operation, flattens, operation_of, reads_size


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
        inside = [name.removeprefix(_PREFIX) for name in stack if name.startswith(_PREFIX)]
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


# --------------------------------------------------------------------------------------- tracing


def trace(
    who: str,
    module: nn.Module,
    *,
    training: bool = False,
    leaves: tuple[type[nn.Module], ...] = (),
) -> Graph:
    """Trace a copy of a module; a module that is one layer is called "0" in the graph.

    Args:
        who: the caller, for the error.
        module: takes one input; other arguments of its `forward` have their defaults.
        training: whether to trace it in training mode.
        leaves: classes (not their subclasses) whose calls are nodes, besides the layers of torch.

    Raises:
        UnsupportedModelError: torch.fx cannot trace the module.

    Example:
        >>> graph = trace("example", nn.Sequential(nn.Linear(2, 1), nn.ReLU()))
        >>> [(node.name, graph.operation(node).name) for node in graph.nodes]
        [('input_1', 'unknown'), ('_0', 'linear'), ('_1', 'relu'), ('output', 'unknown')]
    """
    network = _traceable(copy.deepcopy(module).train(training))
    tracer = _Tracer(leaves, symbolic_buffers=isinstance(network, fx.GraphModule))
    if tracer.is_leaf_module(network, ""):
        network = nn.Sequential(network).train(training)
    root = _OneInput(network).train(training)
    try:
        with own_turn(who):
            try:
                graph = tracer.trace(root)
            except TypeError:  # a buffer indexed by a size, say, which is only a symbol now
                graph = _Tracer(leaves, symbolic_buffers=True).trace(root)
    except Exception as error:  # the user's forward meets a symbolic input and may raise anything
        raise _untraceable(who, network, tracer, error) from error
    for name, value in vars(root).items():
        if name.startswith("_tensor_constant"):  # tensors that `forward` makes are put there
            setattr(network, name, value)
    first = next(iter(inspect.signature(network.forward).parameters), "x")
    traced = fx.GraphModule(network, _without_prefix(graph, first))
    if not training:
        switch_dropout_(traced)
    return Graph(traced)


_DROPOUTS: dict[object, Callable[[float], nn.Module]] = {
    F.dropout: nn.Dropout, F.dropout1d: nn.Dropout1d, F.dropout2d: nn.Dropout2d,
    F.dropout3d: nn.Dropout3d, F.alpha_dropout: nn.AlphaDropout,
    F.feature_alpha_dropout: nn.FeatureAlphaDropout,
}  # fmt: skip


def switch_dropout_(traced: fx.GraphModule) -> None:
    """Make layers of dropout calls that were off while tracing, so that `train()` turns them on.

    The graph has `training=self.training` as the value it had.
    """
    for node in traced.graph.nodes:
        if node.op != "call_function" or node.target not in _DROPOUTS:
            continue
        given = dict(zip(("input", "p", "training"), node.args, strict=False)) | node.kwargs
        chance = given.get("p", 0.5)
        if given.get("training", True) is False and isinstance(chance, float | int):
            name = node.name if not hasattr(traced, node.name) else f"{node.name}_layer"
            traced.add_submodule(name, _DROPOUTS[node.target](float(chance)).eval())
            node.op, node.target, node.args, node.kwargs = (
                "call_module",
                name,
                (given["input"],),
                {},
            )
    traced.recompile()


class _Tracer(fx.Tracer):
    """Stops at the layers of torch and at some others; lets calls in other threads pass.

    While it traces, torch sends the calls of all modules here.
    """

    def __init__(
        self, leaves: tuple[type[nn.Module], ...], *, symbolic_buffers: bool = False
    ) -> None:
        super().__init__()
        self.proxy_buffer_attributes = symbolic_buffers
        self._leaves, self._thread = leaves, threading.get_ident()

    def call_module(self, m: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if threading.get_ident() != self._thread:
            return forward(*args, **kwargs)
        return super().call_module(m, forward, args, kwargs)

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        if threading.get_ident() != self._thread:
            return attr_val
        return super().getattr(attr, attr_val, parameter_proxy_cache)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return type(m) in self._leaves or super().is_leaf_module(m, module_qualified_name)


class BufferTracer(fx.Tracer):
    """Traces a graph again that indexes buffers by sizes: `torch.load` of a compacted network."""

    proxy_buffer_attributes = True


class _OneInput(nn.Module):
    """Calls a network with one argument, so that others have their default values."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Any:
        output = self.network(x)
        return output if isinstance(output, fx.Proxy) else logits_of(output)


_PREFIX = "network."  # of every module inside


def _without_prefix(graph: fx.Graph, input_name: str) -> fx.Graph:
    """The same graph, seen from inside `_OneInput`."""
    new, copies = fx.Graph(), dict[fx.Node, fx.Node]()
    for node in graph.nodes:
        target, name = node.target, node.name.removeprefix("network_")
        if node.op in ("call_module", "get_attr"):
            target = str(target).removeprefix(_PREFIX)
        elif node.op == "placeholder":
            target = name = input_name
        args = fx.map_arg(node.args, copies.__getitem__)
        kwargs = fx.map_arg(node.kwargs, copies.__getitem__)
        copies[node] = new.create_node(node.op, target, args, kwargs, name)
        copies[node].meta = node.meta
    return new


def _untraceable(
    who: str, module: nn.Module, tracer: fx.Tracer, error: Exception
) -> UnsupportedModelError:
    nodes = list(tracer.graph.nodes) if hasattr(tracer, "graph") else []
    where = f" beyond node {nodes[-1].name!r}" if nodes else ""
    reason = " ".join(str(error).split())[:200].rstrip(".")
    if "'len' is not supported" in reason:
        reason = "len(x) of a tensor has no symbol; write x.shape[0]"
    return UnsupportedModelError(
        f"{who}: {type(module).__name__} cannot be traced{where}: {reason}. "
        "Keep Python branches and loops independent of the values of tensors, or take the "
        "part of the network that is."
    )


class _EncoderLayer(nn.Module):
    """`nn.TransformerEncoderLayer` without its inference-only branch, which cannot be traced."""

    def __init__(self, layer: nn.TransformerEncoderLayer) -> None:
        super().__init__()
        self.norm_first = layer.norm_first
        self.activation = layer.activation
        self.self_attn = layer.self_attn
        self.linear1, self.linear2 = layer.linear1, layer.linear2
        self.norm1, self.norm2 = layer.norm1, layer.norm2
        self.dropout, self.dropout1, self.dropout2 = layer.dropout, layer.dropout1, layer.dropout2

    def forward(
        self,
        src: Tensor,
        src_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        masks = {"attn_mask": src_mask, "key_padding_mask": src_key_padding_mask}
        if self.norm_first:
            x = src + self._attend(self.norm1(src), masks)
            return x + self._feed(self.norm2(x))
        x = self.norm1(src + self._attend(src, masks))
        return self.norm2(x + self._feed(x))

    def _attend(self, x: Tensor, masks: dict[str, Any]) -> Tensor:
        return self.dropout1(self.self_attn(x, x, x, need_weights=False, **masks)[0])

    def _feed(self, x: Tensor) -> Tensor:
        return self.dropout2(self.linear2(self.dropout(self.activation(self.linear1(x)))))


class _Encoder(nn.Module):
    """`nn.TransformerEncoder` without its inference-only branch."""

    def __init__(self, encoder: nn.TransformerEncoder) -> None:
        super().__init__()
        self.layers = encoder.layers
        self.norm = encoder.norm

    def forward(
        self,
        src: Tensor,
        mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool | None = None,
    ) -> Tensor:
        for layer in self.layers:
            src = layer(src, src_mask=mask, src_key_padding_mask=src_key_padding_mask)
        return src if self.norm is None else self.norm(src)


def _traceable(module: nn.Module) -> nn.Module:
    """Replace torch's transformer encoders, inside a module or itself, by traceable ones."""
    for name, child in list(module.named_children()):
        module._modules[name] = _traceable(child)
    training = module.training
    if type(module) is nn.TransformerEncoderLayer:
        module = _EncoderLayer(module)
    elif type(module) is nn.TransformerEncoder:
        module = _Encoder(module)
    module.training = training
    return module


# ----------------------------------------------------------------------------------------- links


@dataclass(frozen=True)
class Link:
    """Units that one layer makes and only one other layer reads.

    Args:
        producer: name of the weight whose rows lead into the units.
        bias: name of the producer's trainable bias, or None.
        consumer: name of the weight whose columns leave the units, in blocks of equal length.
        n_units: number of units (channels of a convolution).
        n_outputs: number of rows of the consumer.
    """

    producer: str
    bias: str | None
    consumer: str
    n_units: int
    n_outputs: int


def links(network: Network) -> tuple[Link, ...]:
    """The links of a network in training and in evaluation mode, from the output to the input.

    A pair of layers A -> B is linked when A's output reaches only B, through operations that
    treat units separately. Residual and branching paths, grouped and transposed convolutions,
    shared or frozen layers and networks that cannot be traced have no link.
    """
    in_training = _links_in_mode(network, training=True)
    in_evaluation = _links_in_mode(network, training=False)
    return tuple(link for link in in_training if link in in_evaluation)


def _links_in_mode(network: Network, *, training: bool) -> list[Link]:
    try:
        graph = trace("links", network.skeleton, training=training)
    except UnsupportedModelError:
        return []
    pairs = []
    for node in reversed(graph.nodes):
        if not _makes_units(node, graph):
            continue
        reader, flat = _only_reader(node, graph)
        if reader is not None and not {str(node.target), str(reader.target)} & graph.shared:
            pairs.append(_link(network, graph, node, reader, flat=flat))
    return [link for link in pairs if link is not None]


def _link(
    network: Network, graph: Graph, node: fx.Node, reader: fx.Node, *, flat: bool
) -> Link | None:
    """The link between two layers, unless shapes or roles rule it out."""
    producer, consumer = graph.layer(node), graph.layer(reader)
    roles = dict(zip(network.layout.names, network.layout.roles, strict=True))
    weight, bias, read = f"{node.target}.weight", f"{node.target}.bias", f"{reader.target}.weight"
    if roles.get(weight) != Role.PRUNE or read not in roles:
        return None
    n_units = len(producer.get_parameter("weight"))
    n_outputs, n_inputs = consumer.get_parameter("weight").shape[:2]
    if isinstance(producer, nn.Linear):
        fits = isinstance(consumer, nn.Linear) and n_inputs == n_units
    elif flat:
        fits = isinstance(consumer, nn.Linear) and n_inputs % n_units == 0
    else:
        fits = type(consumer) is type(producer) and n_inputs == n_units
    return Link(weight, bias if bias in roles else None, read, n_units, n_outputs) if fits else None


def _only_reader(node: fx.Node, graph: Graph) -> tuple[fx.Node | None, bool]:
    """The one layer that reads a layer's output, and whether it was flattened on the way."""
    n_positions, flat = graph.layer(node).get_parameter("weight").dim() - 2, False
    while True:
        readers = graph.readers(node)
        if len(readers) != 1 or not readers[0].args or readers[0].args[0] is not node:
            return None, flat
        reader = readers[0]
        if reader.op == "call_module" and is_hooked(graph.layer(reader)):
            return None, flat
        if flattens(reader, graph.layer(reader) if reader.op == "call_module" else None):
            flat = True
        elif _makes_units(reader, graph):
            return reader, flat
        elif not _treats_units_separately(graph.operation(reader), 0 if flat else n_positions):
            return None, flat
        node = reader


def _makes_units(node: fx.Node, graph: Graph) -> bool:
    """Whether a node calls a Linear layer or an ungrouped convolution."""
    if graph.operation(node).name not in ("linear", "conv"):
        return False
    layer = graph.layer(node)
    return getattr(layer, "groups", 1) == 1 and not is_hooked(layer)


def _treats_units_separately(operation: Operation, n_positions: int) -> bool:
    """Whether it does so for channels with some number of position axes, 0 for a flat vector."""
    if operation.kind not in (Kind.POINTWISE, Kind.CHANNELWISE):
        return False
    return not operation.positions or n_positions in operation.positions
