"""Noise of a step, on weights or on activations: what it draws, and the gradients that result.

Both kinds give the log-likelihood of a batch under q(w) = N(r m, r² s²), and its gradients for m
and log s. r is 1, or a random scale of each group of weights (engines/scaled.py).

**On weights.** All examples see one draw w = r (m + s ε). With g the gradient there, that of r m is
g, and that of log s is g · (w - r m).

**On activations**: local reparameterisation (Kingma et al., 2015). For a layer that is linear in
independent Gaussian weights, the pre-activation is Gaussian with mean layer(x; m) and variance
layer(x²; s²). Drawing it directly gives lower-variance gradients. For Linear this is exact per
example; for Conv the noise is independent at each position, a different estimator with the same
marginal means and variances. There are gradients for means and variances: that of log s is
2 s² ∂/∂s². Bayesian tensors that no such layer owns are drawn in weight space.

Besides the second product, a layer costs a pass over its inputs and its outputs each way. The
products of variances are in the dtype of the variances of the weights. On a CPU that multiplies
bfloat16 faster it is that (`Backend.product_dtype`), since the third digit of a variance does not
count.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from bayesieve.core.batch import Batch
from bayesieve.core.execution import PLAIN, WHOLE, Backend, Execution, kernel
from bayesieve.core.layout import Role
from bayesieve.core.network import Network
from bayesieve.core.problem import Problem, gradient
from bayesieve.core.random import as_normals
from bayesieve.core.state import Controls
from bayesieve.core.workspace import Found, Workspace
from bayesieve.errors import UnsupportedModelError

_TENSORS = ("weight", "bias", "weight_var", "bias_var")
LOCAL_TYPES = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
Pair = tuple[Tensor, Tensor]


class Spread(Protocol):
    """A state of k mean-field posteriors; one with groups has random scales."""

    mean: Tensor  # m, (k, d)
    log_std: Tensor  # log s, (k, n_bayesian)
    controls: Controls
    generator: Generator


@dataclass(eq=False)
class AtDraw(Found):
    """The gradient at a draw of the weights, (k, d).

    Args:
        spread: the sum over processes of g · (w - r m), (k, n), where each draws weights of its
            own: a mean of gradients does not say it.
    """

    spread: Tensor | None = None

    def for_log_std(self, centre: Tensor, keep: Tensor | None, part: slice) -> Tensor:
        """The gradient for log s of some columns, whose draws have this centre, r m."""
        if self.spread is not None:
            return self.spread[:, part]
        data = self.grad[:, part] if keep is None else self.grad[:, part] * keep
        return data * (self.weights[:, part] - centre)


@dataclass(eq=False)
class AtMeans(Found):
    """The gradients for the means and the variances of the weights.

    Args:
        variances: (k, d), 0 where not kept.
        brief: the variances in bfloat16, where some layers multiply them in it.
    """

    variances: Tensor | None = None
    brief: Tensor | None = None

    def for_log_std(self, centre: Tensor, keep: Tensor | None, part: slice) -> Tensor:
        """The gradient for log s of some columns."""
        assert self.variances is not None
        return 2 * self.variance_grad[:, part] * self.variances[:, part]


Gradients = AtDraw | AtMeans


@dataclass(frozen=True)
class WeightNoise:
    """One draw of all weights for a batch.

    Args:
        one: whether all processes that share a step see one draw. Otherwise each may draw weights
            by itself; the means of their gradients must then be all that the engine needs.
    """

    one: bool = False

    def workspace(self, problem: Problem, n_models: int) -> Workspace:
        """The buffers of k models."""
        return problem.workspace(n_models)

    def gradients(
        self, problem: Problem, state: Any, batch: Batch, ratio: Tensor | None = None
    ) -> AtDraw:
        """Draw w = r (m + s ε), 0 where pruned, and take the gradient of log p(D | w) there.

        Args:
            problem: network and data.
            state: of k models, a `Spread`.
            batch: n examples.
            ratio: r of each group of the state's `groups`, (k, G); None for 1.
        """
        space, keep = self.workspace(problem, len(state.mean)), state.controls.factors[0]
        execution, run, n = problem.execution, problem.run, state.log_std.shape[1]
        sharing = execution.sharing
        apart = sharing is not None and sharing.own_noise and not self.one
        source = execution.source(state.generator) if apart else state.generator
        noise = execution.backend.noise(state.log_std, source)
        run(draw_)(state, space.weights, noise, keep if ratio is None else None)
        if ratio is not None:
            run(scale_)(state.groups, space.weights, ratio, keep)
        if not apart:
            found = gradient(problem, space, batch)
            return AtDraw(found.log_lik, found.pieces, space, found.is_flat)
        centre = state.mean[:, :n]
        if ratio is not None:
            centre = centre * state.groups.to_entries(ratio)
        if keep is not None:
            centre = centre * keep[:, :n]
        found = space.differentiate(batch, problem.n_data / batch.n_step).flatten()
        spread = found.grad[:, :n] * (space.weights[:, :n] - centre)
        tensors = (found.log_lik, found.grad, spread)
        log_lik, grad, spread = execution.summed(space, batch.n / batch.n_step, *tensors)
        execution.bounds.clip_(problem.n_data, grad, along=spread)
        return AtDraw(log_lik, [], space, spread=spread).replaced(grad)


@dataclass(frozen=True)
class ActivationNoise:
    """Each example sees its own noise, at the outputs of Linear and Conv layers."""

    def workspace(self, problem: Problem, n_models: int) -> Workspace:
        """The buffers of k models, with layers that add noise to their outputs."""
        return problem.workspace(n_models, self)

    def gradients(
        self, problem: Problem, state: Any, batch: Batch, ratio: Tensor | None = None
    ) -> AtMeans:
        """Take the gradients of log p(D | r m, r² s²) for means and variances, 0 where pruned.

        The arguments are those of `WeightNoise.gradients`.
        """
        space, keep = self.workspace(problem, len(state.mean)), state.controls.factors[0]
        execution, run = problem.execution, problem.run
        variances, brief = space.variances, space.brief_variances
        assert variances is not None
        run(spread_)(state, space.weights, variances, brief if ratio is None else None, keep)
        if ratio is not None:
            run(scale_)(state.groups, space.weights, ratio, None)
            run(scale_)(state.groups, variances, ratio.square(), None)
            if brief is not None:
                brief.copy_(variances)
        source = execution.source(state.generator)
        space.bind(source)
        noise = draw_others_(space, source)
        seen = space.differentiate(batch, problem.n_data / batch.n_step)
        found = AtMeans(seen.log_lik, seen.pieces, space, seen.is_flat, variances, brief)
        if not noise and execution.takes_whole(batch.n):
            return found
        found.flatten()
        differentiate_others_(found, noise)
        tensors = (found.log_lik, found.grad, found.variance_grad)
        found.log_lik, *grads = execution.summed(space, batch.n / batch.n_step, *tensors)
        if execution.bounds.clip_norm is not None:
            for_std = 2 * variances.sqrt() * grads[1]
            execution.bounds.clip_(problem.n_data, grads[0], for_std, along=grads[1])
        return found.replaced(*grads)

    def swapped(
        self, network: Network, execution: Execution, n_models: int, source: Callable[[], Generator]
    ) -> tuple[nn.Module, dict[str, str]]:
        """A copy of the skeleton with noisy layers, and the owner of each of their variances."""
        backend = execution.backend.in_layers(execution.formats.network) if n_models == 1 else None
        whole = backend is not None and execution.formats.network == "float32"
        return localise(network, source, backend or PLAIN, one_node=whole)


Noise = WeightNoise | ActivationNoise


def space_of(problem: Problem, engine: object, n_models: int) -> Workspace:
    """The workspace of an engine: that of its `noise`, if it has one, or a plain one."""
    noise: Noise = getattr(engine, "noise", None) or WeightNoise()
    return noise.workspace(problem, n_models)


def noise_of(local: bool | None) -> Noise:
    """The noise that the argument `local` of an engine names; None is noise on weights.

    Example:
        >>> noise_of(True)
        ActivationNoise()
    """
    return ActivationNoise() if local else WeightNoise()


# --------------------------------------------------------------------------- draws and variances


@kernel("bayesieve_draw", in_parts=True)
def draw_(
    state: Spread, weights: Tensor, noise: Tensor, keep: Tensor | None, part: slice = WHOLE
) -> None:
    """Write m + s ε into a part of the weights, (k, d); 0 where not kept."""
    into, mean = weights[:, part], state.mean[:, part]
    bayesian = slice(part.start, min(part.stop, state.log_std.shape[1]))  # those with a posterior
    n = max(bayesian.stop - bayesian.start, 0)
    if n > 0:
        log_std = state.log_std[:, bayesian]
        some = noise[:, bayesian] if noise.is_floating_point() else noise  # keys are of all
        into[:, :n] = torch.addcmul(mean[:, :n], log_std.exp(), as_normals(some, log_std))
    if n < mean.shape[1]:
        into[:, n:] = mean[:, n:]
    if keep is not None:
        into.mul_(keep[:, part])


@kernel("bayesieve_scale")
def scale_(groups: Any, weights: Tensor, ratio: Tensor, keep: Tensor | None) -> None:
    """Multiply the Bayesian weights of (k, d) by the numbers of their groups, (k, G).

    Weights that are not kept become 0.
    """
    factors = groups.to_entries(ratio)
    weights[:, : factors.shape[1]].mul_(factors)
    if keep is not None:
        weights.mul_(keep)


@kernel("bayesieve_spread")
def spread_(
    state: Spread, means: Tensor, variances: Tensor, brief: Tensor | None, keep: Tensor | None
) -> None:
    """Write m and s², (k, d), for layers with noise on activations; 0 where not kept.

    `brief` takes the variances in bfloat16.
    """
    n = state.log_std.shape[1]
    means.copy_(state.mean)
    variances[:, :n] = (2 * state.log_std).exp()
    if keep is not None:
        means.mul_(keep)
        variances.mul_(keep)
    if brief is not None:
        brief.copy_(variances)


def draw_others_(space: Workspace, generator: Generator) -> dict[str, Tensor]:
    """Draw in weight space what no layer with noise on activations owns; return the noise."""
    assert space.variances is not None
    layout, noise = space.network.layout, {}
    for name in layout.names:
        part = layout.slices[name]
        if part.start < layout.n_bayesian and name not in space.local_names:
            stds = space.variances[:, part].sqrt()
            noise[name] = torch.empty_like(stds).normal_(generator=generator)
            space.weights[:, part].addcmul_(stds, noise[name])
    return noise


def differentiate_others_(found: AtMeans, noise: dict[str, Tensor]) -> None:
    """Fill the gradients for variances of what `draw_others_` drew: g ε / 2s, 0 at s = 0."""
    assert found.variances is not None
    for name, drawn in noise.items():
        part = found.space.network.layout.slices[name]
        slope = drawn / (2 * found.variances[:, part].sqrt())
        found.variance_grad[:, part] = found.grad[:, part] * slope.nan_to_num_(0.0, 0.0, 0.0)


# --------------------------------------------------------------------- passes over activations
#
# Activations are (n, m) or (n, m, positions ...), m units or channels.


@kernel("bayesieve_perturb", any_shape=True)
def perturb_(
    mean: Tensor, var: Tensor, bias_var: Tensor | None, noise: Tensor, in_place: bool
) -> Pair:
    """Return mean + s ε and its slope in s², ε / 2s, 0 where s is 0.

    Args:
        mean: of the activations.
        var: s², of their shape.
        bias_var: variance of the bias where var lacks it, (m,).
        noise: ε, which becomes the slope; keys for the twin.
        in_place: whether mean and var may be overwritten.
    """
    var = var.to(mean.dtype)
    if bias_var is not None:
        var = var + bias_var.view(-1, *[1] * (var.dim() - 2))
    std = var.clamp_min(0).sqrt_()
    output = torch.addcmul(mean, std, noise)
    noise.div_(std.add_(std)).nan_to_num_(0.0, 0.0, 0.0)  # these are as large as all activations
    return output, noise


class _Perturb(torch.autograd.Function):
    """mean + sqrt(var) · ε with an explicit generator; the gradient at var = 0 is taken as 0."""

    @staticmethod
    def forward(
        mean: Tensor, var: Tensor, generator: Generator, backend: Backend
    ) -> tuple[Tensor, Tensor]:
        noise = backend.noise(mean, generator)
        return backend.run(perturb_)(mean.detach(), var.detach(), None, noise, False)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.save_for_backward(output[1])
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor, Tensor, None, None]:
        (slope,) = ctx.saved_tensors
        return grad, grad * slope, None, None

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[int | None, ...],
        mean: Tensor,
        var: Tensor,
        generator: Generator,
        backend: Backend,
    ) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
        k = info.batch_size
        mean = mean.expand(k, *mean.shape) if in_dims[0] is None else mean.movedim(in_dims[0], 0)
        var = var.expand(k, *var.shape) if in_dims[1] is None else var.movedim(in_dims[1], 0)
        return _Perturb.apply(mean, var, generator, backend), (0, 0)


def perturbed(mean: Tensor, var: Tensor, generator: Generator, backend: Backend = PLAIN) -> Tensor:
    """A draw from N(mean, var), both of one shape, with the gradients of mean + sqrt(var) · ε."""
    output: Tensor = _Perturb.apply(mean, var, generator, backend)[0]
    return output


# ------------------------------------------------------------------------------------- layers


class LocalLayer(nn.Module):
    """A Linear or Conv layer with a mean and a variance per weight.

    Args:
        layer: to replace.
        source: of the generator of its noise.
        backend: runs the passes over its activations.
        one_node: whether it is one step of autograd where the backend has that.
    """

    def __init__(
        self, layer: nn.Module, source: Callable[[], Generator], backend: Backend, *, one_node: bool
    ) -> None:
        super().__init__()
        self.backend = backend
        self._fused = backend.fused(layer) if one_node else None
        self.weight: nn.Parameter = layer.weight  # type: ignore[assignment]
        self.bias: nn.Parameter | None = layer.bias  # type: ignore[assignment]
        dtype = backend.product_dtype(layer) if self._fused else self.weight.dtype
        self.weight_var = _meta_like(self.weight, dtype)
        self.bias_var = None if self.bias is None else _meta_like(self.bias, self.bias.dtype)
        self.source = source
        self._layer = [layer]  # in a list: not a submodule, only its forward settings are used

    def forward(self, x: Tensor) -> Tensor:
        """Draw the output at x."""
        if torch._C._current_graph_task_id() >= 0:  # inside a backward pass
            raise UnsupportedModelError(
                "noise on activations (local=True) cannot be drawn again by activation "
                "checkpointing: the way back would see other noise. Use local=False."
            )
        if self._fused is not None:
            tensors = map(self._parameters.get, _TENSORS)
            drawn = self._fused(x, *tensors, self.source())
            if drawn is not None:
                return drawn
        mean = self._linear(x, self.weight, self.bias)
        # x * x, not x.square(): autocast on a GPU would take that, as a power, to float32.
        var = self._linear(x * x, self.weight_var.to(self.weight.dtype), self.bias_var)
        suits = not self.backend.dense or (mean.is_contiguous() and var.is_contiguous())
        return perturbed(mean, var, self.source(), self.backend if suits else PLAIN)

    def __getattr__(self, name: str) -> Any:
        """Take other settings from the original: a forward may read its stride or padding."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "_layer":  # while a copy is made
                raise
            return getattr(self._layer[0], name)

    @property  # type: ignore[misc]
    def __class__(self) -> type:  # a forward may ask which layer it has
        held = vars(self).get("_layer")
        return LocalLayer if held is None else type(held[0])

    @property
    def is_linear(self) -> bool:
        """Return whether the layer is a plain matrix."""
        return type(self._layer[0]) is nn.Linear

    def _linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        layer = self._layer[0]
        if isinstance(layer, nn.Linear):
            return F.linear(x, weight, bias)
        return layer._conv_forward(x, weight, bias)  # type: ignore[operator]


def _meta_like(parameter: nn.Parameter, dtype: torch.dtype) -> nn.Parameter:
    # empty_like would load SymPy for it
    return nn.Parameter(parameter.detach().to("meta").to(dtype))


def localise(
    network: Network, source: Callable[[], Generator], backend: Backend, *, one_node: bool
) -> tuple[nn.Module, dict[str, str]]:
    """Swap Linear and Conv layers of a copy of the skeleton for local ones.

    Only plain layers whose parameters are Bayesian, trainable and not shared are swapped; other
    Bayesian tensors keep being drawn in weight space.

    Returns:
        The module, and for each new variance the name of the weight it belongs to.
    """
    roles = dict(zip(network.layout.names, network.layout.roles, strict=True))
    skeleton = copy.deepcopy(network.skeleton)
    owners: dict[nn.Parameter, int] = {}
    for _, module in skeleton.named_modules(remove_duplicate=False):
        for parameter in module.parameters(recurse=False):
            owners[parameter] = owners.get(parameter, 0) + 1
    names: dict[str, str] = {}
    for path, layer in list(skeleton.named_modules()):
        if type(layer) not in LOCAL_TYPES or not path:
            continue
        tensors = [(f"{path}.{leaf}", p) for leaf, p in layer.named_parameters(recurse=False)]
        if all(roles.get(name, Role.POINT) < Role.POINT and owners[p] == 1 for name, p in tensors):
            parent, _, leaf = path.rpartition(".")
            local = LocalLayer(layer, source, backend, one_node=one_node)
            setattr(skeleton.get_submodule(parent), leaf, local)
            names |= {f"{name}_var": name for name, _ in tensors}
    return skeleton, names
