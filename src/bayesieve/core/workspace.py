"""The hot path: k networks whose parameters are views into one flat weight buffer.

Writing a draw into `weights` and asking for the gradient is the whole cost of a sample: nothing is
split or concatenated in the graph. With k = 1 the module itself runs on views without a population
axis; with k > 1 it runs once under `vmap`, or, where the module cannot be batched, once per member.

In bfloat16 only the network of a training step runs, less the modules that stay in full precision.
Weights, gradients, likelihoods and the arithmetic of the engine stay in the dtype of the model, and
predictions are made in it.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple, Protocol, Self

import numpy as np
import torch
from torch import Generator, Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.utils._pytree import tree_map

from bayesieve.core.batch import Batch, weighted_sum
from bayesieve.core.execution import Execution, Precision
from bayesieve.core.inputs import Input, arguments, one_input, one_tensor
from bayesieve.core.layout import Patterns, is_named
from bayesieve.core.network import Network, call_with, parameters_and_numbers, tied_names
from bayesieve.core.random import generator_on

_STATISTICS = ("running_mean", "running_var")
_LARGEST_COUNTED = (32 << 20) - (1 << 16)  # bytes of a block, by which glibc sets its bounds


class Layers(Protocol):
    """Layers that a workspace puts in the place of others; `noise.ActivationNoise` has some."""

    def swapped(
        self, network: Network, execution: Execution, n_models: int, source: Callable[[], Generator]
    ) -> tuple[nn.Module, dict[str, str]]:
        """A changed copy of the skeleton, and the owner of each of its variances.

        Noise is drawn from the generator that `source` returns.
        """


class Piece(NamedTuple):
    """Gradients for the entries start to stop of w, (k, ...) each; None where all are 0.

    `is_brief`: the variances of the tensor, and the gradients for them, are in bfloat16.
    """

    grad: Tensor | None
    variance_grad: Tensor | None
    start: int
    stop: int
    is_brief: bool = False


@dataclass(eq=False)
class Found:
    """The log-likelihood of a batch at the weights of a workspace, and its gradient there.

    Args:
        log_lik: over the full data set, (k,).
        pieces: of the gradient, in the order of w: as autograd made them, which saves a copy, or
            one of all entries.
        space: where it was taken.
        is_flat: whether there is one piece of all entries.
    """

    log_lik: Tensor
    pieces: list[Piece]
    space: "Workspace"
    is_flat: bool = False

    def flatten(self) -> Self:
        """Copy the pieces into the buffers of the workspace, unless there is one of all."""
        if not self.is_flat:
            self.pieces = [self.space.joined(self.pieces)]
            self.is_flat = True
        return self

    def replaced(self, grad: Tensor, variance_grad: Tensor | None = None) -> Self:
        """The same with other gradients, (k, d)."""
        self.pieces, self.is_flat = [Piece(grad, variance_grad, 0, grad.shape[1])], True
        return self

    @property
    def weights(self) -> Tensor:
        """Where the gradient was taken, (k, d)."""
        return self.space.weights

    @property
    def grad(self) -> Tensor:
        """The gradient, (k, d), once it is flat."""
        (piece,) = self.pieces
        assert piece.grad is not None
        return piece.grad

    @property
    def variance_grad(self) -> Tensor:
        """The gradient for the variances, (k, d), once it is flat."""
        (piece,) = self.pieces
        assert piece.variance_grad is not None
        return piece.variance_grad


class Workspace:
    """Weight and gradient buffers of k models, and the module evaluated on them.

    Args:
        network: the function to evaluate.
        n_models: k.
        layers: what replaces layers of the network; `variances` then exist, (k, d).
        execution: how steps are computed; buffers and likelihood keep the model's dtype.
    """

    def __init__(
        self,
        network: Network,
        n_models: int,
        *,
        layers: Layers | None = None,
        execution: Execution | None = None,
    ) -> None:
        self.network, self.layers = network, layers
        self.execution = execution = execution or Execution()
        self.warmth = torch.zeros((), device=network.device)  # `Likelihood.warm_log_prob`
        self.n_models = n_models
        self.precision = execution.formats.network
        self.norm_names = statistics_names(network)
        shape = (n_models, network.layout.size)
        if network.device.type == "cpu":
            keep_freed_memory()
        self.weights = torch.zeros(shape, device=network.device, dtype=network.dtype)
        self.variances = None if layers is None else torch.zeros_like(self.weights)
        self.brief_variances: Tensor | None = None
        self._brief_names: frozenset[str] = frozenset()  # of weights with variances in bfloat16
        self._owner_of: dict[str, str] = {}
        self._noise_source = generator_on(network.device)
        leaves, skeleton = self._views(self.weights), network.skeleton
        if layers is not None and self.variances is not None:
            swapped = layers.swapped(network, execution, n_models, lambda: self._noise_source)
            skeleton, self._owner_of = swapped
            variances = self._views(self.variances)
            leaves |= {name: variances[owner] for name, owner in self._owner_of.items()}
            leaves |= self._brief_views(skeleton)
        leaves = {name: nn.Parameter(view) for name, view in leaves.items()}
        self._inputs = dict(leaves)
        self._leaves, self._numbers = parameters_and_numbers(leaves)
        self.module, self._buffers = self._build(skeleton)
        self._names = tied_names(self.module)
        formats, backend = execution.formats, execution.backend
        if formats.network != "float32":
            keep_full_precision_(self.module, formats.full, self.weights)
        self._call = backend.network(self.module) if n_models == 1 else self.module
        scalar = all(value.dim() == 1 for value in self._numbers.values())  # one number per model
        plain = n_models > 1 and scalar and formats.network == "float32"
        self._members = backend.members(skeleton) if plain else None

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

    @cached_property
    def grads(self) -> Tensor:
        """Gradient buffer, (k, d), made on first use: fused C kernels need none."""
        return torch.zeros_like(self.weights)

    @cached_property
    def variance_grads(self) -> Tensor | None:
        """Gradient buffer for the variances, (k, d), made on first use."""
        return None if self.variances is None else torch.zeros_like(self.variances)

    @property
    def local_names(self) -> frozenset[str]:
        """Tensors of layers that add their noise to activations."""
        return frozenset(self._owner_of.values())

    def bind(self, generator: Generator) -> None:
        """Draw activation noise from this generator from now on."""
        self._noise_source = generator

    def buffers(self, member: int) -> dict[str, Tensor]:
        """Copies of one member's module buffers."""
        return {name: value[member].detach().clone() for name, value in self._buffers.items()}

    def all_buffers(self) -> dict[str, Tensor]:
        """The module buffers themselves, each with a leading axis of k."""
        return self._buffers

    def statistics(self) -> Tensor | None:
        """Running statistics of the normalisation layers, (k, b); None where there are none."""
        return flat_statistics(self.norm_names, self._buffers) if self.norm_names else None

    def differentiate(self, batch: Batch, scale: float) -> Found:
        """The values of scale · Σ log p(y | x, w) over a batch, and their gradient.

        The micro-batches of the batch are taken one after another; their gradients are added in the
        buffers of the workspace.
        """
        first, *others = batch.parts(self.execution.bounds.micro_batch)
        found = Found(*self._differentiate(first, scale), self)
        if others:
            found.flatten()
        for part in others:
            log_lik, pieces = self._differentiate(part, scale)
            found.log_lik = found.log_lik + log_lik
            self._gather(pieces, torch._foreach_add_)
        return found

    def joined(self, pieces: Sequence[Piece]) -> Piece:
        """Copy pieces of the gradient into the buffers; return these as one."""
        self._gather(pieces, torch._foreach_copy_)
        return Piece(self.grads, self.variance_grads, 0, self.weights.shape[1])

    def _gather(self, pieces: Sequence[Piece], into: Callable[..., Any]) -> None:
        """Copy or add pieces to the buffers; those of tensors that no layer used are 0."""
        views, grads = [], []
        for piece in pieces:
            pairs: list[tuple[Tensor, Tensor | None]] = [(self.grads, piece.grad)]
            if self.variance_grads is not None:
                pairs.append((self.variance_grads, piece.variance_grad))
            for buffer, grad in pairs:
                view = buffer[:, piece.start : piece.stop]
                if grad is not None:
                    views.append(view)
                    grads.append(grad.reshape(view.shape))
                elif into is torch._foreach_copy_:
                    view.zero_()
        into(views, grads)

    def _differentiate(self, batch: Batch, scale: float) -> tuple[Tensor, list[Piece]]:
        """Values, (k,), and the gradients of all tensors; None for those not used."""
        with torch.enable_grad():
            log_lik = self._log_lik(batch) * scale
            total = log_lik if self.n_models == 1 else log_lik.sum()
            grads = torch.autograd.grad(total, list(self._inputs.values()), allow_unused=True)
        whole = [None if g is None else g.contiguous() for g in grads]
        by_name = dict(zip(self._inputs, whole, strict=True))
        for_variance = {owner: by_name[name] for name, owner in self._owner_of.items()}
        pieces = []
        for name, part in self.network.layout.slices.items():
            tensors = (by_name[name], for_variance.get(name))
            pieces.append(Piece(*tensors, part.start, part.stop, name in self._brief_names))
        return log_lik.detach(), pieces

    def _log_lik(self, batch: Batch) -> Tensor:
        if self.n_models == 1:
            x, y, weight = batch.member(0)
            output = evaluate_in(self.precision, self._run, x, self.weights, images_last=True)
            return weighted_sum(self._log_prob(output, y, self._numbers), weight)[None]
        if batch.per_member and self._members is not None:
            return self._members_log_lik(self._members, batch)
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

    def _members_log_lik(self, members: Callable[..., Tensor], batch: Batch) -> Tensor:
        """The same where models on their own inputs run as one: models and examples as one axis."""
        output = members(self._leaves, one_input("fit", batch.x))
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
    """Return whether a module keeps running means and variances.

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


def keep_freed_memory() -> None:
    """Let the C library keep what a step frees, gradients and activations, for the next step.

    glibc gives freed memory back to the system beyond twice the largest block it has mapped and
    freed so far, up to blocks of 32 MiB (M_MMAP_THRESHOLD in mallopt(3)). Every page that comes
    back takes .3 to 3 µs, a quarter of a step in a virtual machine. A block of that size, freed
    before anything is written to it, takes no memory and raises the bound to 64 MiB.
    """
    np.empty(_LARGEST_COUNTED, np.uint8)
