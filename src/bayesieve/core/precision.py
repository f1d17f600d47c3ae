"""The arithmetic of the network in a training step: float32, or bfloat16 where that is safe.

Weights, gradients, likelihoods and the engine's own arithmetic stay in the dtype of the model;
predictions are made in it too.
"""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

Precision = Literal["float32", "bf16"]
PRECISIONS: tuple[Precision, ...] = ("float32", "bf16")


def evaluate_in(
    precision: Precision, call: Callable[[Tensor], Tensor], x: Tensor, *, images_last: bool
) -> Tensor:
    """Run a network, its matrix products and convolutions in bfloat16 if asked.

    Args:
        precision: "float32" changes nothing, whatever the dtype of the model.
        call: the network.
        x: its input, (n, ...).
        images_last: whether to lay images (n, c, h, w) out with their channels last, which is what
            bfloat16 convolutions on a GPU are fastest with.

    Example:
        >>> half = evaluate_in("bf16", torch.nn.Linear(2, 1), torch.ones(3, 2), images_last=False)
        >>> half.dtype
        torch.float32
    """
    if precision == "float32":
        return call(x)
    if images_last and x.dim() == 4:
        x = x.contiguous(memory_format=torch.channels_last)
    with torch.autocast(x.device.type, torch.bfloat16):
        output = call(x)
    return output.to(x.dtype)
