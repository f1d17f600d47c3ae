"""Low-rank adapters: what a trained network must change for new data, and nothing else.

A linear map W of the network stays as it is; beside it two thin ones are learned,

    y = W x + b + (α / r) U D x,   D (r, inputs), U (outputs, r),

with U = 0 at the start, so that the adapted network begins as the given one [Hu]. Beside a
convolution D is one of the same kind with r channels, and U mixes them point by point. Both are
ordinary layers: engines give them posteriors, the rest of the network is frozen and keeps none. A
rank is a unit between D and U, so `keep_units` and `GradualUnits` sieve ranks by their evidence as
they do units. Under a factorised posterior the mean of U D is the product of the means: `merged`
puts it into W, and the result is a network of the original's form.

Reference: [Hu].
"""

import copy
import fnmatch
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from bayesieve.checks import check_positive, did_you_mean
from bayesieve.core.layout import acts_as_linear, matrix_of

Target = Sequence[str | type[nn.Module]]
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_SHAPE = ("kernel_size", "stride", "padding", "dilation", "padding_mode")


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
        outputs, inputs = _shape(base)
        weight = base.weight
        assert isinstance(weight, Tensor)
        like: dict[str, Any] = {"bias": False, "device": weight.device, "dtype": weight.dtype}
        self.base = base.requires_grad_(False)
        self.down: nn.Module
        self.up: nn.Module
        if isinstance(base, _CONVOLUTIONS):
            kind = type(base)
            shape = {name: getattr(base, name) for name in _SHAPE}
            self.down = kind(inputs, rank, **shape, **like)
            self.up = kind(rank, outputs, 1, **like)
        else:
            self.down = nn.Linear(inputs, rank, **like)
            self.up = nn.Linear(rank, outputs, **like)
        nn.init.zeros_(self.up.get_parameter("weight"))
        self.scale = (rank if alpha is None else alpha) / rank

    def forward(self, x: Tensor) -> Tensor:
        """The adapted map at x, as the base takes and returns it."""
        adapted: Tensor = self.base(x) + self.scale * self.up(self.down(x))
        return adapted

    def merged(self) -> nn.Module:
        """The linear map with the low-rank part inside, of the base's own kind."""
        base = copy.deepcopy(self.base)
        with torch.no_grad():
            up, down = (part.get_parameter("weight").double() for part in (self.up, self.down))
            change = self.scale * up.flatten(1) @ down.flatten(1)
            conv = isinstance(base, _CONVOLUTIONS)
            weight = base.get_parameter("weight").detach() if conv else matrix_of(base)
            weight.copy_((weight.double() + change.view_as(weight)).to(weight.dtype))
        return base.requires_grad_(True)


def _adaptable(module: nn.Module) -> bool:
    """Return whether an adapter fits a module."""
    if isinstance(module, _CONVOLUTIONS):
        return type(module) in _CONVOLUTIONS and module.groups == 1
    plain = isinstance(module, nn.Linear)  # a class of its own may compute something else
    return type(module) is nn.Linear or (not plain and acts_as_linear(module))


def _shape(layer: nn.Module) -> tuple[int, int]:
    """Outputs and inputs of a linear map, channels of a convolution."""
    if isinstance(layer, _CONVOLUTIONS):
        return layer.out_channels, layer.in_channels
    outputs, inputs = matrix_of(layer).shape
    return outputs, inputs


def adapters(
    model: nn.Module,
    rank: int = 8,
    target: Target | None = None,
    *,
    alpha: float | None = None,
    whole: Target = (),
) -> nn.Module:
    """A copy of a trained network that learns low-rank changes of its linear maps alone.

    Args:
        model: the trained network; it is not changed.
        rank: r of every adapter, at most the smaller side of its matrix.
        target: shell patterns on names of modules, or types; None takes every linear map and
            convolution that is not in `whole`.
        alpha: how much the low-rank parts count, times 1/r; None is r.
        whole: modules whose parameters are all learned, such as a new last layer.

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
    modules = dict(adapted.named_modules())
    learned = {name: module for name, module in modules.items() if _wanted(name, module, whole)}
    _check_patterns("whole", whole, modules, "module")
    for module in learned.values():
        module.requires_grad_(True)
    linear = {name: module for name, module in modules.items() if _adaptable(module)}
    _check_patterns("target", target or (), linear, "linear map")
    chosen = {
        name: layer
        for name, layer in linear.items()
        if _wanted(name, layer, target) and not layer.weight.requires_grad
    }
    if not chosen:
        raise ValueError("adapters: the model has no linear map that target names.")
    for name, layer in chosen.items():
        adapter = Adapter(layer, min(rank, *_shape(layer)), alpha)
        adapter.train(layer.training)
        if not name:
            return adapter
        parent, _, leaf = name.rpartition(".")
        setattr(adapted.get_submodule(parent), leaf, adapter)
    return adapted


def _check_patterns(what: str, target: Target, modules: Mapping[str, Any], kind: str) -> None:
    for pattern in target:
        if isinstance(pattern, str) and not any(fnmatch.fnmatchcase(n, pattern) for n in modules):
            raise ValueError(
                f"adapters: {what} {pattern!r} fits no {kind} of the model; they are "
                f"{', '.join(list(modules)[:8])}.{did_you_mean(pattern, tuple(modules))}"
            )


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
    """A copy of an adapted network with every low-rank part added to the map it belongs to.

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
