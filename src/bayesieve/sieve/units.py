"""Which unit each weight belongs to, and the strict rule for units nobody listens to.

A hidden unit with no kept outgoing weight loses its bias and incoming weights; while it has one,
its bias counts as kept. The network's function does not change. Death travels backwards only, so
one pass from the output to the input reaches the fixed point.

The chain is read from a symbolic trace. A pair of layers A → B is linked when A's output reaches
only B, through modules that treat units separately. Residual and branching paths, grouped and
transposed convolutions, shared or frozen layers and models that cannot be traced have no link:
nothing is cleaned there, their biases simply count as kept.
"""

import weakref
from dataclasses import dataclass

import torch
from torch import Tensor

from bayesieve.core.graph import Link, links
from bayesieve.core.layout import Layout
from bayesieve.core.network import Network


@dataclass(frozen=True)
class UnitChain:
    """Linked layers of a network, from the output to the input.

    Args:
        layout: where each tensor sits in w.
        links: each consumer comes before its producers.
    """

    layout: Layout
    links: tuple[Link, ...]

    def clean(self, values: Tensor) -> Tensor:
        """Apply the dead-unit rule.

        Args:
            values: (..., d), a bool mask with True = kept, or numbers of which larger ones are
                kept longer: every threshold of the result is then the cleaned threshold of the
                argument.

        Returns:
            A new tensor of the same shape.
        """
        values = values.clone()
        for link in self.links:
            alive = self.outgoing(values, link).amax((-3, -1))
            incoming = self.incoming(values, link)
            incoming.copy_(torch.minimum(incoming, alive[..., None]))
            if link.bias is not None:
                bias = values[..., self.layout.slices[link.bias]]
                bias.copy_(torch.minimum(bias, alive))
        return values

    def fed(self, keep: Tensor) -> Tensor:
        """Remove from a mask, (..., d), what leaves units that no kept weight leads to."""
        keep = keep.clone()
        for link in reversed(self.links):
            reached = self.incoming(keep, link).amax(-1)
            outgoing = self.outgoing(keep, link)
            outgoing.copy_(outgoing & reached[..., None, :, None])
        return keep

    def incoming(self, values: Tensor, link: Link) -> Tensor:
        """View of the weights into the units of a link, (..., d) -> (..., units, fan_in)."""
        return values[..., self.layout.slices[link.producer]].unflatten(-1, (link.n_units, -1))

    def outgoing(self, values: Tensor, link: Link) -> Tensor:
        """View of the weights out of them, (..., d) -> (..., outputs, units, block)."""
        own = values[..., self.layout.slices[link.consumer]]
        return own.unflatten(-1, (link.n_outputs, link.n_units, -1))


_CHAINS: weakref.WeakKeyDictionary[Network, UnitChain] = weakref.WeakKeyDictionary()


def unit_chain(network: Network) -> UnitChain:
    """The linked layers of a network; traced on first use, remembered while the network lives.

    Example:
        >>> from torch import nn
        >>> from bayesieve.core.likelihoods import Gaussian
        >>> model = nn.Sequential(nn.Conv1d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 1))
        >>> [(k.producer, k.consumer) for k in unit_chain(Network.of(model, Gaussian())).links]
        [('0.weight', '3.weight')]
    """
    if network not in _CHAINS:
        _CHAINS[network] = UnitChain(network.layout, links(network))
    return _CHAINS[network]


def dead_unit_closure(network: Network, keep: Tensor) -> Tensor:
    """Drop biases and incoming weights of units without a kept outgoing weight, (..., d) bool.

    Example:
        >>> from torch import nn
        >>> from bayesieve.core.likelihoods import Gaussian
        >>> network = Network.of(nn.Sequential(nn.Linear(1, 2), nn.Linear(2, 1)), Gaussian())
        >>> keep = torch.ones(7, dtype=torch.bool)  # 2 + 2 weights, 2 + 1 biases
        >>> keep[3] = False  # all that leaves the second hidden unit
        >>> dead_unit_closure(network, keep).int()
        tensor([1, 0, 1, 0, 1, 0, 1], dtype=torch.int32)
    """
    return unit_chain(network).clean(keep)
