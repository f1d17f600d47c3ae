"""Operations that networks are made of: one table for every reader of a network's structure.

A layer, function or tensor method that computes the same thing has the same row, whatever its
spelling. A row has a name, such as "relu", and a kind, which says what the operation does to the
channels of a tensor. Rules for pruning, compaction and delivery are chosen by kind or by name, so
an operation is added here once. What the table does not name has the kind UNKNOWN: readers must
assume that it mixes all its inputs.
"""

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional as F


class Kind(StrEnum):
    """Treatment of the channels of the input by an operation."""

    MIXING = "mixing"  # each output channel is a weighted sum of input channels
    POINTWISE = "pointwise"  # entry by entry, wherever channels are
    CHANNELWISE = "channelwise"  # channel by channel, channels on axis 1
    REARRANGING = "rearranging"  # moves or picks entries, or averages over positions
    RESHAPING = "reshaping"  # names sizes, which could be numbers of channels
    ARITHMETIC = "arithmetic"  # two tensors, or a tensor and a number, become one
    PAIRING = "pairing"  # matrix products, one for each channel
    RESIZING = "resizing"  # pads or resamples positions
    JOINING = "joining"  # several tensors one after another
    SELECTING = "selecting"  # entries along an axis, by an index tensor
    EMBEDDING = "embedding"  # rows of a table
    TOGETHER = "together"  # reads all channels of a tensor together
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Operation:
    """One row of the table.

    Args:
        name: such as "relu" or "max_pool"; the same for all spellings.
        kind: what it does to channels.
        positions: for operations that look at several positions of a channel (pooling, padding):
            how many position axes they can work on. Empty for all others.
    """

    name: str
    kind: Kind
    positions: tuple[int, ...] = ()


Spellings = tuple[Any, ...]  # module classes, functions, and names of tensor methods

_PLAIN: dict[Kind, dict[str, Spellings]] = {
    Kind.POINTWISE: {
        "identity": (nn.Identity, "contiguous", "clone", "detach", "to", "float", "type_as"),
        "dropout": (nn.Dropout, nn.AlphaDropout, F.dropout, F.alpha_dropout),
        "relu": (nn.ReLU, F.relu, F.relu_, torch.relu, torch.relu_, "relu", "relu_"),
        "relu6": (nn.ReLU6, F.relu6),
        "leaky_relu": (nn.LeakyReLU, F.leaky_relu),
        "rrelu": (nn.RReLU,),
        "elu": (nn.ELU, F.elu),
        "celu": (nn.CELU, F.celu),
        "selu": (nn.SELU, F.selu),
        "gelu": (nn.GELU, F.gelu),
        "silu": (nn.SiLU, F.silu),
        "mish": (nn.Mish, F.mish),
        "tanh": (nn.Tanh, F.tanh, torch.tanh, "tanh", "tanh_"),
        "tanhshrink": (nn.Tanhshrink, F.tanhshrink),
        "sigmoid": (nn.Sigmoid, F.sigmoid, torch.sigmoid, "sigmoid", "sigmoid_"),
        "logsigmoid": (nn.LogSigmoid, F.logsigmoid),
        "hardtanh": (nn.Hardtanh, F.hardtanh),
        "hardsigmoid": (nn.Hardsigmoid, F.hardsigmoid),
        "hardswish": (nn.Hardswish, F.hardswish),
        "hardshrink": (nn.Hardshrink, F.hardshrink),
        "softplus": (nn.Softplus, F.softplus),
        "softshrink": (nn.Softshrink, F.softshrink),
        "softsign": (nn.Softsign, F.softsign),
        "threshold": (nn.Threshold, F.threshold),
        "sin": (torch.sin, "sin"),
        "cos": (torch.cos, "cos"),
        "exp": (torch.exp, "exp"),
        "erf": (torch.erf,),
        "abs": (torch.abs, "abs"),
        "square": (torch.square, "square"),
        "sqrt": (torch.sqrt, "sqrt"),
        "rsqrt": (torch.rsqrt, "rsqrt"),
        "pow": (operator.pow, torch.pow, "pow"),
        "neg": (torch.neg, operator.neg, "neg"),
        "div": (operator.truediv, torch.div, "div"),
        "clamp": (torch.clamp, "clamp"),
    },
    Kind.CHANNELWISE: {
        "prelu": (nn.PReLU,),
        "dropout": (
            nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.FeatureAlphaDropout, F.dropout2d,
        ),
        "batch_norm": (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d),
    },
    Kind.MIXING: {
        "linear": (nn.Linear,),
        "conv": (nn.Conv1d, nn.Conv2d, nn.Conv3d),
        "conv_transpose": (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d),
    },
    Kind.REARRANGING: {
        "flatten": (nn.Flatten, torch.flatten, "flatten"),
        "permute": (torch.permute, "permute"),
        "transpose": (torch.transpose, "transpose"),
        "movedim": (torch.movedim, "movedim"),
        "squeeze": (torch.squeeze, "squeeze"),
        "unsqueeze": (torch.unsqueeze, "unsqueeze"),
        "expand": ("expand",),
        "mean": (torch.mean, "mean"),
        "amax": (torch.amax, "amax"),
        "roll": (torch.roll, "roll"),
        "getitem": (operator.getitem,),
    },
    Kind.RESHAPING: {
        "view": ("view",),
        "reshape": (torch.reshape, "reshape"),
        "unflatten": (nn.Unflatten, torch.unflatten, "unflatten"),
        "chunk": (torch.chunk, "chunk"),
        "split": (torch.split, "split"),
        "unbind": (torch.unbind, "unbind"),
        "repeat_interleave": (torch.repeat_interleave, "repeat_interleave"),
        "channel_shuffle": (nn.ChannelShuffle,),
    },
    Kind.ARITHMETIC: {
        "add": (operator.add, operator.iadd, torch.add, "add", "add_"),
        "sub": (operator.sub, operator.isub, torch.sub, "sub", "sub_"),
        "mul": (operator.mul, operator.imul, torch.mul, "mul", "mul_"),
        "masked_fill": ("masked_fill",),
        "where": (torch.where, "where"),
    },
    Kind.PAIRING: {
        "matmul": (operator.matmul, torch.matmul, torch.bmm, "matmul", "bmm"),
        "attention": (F.scaled_dot_product_attention,),
    },
    Kind.RESIZING: {"pad": (F.pad,), "interpolate": (F.interpolate,)},
    Kind.JOINING: {"cat": (torch.cat, torch.concat, torch.concatenate)},
    Kind.SELECTING: {"index_select": (torch.index_select, "index_select")},
    Kind.EMBEDDING: {"embedding": (nn.Embedding,)},
    Kind.TOGETHER: {
        "layer_norm": (nn.LayerNorm, F.layer_norm),
        "group_norm": (nn.GroupNorm, F.group_norm),
        "rms_norm": (nn.RMSNorm,),
        "local_response_norm": (nn.LocalResponseNorm,),
        "softmax": (nn.Softmax, nn.Softmax2d, F.softmax, torch.softmax, "softmax"),
        "softmin": (nn.Softmin,),
        "log_softmax": (nn.LogSoftmax, F.log_softmax, "log_softmax"),
    },
}  # fmt: skip
_OVER_POSITIONS: dict[str, dict[tuple[int, ...], Spellings]] = {
    "instance_norm": {(1,): (nn.InstanceNorm1d,), (2,): (nn.InstanceNorm2d,),
                      (3,): (nn.InstanceNorm3d,)},
    "max_pool": {(1,): (nn.MaxPool1d, F.max_pool1d, torch.max_pool1d),
                 (2,): (nn.MaxPool2d, F.max_pool2d, torch.max_pool2d),
                 (3,): (nn.MaxPool3d, F.max_pool3d, torch.max_pool3d)},
    "avg_pool": {(1,): (nn.AvgPool1d, F.avg_pool1d, torch.avg_pool1d),
                 (2,): (nn.AvgPool2d, F.avg_pool2d), (3,): (nn.AvgPool3d, F.avg_pool3d)},
    "adaptive_avg_pool": {(1,): (nn.AdaptiveAvgPool1d, F.adaptive_avg_pool1d),
                          (2,): (nn.AdaptiveAvgPool2d, F.adaptive_avg_pool2d),
                          (3,): (nn.AdaptiveAvgPool3d, F.adaptive_avg_pool3d)},
    "adaptive_max_pool": {(1,): (nn.AdaptiveMaxPool1d,),
                          (2,): (nn.AdaptiveMaxPool2d, F.adaptive_max_pool2d),
                          (3,): (nn.AdaptiveMaxPool3d,)},
    "lp_pool": {(1,): (nn.LPPool1d,), (2,): (nn.LPPool2d,)},
    "upsample": {(1, 2, 3): (nn.Upsample,),
                 (2,): (nn.UpsamplingNearest2d, nn.UpsamplingBilinear2d)},
    "pad": {(1,): (nn.ZeroPad1d, nn.ReflectionPad1d, nn.ReplicationPad1d),
            (2,): (nn.ZeroPad2d, nn.ReflectionPad2d, nn.ReplicationPad2d), (3,): (nn.ZeroPad3d,)},
}  # fmt: skip
UNKNOWN = Operation("unknown", Kind.UNKNOWN)
MAKING = (torch.arange, torch.full, torch.ones, torch.zeros)  # tensors of the sizes given
OUT_OF_PLACE = {  # functions that overwrite their input, and those that do not
    operator.iadd: operator.add, operator.isub: operator.sub, operator.imul: operator.mul,
    operator.itruediv: operator.truediv, torch.relu_: torch.relu, F.relu_: torch.relu,
}  # fmt: skip
UNCHANGING = ("identity", "dropout")  # operations that return their input in eval mode


def _rows() -> dict[Any, Operation]:
    """The whole table by spelling."""
    rows = {
        spelling: Operation(name, kind)
        for kind, names in _PLAIN.items()
        for name, spellings in names.items()
        for spelling in spellings
    }
    for name, by_positions in _OVER_POSITIONS.items():
        for positions, spellings in by_positions.items():
            rows |= dict.fromkeys(spellings, Operation(name, Kind.CHANNELWISE, positions))
    return rows


def named(home: Any, names: str) -> list[Any]:
    """The attributes of an object of these names."""
    return [getattr(home, name) for name in names.split()]


OPERATIONS: Mapping[Any, Operation] = _rows()


def operation_of(node: fx.Node, layer: nn.Module | None = None) -> Operation:
    """The row of a node of a graph, UNKNOWN if the table has none.

    Args:
        node: of any graph.
        layer: the module it calls, if it calls one; subclasses of torch's layers are unknown.

    Example:
        >>> graph = fx.symbolic_trace(nn.Sequential(nn.Tanh(), nn.Linear(2, 1)))
        >>> nodes = [node for node in graph.graph.nodes if node.op == "call_module"]
        >>> [operation_of(node, graph.get_submodule(node.target)).name for node in nodes]
        ['tanh', 'linear']
    """
    if node.op == "call_module":
        row = OPERATIONS.get(type(layer), UNKNOWN)
        if isinstance(layer, nn.PReLU) and layer.num_parameters == 1 and row is not UNKNOWN:
            return Operation("prelu", Kind.POINTWISE)
        return row
    if node.op in ("call_function", "call_method"):
        return OPERATIONS.get(node.target, UNKNOWN)
    return UNKNOWN


def reads_size(node: fx.Node) -> bool:
    """Return whether a node asks for a size, dtype or device of its input and for no value."""
    if node.op == "call_method":
        return node.target in ("size", "dim")
    return node.target is getattr and node.args[1] in ("shape", "ndim", "dtype", "device")


def flattens(node: fx.Node, layer: nn.Module | None = None) -> bool:
    """Return whether a node merges all axes after the first, whatever their sizes."""
    if node.op == "call_module":
        return type(layer) is nn.Flatten and (layer.start_dim, layer.end_dim) == (1, -1)
    if node.target in (torch.flatten, "flatten"):
        return (node.args[1:], dict(node.kwargs)) in _WHOLE
    if node.op == "call_method" and node.target in ("view", "reshape") and len(node.args) == 3:
        return _is_batch_size(node.args[1]) and node.args[2:] == (-1,)
    return False


_WHOLE: tuple[Any, ...] = (((1,), {}), ((1, -1), {}), ((), {"start_dim": 1}))


def _is_batch_size(argument: object) -> bool:
    """Return whether an argument is x.size(0) or x.shape[0]."""
    if not isinstance(argument, fx.Node):
        return False
    if argument.op == "call_method":
        return argument.target == "size" and argument.args[1:] == (0,)
    is_item = argument.target is operator.getitem and argument.args[1:] == (0,)
    return is_item and isinstance(argument.args[0], fx.Node) and reads_size(argument.args[0])


# ------------------------------------------------------------------------------------------- ATen
# `torch.export` spells every call as an operator of ATen. What follows is the same call in a
# spelling of the table.

aten = torch.ops.aten
Call = tuple[str, Any, tuple[Any, ...]]  # op of a node, target, arguments


def _alike(home: Any, names: str) -> dict[Any, Any]:
    """Operators that take the arguments of the function of their name."""
    parts = [name.partition(".") for name in names.split()]
    return {
        getattr(getattr(aten, name), kind or "default"): getattr(home, name)
        for name, _, kind in parts
    }


_SAME: dict[Any, Any] = {
    **_alike(torch, """
        add.Tensor sub.Tensor mul.Tensor div.Tensor neg pow.Tensor_Scalar rsqrt mean.dim matmul bmm
        cat permute transpose.int unsqueeze squeeze.dim flatten.using_ints reshape chunk
        split.Tensor unbind.int tanh relu relu_ sigmoid softmax.int roll where.self
        where.ScalarOther where.ScalarSelf addmm gather cumsum abs diff log minimum maximum cos sin
        exp bitwise_not logical_not rsub.Scalar sum.dim_IntList clamp eq.Tensor eq.Scalar ne.Tensor
        ne.Scalar lt.Tensor lt.Scalar le.Tensor le.Scalar gt.Tensor gt.Scalar ge.Tensor ge.Scalar
    """),
    **_alike(F, """
        gelu silu dropout linear rms_norm conv1d conv2d max_pool2d avg_pool2d adaptive_avg_pool1d
        adaptive_avg_pool2d pad scaled_dot_product_attention
    """),
    aten.view.default: torch.reshape, aten.min.other: torch.minimum,
    aten.max.other: torch.maximum, aten.__and__.Tensor: torch.bitwise_and,
    aten.__or__.Tensor: torch.bitwise_or, aten.add_.Tensor: operator.iadd,
    aten.sub_.Tensor: operator.isub, aten.mul_.Tensor: operator.imul,
    aten.div_.Tensor: operator.itruediv,
}  # fmt: skip
_PLACE = {"device", "pin_memory", "layout", "memory_format"}  # not part of a graph
_MADE: dict[Any, Any] = _alike(torch, """
    arange arange.start arange.start_step zeros ones full zeros_like ones_like full_like
""")  # fmt: skip


def _method(name: str) -> Callable[..., Call]:
    return lambda *args: ("call_method", name, args)


def _copied(x: Any) -> Call:
    return "call_method", "contiguous", (x,)  # changes no number


def _slice(
    x: Any, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Call:
    if start in (None, 0) and end == 2**63 - 1 and step == 1:
        return _copied(x)
    end = None if end == 2**63 - 1 else end
    part = slice(start, end) if step == 1 else slice(start, end, step)
    return _select(x, dim, part)


def _select(x: Any, dim: int, index: Any) -> Call:
    return "call_function", operator.getitem, (x, (*[slice(None)] * dim, index))


def _index(x: Any, indices: list[Any]) -> Call:
    parts = tuple(slice(None) if i is None else i for i in indices)
    return "call_function", operator.getitem, (x, parts if len(parts) > 1 else parts[0])


def _batch_norm(x: Any, weight: Any, bias: Any, mean: Any, var: Any, *rest: Any) -> Call:
    return "call_function", F.batch_norm, (x, mean, var, weight, bias, *rest[:3])


_OTHER: dict[Any, Callable[..., Call]] = {
    aten.expand.default: lambda x, sizes: ("call_method", "expand", (x, *sizes)),
    aten.contiguous.default: _copied, aten.clone.default: _copied, aten.detach_.default: _copied,
    aten.lift_fresh_copy.default: _copied, aten.sym_size.int: _method("size"),
    aten.layer_norm.default: lambda *args: ("call_function", F.layer_norm, args[:5]),
    aten.slice.Tensor: _slice, aten.select.int: _select, aten.index.Tensor: _index,
    aten.masked_fill.Scalar: _method("masked_fill"),
    aten.masked_fill.Tensor: _method("masked_fill"),
    aten.embedding.default: lambda weight, x, *_: ("call_function", F.embedding, (x, weight)),
    aten.batch_norm.default: _batch_norm,
    aten.new_ones.default: _method("new_ones"), aten.new_zeros.default: _method("new_zeros"),
    aten.new_full.default: _method("new_full"),
}  # fmt: skip


def spelled(
    target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[str, Any, tuple[Any, ...], dict[str, Any]] | None:
    """A call of an ATen operator in a spelling of the table: op, target and arguments of a node.

    Returns:
        None if the operator has no other spelling. It is unknown to every reader then.

    Example:
        >>> spelled(aten.select.int, ("x", 1, 0), {})[2]
        ('x', (slice(None, None, None), 0))
    """
    if target in _SAME:
        return "call_function", _SAME[target], args, kwargs
    rest = {name: value for name, value in kwargs.items() if name not in _PLACE}
    if target in _MADE:
        return "call_function", _MADE[target], args, rest
    if target in _OTHER:
        return (*_OTHER[target](*args), rest)
    if str(target).startswith("aten.to."):
        dtype = kwargs.get("dtype") or next(a for a in args if isinstance(a, torch.dtype))
        return "call_method", "to", (args[0], dtype), {}
    return None


def overwrites(target: Any) -> bool:
    """Return whether an ATen operator writes to its input, unlike every row of the table."""
    is_operator = isinstance(target, torch._ops.OpOverload) and target._schema.is_mutable
    return is_operator and target not in _SAME and target not in _OTHER
