"""Low-rank adapters: what a trained network must change for new data, and nothing else.

A linear map W of the network stays as it is; beside it two thin ones are learned,

    y = W x + b + (α / r) U D x,   D (r, inputs), U (outputs, r),

with U = 0 at the start, so that the adapted network begins as the given one [Hu]. D and U are
ordinary linear layers: engines give them posteriors, the rest of the network is frozen and keeps
none. A rank is a unit between D and U, so `keep_units` and `GradualUnits` sieve ranks by their
evidence as they do units. Under a factorised posterior the mean of U D is the product of the means:
`merged` puts it into W, and the result is a network of the original's form.

Reference: [Hu].
"""

import copy
import fnmatch
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from bayesieve.checks import check_positive, did_you_mean
from bayesieve.nets.linear import is_linear, matrix_of

Target = Sequence[str | type[nn.Module]]


class Adapter(nn.Module):
    """A frozen linear map and a trainable one of low rank beside it.

    Args:
        base: the linear map; its parameters are frozen.
        rank: r.
        alpha: α, how much the low-rank part counts; α / r multiplies it.

    Example:
        >>> adapter = Adapter(nn.Linear(3, 2), rank=1)
        >>> x = torch.ones(1, 3)
        >>> torch.equal(adapter(x), adapter.base(x))  # nothing is learned yet
        True
    """

    def __init__(self, base: nn.Module, rank: int, alpha: float | None = None) -> None:
        super().__init__()
        check_positive("Adapter", rank=rank, alpha=rank if alpha is None else alpha)
        outputs, inputs = matrix_of(base).shape
        weight = base.weight
        assert isinstance(weight, Tensor)
        self.base = base.requires_grad_(False)
        self.down = nn.Linear(inputs, rank, bias=False, device=weight.device, dtype=weight.dtype)
        self.up = nn.Linear(rank, outputs, bias=False, device=weight.device, dtype=weight.dtype)
        nn.init.zeros_(self.up.weight)
        self.scale = (rank if alpha is None else alpha) / rank

    def forward(self, x: Tensor) -> Tensor:
        """The adapted map at x, (..., inputs) to (..., outputs)."""
        found: Tensor = self.base(x) + self.scale * self.up(self.down(x))
        return found

    def merged(self) -> nn.Module:
        """The linear map with the low-rank part inside, of the base's own kind."""
        base = copy.deepcopy(self.base)
        with torch.no_grad():
            change = self.scale * (self.up.weight.double() @ self.down.weight.double())
            matrix = matrix_of(base)
            matrix.copy_((matrix.double() + change).to(matrix.dtype))
        return base.requires_grad_(True)


def adapters(
    model: nn.Module, rank: int = 8, target: Target | None = None, *, alpha: float | None = None
) -> nn.Module:
    """A copy of a trained network that learns low-rank changes of its linear maps alone.

    Args:
        model: the trained network; it is not changed.
        rank: r of every adapter, at most the smaller side of its matrix.
        target: shell patterns on names of modules, or types; None takes every linear map.
        alpha: how much the low-rank parts count, times 1/r; None is r.

    Returns:
        The network with `Adapter`s, all other parameters frozen. Give it to `Problem`.

    Example:
        >>> model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))
        >>> small = adapters(model, rank=2, target=("0",))
        >>> [name for name, p in small.named_parameters() if p.requires_grad]
        ['0.down.weight', '0.up.weight']
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"adapters: model must be a nn.Module, got {type(model).__name__}.")
    check_positive("adapters", rank=rank)
    adapted = copy.deepcopy(model).requires_grad_(False)
    linear = {name: module for name, module in adapted.named_modules() if is_linear(module)}
    chosen = {name: layer for name, layer in linear.items() if _wanted(name, layer, target)}
    for pattern in target or ():
        if isinstance(pattern, str) and not any(fnmatch.fnmatchcase(n, pattern) for n in linear):
            raise ValueError(
                f"adapters: target {pattern!r} fits no linear map of the model; they are "
                f"{', '.join(list(linear)[:8])}.{did_you_mean(pattern, tuple(linear))}"
            )
    if not chosen:
        raise ValueError("adapters: the model has no linear map that target names.")
    for name, layer in chosen.items():
        adapter = Adapter(layer, min(rank, *matrix_of(layer).shape), alpha)
        adapter.train(layer.training)
        if not name:
            return adapter
        parent, _, leaf = name.rpartition(".")
        setattr(adapted.get_submodule(parent), leaf, adapter)
    return adapted


def _wanted(name: str, layer: nn.Module, target: Target | None) -> bool:
    if target is None:
        return True
    return any(
        fnmatch.fnmatchcase(name, pattern)
        if isinstance(pattern, str)
        else isinstance(layer, pattern)
        for pattern in target
    )


def merged(model: nn.Module) -> nn.Module:
    """A copy of an adapted network with every low-rank part inside the map it stands beside.

    Args:
        model: of `adapters`, or `posterior.to_module()` of a posterior over it.

    Example:
        >>> model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))
        >>> plain = merged(adapters(model, rank=2))
        >>> list(plain.state_dict()) == list(model.state_dict())
        True
    """
    if isinstance(model, Adapter):
        return model.merged()
    plain = copy.deepcopy(model)
    for name, module in list(plain.named_modules()):
        if isinstance(module, Adapter):
            parent, _, leaf = name.rpartition(".")
            setattr(plain.get_submodule(parent), leaf, module.merged())
    return plain
