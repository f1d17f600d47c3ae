"""Which operation has which rule."""

import operator
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional as F

from bayesieve.sieve.compaction.attention import Attending
from bayesieve.sieve.compaction.ends import Barrier, Embedded, Source, Table
from bayesieve.sieve.compaction.flow import Flow, Rule
from bayesieve.sieve.compaction.joins import Arithmetic, Concatenation
from bayesieve.sieve.compaction.mixing import CONVOLUTIONS, TRANSPOSED, Mixing
from bayesieve.sieve.compaction.modules import HeadAttention
from bayesieve.sieve.compaction.separate import Separate
from bayesieve.sieve.compaction.shapes import Rearranged, Selected, SizeReader, reads_size

_ANY_AXIS = Separate()
_AXIS_1 = Separate(axis=1)
_MOVED = Rearranged()
_SUM = Arithmetic()
_CAT = Concatenation()
_TOGETHER = Barrier("reads all channels together", known=True)
_UNKNOWN = Barrier("is not known to treat channels separately")
_SHARED = Barrier("is called twice, hooked or shares its weights")
_VIEW = Barrier("fixes sizes, which could name channels")

_MODULES: dict[type[nn.Module], Rule] = {
    **dict.fromkeys((nn.Linear, *CONVOLUTIONS, *TRANSPOSED), Mixing()),
    **dict.fromkeys(
        (
            nn.Identity, nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.RReLU, nn.ELU, nn.CELU, nn.SELU,
            nn.GELU, nn.SiLU, nn.Mish, nn.Tanh, nn.Tanhshrink, nn.Sigmoid, nn.LogSigmoid,
            nn.Hardtanh, nn.Hardsigmoid, nn.Hardswish, nn.Hardshrink, nn.Softplus, nn.Softshrink,
            nn.Softsign, nn.Threshold, nn.Dropout, nn.AlphaDropout,
        ),
        _ANY_AXIS,
    ),
    **dict.fromkeys(
        (
            nn.PReLU, nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.InstanceNorm1d,
            nn.InstanceNorm2d, nn.InstanceNorm3d, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d,
            nn.FeatureAlphaDropout, nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AvgPool1d,
            nn.AvgPool2d, nn.AvgPool3d, nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d,
            nn.AdaptiveAvgPool3d, nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d,
            nn.LPPool1d, nn.LPPool2d, nn.Upsample, nn.UpsamplingNearest2d,
            nn.UpsamplingBilinear2d, nn.ZeroPad1d, nn.ZeroPad2d, nn.ZeroPad3d, nn.ReflectionPad1d,
            nn.ReflectionPad2d, nn.ReplicationPad1d, nn.ReplicationPad2d,
        ),
        _AXIS_1,
    ),
    nn.Flatten: _MOVED,
    nn.Embedding: Embedded(),
    HeadAttention: Attending(),
    **dict.fromkeys(
        (
            nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.LocalResponseNorm, nn.Softmax, nn.Softmax2d,
            nn.LogSoftmax, nn.Softmin,
        ),
        _TOGETHER,
    ),
}  # fmt: skip

_FUNCTIONS: dict[Any, Rule] = {
    **dict.fromkeys(
        (
            F.relu, F.relu_, F.relu6, F.leaky_relu, F.elu, F.celu, F.selu, F.gelu, F.silu, F.mish,
            F.tanh, F.tanhshrink, F.sigmoid, F.logsigmoid, F.hardtanh, F.hardsigmoid, F.hardswish,
            F.hardshrink, F.softplus, F.softshrink, F.softsign, F.threshold, F.dropout,
            torch.relu, torch.relu_, torch.tanh, torch.sigmoid, torch.sin, torch.cos, torch.exp,
            torch.abs, torch.square, torch.sqrt, torch.neg, torch.clamp, operator.neg,
            operator.truediv, operator.pow, torch.erf,
        ),
        _ANY_AXIS,
    ),
    **dict.fromkeys(
        (
            F.max_pool1d, F.max_pool2d, F.max_pool3d, F.avg_pool1d, F.avg_pool2d, F.avg_pool3d,
            F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d, F.dropout2d,
            torch.max_pool1d, torch.max_pool2d, torch.avg_pool1d, F.adaptive_max_pool2d,
        ),
        _AXIS_1,
    ),
    **dict.fromkeys(
        (
            torch.flatten, torch.permute, torch.transpose, torch.movedim,
            torch.squeeze, torch.unsqueeze, torch.mean, torch.amax, operator.getitem,
        ),
        _MOVED,
    ),
    **dict.fromkeys(
        (
            operator.add, operator.iadd, operator.sub, operator.isub, operator.mul, operator.imul,
            torch.add, torch.sub, torch.mul,
        ),
        _SUM,
    ),
    **dict.fromkeys((torch.cat, torch.concat, torch.concatenate), _CAT),
    **dict.fromkeys((F.layer_norm, F.softmax, F.log_softmax, torch.softmax), _TOGETHER),
    torch.index_select: Selected(),
    torch.reshape: _VIEW,
}  # fmt: skip

_METHODS: dict[str, Rule] = {
    **dict.fromkeys(
        (
            "relu", "relu_", "tanh", "tanh_", "sigmoid", "sigmoid_", "sin", "cos", "exp", "abs",
            "square", "sqrt", "neg", "clamp", "contiguous", "clone", "detach",
        ),
        _ANY_AXIS,
    ),
    **dict.fromkeys(
        (
            "flatten", "permute", "transpose", "movedim", "squeeze", "unsqueeze",
            "mean", "amax", "expand",
        ),
        _MOVED,
    ),
    **dict.fromkeys(("add", "add_", "sub", "sub_", "mul", "mul_"), _SUM),
    **dict.fromkeys(("softmax", "log_softmax"), _TOGETHER),
    **dict.fromkeys(("view", "reshape", "unflatten"), _VIEW),
}  # fmt: skip


def rule_of(node: fx.Node, flow: Flow) -> Rule:
    """The rule of one node; a barrier if nothing is known about it."""
    traced = flow.traced
    if node.op == "placeholder":
        return Source()
    if node.op == "get_attr":
        return Table()
    if node.op == "output":
        return Barrier("must keep its shape", known=True)
    if traced.shape(node) is None:
        return SizeReader() if reads_size(node) else _UNKNOWN
    if any(traced.shape(x) is None and _is_opaque(x) for x in node.all_input_nodes):
        return _UNKNOWN  # one of several results of an unknown operation
    if node.op == "call_module":
        return _module_rule(node, flow)
    table: dict[Any, Rule] = _FUNCTIONS if node.op == "call_function" else _METHODS
    return table.get(node.target, _UNKNOWN) if traced.tensor_inputs(node) else _UNKNOWN


def _module_rule(node: fx.Node, flow: Flow) -> Rule:
    layer = flow.traced.layer(node)
    rule = _MODULES.get(type(layer), _UNKNOWN)
    if str(node.target) in flow.traced.shared and rule is not _TOGETHER:
        return _SHARED
    if isinstance(layer, nn.PReLU) and layer.num_parameters == 1:
        return _ANY_AXIS
    return rule


def _is_opaque(node: fx.Node) -> bool:
    return isinstance(node.meta.get("value"), tuple | list | dict) and not reads_size(node)
