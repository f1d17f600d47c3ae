"""Operations that networks are made of: one table for every reader of a network's structure.

A layer, function or tensor method that computes the same thing has the same row, whatever its
spelling. A row has a name, such as "relu", and a kind, which says what the operation does to the
channels of a tensor. Rules for pruning, compaction and delivery are chosen by kind or by name, so
an operation is added here once. What the table does not name has the kind UNKNOWN: readers must
assume that it mixes all its inputs.
"""

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional as F


class Kind(StrEnum):
    """How an operation treats the channels of its input."""

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
    """Whether a node asks for a size, dtype or device of its input and for no value."""
    if node.op == "call_method":
        return node.target in ("size", "dim")
    return node.target is getattr and node.args[1] in ("shape", "ndim", "dtype", "device")


def flattens(node: fx.Node, layer: nn.Module | None = None) -> bool:
    """Whether a node merges all axes after the first and keeps the first, whatever their sizes."""
    if node.op == "call_module":
        return type(layer) is nn.Flatten and (layer.start_dim, layer.end_dim) == (1, -1)
    if node.target in (torch.flatten, "flatten"):
        return (node.args[1:], dict(node.kwargs)) in _WHOLE
    if node.op == "call_method" and node.target in ("view", "reshape") and len(node.args) == 3:
        return _is_batch_size(node.args[1]) and node.args[2:] == (-1,)
    return False


_WHOLE: tuple[Any, ...] = (((1,), {}), ((1, -1), {}), ((), {"start_dim": 1}))


def _is_batch_size(argument: object) -> bool:
    """Whether an argument is x.size(0) or x.shape[0]."""
    if not isinstance(argument, fx.Node):
        return False
    if argument.op == "call_method":
        return argument.target == "size" and argument.args[1:] == (0,)
    is_item = argument.target is operator.getitem and argument.args[1:] == (0,)
    return is_item and isinstance(argument.args[0], fx.Node) and reads_size(argument.args[0])
