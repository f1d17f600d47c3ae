"""Names that a stored graph may call: what the table of operations (`graph.operations`) names.

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

from bayesieve.graph import operations
from bayesieve.sieve.compaction.attention import DropoutRate, HeadAttention
from bayesieve.sieve.compaction.norms import FOLDED

_LEFT_OUT = {torch.repeat_interleave, "repeat_interleave", torch.erf, "clone", "detach", "where"}
# Spellings of UNKNOWN operations. They compute their result from their arguments alone, so that a
# file may name them.
_OTHERS: operations.Spellings = (
    *operations.named(nn, """
        Bilinear MultiheadAttention GLU ConstantPad1d ConstantPad2d ConstantPad3d ReflectionPad3d
        ReplicationPad3d PixelShuffle PixelUnshuffle
    """),
    *operations.named(F, """
        linear conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d batch_norm
        instance_norm local_response_norm normalize rms_norm embedding glu softmin prelu dropout1d
        dropout3d adaptive_max_pool1d adaptive_max_pool3d lp_pool1d lp_pool2d pixel_shuffle
        pixel_unshuffle channel_shuffle unfold
    """),
    *operations.named(torch, """
        addmm amin arange argmax argmin baddbmm batch_norm bitwise_and bitwise_not bitwise_or ceil
        celu clip cumsum diff dropout einsum eq expm1 floor full full_like gather ge gt layer_norm
        le lerp log log1p log_softmax logical_not logsumexp lt max maximum min minimum narrow ne
        norm ones ones_like outer prod reciprocal rsub select selu stack std subtract sum swapaxes
        tensor_split tril triu true_divide var zeros zeros_like
    """),
    *operations.named(operator, "eq ne lt le gt ge floordiv mod itruediv"),
    *str.split("""
        amin argmax argmin ceil clamp_ clip dim div_ double expand_as expm1 floor half log log1p
        logsumexp long max maximum min minimum narrow new_full new_ones new_zeros norm prod
        reciprocal reshape_as select size std sum swapaxes t tensor_split tril triu var view_as
    """),
)  # fmt: skip
_SPELLINGS = {*operations.OPERATIONS, *_OTHERS} - _LEFT_OUT


def _named(prefix: str, home: Any) -> dict[str, Any]:
    """Everything of a module of torch that the table of operations names."""
    return {
        f"{prefix}{name}": value
        for name, value in vars(home).items()
        if callable(value) and not name.startswith("_") and value in _SPELLINGS
    }


OURS: dict[str, type[nn.Module]] = {  # plain torch inside
    kind.__name__: kind for kind in (HeadAttention, DropoutRate, *FOLDED)
}
MODULES: dict[str, type[nn.Module]] = {**_named("", nn), **OURS}
FUNCTIONS: dict[str, Callable[..., Any]] = {
    **_named("F.", F),
    **_named("torch.", torch),
    **_named("operator.", operator),
    "getattr": getattr,
}
# where torch has one function under two names, the first
FUNCTION_NAMES = {function: name for name, function in reversed(FUNCTIONS.items())}
METHODS = frozenset(spelling for spelling in _SPELLINGS if isinstance(spelling, str))
ARITHMETIC = frozenset(name for name in FUNCTIONS if name.startswith("operator.")) - {
    "operator.neg", "operator.getitem"
}  # fmt: skip
ATTRIBUTES = frozenset({"shape", "ndim", "dtype", "device", "T", "mT"})
MAKING = frozenset(FUNCTION_NAMES[function] for function in operations.MAKING)
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
