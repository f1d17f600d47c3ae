"""The hot path: k networks whose parameters are views into one flat weight buffer.

Writing a draw into `weights` and asking for the gradient is the whole cost of a sample: nothing is
split or concatenated in the graph. With k = 1 the module itself runs on views without a population
axis; with k > 1 it runs once under `vmap`, or, where the module cannot be batched, once per member.
Where every model has its own examples and the network is a plain sequence of linear layers, each
layer is one batched product instead: `vmap` costs twice as much for small networks, where most of
the time goes into dispatch.

`Execution` says how steps are computed. In bfloat16 only the network of a training step runs, less
the modules named in `full_precision`. Weights, gradients, likelihoods and the arithmetic of the
engine stay in the dtype of the model, and predictions are made in it.
"""

import copy
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import pairwise
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import torch
from torch import Generator, Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.utils._pytree import tree_map

from bayesieve.core.batch import Batch, weighted_sum
from bayesieve.core.inputs import Input, arguments, one_input, one_tensor
from bayesieve.core.layout import Patterns, is_named
from bayesieve.core.local import EAGER, IN_C, LocalLayer, Passes, localise, passes_of, perturbed
from bayesieve.core.network import (
    Network,
    call_with,
    is_hooked,
    parameters_and_numbers,
    sequential_layers,
    tied_names,
)
from bayesieve.core.noise import generator_on

Precision = Literal["float32", "bf16"]
PRECISIONS: tuple[Precision, ...] = ("float32", "bf16")
KeptMoments = Literal["float32", "bf16"]
KEPT_MOMENTS: tuple[KeptMoments, ...] = ("float32", "bf16")
Layers = Sequence[tuple[str, nn.Module]]
ENTRYWISE = (
    nn.Identity, nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.CELU, nn.SELU, nn.GELU, nn.SiLU,
    nn.Mish, nn.Tanh, nn.Tanhshrink, nn.Sigmoid, nn.LogSigmoid, nn.Hardtanh, nn.Hardsigmoid,
    nn.Hardswish, nn.Hardshrink, nn.Softplus, nn.Softshrink, nn.Softsign, nn.Threshold,
)  # fmt: skip
_STATISTICS = ("running_mean", "running_var")
_PART = 1 << 16  # weights
_REHEARSED = 1000  # parts at most, on the meta device
_LARGEST_COUNTED = (32 << 20) - (1 << 16)  # bytes of a block, by which glibc sets its bounds


class Sharing(Protocol):
    """Processes that share the examples of every step; `training.distributed.Ranks` are some."""

    rank: int  # of this process, from 0
    size: int  # number of processes

    @property
    def noise(self) -> Generator:
        """Source of what each process draws for itself: noise of weights and of activations."""

    @property
    def own_noise(self) -> bool:
        """Whether each process draws weights of its own."""

    def part(self, index: Tensor) -> Tensor:
        """The places, of those of a step, (n,) or (k, n), that this process takes."""

    def sum(self, *tensors: Tensor) -> list[Tensor]:
        """The sum of each tensor over the processes, all in one message; valid until the next."""


@dataclass(eq=False)
class Execution:
    """How the steps of a run are computed.

    Args:
        precision: of the network in a training step.
        full_precision: modules that stay in the dtype of the model, by name pattern or type.
        compiled: whether elementwise functions of flat tensors are compiled.
        native: whether draws, steps and moves of chains run in C (`core.native`).
        clip_norm: bound on the norm of the log-likelihood gradient for means and stds per example;
            None has no bound.
        micro_batch: most examples that go through the network at once; the gradients of the parts
            of a batch are added. None takes the batch whole.
        moments: what Adam keeps: moments in the dtype of the weights, or in "bf16"
            (engines/optimisers.py).
        network_compiled: whether the network of one model is compiled too.
        sharing: the processes that share the examples of a step; None for one process.

    Example:
        >>> grad = torch.tensor([[3.0, 4.0]])
        >>> Execution(clip_norm=0.5).clip_(2, grad)  # the norm is 5, the bound 2 · 0.5
        >>> grad
        tensor([[0.6000, 0.8000]])
    """

    precision: Precision = "float32"
    full_precision: Patterns = ()
    compiled: bool = False
    native: bool = False
    clip_norm: float | None = None
    micro_batch: int | None = None
    network_compiled: bool = False
    moments: KeptMoments = "float32"
    sharing: Sharing | None = None
    _kernels: dict[Any, Callable[..., Any]] = field(default_factory=dict, init=False, repr=False)

    def kernel(
        self, function: Callable[..., Any], *, small: bool = False, any_shape: bool = False
    ) -> Callable[..., Any]:
        """The elementwise function, compiled when `compiled` is set.

        One of few numbers or few operations (`small`) is not, where steps are in C: compiling it
        would take the seconds that C saves, and a call costs no less. One of tensors of several
        shapes (`any_shape`) is compiled once for all of them.
        """
        if not self.compiled or (small and self.native):
            return function
        if function not in self._kernels:
            self._kernels[function] = torch.compile(function, dynamic=any_shape)
        return self._kernels[function]

    def parts(self, w: Tensor, n: int) -> list[slice]:
        """Columns of w, (k, d), for a kernel to take at a time; the first n are Bayesian.

        A compiled kernel, or a GPU's, takes all. Elsewhere every operation of a kernel makes a
        tensor as large as its input, so that parts need less memory, and stay in the cache.
        """
        k, d = w.shape
        if self.compiled or w.device.type not in ("cpu", "meta") or k * d <= _PART:
            return [slice(0, d)]
        size = max(_PART // k, 1)
        if w.is_meta:  # a rehearsal may have any number of weights, and need not be exact
            size = max(size, d // _REHEARSED)
        starts = [*range(0, n, size), *range(n, d, size)]
        return [slice(a, b) for a, b in pairwise([*starts, d])]

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

    @property
    def moments_dtype(self) -> torch.dtype | None:
        """Dtype of the moments that Adam keeps; None is that of the weights."""
        return torch.bfloat16 if self.moments == "bf16" else None

    def takes_whole(self, n: int) -> bool:
        """Whether the gradients of n examples are used as autograd makes them: no sum, no bound."""
        one = self.micro_batch is None or n <= self.micro_batch
        return one and self.clip_norm is None and self.sharing is None

    def source(self, generator: Generator) -> Generator:
        """Where a step draws what its processes need not share; `generator` in one process."""
        return generator if self.sharing is None else self.sharing.noise


def evaluate_in(
    precision: Precision,
    call: Callable[[Any], Tensor],
    x: Any,
    like: Tensor,
    *,
    images_last: bool,
) -> Tensor:
    """Run a network, its matrix products and convolutions in bfloat16 if asked.

    Args:
        precision: "float32" changes nothing, whatever the dtype of the model.
        call: the network.
        x: its input, (n, ...), of any dtype: tokens too.
        like: weights of the model, whose dtype the result has.
        images_last: whether to lay images (n, c, h, w) out with their channels last, which is what
            bfloat16 convolutions on a GPU are fastest with.

    Example:
        >>> call, tokens = torch.nn.Embedding(5, 2), torch.arange(3)
        >>> evaluate_in("bf16", call, tokens, call.weight, images_last=False).dtype
        torch.float32
    """
    if precision == "float32":
        return call(x)
    if images_last and isinstance(x, Tensor) and x.dim() == 4:
        x = x.contiguous(memory_format=torch.channels_last)
    kind = "cpu" if like.is_meta else like.device.type  # rehearsals count all as full precision
    with torch.autocast(kind, torch.bfloat16):
        output = call(x)
    return output.to(like.dtype)


def keep_full_precision_(module: nn.Module, patterns: Patterns, like: Tensor) -> None:
    """Let modules run in the dtype of the weights `like`, inside a network that runs in bfloat16.

    Example:
        >>> net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
        >>> keep_full_precision_(net, ("1",), net[0].weight)
        >>> with torch.autocast("cpu", torch.bfloat16):
        ...     net[0](torch.ones(1, 2)).dtype, net(torch.ones(1, 2)).dtype
        (torch.bfloat16, torch.float32)
    """
    kind = "cpu" if like.is_meta else like.device.type
    for name, layer in module.named_modules():
        if name and is_named(name, layer, patterns):
            layer.forward = _in_full(layer.forward, kind, like.dtype)


def _in_full(forward: Callable[..., Any], device: str, dtype: torch.dtype) -> Callable[..., Any]:
    def full(value: Any) -> Any:
        return value.to(dtype) if isinstance(value, Tensor) and value.is_floating_point() else value

    def run(*args: Any, **options: Any) -> Any:
        with torch.autocast(device, enabled=False):
            return forward(*tree_map(full, args), **tree_map(full, options))

    return run


class Piece(NamedTuple):
    """Gradients for the entries start to stop of w, (k, ...) each; None where all are 0.

    `is_brief`: the variances of the tensor, and the gradients for them, are in bfloat16.
    """

    grad: Tensor | None
    variance_grad: Tensor | None
    start: int
    stop: int
    is_brief: bool = False


@dataclass
class Draw:
    """Weights at which k networks are evaluated, and the gradients there.

    With noise on activations `weights` has the means and `variances` the variances of layers that
    add it, and `variance_grads` the gradients for these; both are None otherwise. All are (k, d).
    `brief_variances` are the variances in bfloat16, where some layers multiply them in it.

    Gradients are buffers of the workspace, or, `in_pieces`, the tensors that autograd made, one or
    two for each tensor of the network, which saves a copy and its memory. Steps in C read them
    where they are.

    Where every process draws weights of its own, `centre` is what they spread around, (k, n) of the
    Bayesian ones, and `spread_grads` the sum over the processes of grads · (weights - centre): a
    mean of gradients does not say it.
    """

    weights: Tensor
    grads: Tensor | None = None
    variances: Tensor | None = None
    brief_variances: Tensor | None = None
    variance_grads: Tensor | None = None
    in_pieces: bool = False
    pieces: list[Piece] | None = None
    centre: Tensor | None = None
    spread_grads: Tensor | None = None

    def take_pieces(self) -> list[Piece]:
        """The gradients as pieces, in order; what autograd made is freed with the result."""
        pieces, self.pieces = self.pieces, None
        if pieces is None:
            assert self.grads is not None
            pieces = [Piece(self.grads, self.variance_grads, 0, self.weights.shape[1])]
        return pieces


class Workspace:
    """Weight and gradient buffers of k models, and the module evaluated on them.

    Args:
        network: the function to evaluate.
        n_models: k.
        local: whether Linear and Conv layers add their noise to activations; `variances` then
            exist, of shape (k, d).
        execution: how steps are computed; buffers and likelihood keep the model's dtype.
        warmth: of the run, scalar (`Likelihood.warm_log_prob`); None is 0.
    """

    def __init__(
        self,
        network: Network,
        n_models: int,
        *,
        local: bool = False,
        execution: Execution | None = None,
        warmth: Tensor | None = None,
    ) -> None:
        self.network = network
        self.warmth = torch.zeros((), device=network.device) if warmth is None else warmth
        self.execution = execution = execution or Execution()
        self.precision: Precision = execution.precision
        self.n_models = n_models
        self.norm_names = statistics_names(network)
        shape = (n_models, network.layout.size)
        if network.device.type == "cpu":
            keep_freed_memory()
        self.weights = torch.zeros(shape, device=network.device, dtype=network.dtype)
        self.variances = torch.zeros_like(self.weights) if local else None
        self.brief_variances: Tensor | None = None
        self._brief_names: frozenset[str] = frozenset()  # of weights with variances in bfloat16
        self._remembered: list[tuple[weakref.ref[Tensor], int]] = []
        self._owner_of: dict[str, str] = {}
        self._noise_source = generator_on(network.device)
        leaves, skeleton = self._views(self.weights), network.skeleton
        if self.variances is not None:
            passes = self._passes() if n_models == 1 else EAGER
            whole = passes is not EAGER and self.precision == "float32"
            skeleton, self._owner_of = localise(
                network, lambda: self._noise_source, passes, one_node=whole
            )
            variances = self._views(self.variances)
            leaves |= {name: variances[owner] for name, owner in self._owner_of.items()}
            leaves |= self._brief_views(skeleton)
        leaves = {name: nn.Parameter(view) for name, view in leaves.items()}
        self._inputs = dict(leaves)
        self._leaves, self._numbers = parameters_and_numbers(leaves)
        self.module, self._buffers = self._build(skeleton)
        self._names = tied_names(self.module)
        if self.precision != "float32":
            keep_full_precision_(self.module, execution.full_precision, self.weights)
        compiled = n_models == 1 and execution.network_compiled
        self._call = torch.compile(self.module, dynamic=False) if compiled else self.module
        scalar = all(value.dim() == 1 for value in self._numbers.values())  # one number per model
        plain = n_models > 1 and scalar and self.precision == "float32"
        self._layers = plain_layers(skeleton) if plain else None

    def _brief_views(self, skeleton: nn.Module) -> dict[str, Tensor]:
        """Views of `brief_variances`, made here, for layers that multiply variances in bfloat16."""
        named = dict(skeleton.named_parameters())
        brief = [name for name in self._owner_of if named[name].dtype == torch.bfloat16]
        if not brief or self.variances is None or self.network.dtype == torch.bfloat16:
            return {}
        self.brief_variances = torch.zeros_like(self.variances, dtype=torch.bfloat16)
        views = self._views(self.brief_variances)
        self._brief_names = frozenset(self._owner_of[name] for name in brief)
        return {name: views[self._owner_of[name]] for name in brief}

    def _passes(self) -> Passes:
        """How a single model with noise on activations goes over them."""
        execution = self.execution
        if execution.native and self.precision == "float32":
            return IN_C
        if self.network.device.type == "cuda" and not execution.network_compiled:
            return passes_of(partial(execution.kernel, any_shape=True))
        return EAGER

    @cached_property
    def grads(self) -> Tensor:
        """Gradient buffer, (k, d), made on first use: steps in C may do without."""
        return torch.zeros_like(self.weights)

    @cached_property
    def variance_grads(self) -> Tensor | None:
        """Gradient buffer for the variances, (k, d), made on first use."""
        return None if self.variances is None else torch.zeros_like(self.variances)

    @cached_property
    def _grad_views(self) -> dict[str, Tensor]:
        """Views of the gradient buffers by the name of the leaf."""
        views = self._views(self.grads)
        if self.variance_grads is not None:
            for_variances = self._views(self.variance_grads)
            views |= {name: for_variances[owner] for name, owner in self._owner_of.items()}
        return views

    @property
    def local_names(self) -> frozenset[str]:
        """Tensors of layers that add their noise to activations."""
        return frozenset(self._owner_of.values())

    def bind(self, generator: Generator) -> None:
        """Draw activation noise from this generator from now on."""
        self._noise_source = generator

    @property
    def draw(self) -> Draw:
        """The buffers of a draw, without gradients yet."""
        return Draw(self.weights, None, self.variances, self.brief_variances)

    def remember(self, *tensors: Tensor) -> None:
        """Remember these tensors as they are now, without keeping them alive, and no others."""
        self._remembered = [(weakref.ref(x), x._version) for x in tensors]

    def are_unchanged(self, *tensors: Tensor) -> bool:
        """Whether these are the tensors that are remembered, and torch has not changed them since.

        Torch does not notice what C writes through addresses: a caller of such C must call
        `remember` as well.
        """
        return len(tensors) == len(self._remembered) and all(
            seen() is now and version == now._version
            for (seen, version), now in zip(self._remembered, tensors, strict=True)
        )

    def buffers(self, member: int) -> dict[str, Tensor]:
        """Copies of one member's module buffers."""
        return {name: value[member].detach().clone() for name, value in self._buffers.items()}

    def all_buffers(self) -> dict[str, Tensor]:
        """The module buffers themselves, each with a leading axis of k."""
        return self._buffers

    def statistics(self) -> Tensor | None:
        """Running statistics of the normalisation layers, (k, b); None where there are none."""
        return flat_statistics(self.norm_names, self._buffers) if self.norm_names else None

    def value_and_grad(self, batch: Batch, scale: float) -> Tensor:
        """Fill `grads` with the gradient of scale · Σ log p(y | x, w); return the values, (k,).

        The sum is over the batch; its micro-batches are taken one after another.
        """
        total: Tensor | None = None
        for part in batch.parts(self.execution.micro_batch):
            log_lik, grads = self._differentiate(part, scale)
            pairs = list(zip(self._grad_views.values(), grads, strict=True))
            used = [(view, g) for view, g in pairs if g is not None]
            into = torch._foreach_copy_ if total is None else torch._foreach_add_
            into([view for view, _ in used], [g for _, g in used])
            if total is None:
                for view, g in pairs:
                    if g is None:  # a layer this call did not use
                        view.zero_()
            total = log_lik if total is None else total + log_lik
        assert total is not None
        return total

    def value_and_pieces(self, batch: Batch, scale: float) -> tuple[Tensor, list[Piece]]:
        """The same, with the gradients as autograd made them; the batch is taken whole."""
        log_lik, grads = self._differentiate(batch, scale)
        whole = [None if g is None else g.contiguous() for g in grads]
        by_name = dict(zip(self._inputs, whole, strict=True))
        for_variance = {owner: by_name[name] for name, owner in self._owner_of.items()}
        slices = self.network.layout.slices
        pieces = []
        for name, part in slices.items():
            tensors = (by_name[name], for_variance.get(name))
            pieces.append(Piece(*tensors, part.start, part.stop, name in self._brief_names))
        return log_lik, pieces

    def _differentiate(self, batch: Batch, scale: float) -> tuple[Tensor, Sequence[Tensor | None]]:
        """Values, (k,), and the gradients of all inputs; None for those not used."""
        with torch.enable_grad():
            log_lik = self._log_lik(batch) * scale
            total = log_lik if self.n_models == 1 else log_lik.sum()
            grads = torch.autograd.grad(total, list(self._inputs.values()), allow_unused=True)
        return log_lik.detach(), grads

    def draw_others_(self, generator: Generator) -> dict[str, Tensor]:
        """Draw in weight space what no layer with noise on activations owns; return the noise.

        Layers draw theirs from the same generator from now on.
        """
        assert self.variances is not None
        self.bind(generator)
        layout, noise = self.network.layout, {}
        for name in layout.names:
            part = layout.slices[name]
            if part.start < layout.n_bayesian and name not in self.local_names:
                stds = self.variances[:, part].sqrt()
                noise[name] = torch.empty_like(stds).normal_(generator=generator)
                self.weights[:, part].addcmul_(stds, noise[name])
        return noise

    def differentiate_others_(self, noise: dict[str, Tensor]) -> None:
        """Fill `variance_grads` of what `draw_others_` drew from `grads`: g ε / 2s, 0 at s = 0."""
        assert self.variances is not None
        assert self.variance_grads is not None
        for name, drawn in noise.items():
            part = self.network.layout.slices[name]
            slope = drawn / (2 * self.variances[:, part].sqrt())
            self.variance_grads[:, part] = self.grads[:, part] * slope.nan_to_num_(0.0, 0.0, 0.0)

    def _log_lik(self, batch: Batch) -> Tensor:
        if self.n_models == 1:
            x, y, weight = batch.member(0)
            output = evaluate_in(self.precision, self._run, x, self.weights, images_last=True)
            return weighted_sum(self._log_prob(output, y, self._numbers), weight)[None]
        if batch.per_member and self._layers is not None:
            return self._layers_log_lik(self._layers, batch)
        axis = 0 if batch.per_member else None
        if self.network.is_batchable(batch.member(0)[0][:2]):
            in_dims = (0, 0, 0, axis, axis, None if batch.weight is None else axis)
            each = torch.vmap(self._member_log_lik, in_dims=in_dims, randomness="different")
            tensors = (self._leaves, self._numbers, self._buffers)
            return each(*tensors, batch.x, batch.y, batch.weight)
        values = []
        for i in range(self.n_models):
            groups = (self._leaves, self._numbers, self._buffers)
            leaves, numbers, buffers = ({n: v[i] for n, v in group.items()} for group in groups)
            values.append(self._member_log_lik(leaves, numbers, buffers, *batch.member(i)))
        return torch.stack(values)

    def _run(self, x: Input) -> Tensor:
        """Outputs of the one model, compiled or not."""
        args, kwargs = arguments(self.module, x)
        return one_tensor(self._call(*args, **kwargs))

    def _layers_log_lik(self, layers: Layers, batch: Batch) -> Tensor:
        """The same for plain layers: models and examples as one axis, (k n, ...)."""
        output = _run_layers(layers, self._leaves, one_input("fit", batch.x))
        k, n = output.shape[:2]
        numbers = {
            name: v[:, None].expand(k, n).reshape(-1, 1) for name, v in self._numbers.items()
        }
        y = batch.y.flatten(0, 1)
        log_prob = self._log_prob(output.flatten(0, 1), y, numbers).view(k, n)
        return (log_prob if batch.weight is None else log_prob * batch.weight).sum(1)

    def _member_log_lik(
        self,
        parameters: dict[str, Tensor],
        numbers: dict[str, Tensor],
        buffers: dict[str, Tensor],
        x: Input,
        y: Tensor,
        weight: Tensor | None,
    ) -> Tensor:
        network = partial(call_with, self.module, self._names, parameters, buffers)
        output = evaluate_in(self.precision, network, x, self.weights, images_last=False)
        return weighted_sum(self._log_prob(output, y, numbers), weight)

    def _log_prob(self, output: Tensor, y: Tensor, numbers: Mapping[str, Tensor]) -> Tensor:
        likelihood = self.network.likelihood
        if not likelihood.warm_up:
            return likelihood.log_prob(output, y, numbers)
        return likelihood.warm_log_prob(output, y, numbers, self.warmth)

    def _views(self, flat: Tensor) -> dict[str, Tensor]:
        """Named views of a (k, d) buffer; without the population axis when k = 1."""
        return self.network.layout.unflatten(flat[0] if self.n_models == 1 else flat)

    def _build(self, skeleton: nn.Module) -> tuple[nn.Module, dict[str, Tensor]]:
        """Copy the structure in training mode; with k = 1 its parameters become the leaves."""
        if self.n_models == 1:
            named = dict(skeleton.named_parameters())
            memo: dict[int, object] = {id(named[n]): leaf for n, leaf in self._leaves.items()}
            module = copy.deepcopy(skeleton, memo).train()
            return module, {name: value[None] for name, value in module.named_buffers()}
        module = copy.deepcopy(skeleton).train()
        stacked = {n: torch.stack([v] * self.n_models) for n, v in module.named_buffers()}
        return module, stacked


def keep_freed_memory() -> None:
    """Let the C library keep what a step frees, gradients and activations, for the next step.

    glibc gives freed memory back to the system beyond twice the largest block it has mapped and
    freed so far, up to blocks of 32 MiB (M_MMAP_THRESHOLD in mallopt(3)). Every page that comes
    back takes .3 to 3 µs, a quarter of a step in a virtual machine. A block of that size, freed
    before anything is written to it, takes no memory and raises the bound to 64 MiB.
    """
    np.empty(_LARGEST_COUNTED, np.uint8)


def plain_layers(module: nn.Module) -> Layers | None:
    """Names and layers of a `Sequential` of Flatten, Linear and activations; None for others.

    Linear layers may be those of `core.local`, with noise on their outputs.

    Example:
        >>> [name for name, _ in plain_layers(nn.Sequential(nn.Linear(3, 2), nn.ReLU()))]
        ['0', '1']
        >>> plain_layers(nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))) is None
        True
    """
    layers = sequential_layers(module)
    distinct = len({id(layer) for _, layer in layers}) == len(layers)
    is_plain = type(module) is nn.Sequential and all(_is_plain(layer) for _, layer in layers)
    return layers if distinct and is_plain else None


def _is_plain(layer: nn.Module) -> bool:
    if is_hooked(layer):
        return False
    if type(layer) is nn.Flatten:
        return layer.start_dim == 1 and layer.end_dim == -1
    if type(layer) is nn.Linear:
        return all(p is None or p.requires_grad for p in (layer.weight, layer.bias))
    if type(layer) is LocalLayer:
        return layer.is_linear
    return type(layer) in ENTRYWISE


def _run_layers(layers: Layers, parameters: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """Outputs of `plain_layers` of k models on their own inputs, (k, n, ...) -> (k, n, outputs)."""
    for name, layer in layers:
        if isinstance(layer, nn.Flatten):
            x = x.flatten(2)
        elif isinstance(layer, LocalLayer):
            mean = _product(x, parameters[f"{name}.weight"], parameters.get(f"{name}.bias"))
            var, bias_var = parameters[f"{name}.weight_var"], parameters.get(f"{name}.bias_var")
            x = perturbed(mean, _product(x * x, var, bias_var), layer.source())
        elif isinstance(layer, nn.Linear):
            x = _product(x, parameters[f"{name}.weight"], parameters.get(f"{name}.bias"))
        else:
            x = layer(x)
    return x


def _product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """(k, n, in) by (k, out, in), and (k, out) added."""
    if bias is None:
        return torch.bmm(x, weight.transpose(1, 2))
    return torch.baddbmm(bias[:, None], x, weight.transpose(1, 2))


# Running statistics of normalisation layers. A draw of the weights predicts as it did in training
# only with the means and variances its layers saw then. Flat vectors of them are kept with each
# draw. (`sieve.prune.reestimate_batchnorm` computes them for weights that no batch went through.)


def statistics_names(network: Network) -> tuple[str, ...]:
    """The buffers that hold running means and variances.

    Example:
        >>> from torch import nn
        >>> from bayesieve.core.likelihoods import Gaussian
        >>> model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
        >>> statistics_names(Network.of(model, Gaussian()))
        ('1.running_mean', '1.running_var')
    """
    modules = network.skeleton.named_modules()
    owners = {name for name, module in modules if isinstance(module, _NormBase)}
    names = []
    for name, _ in network.skeleton.named_buffers():
        owner, _, leaf = name.rpartition(".")
        if owner in owners and leaf in _STATISTICS:
            names.append(name)
    return tuple(names)


def has_statistics(module: nn.Module) -> bool:
    """Whether a module keeps running means and variances.

    Example:
        >>> has_statistics(nn.BatchNorm1d(3)), has_statistics(nn.LayerNorm(3))
        (True, False)
    """
    return any(isinstance(m, _NormBase) and m.track_running_stats for m in module.modules())


def flat_statistics(names: tuple[str, ...], buffers: Mapping[str, Tensor]) -> Tensor:
    """The named buffers of k models, (k, ...) each, as one tensor (k, b)."""
    return torch.cat([buffers[name].flatten(1) for name in names], 1)


def named_statistics(
    names: tuple[str, ...], flat: Tensor, like: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Rows (n, b) back to buffers (n, ...) each, of the shapes in `like`."""
    sizes = [like[name].numel() for name in names]
    columns = zip(names, flat.split(sizes, 1), strict=True)
    return {name: rows.reshape(len(flat), *like[name].shape) for name, rows in columns}
