"""Noise on the activations of a layer: local reparameterisation (Kingma et al., 2015).

For a layer that is linear in independent Gaussian weights, the pre-activation is Gaussian with mean
layer(x; m) and variance layer(x²; s²). Drawing it directly gives lower-variance gradients. For
Linear this is exact per example; for Conv the noise is independent at each position, a different
estimator with the same marginal means and variances.

Besides the second product, a layer costs a pass over its activations each way. `Passes` are these
two: in C on a CPU, and on a GPU fused by `torch.compile` in runs that compile.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from bayesieve.core import native
from bayesieve.core.layout import Role
from bayesieve.core.network import Network
from bayesieve.core.noise import fresh_keys
from bayesieve.errors import UnsupportedModelError

_TENSORS = ("weight", "bias", "weight_var", "bias_var")
LOCAL_TYPES = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


Pair = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Passes:
    """The two passes over the activations of a layer.

    Args:
        forth: of mean and var, of one shape, and a generator: returns mean + sqrt(var) · ε and its
            derivative in var, ε / (2 sqrt(var)), 0 where var is 0. The last argument says whether
            mean and var may be overwritten.
        back: of the gradient of the output and that derivative, (n, m) each: returns the gradient
            for var, (n, m), and sums over n, (m,), of the output's gradient and of that for var.
        dense: whether tensors must be contiguous.
        product_dtype: of the products of variances, asked when a layer runs; None is that of x.
    """

    forth: Callable[[Tensor, Tensor, Generator, bool], Pair]
    back: Callable[[Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]
    dense: bool = False
    product_dtype: Callable[[], torch.dtype | None] = lambda: None


def _forth_in_c(mean: Tensor, var: Tensor, generator: Generator, in_place: bool) -> Pair:
    library = native.steps()
    assert library is not None
    output, slope = (mean, var) if in_place else (torch.empty_like(mean), torch.empty_like(mean))
    tensors = (mean, var, fresh_keys(generator), output, slope)
    library.bayesieve_perturb(mean.numel(), *map(native.address, tensors))
    return output, slope


def _back_in_c(grad: Tensor, slope: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    library, (n, m) = native.steps(), grad.shape
    assert library is not None
    for_var, of_grad, of_var = torch.empty_like(grad), grad.new_empty(m), grad.new_empty(m)
    tensors = (grad, slope, for_var, of_grad, of_var)
    library.bayesieve_perturb_back(n, m, *map(native.address, tensors))
    return for_var, of_grad, of_var


def passes_of(kernel: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Passes:
    """Passes whose arithmetic goes through `kernel`, which may compile it (`Execution.kernel`)."""

    def forth(mean: Tensor, var: Tensor, generator: Generator, in_place: bool) -> Pair:
        noise = torch.empty_like(mean).normal_(generator=generator)
        return kernel(perturb)(mean.detach(), var.detach(), noise), noise

    return Passes(forth, lambda grad, slope: kernel(perturb_back)(grad, slope))


def perturb(mean: Tensor, var: Tensor, noise: Tensor) -> Tensor:
    """Mean + s ε, s = sqrt(var), ε the noise, which becomes ε / 2s in place, 0 where s is 0."""
    std = var.clamp_min(0).sqrt_()
    output = torch.addcmul(mean, std, noise)
    noise.div_(std.add_(std)).nan_to_num_(0.0, 0.0, 0.0)  # these are as large as all activations
    return output


def perturb_back(grad: Tensor, slope: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Gradient for var, (n, m), and sums over n, (m,), of the output's gradient and of this one."""
    for_var = grad * slope
    return for_var, grad.sum(0), for_var.sum(0)


EAGER = passes_of(lambda function: function)
IN_C = Passes(_forth_in_c, _back_in_c, True, native.product_dtype)  # ε is of `counter_normals`


class _Perturb(torch.autograd.Function):
    """mean + sqrt(var) · ε with an explicit generator; the gradient at var = 0 is taken as 0."""

    @staticmethod
    def forward(
        mean: Tensor, var: Tensor, generator: Generator, passes: Passes
    ) -> tuple[Tensor, Tensor]:
        return passes.forth(mean, var, generator, False)

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
        passes: Passes,
    ) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
        k = info.batch_size
        mean = mean.expand(k, *mean.shape) if in_dims[0] is None else mean.movedim(in_dims[0], 0)
        var = var.expand(k, *var.shape) if in_dims[1] is None else var.movedim(in_dims[1], 0)
        return _Perturb.apply(mean, var, generator, passes), (0, 0)


def perturbed(mean: Tensor, var: Tensor, generator: Generator, passes: Passes = EAGER) -> Tensor:
    """A draw from N(mean, var), both of one shape, with the gradients of mean + sqrt(var) · ε."""
    output: Tensor = _Perturb.apply(mean, var, generator, passes)[0]
    return output


class _LocalLinear(torch.autograd.Function):
    """A draw of x Wᵀ + b with x (n, in) and normal W and b, one step of autograd for all of it.

    The products of variances are in a dtype of fewer digits where that is faster. Gradients for
    tensors as large as the weights are one product each, and no other tensor is as large.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, weight_var: Tensor,
        bias_var: Tensor | None, generator: Generator, passes: Passes,
    ) -> Tensor:  # fmt: skip
        square, mean, dtype = x * x, F.linear(x, weight, bias), passes.product_dtype()
        if dtype is None or dtype == x.dtype:
            var = F.linear(square, weight_var, bias_var)
        else:
            square, weight_var = square.to(dtype), weight_var.to(dtype)
            var = F.linear(square, weight_var).to(x.dtype)
            var = var if bias_var is None else var.add_(bias_var)
        output, slope = passes.forth(mean, var, generator, True)
        ctx.save_for_backward(x, square, weight, weight_var, slope)
        ctx.biased, ctx.back = bias is not None, passes.back
        return output

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, square, weight, weight_var, slope = ctx.saved_tensors
        grad, for_x, shorter = grad.contiguous(), None, weight_var.dtype != x.dtype
        for_var, for_bias, for_bias_var = ctx.back(grad, slope)
        if shorter:
            for_var = for_var.to(weight_var.dtype)
        if ctx.needs_input_grad[0]:
            twice = for_var @ weight_var
            twice = (twice.to(x.dtype) if shorter else twice).mul_(x)
            for_x = twice.addmm_(grad, weight, beta=2)
        for_weight, for_weight_var = grad.t() @ x, for_var.t() @ square
        if shorter:
            for_weight_var = for_weight_var.to(x.dtype)
        if not ctx.biased:
            return for_x, for_weight, None, for_weight_var, None, None, None
        return for_x, for_weight, for_bias, for_weight_var, for_bias_var, None, None


def local_linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, weight_var: Tensor, bias_var: Tensor | None,
    generator: Generator, passes: Passes,
) -> Tensor:  # fmt: skip
    """Draw the outputs of a Linear layer at x, (..., in) -> (..., out).

    Args:
        x: inputs.
        weight: means of the weights, (out, in).
        bias: means of the biases, (out,).
        weight_var: variances of the weights, (out, in).
        bias_var: variances of the biases, (out,).
        generator: of the noise.
        passes: over its activations.
    """
    rows = x if x.dim() == 2 else x.flatten(0, -2)
    tensors = (rows, weight, bias, weight_var, bias_var)
    output: Tensor = _LocalLinear.apply(*tensors, generator, passes)
    return output if x.dim() == 2 else output.view(*x.shape[:-1], len(weight))


class LocalLayer(nn.Module):
    """A Linear or Conv layer with a mean and a variance per weight.

    Args:
        layer: to stand for.
        source: of the generator of its noise.
        passes: over its activations.
        one_node: whether a Linear layer is one step of autograd, written out.
    """

    def __init__(
        self, layer: nn.Module, source: Callable[[], Generator], passes: Passes, *, one_node: bool
    ) -> None:
        super().__init__()
        self.passes = passes
        self._is_one_node = one_node and type(layer) is nn.Linear
        self.weight: nn.Parameter = layer.weight  # type: ignore[assignment]
        self.bias: nn.Parameter | None = layer.bias  # type: ignore[assignment]
        self.weight_var = _meta_like(self.weight)
        self.bias_var = None if self.bias is None else _meta_like(self.bias)
        self.source = source
        self._layer = [layer]  # in a list: not a submodule, only its forward settings are used

    def forward(self, x: Tensor) -> Tensor:
        """Draw the output at x."""
        if torch._C._current_graph_task_id() >= 0:  # inside a backward pass
            raise UnsupportedModelError(
                "noise on activations (local=True) cannot be drawn again by activation "
                "checkpointing: the way back would see other noise. Use local=False."
            )
        if self._is_one_node:
            weight, bias, weight_var, bias_var = map(self._parameters.get, _TENSORS)
            assert weight is not None
            assert weight_var is not None
            tensors = (weight, bias, weight_var, bias_var)
            return local_linear(x, *tensors, self.source(), self.passes)
        mean = self._linear(x, self.weight, self.bias)
        # x * x, not x.square(): autocast on a GPU would take that, as a power, to float32.
        var = self._linear(x * x, self.weight_var, self.bias_var)
        suits = not self.passes.dense or (mean.is_contiguous() and var.is_contiguous())
        return perturbed(mean, var, self.source(), self.passes if suits else EAGER)

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
        """Whether the layer is a plain matrix."""
        return type(self._layer[0]) is nn.Linear

    def _linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        layer = self._layer[0]
        if isinstance(layer, nn.Linear):
            return F.linear(x, weight, bias)
        return layer._conv_forward(x, weight, bias)  # type: ignore[operator]


def _meta_like(parameter: nn.Parameter) -> nn.Parameter:
    return nn.Parameter(parameter.detach().to("meta"))  # empty_like would load SymPy for it


def localise(
    network: Network, source: Callable[[], Generator], passes: Passes, *, one_node: bool
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
            local = LocalLayer(layer, source, passes, one_node=one_node)
            setattr(skeleton.get_submodule(parent), leaf, local)
            names |= {f"{name}_var": name for name, _ in tensors}
    return skeleton, names
