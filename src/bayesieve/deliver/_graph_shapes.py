"""Shapes of a graph's results, found without computing: a stored graph must fit and stay small."""

from typing import Any

import torch
from torch import Tensor, fx

from bayesieve.deliver import _allowed
from bayesieve.deliver._graph_rules import LIMIT

MAX_ELEMENTS = 1 << 31  # of one intermediate result, for two examples


def output_shape(module: fx.GraphModule, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Size:
    """Shape of the output for two examples, found without computing anything.

    Args:
        module: on the meta device.
        shape: of one input.
        dtype: of the input.

    Raises:
        ValueError: if shapes do not fit, or a result would be unreasonably large.
    """
    try:
        result = _Shapes(module).run(torch.empty(2, *shape, dtype=dtype, device="meta"))
    except (RuntimeError, TypeError, IndexError, AttributeError, OverflowError,
            AssertionError, NotImplementedError, KeyError, ArithmeticError) as error:  # fmt: skip
        reason = " ".join(str(error).split())[:200]
        raise ValueError(f"its shapes do not fit: {reason}") from error
    if not isinstance(result, Tensor):
        raise ValueError("it does not return a tensor")
    return result.shape


class _Shapes(fx.Interpreter):
    """Runs a graph on the meta device and refuses what would take unbounded memory or time."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.extra_traceback = False

    def run_node(self, n: fx.Node) -> Any:
        """Run one node."""
        result = super().run_node(n)
        for value in result if isinstance(result, tuple | list) else (result,):
            too_large = (isinstance(value, Tensor) and value.numel() > MAX_ELEMENTS) or (
                isinstance(value, int) and abs(value) > LIMIT
            )
            if too_large:
                raise ValueError(f"node {n.name!r} would be unreasonably large")
        return result

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a function; arithmetic is for tensors and numbers, not for sequences."""
        name = _allowed.name_of_function().get(target, "")
        if name in _allowed.ARITHMETIC:
            is_tensor = any(isinstance(value, Tensor) for value in args)
            plain = all(isinstance(value, Tensor | int | float | torch.dtype) for value in args)
            if kwargs or len(args) != 2 or not (plain or _compares(name)):
                raise ValueError(f"{name} is for tensors and numbers")
            if name == "operator.pow" and not is_tensor:
                raise ValueError(f"{name} is for tensors")
        return super().call_function(target, args, kwargs)


def _compares(name: str) -> bool:
    return name in ("operator.eq", "operator.ne")
