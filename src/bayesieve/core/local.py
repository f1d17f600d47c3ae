"""Local reparameterisation: noise on activations instead of weights (Kingma et al., 2015).

For a layer that is linear in independent Gaussian weights, the pre-activation is Gaussian with
mean layer(x; m) and variance layer(x²; s²). Drawing it directly gives lower-variance gradients.
For Linear this is exact per example; for Conv the noise is independent at each position, a
different estimator with the same marginal means and variances.
"""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from bayesieve.core.layout import Role
from bayesieve.core.network import Network

LOCAL_TYPES = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


class _Perturb(torch.autograd.Function):
    """mean + sqrt(var) · ε with an explicit generator; the gradient at var = 0 is taken as 0."""

    @staticmethod
    def forward(mean: Tensor, var: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
        noise = torch.empty_like(mean).normal_(generator=generator)
        std = var.clamp_min(0).sqrt_()
        output = torch.addcmul(mean, std, noise)
        # In place, since these tensors are as large as all activations: ε / 2s, and 0 where s = 0.
        slope = noise.div_(std.add_(std)).nan_to_num_(0.0, 0.0, 0.0)
        return output, slope

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.save_for_backward(output[1])
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor, Tensor, None]:
        (slope,) = ctx.saved_tensors
        return grad, grad * slope, None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], mean: Tensor, var: Tensor, generator: Generator
    ) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
        k = info.batch_size
        mean = mean.expand(k, *mean.shape) if in_dims[0] is None else mean.movedim(in_dims[0], 0)
        var = var.expand(k, *var.shape) if in_dims[1] is None else var.movedim(in_dims[1], 0)
        return _Perturb.apply(mean, var, generator), (0, 0)


def perturbed(mean: Tensor, var: Tensor, generator: Generator) -> Tensor:
    """A draw from N(mean, var), both of one shape, with the gradients of mean + sqrt(var) · ε."""
    own: Tensor = _Perturb.apply(mean, var, generator)[0]
    return own


class LocalLayer(nn.Module):
    """A Linear or Conv layer with a mean and a standard deviation per weight."""

    def __init__(self, layer: nn.Module, source: Callable[[], Generator]) -> None:
        super().__init__()
        self.weight: nn.Parameter = layer.weight  # type: ignore[assignment]
        self.bias: nn.Parameter | None = layer.bias  # type: ignore[assignment]
        self.weight_std = _meta_like(self.weight)
        self.bias_std = None if self.bias is None else _meta_like(self.bias)
        self.source = source
        self._layer = [layer]  # in a list: not a submodule, only its forward settings are used

    def forward(self, x: Tensor) -> Tensor:
        """Draw the output at x."""
        mean = self._linear(x, self.weight, self.bias)
        bias_var = None if self.bias_std is None else self.bias_std.square()
        # x * x, not x.square(): autocast on a GPU would take that, as a power, to float32.
        var = self._linear(x * x, self.weight_std.square(), bias_var)
        return perturbed(mean, var, self.source())

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
    return nn.Parameter(torch.empty_like(parameter, device="meta"))


def localise(network: Network, source: Callable[[], Generator]) -> tuple[nn.Module, dict[str, str]]:
    """Swap Linear and Conv layers of a copy of the skeleton for local ones.

    Only plain layers whose parameters are Bayesian, trainable and not shared are swapped; other
    Bayesian tensors keep being drawn in weight space.

    Returns:
        The module, and for each new std parameter the name of the weight it belongs to.
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
        own = [(f"{path}.{leaf}", p) for leaf, p in layer.named_parameters(recurse=False)]
        if all(roles.get(name, Role.POINT) < Role.POINT and owners[p] == 1 for name, p in own):
            parent, _, leaf = path.rpartition(".")
            setattr(skeleton.get_submodule(parent), leaf, LocalLayer(layer, source))
            names |= {f"{name}_std": name for name, _ in own}
    return skeleton, names
