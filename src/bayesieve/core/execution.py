"""How training steps are computed: precision, compiled kernels, clipped gradients.

In bfloat16 only the network of a training step runs. Weights, gradients, likelihoods and the
arithmetic of the engine stay in the dtype of the model, and predictions are made in it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

Precision = Literal["float32", "bf16"]
PRECISIONS: tuple[Precision, ...] = ("float32", "bf16")


@dataclass(eq=False)
class Execution:
    """How the steps of a run are computed.

    Args:
        precision: of the network in a training step.
        compiled: whether elementwise functions of flat tensors are compiled.
        clip_norm: bound on the norm of the log-likelihood gradient per example; None has no bound.

    Example:
        >>> grad = torch.tensor([[3.0, 4.0]])
        >>> Execution(clip_norm=0.5).clip_(2, grad)  # the norm is 5, the bound 2 · 0.5
        >>> grad
        tensor([[0.6000, 0.8000]])
    """

    precision: Precision = "float32"
    compiled: bool = False
    clip_norm: float | None = None
    _kernels: dict[Any, Callable[..., Any]] = field(default_factory=dict, init=False, repr=False)

    def kernel(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The elementwise function, compiled when `compiled` is set."""
        if not self.compiled:
            return function
        if function not in self._kernels:
            self._kernels[function] = torch.compile(function, dynamic=False)
        return self._kernels[function]

    def clip_(self, n_data: int, *grads: Tensor) -> None:
        """Scale gradients, each (k, d), so that their joint norm per example is <= clip_norm."""
        if self.clip_norm is None:
            return
        square = torch.stack([grad.square().sum(1) for grad in grads]).sum(0)
        factor = (self.clip_norm * n_data / square.sqrt()).clamp(max=1)[:, None]
        for grad in grads:
            grad.mul_(factor)


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
