"""A module and its likelihood, seen as a function of one flat weight vector.

`Network` keeps the module's structure, frozen parameters and initial buffers, but no trainable
weight: those live in whatever flat vector a caller brings. A posterior can therefore hold on to
its network without holding a second copy of the weights.
"""

import copy
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from bayesieve.core.inputs import (
    Input,
    Inputs,
    arguments,
    mapped,
    one_tensor,
)
from bayesieve.core.layout import Layout, RoleRule, default_role, layout_of
from bayesieve.core.likelihoods.base import Likelihood
from bayesieve.core.random import turn_if_free

Buffers = Mapping[str, Tensor]
Call = Callable[[Mapping[str, Tensor], Buffers, Any], Tensor]
NUMBERS_PREFIX = "likelihood."


@dataclass(frozen=True, eq=False)
class Network:
    """The function (w, x) -> output of an unmodified `nn.Module`.

    Args:
        skeleton: the module with its trainable parameters on the meta device. It is never run:
            copies of it are (`borrowed`), so that threads may use one network at the same time.
        likelihood: how outputs become densities.
        layout: the slice of w of each trainable tensor.
        device: where computation happens.
        dtype: of w.
        stands_for: on the meta device, the kind of device whose calls are rehearsed.
        example: two inputs on the CPU, (2, ...), by which the structure of the network is found:
            zeros, or of several tensors the first examples; None if no data were at hand.
    """

    skeleton: nn.Module
    likelihood: Likelihood
    layout: Layout
    device: torch.device
    dtype: torch.dtype
    stands_for: str = "cpu"
    example: Input | None = field(default=None, repr=False)
    _batched: list[bool] = field(default_factory=list, repr=False)

    @classmethod
    def of(
        cls, model: nn.Module, likelihood: Likelihood, rule: RoleRule = default_role
    ) -> "Network":
        """Describe a module; the module itself is neither changed nor referenced afterwards."""
        model = plain_model(model)
        layout = layout_of(model, rule).extended(
            {NUMBERS_PREFIX + name: value for name, value in likelihood.parameters().items()}
        )
        trainable = [p for p in model.parameters() if p.requires_grad]
        memo: dict[int, object] = {
            id(p): nn.Parameter(torch.empty_like(p, device="meta")) for p in trainable
        }
        skeleton = copy.deepcopy(model, memo)
        return cls(skeleton, likelihood, layout, trainable[0].device, trainable[0].dtype)

    def seeing(self, x: Input) -> "Network":
        """The same network with the shape of its inputs, (n, ...), noted as its example.

        Of several tensors one may be a mask, and a mask of zeros lets nothing through.
        """
        if isinstance(x, Inputs):
            x = x.map(lambda t: t[torch.arange(2) % len(t)].detach().cpu())
            return replace(self, example=x)
        dtype = self.dtype if x.is_floating_point() else x.dtype
        return replace(self, example=torch.zeros(2, *x.shape[1:], dtype=dtype))

    @cached_property
    def _names(self) -> dict[str, str]:
        return tied_names(self.skeleton)

    @cached_property
    def _idle(self) -> "_Idle":
        return _Idle()  # threads that come here together may make two: one is forgotten

    @contextmanager
    def borrowed(self) -> Iterator[nn.Module]:
        """A copy of the skeleton in eval mode that no other thread runs meanwhile.

        A call on other weights puts them into the module while it runs, so that a module shared
        by threads would mix their weights. There are as many copies as calls at the same time.
        Frozen parameters and buffers are shared, not copied.
        """
        try:
            module = self._idle.pop()
        except IndexError:
            tensors = (*self.skeleton.parameters(), *self.skeleton.buffers())
            memo: dict[int, object] = {id(tensor): tensor for tensor in tensors}
            module = copy.deepcopy(self.skeleton, memo).eval()
        try:
            yield module
        finally:
            self._idle.append(module)

    def weights_of(self, model: nn.Module) -> Tensor:
        """The trainable parameters of `model` and the likelihood's initial numbers, shape (d,)."""
        named = dict(plain_model(model).named_parameters())
        for name, value in self.likelihood.parameters().items():
            named[NUMBERS_PREFIX + name] = value.to(self.device, self.dtype)  # type: ignore[assignment]
        return self.layout.flatten(named)

    def buffers(self) -> dict[str, Tensor]:
        """Copies of the module's buffers as they were when the network was described."""
        return {name: value.detach().clone() for name, value in self.skeleton.named_buffers()}

    def to(self, device: torch.device | str) -> "Network":
        """The same network computing on another device."""
        device = torch.device(device)
        if device == self.device:
            return self
        skeleton = copy.deepcopy(self.skeleton)
        for module in skeleton.modules():
            for name, buffer in module._buffers.items():
                module._buffers[name] = None if buffer is None else buffer.to(device)
            for name, parameter in module._parameters.items():
                if parameter is not None and device.type == "meta":
                    module._parameters[name] = nn.Parameter(
                        parameter.to(device), parameter.requires_grad
                    )
                elif parameter is not None and not parameter.is_meta:
                    parameter.data = parameter.data.to(device)
        return Network(
            skeleton, self.likelihood, self.layout, device, self.dtype, example=self.example
        )

    def split(self, w: Tensor) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Views of w, shape (..., d): the module's parameters and the likelihood's numbers."""
        return parameters_and_numbers(self.layout.unflatten(w))

    def numbers(self, w: Tensor) -> dict[str, Tensor]:
        """The numbers that the likelihood learns: views of w, shape (..., d)."""
        return self.split(w)[1]

    def likelihood_at(self, w: Tensor) -> Likelihood:
        """The likelihood with its learned numbers fixed at those of w, shape (d,)."""
        return self.likelihood.frozen(self.numbers(w))

    def outputs(
        self, w: Tensor, x: Input, buffers: Buffers, row_buffers: Buffers | None = None
    ) -> Tensor:
        """Evaluate k weight vectors on n inputs in eval mode.

        Args:
            w: weight vectors, shape (k, d).
            x: inputs, shape (n, ...), shared by all k.
            buffers: module buffers (BatchNorm statistics), shared by all k.
            row_buffers: those that differ, (k, ...) each; they come before the shared ones.

        Returns:
            Outputs, shape (k, n, ...), without gradients.
        """
        differing, x = dict(row_buffers or {}), x.to(self.device)
        shared = {name: value for name, value in buffers.items() if name not in differing}
        kind = self.stands_for if self.device.type == "meta" else self.device.type
        with self.borrowed() as module, plain_attention, torch.no_grad():
            run, parameters = self.call_of(module), self.split(w)[0]

            def output(row: Mapping[str, Tensor], own: Buffers) -> Tensor:
                return run(row, {**shared, **own}, x)

            if len(w) > 1 and kind != "cpu" and self.is_batchable(x[:2]):
                return torch.vmap(output)(parameters, differing)
            rows = []
            for i in range(len(w)):
                row, own = (
                    {n: v[i] for n, v in group.items()} for group in (parameters, differing)
                )
                rows.append(output(row, own))
            return torch.stack(rows)

    def is_batchable(self, x: Input) -> bool:
        """Return whether the module runs under `torch.vmap` over its weights; tried once."""
        if not self._batched:
            w = torch.zeros(2, self.layout.size, device=self.device, dtype=self.dtype)
            parameters, _ = self.split(w)
            buffers = {
                name: value.expand(2, *value.shape).clone()
                for name, value in self.buffers().items()
            }
            x = mapped(lambda t: t.to(self.dtype) if t.is_floating_point() else t, x)
            x = mapped(lambda t: torch.cat([t, t]).expand(2, *([-1] * t.dim())), x)
            # Beside a fit in another thread in eval mode, where a module draws nothing.
            with turn_if_free() as taken, self.borrowed() as module, torch.no_grad():
                call = torch.vmap(self.call_of(module), randomness="different")
                try:
                    with torch.random.fork_rng(devices=[], enabled=taken):
                        module.train(taken)
                        call(parameters, buffers, x)
                    batched = True
                except (RuntimeError, NotImplementedError):  # for what vmap cannot batch
                    batched = False
                finally:
                    module.eval()
            if not taken:
                return batched
            self._batched.append(batched)
        return self._batched[0]

    def call_of(self, module: nn.Module) -> Call:
        """A borrowed module as a function of parameters and buffers by name, and of x, (n, ...)."""
        return partial(call_with, module, self._names)


class _Idle(deque[nn.Module]):
    """Copies of a skeleton that nobody runs now. They are made anew rather than stored."""

    def __reduce__(self) -> Any:
        return _Idle, ()


def parameters_and_numbers(
    tensors: Mapping[str, Tensor],
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Named tensors of a network in two: the module's, and the likelihood's by its names."""
    parameters, numbers = {}, {}
    for name, tensor in tensors.items():
        if name.startswith(NUMBERS_PREFIX):
            numbers[name.removeprefix(NUMBERS_PREFIX)] = tensor
        else:
            parameters[name] = tensor
    return parameters, numbers


def plain_model(model: nn.Module) -> nn.Module:
    """The module that `torch.compile` was given, or the argument itself.

    A compiled module has other parameter names, and compiles anew for every set of weights.
    """
    inner = getattr(model, "_orig_mod", None)
    return inner if isinstance(inner, nn.Module) else model


class _PlainAttention:
    """Keeps attention layers off their fused kernel for inference, and restores the setting.

    That kernel reads weights in aligned blocks, which views of a flat vector need not be (on a GPU
    it fails with a misaligned address), and `vmap` has no rule for it. Torch has one setting for
    all threads: the first that comes changes it, the last that leaves restores it.
    """

    def __init__(self) -> None:
        self._lock, self._inside, self._before = threading.Lock(), 0, True

    def __enter__(self) -> None:
        with self._lock:
            if self._inside == 0:
                self._before = torch.backends.mha.get_fastpath_enabled()
                torch.backends.mha.set_fastpath_enabled(False)
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                torch.backends.mha.set_fastpath_enabled(self._before)


plain_attention = _PlainAttention()


def tied_names(module: nn.Module) -> dict[str, str]:
    """The first name of every parameter, by each name it is registered under."""
    first = {id(p): name for name, p in module.named_parameters()}
    return {
        f"{prefix}.{leaf}" if prefix else leaf: first[id(p)]
        for prefix, owner in module.named_modules()
        for leaf, p in owner.named_parameters(recurse=False, remove_duplicate=False)
    }


def call_with(
    module: nn.Module,
    names: Mapping[str, str],
    parameters: Mapping[str, Tensor],
    buffers: Buffers,
    x: Input,
) -> Tensor:
    """Run a module on other parameters and buffers; tied parameters are given once.

    `functional_call` would tie them itself, but then leaves its arguments behind in a layer that
    is registered under two names.

    Args:
        module: what to run.
        names: its `tied_names`.
        parameters: by first name; those left out stay as they are.
        buffers: by name.
        x: the input.
    """
    everywhere = {name: parameters[first] for name, first in names.items() if first in parameters}
    args, kwargs = arguments(module, x)
    tensors = {**everywhere, **buffers}
    return one_tensor(functional_call(module, tensors, args, kwargs, tie_weights=False))


def materialise(network: Network, w: Tensor, buffers: Buffers) -> nn.Module:
    """A stand-alone module in eval mode holding one weight vector, shape (d,)."""
    parameters = network.split(w)[0]
    memo: dict[int, object] = {
        id(parameter): nn.Parameter(parameters[name].detach().clone())
        for name, parameter in network.skeleton.named_parameters()
        if parameter.is_meta
    }
    module = copy.deepcopy(network.skeleton, memo)
    with torch.no_grad():
        for name, buffer in module.named_buffers():
            buffer.copy_(buffers[name])
    return module.eval()


def is_hooked(module: nn.Module) -> bool:
    """Return whether calling a module runs hooks, which may do anything."""
    return bool(module._forward_hooks or module._forward_pre_hooks)


def sequential_layers(module: nn.Module, name: str = "") -> list[tuple[str, nn.Module]]:
    """Names and layers of an `nn.Sequential` in order, nested ones opened; no tracing.

    Any other module is one layer by itself. A layer that occurs twice is listed twice.

    Example:
        >>> model = nn.Sequential(nn.Sequential(nn.Linear(3, 2), nn.ReLU()), nn.Linear(2, 1))
        >>> [name for name, _ in sequential_layers(model)]
        ['0.0', '0.1', '1']
    """
    if type(module) is not nn.Sequential or is_hooked(module):
        return [(name, module)]
    prefix = f"{name}." if name else ""
    children = [(leaf, child) for leaf, child in module._modules.items() if child is not None]
    return [row for leaf, child in children for row in sequential_layers(child, prefix + leaf)]
