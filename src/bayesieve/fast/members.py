"""Models on their own examples as one batched product per layer.

`vmap` costs twice as much for small networks, where most of the time goes into dispatch.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from bayesieve.core.network import is_hooked, sequential_layers
from bayesieve.core.noise import LocalLayer, perturbed

Layers = Sequence[tuple[str, nn.Module]]
ENTRYWISE = (
    nn.Identity, nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.CELU, nn.SELU, nn.GELU, nn.SiLU,
    nn.Mish, nn.Tanh, nn.Tanhshrink, nn.Sigmoid, nn.LogSigmoid, nn.Hardtanh, nn.Hardsigmoid,
    nn.Hardswish, nn.Hardshrink, nn.Softplus, nn.Softshrink, nn.Softsign, nn.Threshold,
)  # fmt: skip


def members_of(skeleton: nn.Module) -> Callable[..., Tensor] | None:
    """Outputs of k models as a function of parameters, (k, ...) each, and inputs, (k, n, ...).

    None for networks that are no plain sequence of layers.
    """
    layers = plain_layers(skeleton)
    return None if layers is None else partial(_run_layers, layers)


def plain_layers(module: nn.Module) -> Layers | None:
    """Names and layers of a `Sequential` of Flatten, Linear and activations; None for others.

    Linear layers may be those of `core.noise`, with noise on their outputs.

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
