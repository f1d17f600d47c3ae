"""Layers with noise on activations as one step of autograd, its way back written out.

`noise.LocalLayer` has the definition: two products, and `perturbed`. Here a layer keeps no more
tensors than it needs, and its passes over activations run in C or compiled.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from bayesieve.core.execution import Backend, kernel
from bayesieve.core.noise import perturb_


@kernel("bayesieve_square", compiled=False)
def square(x: Tensor, dtype: torch.dtype) -> Tensor:
    """x² in a dtype."""
    return (x * x).to(dtype)


@kernel("bayesieve_join", compiled=False)
def join_(total: Tensor, x: Tensor, for_square: Tensor) -> Tensor:
    """Add 2x times the gradient for x² to a gradient for x, in place."""
    return total.addcmul_(x, for_square.to(x.dtype), value=2)


@kernel("bayesieve_perturb_back", any_shape=True)
def perturb_back(grad: Tensor, slope: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """The gradient for var in a dtype, and sums over all but m of the output's and of this one."""
    for_var, others = grad * slope, [0, *range(2, grad.dim())]
    return for_var.to(dtype), grad.sum(others), for_var.sum(others)


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
        """Return whether the kernel is as large as its input: there is one position."""
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
        bias_var: Tensor | None, product: Product, generator: Generator, backend: Backend,
    ) -> Tensor:  # fmt: skip
        squares, brief = backend.run(square)(x, weight_var.dtype), weight_var.dtype != x.dtype
        mean = product.forth(x, weight, bias)
        var = product.forth(squares, weight_var, None if brief else bias_var)
        left, noise = bias_var if brief else None, backend.noise(mean, generator)
        output, slope = backend.run(perturb_)(mean, var, left, noise, True)
        ctx.save_for_backward(x, squares, weight, weight_var, slope)
        ctx.biased, ctx.product, ctx.run = bias is not None, product, backend.run
        return output

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, squares, weight, weight_var, slope = ctx.saved_tensors
        back, run, needed = ctx.product.back, ctx.run, ctx.needs_input_grad[0]
        grad = grad.contiguous()
        for_var, for_bias, for_bias_var = run(perturb_back)(grad, slope, weight_var.dtype)
        for_square, for_weight_var = back(for_var, squares, weight_var, needed)
        for_x, for_weight = back(grad, x, weight, needed)
        if needed:
            for_x = run(join_)(for_x, x, for_square)
        if not ctx.biased:
            return for_x, for_weight, None, for_weight_var, None, None, None, None
        return for_x, for_weight, for_bias, for_weight_var, for_bias_var, None, None, None


@dataclass(frozen=True)
class FusedLayer:
    """Draws the outputs of a Linear or Conv layer.

    Args:
        product: of the layer.
        backend: runs the passes over its activations.
    """

    product: _Matrix | _Convolution
    backend: Backend

    def __call__(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, weight_var: Tensor,
        bias_var: Tensor | None, generator: Generator,
    ) -> Tensor | None:  # fmt: skip
        """Draw the outputs at x in one step; None where that does not suit the input.

        Args:
            x: inputs.
            weight: means of the weights, (out, in, ...).
            bias: means of the biases, (out,).
            weight_var: variances of the weights; products of variances have their dtype.
            bias_var: variances of the biases, (out,).
            generator: of the noise.
        """
        tensors = (weight, bias, weight_var, bias_var)
        if isinstance(self.product, _Matrix):
            return self._linear(x, *tensors, generator)
        if x.dim() != weight.dim() or not x.is_contiguous():
            return None
        if self.product.covers(x, weight):  # with one position left a convolution is a matrix
            matrices = (x.flatten(1), weight.flatten(1), bias, weight_var.flatten(1), bias_var)
            units = self._linear(*matrices, generator)
            return units.view(*units.shape, *[1] * (x.dim() - 2))
        if not self.backend.dense:
            return None
        output: Tensor = _Local.apply(x, *tensors, self.product, generator, self.backend)
        return output

    def _linear(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, weight_var: Tensor,
        bias_var: Tensor | None, generator: Generator,
    ) -> Tensor:  # fmt: skip
        rows = x if x.dim() == 2 else x.flatten(0, -2)
        rows = rows.contiguous() if self.backend.dense else rows
        tensors = (rows, weight, bias, weight_var, bias_var)
        output: Tensor = _Local.apply(*tensors, _Matrix(), generator, self.backend)
        return output if x.dim() == 2 else output.view(*x.shape[:-1], len(weight))


def fused_layer(layer: nn.Module, backend: Backend) -> FusedLayer | None:
    """Return what draws the outputs of a layer; None if its padding is more than zeros."""
    if type(layer) is nn.Linear:
        return FusedLayer(_Matrix(), backend)
    assert isinstance(layer, nn.modules.conv._ConvNd)
    if layer.padding_mode != "zeros" or isinstance(layer.padding, str):
        return None
    settings = (layer.stride, layer.padding, layer.dilation, layer.groups)
    return FusedLayer(_Convolution(*settings), backend)
