"""Operations that treat channels separately: activations, pooling, batch normalisation, dropout.

Whether a constant channel stays constant, and at which value, is found by running the operation
on a tensor that holds the constants: any such operation needs no formula of its own.
"""

import torch
from torch import Tensor, fx, nn

from bayesieve.sieve.compaction.channels import Channels, constants_of, spread, varying
from bayesieve.sieve.compaction.flow import Flow, Rewriting, Rewritten

_PER_CHANNEL = ("weight", "bias", "running_mean", "running_var")
_COUNTS = ("num_features", "num_parameters")


class Separate:
    """One output channel for each input channel, on the same axis.

    Args:
        axis: where the operation itself takes the channels to lie; None if it does not care.
    """

    def __init__(self, axis: int | None = None) -> None:
        self.axis = axis

    def forward(self, node: fx.Node, flow: Flow) -> Channels | str:
        """Run the operation on the constants."""
        x, *others = flow.traced.tensor_inputs(node)
        known = flow.channels[x]
        if others:
            return "reads a second tensor"
        if self.axis not in (None, known.axis):
            return f"works along axis {self.axis} while channels lie on axis {known.axis}"
        shape = flow.shape(x)
        if len(node.all_input_nodes) > 1:  # a size, which may change with the batch
            return varying(known.axis, len(known))
        filled = spread(known.value.nan_to_num(0.0), known.axis, shape)
        out = flow.traced.run(node, {x: filled.to(x.meta["dtype"])})
        if len(out.shape) != len(shape) or out.shape[known.axis] != len(known):
            return "changes the number of channels"
        value = constants_of(out, known.axis)
        return Channels(known.axis, torch.where(known.constant, value, torch.nan))

    def backward(self, node: fx.Node, flow: Flow) -> None:
        """The same channels of the input."""
        (x,) = flow.traced.tensor_inputs(node)
        flow.request(x, flow.channels[node].axis, flow.need[node])

    def rewrite(self, node: fx.Node, to: Rewriting) -> Rewritten:
        """Slice per-channel numbers to the channels that come in."""
        (x,) = to.flow.traced.tensor_inputs(node)
        known = to.flow.channels[node]
        held = to.held(x, known.axis)
        if node.op == "call_module" and len(held) < len(known):
            _slice(to.flow.traced.layer(node), held, len(known))
        return Rewritten(to.copy(node), held)


def _slice(module: nn.Module, held: Tensor, n: int) -> None:
    for name in _PER_CHANNEL:
        old = getattr(module, name, None)
        if not isinstance(old, Tensor) or old.shape != (n,):
            continue
        new = old.detach()[held].clone()
        is_weight = isinstance(old, nn.Parameter)
        setattr(module, name, nn.Parameter(new, old.requires_grad) if is_weight else new)
    for name in _COUNTS:
        if getattr(module, name, 1) == n:
            setattr(module, name, len(held))
