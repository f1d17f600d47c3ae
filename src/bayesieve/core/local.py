"""Noise on the activations of a layer: local reparameterisation (Kingma et al., 2015).

For a layer that is linear in independent Gaussian weights, the pre-activation is Gaussian with mean
layer(x; m) and variance layer(x²; s²). Drawing it directly gives lower-variance gradients. For
Linear this is exact per example; for Conv the noise is independent at each position, a different
estimator with the same marginal means and variances.

Besides the second product, a layer costs a pass over its inputs and its outputs each way. `Passes`
are these: in C on a CPU, and on a GPU fused by `torch.compile` in runs that compile.

The products of variances are in the dtype of the variances of the weights. On a CPU that multiplies
bfloat16 faster it is that (`product_dtype`), since the third digit of a variance does not count.
The C of a step writes the variances in it, and reads their gradients.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

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
_LARGE = 1 << 14  # weights


Pair = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Passes:
    """The passes over the inputs and the outputs of a layer.

    Activations are (n, m) or (n, m, positions ...), m units or channels.

    Args:
        square: of inputs x and a dtype: returns x² in it.
        forth: of mean, its var, of one shape, the variance of the bias where var lacks it, (m,),
            and a generator: returns mean + sqrt(var) · ε and its derivative in var,
            ε / (2 sqrt(var)), 0 where var is 0. The last argument says whether mean and var may be
            overwritten.
        back: of the gradient of the output, that derivative, and a dtype: returns the gradient for
            var in this dtype, and sums over all but m, (m,), of the output's gradient and of that
            for var.
        join: of the gradient that x has from the means, x, and the gradient for x²: returns the
            gradient for x, in the memory of the first.
        dense: whether tensors must be contiguous.
    """

    square: Callable[[Tensor, torch.dtype], Tensor]
    forth: Callable[[Tensor, Tensor, Tensor | None, Generator, bool], Pair]
    back: Callable[[Tensor, Tensor, torch.dtype], tuple[Tensor, Tensor, Tensor]]
    join: Callable[[Tensor, Tensor, Tensor], Tensor]
    dense: bool = False


def square(x: Tensor, dtype: torch.dtype) -> Tensor:
    """x² in a dtype."""
    return (x * x).to(dtype)


def join(total: Tensor, x: Tensor, for_square: Tensor) -> Tensor:
    """Add 2x times the gradient for x² to a gradient for x, in place."""
    return total.addcmul_(x, for_square.to(x.dtype), value=2)


def perturb(mean: Tensor, var: Tensor, noise: Tensor) -> Tensor:
    """Mean + s ε, s = sqrt(var), ε the noise, which becomes ε / 2s in place, 0 where s is 0."""
    std = var.clamp_min(0).sqrt_()
    output = torch.addcmul(mean, std, noise)
    noise.div_(std.add_(std)).nan_to_num_(0.0, 0.0, 0.0)  # these are as large as all activations
    return output


def perturb_back(grad: Tensor, slope: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Gradient for var, and sums over all but the units, (m,), of the output's and of this one."""
    for_var, others = grad * slope, [0, *range(2, grad.dim())]
    return for_var, grad.sum(others), for_var.sum(others)


def normal_like(x: Tensor, generator: Generator) -> Tensor:
    """Standard normal noise of the shape, dtype and layout of x.

    A CPU fills images with their channels last value by value, unless it is shown their memory as
    one row.
    """
    noise = torch.empty_like(x)  # dense, whatever x is
    row = noise
    if x.device.type == "cpu" and not noise.is_contiguous():
        row = noise.as_strided((noise.numel(),), (1,))
    row.normal_(generator=generator)
    return noise


def passes_of(kernel: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Passes:
    """Passes whose arithmetic goes through `kernel`, which may compile it (`Execution.kernel`)."""

    def forth(
        mean: Tensor, var: Tensor, bias_var: Tensor | None, generator: Generator, in_place: bool
    ) -> Pair:
        var = var.to(mean.dtype)
        if bias_var is not None:
            var = var + bias_var.view(-1, *[1] * (var.dim() - 2))
        noise = normal_like(mean, generator)
        return kernel(perturb)(mean.detach(), var.detach(), noise), noise

    def back(grad: Tensor, slope: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
        for_var, of_grad, of_var = kernel(perturb_back)(grad, slope)
        return for_var.to(dtype), of_grad, of_var

    return Passes(square, forth, back, join)


def _sizes(x: Tensor) -> tuple[int, int, int]:
    """Examples, units and positions of activations; any other shape is one long row."""
    n, m = (1, x.numel()) if x.dim() < 2 else x.shape[:2]
    return n, m, x.numel() // max(n * m, 1)


def _square_in_c(x: Tensor, dtype: torch.dtype) -> Tensor:
    if dtype == x.dtype:
        return x * x
    library, result = native.steps(), torch.empty_like(x, dtype=dtype)
    assert library is not None
    library.bayesieve_square(x.numel(), native.address(x), native.address(result))
    return result


def _forth_in_c(
    mean: Tensor, var: Tensor, bias_var: Tensor | None, generator: Generator, in_place: bool
) -> Pair:
    library, wide = native.steps(), var.dtype == mean.dtype
    assert library is not None
    assert bias_var is None or not wide  # a product in the dtype of the means has added it
    output = mean if in_place else torch.empty_like(mean)
    slope = var if in_place and wide else torch.empty_like(mean)
    variances = (var, None) if wide else (None, var)
    tensors = (mean, *variances, bias_var, fresh_keys(generator), output, slope)
    library.bayesieve_perturb(*_sizes(mean), *map(native.address, tensors))
    return output, slope


def _back_in_c(grad: Tensor, slope: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    library, sizes = native.steps(), _sizes(grad)
    assert library is not None
    for_var = torch.empty_like(grad, dtype=dtype)
    of_grad, of_var = grad.new_empty(2, sizes[1])
    outputs = (for_var, None) if dtype == grad.dtype else (None, for_var)
    tensors = (grad, slope, *outputs, of_grad, of_var)
    library.bayesieve_perturb_back(*sizes, *map(native.address, tensors))
    return for_var, of_grad, of_var


def _join_in_c(total: Tensor, x: Tensor, for_square: Tensor) -> Tensor:
    if for_square.dtype == x.dtype:
        return join(total, x, for_square)
    library, tensors = native.steps(), (x, for_square, total)
    assert library is not None
    library.bayesieve_join(x.numel(), *map(native.address, tensors))
    return total


EAGER = passes_of(lambda function: function)
# ε is of `counter_normals`
IN_C = Passes(_square_in_c, _forth_in_c, _back_in_c, _join_in_c, dense=True)


class _Perturb(torch.autograd.Function):
    """mean + sqrt(var) · ε with an explicit generator; the gradient at var = 0 is taken as 0."""

    @staticmethod
    def forward(
        mean: Tensor, var: Tensor, generator: Generator, passes: Passes
    ) -> tuple[Tensor, Tensor]:
        return passes.forth(mean, var, None, generator, False)

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


class Product(Protocol):
    """A product of inputs x and weights, and its gradients."""

    def forth(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The outputs."""

    def back(
        self, grad: Tensor, x: Tensor, weight: Tensor, for_x: bool
    ) -> tuple[Tensor | None, Tensor]:
        """Gradients for x, where it is asked for, and for the weights, from that of the outputs."""


class _Matrix:
    """x Wᵀ with x (n, in) and W (out, in)."""

    def forth(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return F.linear(x, weight, bias)

    def back(
        self, grad: Tensor, x: Tensor, weight: Tensor, for_x: bool
    ) -> tuple[Tensor | None, Tensor]:
        return grad @ weight if for_x else None, grad.t() @ x


@dataclass(frozen=True)
class _Convolution:
    """A convolution of x (n, in, ...) and W (out, in / groups, ...)."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    @property
    def _settings(self) -> tuple[Any, ...]:
        none = [0] * len(self.stride)
        return self.stride, self.padding, self.dilation, False, none, self.groups

    def forth(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return torch.convolution(x, weight, bias, *self._settings).contiguous()

    def back(
        self, grad: Tensor, x: Tensor, weight: Tensor, for_x: bool
    ) -> tuple[Tensor | None, Tensor]:
        asked = [for_x, True, False]
        gradients = torch.ops.aten.convolution_backward(
            grad, x, weight, None, *self._settings, asked
        )
        return gradients[0], gradients[1]

    def covers(self, x: Tensor, weight: Tensor) -> bool:
        """Whether the kernel is as large as its input: there is one position."""
        plain = self.groups == 1 and set(self.padding) == {0} and set(self.dilation) == {1}
        return plain and x.shape[1:] == weight.shape[1:]


class _Local(torch.autograd.Function):
    """A draw of a product of x and normal weights, plus b, one step of autograd for all of it.

    Gradients for tensors as large as the weights are one product each, and no other tensor is as
    large.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, weight_var: Tensor,
        bias_var: Tensor | None, product: Product, generator: Generator, passes: Passes,
    ) -> Tensor:  # fmt: skip
        square, brief = passes.square(x, weight_var.dtype), weight_var.dtype != x.dtype
        mean = product.forth(x, weight, bias)
        var = product.forth(square, weight_var, None if brief else bias_var)
        left = bias_var if brief else None
        output, slope = passes.forth(mean, var, left, generator, True)
        ctx.save_for_backward(x, square, weight, weight_var, slope)
        ctx.biased, ctx.product, ctx.passes = bias is not None, product, passes
        return output

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, square, weight, weight_var, slope = ctx.saved_tensors
        back, passes, needed = ctx.product.back, ctx.passes, ctx.needs_input_grad[0]
        grad = grad.contiguous()
        for_var, for_bias, for_bias_var = passes.back(grad, slope, weight_var.dtype)
        for_square, for_weight_var = back(for_var, square, weight_var, needed)
        for_x, for_weight = back(grad, x, weight, needed)
        if needed:
            for_x = passes.join(for_x, x, for_square)
        if not ctx.biased:
            return for_x, for_weight, None, for_weight_var, None, None, None, None
        return for_x, for_weight, for_bias, for_weight_var, for_bias_var, None, None, None


def local_linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, weight_var: Tensor, bias_var: Tensor | None,
    generator: Generator, passes: Passes,
) -> Tensor:  # fmt: skip
    """Draw the outputs of a Linear layer at x, (..., in) -> (..., out).

    Args:
        x: inputs.
        weight: means of the weights, (out, in).
        bias: means of the biases, (out,).
        weight_var: variances of the weights, (out, in); products of variances have their dtype.
        bias_var: variances of the biases, (out,).
        generator: of the noise.
        passes: over its activations.
    """
    rows = x if x.dim() == 2 else x.flatten(0, -2)
    rows = rows.contiguous() if passes.dense else rows
    tensors = (rows, weight, bias, weight_var, bias_var)
    output: Tensor = _Local.apply(*tensors, _Matrix(), generator, passes)
    return output if x.dim() == 2 else output.view(*x.shape[:-1], len(weight))


def product_dtype(layer: nn.Module) -> torch.dtype:
    """Dtype in which a CPU multiplies the variances of a layer fastest, of float32 and bfloat16.

    Small matrices take longer to convert than they save. oneDNN has no fast gradient in bfloat16
    for the weights of a convolution with few channels on either side, and rarely one for those of
    a convolution in groups.
    """
    weight: Tensor = layer.weight  # type: ignore[assignment]
    faster = native.product_dtype()
    if faster == torch.float32:
        return faster
    if isinstance(layer, nn.Conv2d):
        many = layer.out_channels % 16 == 0 or min(layer.in_channels, layer.out_channels) >= 12
        return faster if many and layer.groups == 1 else torch.float32
    large = isinstance(layer, nn.Linear) and weight.numel() >= _LARGE
    return faster if large else torch.float32


class LocalLayer(nn.Module):
    """A Linear or Conv layer with a mean and a variance per weight.

    Args:
        layer: to stand for.
        source: of the generator of its noise.
        passes: over its activations.
        one_node: whether a Linear layer, and a Conv layer on a CPU, is one step of autograd,
            written out.
    """

    def __init__(
        self, layer: nn.Module, source: Callable[[], Generator], passes: Passes, *, one_node: bool
    ) -> None:
        super().__init__()
        self.passes = passes
        self._product = _product(layer) if one_node else None
        self.weight: nn.Parameter = layer.weight  # type: ignore[assignment]
        self.bias: nn.Parameter | None = layer.bias  # type: ignore[assignment]
        dtype = product_dtype(layer) if self._product and passes is IN_C else self.weight.dtype
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
        if self._product is not None:
            drawn = self._draw(self._product, x)
            if drawn is not None:
                return drawn
        mean = self._linear(x, self.weight, self.bias)
        # x * x, not x.square(): autocast on a GPU would take that, as a power, to float32.
        var = self._linear(x * x, self.weight_var.to(self.weight.dtype), self.bias_var)
        suits = not self.passes.dense or (mean.is_contiguous() and var.is_contiguous())
        return perturbed(mean, var, self.source(), self.passes if suits else EAGER)

    def _draw(self, product: "_Matrix | _Convolution", x: Tensor) -> Tensor | None:
        """The output in one step of autograd; None where that does not suit the input."""
        weight, bias, weight_var, bias_var = map(self._parameters.get, _TENSORS)
        assert weight is not None
        assert weight_var is not None
        tensors = (x, weight, bias, weight_var, bias_var)
        if isinstance(product, _Matrix):
            return local_linear(*tensors, self.source(), self.passes)
        if x.dim() != weight.dim() or not x.is_contiguous():
            return None
        if product.covers(x, weight):  # with one position left a convolution is a matrix
            matrices = (x.flatten(1), weight.flatten(1), bias, weight_var.flatten(1), bias_var)
            units = local_linear(*matrices, self.source(), self.passes)
            return units.view(*units.shape, *[1] * (x.dim() - 2))
        if not self.passes.dense:
            return None
        output: Tensor = _Local.apply(*tensors, product, self.source(), self.passes)
        return output

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


def _meta_like(parameter: nn.Parameter, dtype: torch.dtype) -> nn.Parameter:
    # empty_like would load SymPy for it
    return nn.Parameter(parameter.detach().to("meta").to(dtype))


def _product(layer: nn.Module) -> "_Matrix | _Convolution | None":
    """The product of a layer; None of one whose padding is more than zeros of a given width."""
    if type(layer) is nn.Linear:
        return _Matrix()
    assert isinstance(layer, nn.modules.conv._ConvNd)
    if layer.padding_mode != "zeros" or isinstance(layer.padding, str):
        return None
    return _Convolution(layer.stride, layer.padding, layer.dilation, layer.groups)


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
