"""Names that a stored graph may call: layers, functions and tensor methods of torch.

Nothing here reads files or runs code from text. What makes tensors of a size that the file chooses
(`MAKING`) is bounded by `graph.output_shape` before anything is computed.
"""

import inspect
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from bayesieve.sieve.compaction.attention import DropoutRate, HeadAttention
from bayesieve.sieve.compaction.norms import FOLDED

_MODULES = """
    Linear Bilinear Identity Flatten Unflatten Embedding MultiheadAttention
    Conv1d Conv2d Conv3d ConvTranspose1d ConvTranspose2d ConvTranspose3d
    BatchNorm1d BatchNorm2d BatchNorm3d InstanceNorm1d InstanceNorm2d InstanceNorm3d
    LayerNorm GroupNorm RMSNorm LocalResponseNorm
    MaxPool1d MaxPool2d MaxPool3d AvgPool1d AvgPool2d AvgPool3d LPPool1d LPPool2d
    AdaptiveAvgPool1d AdaptiveAvgPool2d AdaptiveAvgPool3d
    AdaptiveMaxPool1d AdaptiveMaxPool2d AdaptiveMaxPool3d
    ReLU ReLU6 LeakyReLU PReLU RReLU ELU CELU SELU GELU SiLU Mish Tanh Tanhshrink Sigmoid
    LogSigmoid Hardtanh Hardsigmoid Hardswish Hardshrink Softplus Softshrink Softsign Threshold
    GLU Softmax Softmin Softmax2d LogSoftmax
    Dropout Dropout1d Dropout2d Dropout3d AlphaDropout FeatureAlphaDropout
    ZeroPad1d ZeroPad2d ZeroPad3d ConstantPad1d ConstantPad2d ConstantPad3d
    ReflectionPad1d ReflectionPad2d ReflectionPad3d ReplicationPad1d ReplicationPad2d
    ReplicationPad3d Upsample PixelShuffle PixelUnshuffle ChannelShuffle
"""
_FUNCTIONAL = """
    linear conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d
    relu relu_ relu6 leaky_relu elu celu selu gelu silu mish tanh sigmoid logsigmoid hardtanh
    hardsigmoid hardswish hardshrink softplus softshrink softsign tanhshrink threshold glu
    softmax softmin log_softmax prelu
    dropout dropout1d dropout2d dropout3d alpha_dropout
    max_pool1d max_pool2d max_pool3d avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d
    adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d
    adaptive_max_pool3d lp_pool1d lp_pool2d
    batch_norm instance_norm layer_norm group_norm local_response_norm normalize rms_norm
    embedding pad interpolate pixel_shuffle pixel_unshuffle channel_shuffle unfold
    scaled_dot_product_attention
"""
_TORCH = """
    abs add addmm amax amin arange argmax argmin baddbmm bitwise_and bitwise_not bitwise_or bmm cat
    ceil chunk clamp clip concat cos cumsum diff div einsum eq exp expm1 flatten floor full
    full_like gather ge gt index_select le log log1p log_softmax logical_not logsumexp lerp lt
    matmul max maximum mean min minimum movedim mul narrow ne neg norm ones outer permute pow prod
    reciprocal relu relu_ reshape roll rsqrt rsub select sigmoid sin softmax split sqrt square
    squeeze stack std sub subtract sum swapaxes tanh tensor_split transpose tril triu true_divide
    unbind unflatten unsqueeze var where avg_pool1d max_pool1d max_pool2d max_pool3d
    adaptive_avg_pool1d conv1d conv2d conv3d layer_norm batch_norm dropout selu celu hardshrink
    ones_like prelu zeros zeros_like
"""
_OPERATORS = """
    add sub mul truediv floordiv mod pow neg matmul getitem eq ne lt le gt ge
    iadd isub imul itruediv
"""
ARITHMETIC = frozenset(f"operator.{name}" for name in _OPERATORS.split()) - {
    "operator.neg", "operator.getitem"
}  # fmt: skip
_METHODS = """
    abs add add_ amax amin argmax argmin bmm ceil chunk clamp clamp_ clip contiguous cos dim div
    div_ double exp expand expand_as expm1 flatten float floor half index_select log log1p
    log_softmax logsumexp long masked_fill matmul max maximum mean min minimum movedim mul mul_
    narrow neg new_full new_ones new_zeros norm permute pow prod reciprocal relu relu_ reshape
    reshape_as roll rsqrt select sigmoid sigmoid_ sin size softmax split sqrt square squeeze std
    sub sub_ sum swapaxes t tanh tanh_ tensor_split to transpose tril triu type_as unbind unflatten
    unsqueeze var view view_as
"""
METHODS = frozenset(_METHODS.split())
ATTRIBUTES = frozenset({"shape", "ndim", "dtype", "device", "T", "mT"})
MAKING = frozenset({"torch.arange", "torch.full", "torch.ones", "torch.zeros"})
DTYPES = {
    name: getattr(torch, name)
    for name in ("float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8",
                 "uint8", "bool")
}  # fmt: skip
INFIX = {
    "operator.add": "+", "operator.sub": "-", "operator.mul": "*", "operator.truediv": "/",
    "operator.floordiv": "//", "operator.mod": "%", "operator.pow": "**", "operator.matmul": "@",
    "operator.eq": "==", "operator.ne": "!=", "operator.lt": "<", "operator.le": "<=",
    "operator.gt": ">", "operator.ge": ">=",
}  # fmt: skip


def _named(prefix: str, home: Any, names: str) -> dict[str, Callable[..., Any]]:
    return {f"{prefix}.{name}": getattr(home, name) for name in names.split()}


FUNCTIONS: dict[str, Callable[..., Any]] = {
    **_named("F", F, _FUNCTIONAL),
    **_named("torch", torch, _TORCH),
    **_named("operator", operator, _OPERATORS),
    "getattr": getattr,
}
# where torch has one function under two names, the first
FUNCTION_NAMES = {function: name for name, function in reversed(FUNCTIONS.items())}
OURS: dict[str, type[nn.Module]] = {  # plain torch inside
    kind.__name__: kind for kind in (HeadAttention, DropoutRate, *FOLDED)
}
MODULES = {**{name: getattr(nn, name) for name in _MODULES.split()}, **OURS}


def arguments_of(kind: type[nn.Module]) -> dict[str, inspect.Parameter]:
    """The constructor's arguments that describe a layer, by name."""
    parameters = inspect.signature(kind.__init__).parameters
    plain = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    skipped = ("self", "device", "dtype", "min_value", "max_value")
    return {
        name: parameter
        for name, parameter in parameters.items()
        if parameter.kind in plain and name not in skipped and not name.startswith("_")
    }
