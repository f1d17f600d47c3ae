"""The graph of a module: by `torch.fx`, and where it cannot trace, by `torch.export`.

`torch.fx` calls the module with symbols and keeps its layers. `torch.export` runs the module on an
example and follows Python's control flow as it went. Its graph calls the operators of ATen, which
are written in spellings of the table of operations.
"""

import contextlib
import copy
import inspect
import io
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from bayesieve.core.inputs import Input, Inputs, arguments, logits_of, mapped, shown, tensors_of
from bayesieve.core.random import own_turn
from bayesieve.errors import UnsupportedModelError
from bayesieve.graph.graph import PREFIX, Graph, named_tensors, refill_, replace_tensor
from bayesieve.graph.operations import aten, overwrites, spelled


def capture(
    who: str,
    module: nn.Module,
    example: Input | None = None,
    *,
    training: bool = False,
    leaves: tuple[type[nn.Module], ...] = (),
    accept: Callable[[fx.GraphModule], object] | None = None,
    before_export: Callable[[nn.Module], object] | None = None,
) -> Graph:
    """Capture a copy of a module; a module that is one layer is called "0" in the graph.

    Args:
        who: the caller, for the error.
        module: its other arguments than inputs have their defaults.
        example: inputs, (n, ...), n free later. With them a module that `torch.fx` cannot trace is
            run by `torch.export`, in eval mode; several inputs are the graph's arguments by name.
        training: whether to trace in training mode.
        leaves: classes (not their subclasses) whose calls are nodes, besides the layers of torch.
        accept: raises `UnsupportedModelError` for a graph that the caller cannot use.
        before_export: changes the copy that `torch.export` runs.

    Raises:
        UnsupportedModelError: neither can follow the module. The reason is that of `torch.fx`.

    Example:
        >>> graph = capture("example", nn.Sequential(nn.Linear(2, 1), nn.ReLU()))
        >>> [(node.name, graph.operation(node).name) for node in graph.nodes]
        [('input_1', 'unknown'), ('_0', 'linear'), ('_1', 'relu'), ('output', 'unknown')]
        >>> class Branching(nn.Linear):
        ...     def forward(self, x):
        ...         return super().forward(x).relu() if x.shape[1] == 2 else x
        >>> graph = capture("example", Branching(2, 1), torch.zeros(2, 2))
        >>> [graph.operation(node).name for node in graph.nodes if node.op == "call_function"]
        ['unknown', 'relu']
    """
    try:
        if isinstance(example, Inputs):
            raise UnsupportedModelError(
                f"{who}: torch.export cannot follow {type(module).__name__} on {shown(example)}."
            )
        graph = _traced(who, module, training, leaves)
        if accept is not None:
            accept(graph.module)
    except UnsupportedModelError as error:
        if example is None:
            raise
        untraceable = error
    else:
        return graph
    concrete = copy.deepcopy(module)
    if before_export is not None:
        before_export(concrete)
    try:
        graph = _exported(concrete, example)
        if accept is not None:
            accept(graph.module)
    except UnsupportedModelError:
        raise untraceable from None
    return graph


# -------------------------------------------------------------------------------------- torch.fx


def _traced(
    who: str, module: nn.Module, training: bool, leaves: tuple[type[nn.Module], ...]
) -> Graph:
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


def _without_prefix(graph: fx.Graph, input_name: str) -> fx.Graph:
    """The same graph, seen from inside `_OneInput`."""
    new, copies = fx.Graph(), dict[fx.Node, fx.Node]()
    for node in graph.nodes:
        target, name = node.target, node.name.removeprefix("network_")
        if node.op in ("call_module", "get_attr"):
            target = str(target).removeprefix(PREFIX)
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


# ---------------------------------------------------------------------------------- torch.export

_INSIDE = "module."  # of every name inside `Called`


class Called(nn.Module):
    """A module that is given the tensors of its inputs one by one, and returns one tensor."""

    def __init__(self, module: nn.Module, example: Input) -> None:
        super().__init__()
        self.module = module
        self.names = None if isinstance(example, Tensor) else example.names
        self.single = isinstance(example, Tensor)

    def forward(self, *tensors: Tensor) -> Any:
        """The output, or its logits."""
        x = tensors[0] if self.single else Inputs(tensors, self.names)
        args, kwargs = arguments(self.module, x)
        return logits_of(self.module(*args, **kwargs))


def _exported(module: nn.Module, example: Input) -> Graph:
    """The graph of a module in eval mode as it runs; weights on no device are zeros meanwhile."""
    absent = {name: t for name, t in named_tensors(module).items() if t.is_meta}
    refill_(module, lambda _, t: torch.zeros_like(t, device="cpu") if t.is_meta else None)
    example = mapped(Tensor.cpu, example)
    program = _program(Called(module.cpu(), example).eval(), example, free=True)
    traced = None if program is None else program.module()
    if not isinstance(traced, fx.GraphModule) or any(
        overwrites(n.target) for n in traced.graph.nodes
    ):
        raise UnsupportedModelError("torch.export cannot follow the module.")
    names = ["x"] if isinstance(example, Tensor) else list(example.named)
    inner = traced.get_submodule("module")
    for node in traced.graph.nodes:
        if node.op == "get_attr" and not node.target.startswith(_INSIDE):
            setattr(inner, node.target, getattr(traced, node.target))  # made by export
    translated = fx.GraphModule(inner, _translated(traced.graph, names))
    for name in named_tensors(translated).keys() & absent:
        replace_tensor(translated, name, absent[name])
    return Graph(translated.eval())  # a layer made of a call must not be in training mode


def _program(
    module: nn.Module, example: Input, *, free: bool
) -> torch.export.ExportedProgram | None:
    """The program of a module; None if torch.export cannot follow it."""
    tensors = tensors_of(example)
    shapes = (tuple({0: torch.export.Dim.DYNAMIC} for _ in tensors),) if free else None
    try:
        with own_turn("export"), torch.no_grad(), _quiet():
            return torch.export.export(module, tensors, dynamic_shapes=shapes, strict=False)
    except Exception:  # the user's forward may raise anything
        return None


def attention_dropout(module: nn.Module, example: Input) -> list[float]:
    """Probability that each attention call of a module drops a weight in training, in order.

    Empty if nothing in the module drops anything, or if torch.export cannot follow its training.
    """
    numbers = [
        value
        for part in module.modules()
        for name, value in vars(part).items()
        if isinstance(value, float) and ("drop" in name or isinstance(part, nn.Dropout))
    ]
    if not any(numbers):
        return []
    program = _program(Called(copy.deepcopy(module), example).train(), example, free=False)
    if program is None:
        return []
    calls = [
        n for n in program.graph.nodes if n.target is aten.scaled_dot_product_attention.default
    ]
    return [float(call.args[4]) if len(call.args) > 4 else 0.0 for call in calls]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep torch from printing the graph of an export that fails."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        logging.disable(before)


def _translated(graph: fx.Graph, names: list[str]) -> fx.Graph:
    """The same graph in spellings of the table of operations, without checks of its inputs."""
    new, copies, free = fx.Graph(), dict[fx.Node, Any](), iter(names)
    for node in graph.nodes:
        args = fx.map_arg(node.args, copies.get)
        kwargs = fx.map_arg(node.kwargs, copies.get)
        if node.op == "call_module" or node.target is aten._assert_tensor_metadata.default:
            continue  # guards of export
        if node.op == "placeholder":
            copies[node] = new.placeholder(next(free))
        elif node.op == "get_attr":
            copies[node] = new.get_attr(str(node.target).removeprefix(_INSIDE))
        elif node.op == "output":
            (result,) = args[0] if isinstance(args[0], tuple | list) else (args[0],)
            new.output(result)
        elif (call := spelled(node.target, args, dict(kwargs))) is not None:
            copies[node] = new.create_node(*call)
        else:
            copies[node] = new.create_node(node.op, node.target, args, kwargs, node.name)
    new.lint()
    return new
