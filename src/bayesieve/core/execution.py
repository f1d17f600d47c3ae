"""The execution of a run: `fit` decides it once; no engine asks.

A function of flat tensors that `kernel` decorates is a definition: it says plainly what is
computed. `Problem.run(function)(...)` runs it as it stands, compiled, or by a twin in C, whichever
the `Backend` of the run does. The backend here is the reference for all others: they are in `fast`,
and agree with it up to rounding.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, cast

import torch
from torch import Generator, Tensor, nn

from bayesieve.core.layout import Patterns

if TYPE_CHECKING:
    from bayesieve.core.workspace import Workspace

F = TypeVar("F", bound=Callable[..., Any])
Precision = Literal["float32", "bf16"]
PRECISIONS: tuple[Precision, ...] = ("float32", "bf16")
KeptMoments = Literal["float32", "bf16"]
KEPT_MOMENTS: tuple[KeptMoments, ...] = ("float32", "bf16")
_PART = 1 << 16  # weights
WHOLE = slice(0, 1 << 62)  # all columns, as one part
_REHEARSED = 1000  # parts at most, on the meta device


@dataclass(frozen=True)
class Traits:
    """Traits of a definition, by which a backend runs it.

    Args:
        twin: name of what may replace it (`fast.twins`); "" for none.
        in_parts: whether it takes the columns of a state some at a time: its first argument is a
            state with `mean` and `log_std`, and a slice is added as the last.
        compiled: whether it may be compiled.
        small: whether it has few numbers or operations. Where steps are in C, compiling it would
            take the seconds that C saves.
        any_shape: whether it is compiled once for tensors of several shapes.
    """

    twin: str = ""
    in_parts: bool = False
    compiled: bool = True
    small: bool = False
    any_shape: bool = False


TWINS: dict[str, Callable[..., Any]] = {}  # by name; importing `fast.twins` fills it
_TRAITS: dict[Any, Traits] = {}
_UNDECORATED = Traits()


def kernel(twin: str = "", **traits: bool) -> Callable[[F], F]:
    """Decorate a definition that a `Backend` may run in another way.

    Example:
        >>> @kernel("double", small=True)
        ... def double_(x):
        ...     x.mul_(2)
        >>> traits_of(double_).twin, traits_of(double_).small
        ('double', True)
    """

    def note(function: F) -> F:
        _TRAITS[function] = Traits(twin, **traits)
        return function

    return note


def traits_of(function: Callable[..., Any]) -> Traits:
    """Return the traits of a function; one that is not decorated is compiled, and has no twin."""
    return _TRAITS.get(function, _UNDECORATED)


def by_twin(function: F, otherwise: Callable[[], F] | None = None) -> F:
    """A definition by its twin, where that covers the case, else as `otherwise` says, or plainly.

    Args:
        function: the definition.
        otherwise: makes what runs it elsewhere.
    """
    twin = TWINS.get(traits_of(function).twin)

    def run(*args: Any) -> Any:
        result = NotImplemented if twin is None else twin(*args)
        if result is not NotImplemented:
            return result
        return (function if otherwise is None else otherwise())(*args)

    return cast(F, run)


class Backend:
    """Runs definitions as they stand.

    Attributes:
        dense: whether layers with noise on activations need contiguous tensors.
    """

    dense = False

    def run(self, function: F) -> F:
        """The function, or what computes the same."""
        return in_parts(function) if traits_of(function).in_parts else function

    def noise(self, like: Tensor, generator: Generator) -> Tensor:
        """Noise of the shape of `like`: normals, or keys of normals (`random.as_normals`).

        A CPU fills images with their channels last value by value, unless it is shown their memory
        as one row.
        """
        noise = torch.empty_like(like)
        row = noise
        if like.device.type == "cpu" and like.dim() > 2 and not noise.is_contiguous():
            row = noise.as_strided((noise.numel(),), (1,))
        row.normal_(generator=generator)
        return noise

    def in_layers(self, precision: Precision) -> "Backend | None":
        """Return what runs noise on activations in one step of autograd per layer, or None.

        Args:
            precision: of the network.
        """
        return None

    def fused(self, layer: nn.Module) -> Callable[..., Tensor | None] | None:
        """Return what draws the outputs of a noisy layer in one step of autograd, or None."""
        return None

    def product_dtype(self, layer: nn.Module) -> torch.dtype:
        """Dtype of products whose third digit does not count."""
        weight: Tensor = layer.weight  # type: ignore[assignment]
        return weight.dtype

    def network(self, module: nn.Module) -> nn.Module:
        """The network of one model, or what computes the same."""
        return module

    def members(self, skeleton: nn.Module) -> Callable[..., Tensor] | None:
        """A function of parameters, (k, ...) each, and own inputs of k models; None uses `vmap`."""
        return None


PLAIN = Backend()


def in_parts(function: Callable[..., Any]) -> Any:
    """A definition that takes parts, as a function of everything else.

    Every operation of it makes a tensor as large as its input, so that parts need less memory, and
    stay in the cache of a CPU.
    """

    def all_parts(state: Any, *args: Any) -> None:
        for part in _parts(state.mean, state.log_std.shape[1]):
            function(state, *args, part)

    return all_parts


def _parts(w: Tensor, n: int) -> list[slice]:
    """Columns of w, (k, d), to take at a time; the first n are Bayesian."""
    k, d = w.shape
    if w.device.type not in ("cpu", "meta") or k * d <= _PART:
        return [slice(0, d)]
    size = max(_PART // k, 1)
    if w.is_meta:  # a rehearsal may have any number of weights, and need not be exact
        size = max(size, d // _REHEARSED)
    starts = [*range(0, n, size), *range(n, d, size)]
    return [slice(a, b) for a, b in pairwise([*starts, d])]


class Sharing(Protocol):
    """Processes that share the examples of every step; `training.distributed.Ranks` are some."""

    rank: int  # of this process, from 0
    size: int  # number of processes

    @property
    def noise(self) -> Generator:
        """Source of what each process draws for itself: noise of weights and of activations."""

    @property
    def own_noise(self) -> bool:
        """Return whether each process draws weights of its own."""

    def part(self, index: Tensor) -> Tensor:
        """The places, of those of a step, (n,) or (k, n), that this process takes."""

    def sum(self, *tensors: Tensor) -> list[Tensor]:
        """The sum of each tensor over the processes, all in one message; valid until the next."""


@dataclass(frozen=True)
class Formats:
    """Number formats of a run. Weights, gradients and likelihoods keep the dtype of the model.

    Args:
        network: of the network in a training step.
        full: modules that stay in the dtype of the model, by name pattern or type.
        moments: of what Adam keeps (engines/optimisers.py).
    """

    network: Precision = "float32"
    full: Patterns = ()
    moments: KeptMoments = "float32"

    @property
    def moments_dtype(self) -> torch.dtype | None:
        """Dtype of the moments that Adam keeps; None is that of the weights."""
        return torch.bfloat16 if self.moments == "bf16" else None


@dataclass(frozen=True)
class Bounds:
    """Bounds of a step.

    Args:
        clip_norm: on the norm of the log-likelihood gradient for means and stds per example; None
            has no bound.
        micro_batch: most examples that go through the network at once; the gradients of the parts
            of a batch are added. None takes the batch whole.

    Example:
        >>> grad = torch.tensor([[3.0, 4.0]])
        >>> Bounds(clip_norm=0.5).clip_(2, grad)  # the norm is 5, the bound 2 · 0.5
        >>> grad
        tensor([[0.6000, 0.8000]])
    """

    clip_norm: float | None = None
    micro_batch: int | None = None

    def clip_(self, n_data: int, *grads: Tensor, along: Tensor | None = None) -> None:
        """Scale gradients, each (k, d), so that their joint norm per example is <= clip_norm.

        What comes `along`, (k, n), is scaled by the same factor.
        """
        if self.clip_norm is None:
            return
        square = torch.stack([grad.square().sum(1) for grad in grads]).sum(0)
        factor = (self.clip_norm * n_data / square.sqrt()).clamp(max=1)[:, None]
        for grad in grads if along is None else (*grads, along):
            grad.mul_(factor)


@dataclass(frozen=True)
class Execution:
    """Choices for the steps of a run.

    Args:
        backend: runs definitions and networks.
        formats: of numbers.
        bounds: on gradients and on the examples in the network at once.
        sharing: the processes that share the examples of a step; None for one process.
    """

    backend: Backend = PLAIN
    formats: Formats = Formats()
    bounds: Bounds = Bounds()
    sharing: Sharing | None = None

    def takes_whole(self, n: int) -> bool:
        """Return whether n examples go through at once, and their gradients need no sum."""
        most, clip = self.bounds.micro_batch, self.bounds.clip_norm
        return (most is None or n <= most) and clip is None and self.sharing is None

    def source(self, generator: Generator) -> Generator:
        """Where a step draws what its processes need not share; `generator` in one process."""
        return generator if self.sharing is None else self.sharing.noise

    def summed(self, space: "Workspace", share: float, *tensors: Tensor) -> list[Tensor]:
        """Sums of tensors over the processes that share a batch; running statistics are averaged.

        In one process the tensors themselves.

        Args:
            space: with the running statistics.
            share: of this process in the examples.
            tensors: of any shapes.
        """
        if self.sharing is None:
            return list(tensors)
        kept = [space.all_buffers()[name] for name in space.norm_names]
        sums = self.sharing.sum(*tensors, *(value * share for value in kept))
        for value, mean in zip(kept, sums[len(tensors) :], strict=True):
            value.copy_(mean)
        return sums[: len(tensors)]
