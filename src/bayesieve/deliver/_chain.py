"""A network read as a chain of steps, each with one input and one output."""

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, fx, nn
from torch.nn import functional as F

# The kernel's name of each activation it knows, by module, function and method.
_MODULES: dict[type[nn.Module], str] = {
    nn.ReLU: "relu", nn.LeakyReLU: "leaky_relu", nn.Tanh: "tanh", nn.Sigmoid: "sigmoid",
    nn.SiLU: "silu", nn.GELU: "gelu",
}  # fmt: skip
_CALLS: dict[Any, str] = {
    F.relu: "relu", torch.relu: "relu", "relu": "relu", torch.tanh: "tanh", F.tanh: "tanh",
    "tanh": "tanh", torch.sigmoid: "sigmoid", F.sigmoid: "sigmoid", "sigmoid": "sigmoid",
    F.silu: "silu", F.gelu: "gelu",
}  # fmt: skip
_NOTHING = (nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout)


@dataclass(frozen=True, eq=False)
class Affine2d:
    """A Linear layer and the activation after it."""

    name: str
    weight: Tensor
    bias: Tensor | None
    activation: str = "none"
    slope: float = 0.0

    def dense(self, x: Tensor) -> Tensor:
        """The step in torch."""
        return activate(F.linear(x, self.weight, self.bias), self.activation, self.slope)


@dataclass(frozen=True, eq=False)
class Select:
    """Takes some columns of a flat input."""

    columns: NDArray[np.int64]
    n_features: int = 0  # columns there are, filled in once an input is seen

    def dense(self, x: Tensor) -> Tensor:
        """The step in torch."""
        return x[:, torch.from_numpy(self.columns)]


@dataclass(frozen=True, eq=False)
class Flatten:
    """Merges all axes after the first; needs no work where memory is contiguous."""

    def dense(self, x: Tensor) -> Tensor:
        """The step in torch."""
        return x.flatten(1)


@dataclass(frozen=True, eq=False)
class Other:
    """Anything else, left to torch."""

    name: str
    dense: Callable[[Tensor], Tensor]


Step = Affine2d | Select | Flatten | Other


def activate(x: Tensor, name: str, slope: float) -> Tensor:
    """An activation of the kernel, in torch."""
    if name == "none":
        return x
    return F.leaky_relu(x, slope) if name == "leaky_relu" else getattr(F, name)(x)


def read_chain(module: nn.Module) -> list[Step] | str:
    """The steps of a module in eval mode, or the reason why it is not a chain."""
    try:
        traced = fx.symbolic_trace(module)
    except Exception as error:  # the user's forward meets a symbolic input and may raise anything
        return f"it cannot be traced ({type(error).__name__})"
    modules = dict(traced.named_modules())
    steps: list[Step] = []
    before: fx.Node | None = None
    for node in traced.graph.nodes:
        if node.op == "get_attr":
            continue
        if node.op == "placeholder":
            if before is not None:
                return "it has several inputs"
        elif node.op == "output":
            return steps if node.args[0] is before else "it does not return its last value"
        elif not _follows(node, before):
            return f"{node.name} reads more than the value before it"
        else:
            _append(steps, node, modules, traced)
        before = node
    return "it returns nothing"


def _follows(node: fx.Node, before: fx.Node | None) -> bool:
    """Whether a node reads the value before it, alone and first, and nobody else does."""
    inputs = [own for own in node.all_input_nodes if own.op != "get_attr"]
    first = bool(node.args) and node.args[0] is before
    return first and inputs == [before] and before is not None and len(before.users) == 1


def _append(
    steps: list[Step], node: fx.Node, modules: dict[str, nn.Module], traced: fx.GraphModule
) -> None:
    own = modules.get(str(node.target)) if node.op == "call_module" else None
    if isinstance(own, _NOTHING):
        return
    if type(own) is nn.Linear:
        bias = None if own.bias is None else own.bias.detach()
        steps.append(Affine2d(str(node.target), own.weight.detach(), bias))
        return
    last = steps[-1] if steps else None
    activation = _activation(node, own)
    if activation and isinstance(last, Affine2d) and last.activation == "none":
        steps[-1] = Affine2d(last.name, last.weight, last.bias, *activation)
    elif _flattens(node, own):
        steps.append(Flatten())
    elif (columns := _selected(node, traced)) is not None:
        steps.append(Select(columns))
    else:
        steps.append(Other(node.name, _call(node, own, traced)))


def _activation(node: fx.Node, own: nn.Module | None) -> tuple[str, float] | None:
    if own is not None:
        name = _MODULES.get(type(own))
        if isinstance(own, nn.GELU) and own.approximate != "none":
            return None
        return (name, float(getattr(own, "negative_slope", 0.0))) if name else None
    options = {key: value for key, value in node.kwargs.items() if key != "inplace"}
    name = _CALLS.get(node.target)
    return (name, 0.0) if name and len(node.args) == 1 and not options else None


def _flattens(node: fx.Node, own: nn.Module | None) -> bool:
    if own is not None:
        return type(own) is nn.Flatten and (own.start_dim, own.end_dim) == (1, -1)
    whole: tuple[Any, ...] = (((1,), {}), ((1, -1), {}), ((), {"start_dim": 1}))
    return node.target in (torch.flatten, "flatten") and (
        (node.args[1:], dict(node.kwargs)) in whole
    )


def _selected(node: fx.Node, traced: fx.GraphModule) -> NDArray[np.int64] | None:
    """The columns taken by x[:, index] or index_select(x, 1, index)."""
    args = node.args[1:]
    index: object = None
    if node.target in (torch.index_select, "index_select") and len(args) == 2 and args[0] == 1:
        index = args[1]
    elif node.target is operator.getitem and args and isinstance(args[0], tuple):
        rows, *rest = args[0]
        index = rest[0] if rows == slice(None) and len(rest) == 1 else None
    if not isinstance(index, fx.Node):
        return None
    value = _attribute(traced, index)
    whole = isinstance(value, Tensor) and value.dim() == 1 and value.dtype == torch.int64
    return value.detach().cpu().numpy().copy() if whole else None


def _call(
    node: fx.Node, own: nn.Module | None, traced: fx.GraphModule
) -> Callable[[Tensor], Tensor]:
    """The node as a function of its first argument."""
    args, kwargs = fx.map_arg(
        (node.args[1:], dict(node.kwargs)),
        lambda other: _attribute(traced, other),
    )
    if own is not None:
        return lambda x: own(x, *args, **kwargs)
    if node.op == "call_method":
        method = str(node.target)
        return lambda x: getattr(x, method)(*args, **kwargs)
    function: Any = node.target
    return lambda x: function(x, *args, **kwargs)


def _attribute(traced: fx.GraphModule, node: fx.Node) -> Any:
    value: Any = traced
    for part in str(node.target).split("."):
        value = getattr(value, part)
    return value
