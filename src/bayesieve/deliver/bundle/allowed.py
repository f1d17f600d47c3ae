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
_SPELLINGS = {*operations.OPERATIONS, *operations.OTHERS} - _LEFT_OUT


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
