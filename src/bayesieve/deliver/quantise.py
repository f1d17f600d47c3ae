"""Weights as 8-bit integers, one scale per output channel; activations stay floating point.

Row r of a weight is stored as integers q and one scale s_r,

    w ≈ s_r q,   s_r = max |w_r| / 127,   q = round(w / s_r) in -127..127                    (1)

so the error of a weight is at most s_r / 2. Zeros stay exact zeros. Layers multiply with s_r q, so
the file is four times smaller while the arithmetic is what it was.
"""

import copy
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bayesieve.nets.modes import modes_kept

_LEVELS = 127
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_CALLS: tuple[Any, ...] = (F.conv1d, F.conv2d, F.conv3d)


def quantise_rows(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Integers, int8 of the weight's shape, and scales, shape (rows,), of eq. 1.

    Example:
        >>> whole, scale = quantise_rows(torch.tensor([[1.0, -0.5, 0.0], [0.0, 0.0, 0.0]]))
        >>> whole.tolist(), [round(s, 5) for s in scale.tolist()]
        ([[127, -64, 0], [0, 0, 0]], [0.00787, 1.0])
    """
    if not bool(weight.isfinite().all()):
        raise ValueError("quantise: weights must be finite; this layer holds inf or NaN.")
    rows = weight.detach().flatten(1)
    largest = rows.abs().amax(1)
    scale = largest / _LEVELS
    scale = torch.where(scale > 0, scale, torch.ones_like(scale))  # a row of zeros
    whole = (rows / scale[:, None]).round().clamp(-_LEVELS, _LEVELS).to(torch.int8)
    return whole.view(weight.shape), scale


class _Quantised(nn.Module):
    """What both layers share: int8 weight, scale and bias in the state dict under those names."""

    weight: Tensor
    scale: Tensor

    def __init__(self, layer: nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d) -> None:
        super().__init__()
        weight, scale = quantise_rows(layer.weight)
        self.register_buffer("weight", weight)
        self.register_buffer("scale", scale)
        self.bias = layer.bias
        self.train(layer.training)

    def dequantised(self) -> Tensor:
        """The weight as floating point, of the layer's shape."""
        return self.weight.to(self.scale.dtype) * self.scale.view(
            -1, *[1] * (self.weight.dim() - 1)
        )


class QuantisedLinear(_Quantised):
    """A `Linear` layer that holds its weight in 8 bits."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__(layer)
        self.in_features, self.out_features = layer.in_features, layer.out_features

    def forward(self, x: Tensor) -> Tensor:
        """Inputs (..., in_features) to outputs (..., out_features)."""
        return F.linear(x, self.dequantised(), self.bias)

    def extra_repr(self) -> str:
        """The sizes, as of `Linear`."""
        return f"in_features={self.in_features}, out_features={self.out_features}"


class QuantisedConv(_Quantised):
    """A convolution (1, 2 or 3 dimensions) that holds its weight in 8 bits."""

    def __init__(self, layer: nn.Conv1d | nn.Conv2d | nn.Conv3d) -> None:
        super().__init__(layer)
        self.in_channels, self.out_channels = layer.in_channels, layer.out_channels
        self.kernel_size, self.stride = layer.kernel_size, layer.stride
        self.padding, self.dilation = layer.padding, layer.dilation
        self.groups, self.padding_mode = layer.groups, layer.padding_mode
        self._margins = list(layer._reversed_padding_repeated_twice)

    def forward(self, x: Tensor) -> Tensor:
        """Inputs (n, in_channels, ...) to outputs (n, out_channels, ...)."""
        padding: str | int | tuple[int, ...] = self.padding
        if self.padding_mode != "zeros":
            x, padding = F.pad(x, self._margins, mode=self.padding_mode), 0
        convolve = _CALLS[self.weight.dim() - 3]
        output: Tensor = convolve(
            x, self.dequantised(), self.bias, self.stride, padding, self.dilation, self.groups
        )
        return output

    def extra_repr(self) -> str:
        """The sizes, as of `Conv2d`."""
        return f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}"


def quantise(module: nn.Module) -> nn.Module:
    """Copy a module with the weights of its Linear and Conv layers in 8 bits (eq. 1).

    Biases, normalisation layers and subclasses of these layers stay as they are. The copy keeps
    its weights fixed: training further is a matter for the original.

    Args:
        module: usually a compacted one; it is not changed.

    Returns:
        A module of the same function up to the error that `quantisation_error` measures. Its
        state dict holds int8 tensors, and saves in about a quarter of the bytes.

    Example:
        >>> layer = nn.Linear(2, 1, bias=False)
        >>> _ = layer.weight.data.copy_(torch.tensor([[1.27, 0.504]]))
        >>> small = quantise(nn.Sequential(layer))
        >>> small[0].weight.tolist(), small(torch.tensor([[0.0, 1.0]])).item()
        ([[127, 50]], 0.5)
    """
    if type(module) is nn.Linear:
        return QuantisedLinear(copy.deepcopy(module))
    if type(module) in _CONVOLUTIONS:
        return QuantisedConv(copy.deepcopy(module))  # type: ignore[arg-type]
    result = copy.deepcopy(module)
    made: dict[nn.Module, nn.Module] = {}  # a layer under two names stays one layer
    for parent in list(result.modules()):
        for name, child in list(parent._modules.items()):
            if type(child) is nn.Linear:
                made.setdefault(child, QuantisedLinear(child))
            elif child is not None and type(child) in _CONVOLUTIONS:
                made.setdefault(child, QuantisedConv(child))  # type: ignore[arg-type]
            if child in made:
                setattr(parent, name, made[child])
    if not made:
        raise ValueError("quantise: this module has no Linear or Conv layer to quantise.")
    return result


@dataclass(frozen=True)
class QuantisationError:
    """What 8 bits cost on given inputs, and what they save.

    Args:
        max_abs_error: largest difference of an output.
        output_scale: largest magnitude of an output before.
        changed_labels: share of inputs whose largest output is another one.
        n_bytes_before: of all parameters and buffers.
        n_bytes_after: the same, quantised.
    """

    max_abs_error: float
    output_scale: float
    changed_labels: float
    n_bytes_before: int
    n_bytes_after: int

    @property
    def relative_error(self) -> float:
        """Largest difference in units of the output scale."""
        if self.max_abs_error == 0:
            return 0.0
        return self.max_abs_error / self.output_scale if self.output_scale > 0 else math.inf


def quantisation_error(module: nn.Module, quantised: nn.Module, x: Tensor) -> QuantisationError:
    """Compare a module with its quantised copy on inputs of shape (n, ...).

    Example:
        >>> layer = nn.Linear(2, 1, bias=False)
        >>> _ = layer.weight.data.copy_(torch.tensor([[1.27, 0.504]]))
        >>> error = quantisation_error(layer, quantise(layer), torch.eye(2))
        >>> round(error.max_abs_error, 6), error.n_bytes_before, error.n_bytes_after
        (0.004, 8, 6)
    """
    if len(x) == 0:
        raise ValueError("quantisation_error: got no inputs.")
    with torch.no_grad():
        before, after = (_in_eval(m, x).flatten(1) for m in (module, quantised))
    changed = before.argmax(1) != after.argmax(1)
    return QuantisationError(
        max_abs_error=float((before - after).abs().max()),
        output_scale=float(before.abs().max()),
        changed_labels=float(changed.double().mean()),
        n_bytes_before=_n_bytes(module),
        n_bytes_after=_n_bytes(quantised),
    )


def _in_eval(module: nn.Module, x: Tensor) -> Tensor:
    with modes_kept(module):
        output: Tensor = module.eval()(x)
    return output


def _n_bytes(module: nn.Module) -> int:
    tensors = [*module.parameters(), *module.buffers()]
    return sum(t.numel() * t.element_size() for t in tensors)
