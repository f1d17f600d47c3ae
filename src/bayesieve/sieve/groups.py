"""Entries of w that stay or go together: units, channels and heads.

    unit      a row of a Linear layer, its bias, and the columns of the layer that reads it
    channel   the same for a convolution
    head      rows of query, key and value, their biases, and columns of the output projection

Units and channels come from the links of the network's graph, heads from `nn.MultiheadAttention`.

A hidden unit with no kept outgoing weight loses its bias and incoming weights; while it has one,
its bias counts as kept. The network's function does not change. Removal travels backwards only,
so one pass from the output to the input reaches the fixed point. Where layers are not linked
nothing is removed, and biases simply count as kept.
"""

import weakref
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bayesieve.core.graph import Link, links
from bayesieve.core.layout import Layout
from bayesieve.core.network import Network


@dataclass(frozen=True)
class Units:
    """Units of the linked layers of a network, from the output to the input.

    Args:
        layout: where each tensor sits in w.
        links: each consumer comes before its producers.
    """

    layout: Layout
    links: tuple[Link, ...]

    def clean(self, values: Tensor) -> Tensor:
        """Drop biases and incoming weights of units without a kept outgoing weight.

        Args:
            values: (..., d), a bool mask with True = kept, or numbers of which larger ones are
                kept longer: every threshold of the result is then the cleaned threshold of the
                argument.

        Returns:
            A new tensor of the same shape.

        Example:
            >>> from bayesieve.core.likelihoods import Gaussian
            >>> network = Network.of(nn.Sequential(nn.Linear(1, 2), nn.Linear(2, 1)), Gaussian())
            >>> keep = torch.ones(7, dtype=torch.bool)  # 2 + 2 weights, 2 + 1 biases
            >>> keep[3] = False  # all that leaves the second hidden unit
            >>> units_of(network).clean(keep).int()
            tensor([1, 0, 1, 0, 1, 0, 1], dtype=torch.int32)
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
        weights = values[..., self.layout.slices[link.consumer]]
        return weights.unflatten(-1, (link.n_outputs, link.n_units, -1))


_UNITS: weakref.WeakKeyDictionary[Network, Units] = weakref.WeakKeyDictionary()


def units_of(network: Network) -> Units:
    """The units of a network; traced on first use, remembered while the network lives.

    Example:
        >>> from torch import nn
        >>> from bayesieve.core.likelihoods import Gaussian
        >>> model = nn.Sequential(nn.Conv1d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 1))
        >>> [(k.producer, k.consumer) for k in units_of(Network.of(model, Gaussian())).links]
        [('0.weight', '3.weight')]
    """
    if network not in _UNITS:
        _UNITS[network] = Units(network.layout, links(network))
    return _UNITS[network]


# ---------------------------------------------------------------------------------------- groups


def groups_of(network: Network) -> dict[str, Tensor]:
    """Entries of w of each group, (groups, entries), by the layer that makes the groups.

    Units and channels come from the input to the output, then heads.

    Example:
        >>> from bayesieve.core.likelihoods import Gaussian
        >>> model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
        >>> groups = groups_of(Network.of(model, Gaussian()))
        >>> groups["0"][1]  # the second unit: row, column and bias
        tensor([ 3,  4,  5, 13, 17, 21])
    """
    layout, units = network.layout, units_of(network)
    place = torch.arange(layout.size, device=network.device)
    groups = {}
    for link in reversed(units.links):
        outgoing = units.outgoing(place, link).transpose(0, 1).flatten(1)
        members = [units.incoming(place, link), outgoing]
        if link.bias is not None:
            members.append(place[layout.slices[link.bias]][:, None])
        groups[link.producer.rpartition(".")[0]] = torch.cat(members, 1)
    named = layout.unflatten(place)
    for name, module in network.skeleton.named_modules():
        if not isinstance(module, nn.MultiheadAttention) or not module._qkv_same_embed_dim:
            continue
        prefix, n = f"{name}." if name else "", module.num_heads
        rows, columns, bias = (named.get(f"{prefix}{leaf}") for leaf in _OF_HEADS)
        if rows is None or columns is None or module.bias_k is not None:
            continue
        members = [rows.view(3, n, -1), columns.view(len(columns), n, -1)]
        if bias is not None:
            members.append(bias.view(3, n, -1))
        groups[name] = torch.cat([member.transpose(0, 1).flatten(1) for member in members], 1)
    return groups


_OF_HEADS = ("in_proj_weight", "out_proj.weight", "in_proj_bias")  # query, key, value together
