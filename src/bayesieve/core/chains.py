"""Plain chains of linear layers for many models at once: one batched product per layer.

`vmap` does the same for any module, at twice the cost where networks are small: there most of the
time goes into dispatch.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from bayesieve.core.local import LocalLayer, perturbed

_ELEMENTWISE = {nn.ReLU: torch.relu, nn.Tanh: torch.tanh, nn.SiLU: nn.functional.silu}
Chain = Sequence[tuple[str, nn.Module]]


def chain_of(module: nn.Module) -> Chain | None:
    """Names and layers of a `Sequential` of Flatten, Linear and activations; None for others.

    Linear layers may be those of `core.local`, with noise on their outputs.

    Example:
        >>> [name for name, _ in chain_of(nn.Sequential(nn.Linear(3, 2), nn.ReLU()))]
        ['0', '1']
        >>> chain_of(nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))) is None
        True
    """
    if type(module) is not nn.Sequential:
        return None
    layers = list(module.named_children())
    if len({id(layer) for _, layer in layers}) < len(module) or not all(map(_is_plain, module)):
        return None
    return layers


def run_chain(chain: Chain, parameters: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """Outputs of k models on their own inputs, (k, n, ...) -> (k, n, outputs).

    Args:
        chain: from `chain_of`.
        parameters: by name, each with a leading axis of k.
        x: inputs.
    """
    for name, layer in chain:
        if isinstance(layer, nn.Flatten):
            x = x.flatten(2)
        elif isinstance(layer, nn.Linear):
            x = _product(x, parameters[f"{name}.weight"], parameters.get(f"{name}.bias"))
        elif isinstance(layer, LocalLayer):
            mean = _product(x, parameters[f"{name}.weight"], parameters.get(f"{name}.bias"))
            std, bias_std = parameters[f"{name}.weight_std"], parameters.get(f"{name}.bias_std")
            bias_var = None if bias_std is None else bias_std.square()
            x = perturbed(mean, _product(x * x, std.square(), bias_var), layer.source())
        else:
            x = _ELEMENTWISE[type(layer)](x)
    return x


def _product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """(k, n, in) by (k, out, in), and (k, out) added."""
    if bias is None:
        return torch.bmm(x, weight.transpose(1, 2))
    return torch.baddbmm(bias[:, None], x, weight.transpose(1, 2))


def _is_plain(layer: nn.Module) -> bool:
    if type(layer) is nn.Flatten:
        return layer.start_dim == 1 and layer.end_dim == -1
    if type(layer) is nn.Linear:
        return all(p is None or p.requires_grad for p in (layer.weight, layer.bias))
    if type(layer) is LocalLayer:
        return layer.is_linear
    return type(layer) in _ELEMENTWISE
