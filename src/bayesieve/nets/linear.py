"""Which modules are linear maps, by type or by what they compute, and where their matrix is."""

import torch
from torch import Tensor, nn

from bayesieve.core.layout import acts_as_linear


def matrix_of(layer: nn.Module) -> Tensor:
    """The weights of a linear map as a view (outputs, inputs), whichever way it stores them."""
    weight = layer.weight
    assert isinstance(weight, Tensor)
    if isinstance(layer, nn.Linear) or not _is_transposed(layer):
        return weight.detach()
    return weight.detach().T


def _is_transposed(layer: nn.Module) -> bool:
    """Return whether a layer of another library has (inputs, outputs), as the Conv1D of GPT-2."""
    weight = layer.weight
    assert isinstance(weight, Tensor)
    try:
        with torch.no_grad():
            outputs = layer(weight.new_zeros(1, weight.shape[0])).shape[-1]
    except Exception:  # of whatever a module raises for inputs of another size
        return False
    if weight.shape[0] != weight.shape[1]:
        return bool(outputs == weight.shape[1])
    unit = torch.eye(len(weight), device=weight.device, dtype=weight.dtype)[:1]
    with torch.no_grad():
        row = layer(unit) - layer(torch.zeros_like(unit))
    return torch.allclose(row[0], weight[0], rtol=1e-3, atol=1e-6)


def is_linear(module: nn.Module) -> bool:
    """Return whether an adapter fits a module: a linear map, by type or by what it computes."""
    return type(module) is nn.Linear or (
        not isinstance(module, nn.Linear) and acts_as_linear(module)
    )
