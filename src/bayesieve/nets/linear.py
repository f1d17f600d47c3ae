"""Which modules are linear maps, by type or by what they compute, and where their matrix is."""

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import linear


def acts_as_linear(module: nn.Module) -> bool:
    """Return whether a module computes x W + b, or x Wᵀ + b, of its `weight` and perhaps `bias`.

    It is tried on a few inputs with random numbers for its parameters.

    Example:
        >>> class Mapped(nn.Module):  # as the Conv1D of GPT-2
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.weight = nn.Parameter(torch.ones(3, 2))
        ...
        ...     def forward(self, x):
        ...         return x @ self.weight
        >>> acts_as_linear(Mapped()), acts_as_linear(nn.Embedding(3, 2))
        (True, False)
    """
    shapes = {name: p.shape for name, p in module.named_parameters(recurse=False)}
    leaf = next(module.children(), None) is None
    if (
        not leaf
        or not {"weight"} <= shapes.keys() <= {"weight", "bias"}
        or len(shapes["weight"]) != 2
    ):
        return False
    generator = torch.Generator().manual_seed(0)
    tensors = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    for weight in (tensors["weight"], tensors["weight"].T):
        x = torch.randn(8, weight.shape[1], generator=generator)
        try:
            with torch.no_grad():
                found = functional_call(module, tensors, (x,))
                expected = linear(x, weight, tensors.get("bias"))
        except Exception:  # of whatever a module raises for an input that is not meant for it
            continue
        alike = isinstance(found, Tensor) and found.shape == expected.shape
        if alike and torch.allclose(found, expected, rtol=1e-3, atol=1e-3):
            return True
    return False


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
