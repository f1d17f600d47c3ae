"""Structure of a network that `torch.fx` cannot trace, from `torch.export`.

`torch.export` runs the module on an example and follows Python's control flow as it went. Its
graph calls the operators of ATen. Those with a spelling in the table of operations are written
that way; the others stay what they are, and are unknown to every reader.
"""

import contextlib
import copy
import io
import logging
import operator
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from bayesieve.core.inputs import Input, Inputs, arguments, logits_of, tensors_of
from bayesieve.core.turns import own_turn
from bayesieve.errors import UnsupportedModelError
from bayesieve.graph.graph import Graph

aten = torch.ops.aten
_SAME: dict[Any, Any] = {  # takes the same arguments
    aten.add.Tensor: torch.add, aten.sub.Tensor: torch.sub, aten.mul.Tensor: torch.mul,
    aten.div.Tensor: torch.div, aten.neg.default: torch.neg, aten.pow.Tensor_Scalar: torch.pow,
    aten.rsqrt.default: torch.rsqrt, aten.mean.dim: torch.mean, aten.matmul.default: torch.matmul,
    aten.bmm.default: torch.bmm, aten.cat.default: torch.cat, aten.permute.default: torch.permute,
    aten.transpose.int: torch.transpose, aten.unsqueeze.default: torch.unsqueeze,
    aten.squeeze.dim: torch.squeeze, aten.flatten.using_ints: torch.flatten,
    aten.view.default: torch.reshape, aten.reshape.default: torch.reshape,
    aten.chunk.default: torch.chunk, aten.split.Tensor: torch.split,
    aten.unbind.int: torch.unbind, aten.tanh.default: torch.tanh, aten.relu.default: torch.relu,
    aten.sigmoid.default: torch.sigmoid, aten.gelu.default: F.gelu, aten.silu.default: F.silu,
    aten.softmax.int: torch.softmax, aten.dropout.default: F.dropout,
    aten.linear.default: F.linear, aten.rms_norm.default: F.rms_norm,
    aten.conv1d.default: F.conv1d, aten.conv2d.default: F.conv2d,
    aten.max_pool2d.default: F.max_pool2d, aten.avg_pool2d.default: F.avg_pool2d,
    aten.adaptive_avg_pool2d.default: F.adaptive_avg_pool2d, aten.pad.default: F.pad,
    aten.scaled_dot_product_attention.default: F.scaled_dot_product_attention,
    aten.add_.Tensor: operator.iadd, aten.sub_.Tensor: operator.isub,
    aten.mul_.Tensor: operator.imul, aten.div_.Tensor: operator.itruediv,
    aten.relu_.default: torch.relu_, aten.roll.default: torch.roll,
    aten.adaptive_avg_pool1d.default: F.adaptive_avg_pool1d, aten.where.self: torch.where,
    aten.where.ScalarOther: torch.where, aten.where.ScalarSelf: torch.where,
    aten.addmm.default: torch.addmm, aten.gather.default: torch.gather,
    aten.cumsum.default: torch.cumsum, aten.abs.default: torch.abs, aten.diff.default: torch.diff,
    aten.log.default: torch.log, aten.minimum.default: torch.minimum, aten.min.other: torch.minimum,
    aten.maximum.default: torch.maximum, aten.max.other: torch.maximum,
    aten.cos.default: torch.cos, aten.sin.default: torch.sin, aten.exp.default: torch.exp,
    aten.__and__.Tensor: torch.bitwise_and, aten.__or__.Tensor: torch.bitwise_or,
    aten.bitwise_not.default: torch.bitwise_not, aten.logical_not.default: torch.logical_not,
    aten.rsub.Scalar: torch.rsub, aten.sum.dim_IntList: torch.sum, aten.clamp.default: torch.clamp,
}  # fmt: skip
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    for _kind in ("Tensor", "Scalar"):
        _SAME[getattr(getattr(aten, _name), _kind)] = getattr(torch, _name)
Call = tuple[str, Any, tuple[Any, ...]]


def _slice(
    x: Any, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Call:
    if start in (None, 0) and end == 2**63 - 1 and step == 1:
        return "call_method", "contiguous", (x,)
    end = None if end == 2**63 - 1 else end
    part = slice(start, end) if step == 1 else slice(start, end, step)
    return "call_function", operator.getitem, (x, (*[slice(None)] * dim, part))


def _select(x: Any, dim: int, index: int) -> Call:
    return "call_function", operator.getitem, (x, (*[slice(None)] * dim, index))


def _index(x: Any, indices: list[Any]) -> Call:
    parts = tuple(slice(None) if i is None else i for i in indices)
    return "call_function", operator.getitem, (x, parts if len(parts) > 1 else parts[0])


def _embedding(weight: Any, x: Any, *_: Any) -> Call:
    return "call_function", F.embedding, (x, weight)


def _batch_norm(x: Any, weight: Any, bias: Any, mean: Any, var: Any, *rest: Any) -> Call:
    return "call_function", F.batch_norm, (x, mean, var, weight, bias, *rest[:3])


_MADE: dict[Any, Any] = {  # tensors of sizes; where they are made is not part of the graph
    aten.arange.default: torch.arange, aten.arange.start: torch.arange,
    aten.arange.start_step: torch.arange, aten.zeros.default: torch.zeros,
    aten.ones.default: torch.ones, aten.full.default: torch.full,
    aten.zeros_like.default: torch.zeros_like, aten.ones_like.default: torch.ones_like,
    aten.full_like.default: torch.full_like,
}  # fmt: skip
_NEW = {aten.new_ones.default: "new_ones", aten.new_zeros.default: "new_zeros",
        aten.new_full.default: "new_full"}  # fmt: skip
_PLACE = {"device", "pin_memory", "layout", "memory_format"}
_OTHER: dict[Any, Callable[..., Call]] = {
    aten.expand.default: lambda x, sizes: ("call_method", "expand", (x, *sizes)),
    aten.contiguous.default: lambda x: ("call_method", "contiguous", (x,)),
    aten.clone.default: lambda x: ("call_method", "contiguous", (x,)),
    aten.detach_.default: lambda x: ("call_method", "contiguous", (x,)),  # changes no number
    aten.lift_fresh_copy.default: lambda x: ("call_method", "contiguous", (x,)),
    aten.sym_size.int: lambda x, dim: ("call_method", "size", (x, dim)),
    aten.layer_norm.default: lambda *args: ("call_function", F.layer_norm, args[:5]),
    aten.slice.Tensor: _slice,
    aten.select.int: _select,
    aten.index.Tensor: _index,
    aten.masked_fill.Scalar: lambda *args: ("call_method", "masked_fill", args),
    aten.masked_fill.Tensor: lambda *args: ("call_method", "masked_fill", args),
    aten.embedding.default: _embedding,
    aten.batch_norm.default: _batch_norm,
}


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


def export(untraceable: UnsupportedModelError, module: nn.Module, example: Input) -> Graph:
    """The graph of a module in eval mode as it runs on an example, (n, ...), n free later.

    Several inputs are as many arguments of the graph, by their names.

    Args:
        untraceable: why `torch.fx` cannot trace it; raised again if torch.export fails as well.
        module: to be run.
        example: its input.

    Example:
        >>> why = UnsupportedModelError("a branch")
        >>> graph = export(why, nn.Sequential(nn.Linear(2, 1), nn.ReLU()), torch.zeros(2, 2))
        >>> [graph.operation(node).name for node in graph.nodes if node.op == "call_function"]
        ['unknown', 'relu']
        >>> [str(node.target) for node in graph.nodes if node.op == "get_attr"]
        ['0.weight', '0.bias']
    """
    tensors = tensors_of(example)
    free = tuple({0: torch.export.Dim.DYNAMIC} for _ in tensors)
    try:
        with own_turn("export"), torch.no_grad(), _quiet():
            program = torch.export.export(
                Called(module, example).eval(), tensors, dynamic_shapes=(free,), strict=False
            )
            traced = program.module()
    except Exception:  # the user's forward may raise anything
        raise untraceable from None
    assert isinstance(traced, fx.GraphModule)
    if any(
        _overwrites(node) and node.target not in {*_SAME, *_OTHER} for node in traced.graph.nodes
    ):
        raise untraceable
    names = ["x"] if isinstance(example, Tensor) else list(example.named)
    inner = traced.get_submodule("module")
    for node in traced.graph.nodes:
        if node.op == "get_attr" and not node.target.startswith(_PREFIX):
            setattr(inner, node.target, getattr(traced, node.target))  # made by export
    translated = fx.GraphModule(inner, _translated(traced.graph, names))
    return Graph(translated.eval())  # a layer made of a call must not be in training mode


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
    trained = Called(copy.deepcopy(module), example).train()
    try:
        with own_turn("export"), torch.no_grad(), _quiet():
            program = torch.export.export(trained, tensors_of(example), strict=False)
    except Exception:  # the user's forward may raise anything
        return []
    calls = [
        n for n in program.graph.nodes if n.target is aten.scaled_dot_product_attention.default
    ]
    return [float(call.args[4]) if len(call.args) > 4 else 0.0 for call in calls]


def _overwrites(node: fx.Node) -> bool:
    """Whether an operator of ATen writes to its input."""
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


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


_PREFIX = "module."  # of every name inside `Called`


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
            copies[node] = new.get_attr(str(node.target).removeprefix(_PREFIX))
        elif node.op == "output":
            (result,) = args[0] if isinstance(args[0], tuple | list) else (args[0],)
            new.output(result)
        elif node.target in _SAME:
            copies[node] = new.call_function(_SAME[node.target], args, kwargs)
        elif node.target in _OTHER and not set(kwargs) - {"memory_format"}:
            copies[node] = new.create_node(*_OTHER[node.target](*args))
        elif node.target in _MADE or node.target in _NEW:
            rest = {key: value for key, value in kwargs.items() if key not in _PLACE}
            if node.target in _MADE:
                copies[node] = new.call_function(_MADE[node.target], args, rest)
            else:
                copies[node] = new.call_method(_NEW[node.target], args, rest)
        elif str(node.target).startswith("aten.to."):
            dtype = kwargs.get("dtype") or next(a for a in args if isinstance(a, torch.dtype))
            copies[node] = new.call_method("to", (args[0], dtype))
        else:
            copies[node] = new.create_node(node.op, node.target, args, kwargs, node.name)
    new.lint()
    return new
