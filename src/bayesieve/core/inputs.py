"""Inputs of a model: one tensor, or several whose first axis is that of the examples.

A model is called as its inputs say:

    x                             model(x)
    (a, b)                        model(a, b)
    {"ids": a, "mask": b}         model(ids=a, mask=b)

A forward that has no arguments of these names, or not so many, is given the dict or tuple itself.
`as_inputs` makes an `Inputs` of a tuple or dict. It counts, selects, divides and moves examples as
a tensor does, so that most code need not know which it has.

The output is one tensor, or an object whose `logits` are one, as models of transformers return.
"""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.utils import _pytree

from bayesieve.errors import UnsupportedModelError


@dataclass(frozen=True, eq=False)
class Inputs:
    """Several tensors, (n, ...) each, for one call of a model.

    Args:
        tensors: in the order of the arguments.
        names: of the arguments; None gives them by position.

    Example:
        >>> x = Inputs((torch.zeros(4, 3), torch.ones(4)), ("table", "age"))
        >>> len(x), [len(part) for part in x.split(3)], x[:2]
        (4, [3, 1], Inputs(table (2, 3) torch.float32, age (2,) torch.float32))
    """

    tensors: tuple[Tensor, ...]
    names: tuple[str, ...] | None = None

    def __len__(self) -> int:
        return len(self.tensors[0])

    def __getitem__(self, index: Any) -> "Inputs":
        return self.map(lambda tensor: tensor[index])

    def __repr__(self) -> str:
        shown = (f"{n} {tuple(t.shape)} {t.dtype}" for n, t in self.named.items())
        return f"Inputs({', '.join(shown)})"

    @property
    def named(self) -> dict[str, Tensor]:
        """The tensors by name; input_0, input_1, ... where they have none."""
        names = self.names or [f"input_{i}" for i in range(len(self.tensors))]
        return dict(zip(names, self.tensors, strict=True))

    @property
    def device(self) -> torch.device:
        """Where the tensors are."""
        return self.tensors[0].device

    @property
    def is_meta(self) -> bool:
        """Return whether the tensors have no numbers."""
        return self.tensors[0].is_meta

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.nbytes for tensor in self.tensors)

    def map(self, function: Callable[[Tensor], Tensor]) -> "Inputs":
        """The same arguments with another tensor in the place of each."""
        return Inputs(tuple(map(function, self.tensors)), self.names)

    def to(self, device: torch.device | str) -> "Inputs":
        """The same on another device."""
        return self.map(lambda tensor: tensor.to(device))

    def split(self, size: int) -> list["Inputs"]:
        """Parts of so many examples."""
        return [Inputs(p, self.names) for p in zip(*(t.split(size) for t in self.tensors))]  # noqa: B905 - of one length

    def arguments(self, module: nn.Module) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The positional and keyword arguments that a module is called with."""
        forward = inspect.signature(module.forward)
        try:
            if self.names is None:
                forward.bind(*self.tensors)
                return self.tensors, {}
            forward.bind(**self.named)
        except TypeError:
            return (self.tensors if self.names is None else self.named,), {}
        return (), self.named


Input = Tensor | Inputs
X = TypeVar("X", bound=Input)

# So that `vmap` and `torch.export` see the tensors inside.
_pytree.register_pytree_node(
    Inputs,
    lambda x: (list(x.tensors), x.names),
    lambda tensors, names: Inputs(tuple(tensors), names),
    serialized_type_name="bayesieve.Inputs",
)


def as_inputs(who: str, x: object) -> Input:
    """A tensor as it is; a tuple, list or mapping of tensors, (n, ...) each, as `Inputs`.

    Example:
        >>> as_inputs("predict", {"ids": torch.zeros(2, 5, dtype=torch.int64)})
        Inputs(ids (2, 5) torch.int64)
        >>> as_inputs("predict", (torch.zeros(2, 5), torch.zeros(3)))
        Traceback (most recent call last):
        ValueError: predict: the inputs must have one length, got 2 and 3 examples.
    """
    if isinstance(x, Tensor | Inputs):
        return x
    if isinstance(x, Mapping):
        values, names = list(x.values()), tuple(x)
        if not all(isinstance(name, str) and name.isidentifier() for name in names):
            raise TypeError(f"{who}: inputs must be named as arguments are, got {names}.")
    elif isinstance(x, tuple | list):
        values, names = list(x), None
    else:
        raise TypeError(
            f"{who}: x must be a tensor, or a tuple or dict of tensors, got {type(x).__name__}. "
            "Use torch.as_tensor."
        )
    wrong = next((type(value).__name__ for value in values if not isinstance(value, Tensor)), None)
    if wrong or not values:
        raise TypeError(
            f"{who}: inputs must be one or more tensors, (n, ...) each, got a {type(x).__name__} "
            f"with {f'a {wrong}' if wrong else 'nothing'} in it. Use torch.as_tensor for numbers, "
            "and leave out what is no tensor."
        )
    lengths = [value.shape[0] if value.dim() else 0 for value in values]
    if any(length != lengths[0] for length in lengths):
        shown = " and ".join(map(str, sorted(set(lengths))))
        raise ValueError(f"{who}: the inputs must have one length, got {shown} examples.")
    return Inputs(tuple(values), names)


def tensors_of(x: Input) -> tuple[Tensor, ...]:
    """All tensors of an input."""
    return (x,) if isinstance(x, Tensor) else x.tensors


def mapped(function: Callable[[Tensor], Tensor], x: X) -> X:
    """An input with another tensor in the place of each."""
    return cast(X, function(x) if isinstance(x, Tensor) else x.map(function))


def joined(inputs: Sequence[Input]) -> Input:
    """The examples of several inputs in one."""
    first = inputs[0]
    if isinstance(first, Tensor):
        return torch.cat([part for part in inputs if isinstance(part, Tensor)])
    columns = zip(*(tensors_of(part) for part in inputs), strict=True)
    return Inputs(tuple(map(torch.cat, columns)), first.names)


def shown(x: Input) -> str:
    """Shape and dtype for people.

    Example:
        >>> shown(torch.zeros(2, 3))
        'shape (2, 3) and torch.float32'
    """
    if isinstance(x, Tensor):
        return f"shape {tuple(x.shape)} and {x.dtype}"
    return ", ".join(f"{n} {tuple(t.shape)} {t.dtype}" for n, t in x.named.items())


def one_input(who: str, x: Input) -> Tensor:
    """The tensor; raises for several, which not everything can work with."""
    if isinstance(x, Tensor):
        return x
    raise UnsupportedModelError(
        f"{who}: works with one input tensor, this model has {len(x.tensors)}."
    )


def arguments(module: nn.Module, x: Input) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The positional and keyword arguments of a module for an input.

    A cache of what was read serves a text that is written word by word; here it is turned off.
    """
    args, kwargs = ((x,), {}) if isinstance(x, Tensor) else x.arguments(module)
    return args, {**kwargs, "use_cache": False} if _has_cache(type(module)) else kwargs  # type: ignore[arg-type]


@functools.lru_cache(maxsize=64)
def _has_cache(kind: type[nn.Module]) -> bool:
    return "use_cache" in inspect.signature(kind.forward).parameters


def call(module: nn.Module, x: Input) -> Tensor:
    """Run a module on an input; its output as one tensor.

    Example:
        >>> call(nn.Bilinear(3, 2, 4), Inputs((torch.zeros(5, 3), torch.zeros(5, 2)))).shape
        torch.Size([5, 4])
    """
    args, kwargs = arguments(module, x)
    return one_tensor(module(*args, **kwargs))


def logits_of(output: Any) -> Any:
    """The `logits` of an output that has them; others are returned as they are."""
    if isinstance(output, Tensor):
        return output
    if isinstance(output, Mapping):
        return output.get("logits", output)
    return getattr(output, "logits", output)


def one_tensor(output: object) -> Tensor:
    """The output itself, or its `logits`; raises if that is no tensor."""
    logits = logits_of(output)
    if isinstance(logits, Tensor):
        return logits
    what = type(output).__name__
    if isinstance(output, Mapping):
        what += f" with {', '.join(map(str, output))}"
    raise UnsupportedModelError(
        f"Network: the model must return one tensor, (n, outputs), or an object with `logits`, got "
        f"a {what}. Wrap it in a module whose forward returns the part that the likelihood needs."
    )
