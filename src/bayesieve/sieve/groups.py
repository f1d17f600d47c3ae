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
from typing import Literal

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

Kind = Literal["unit", "channel", "head"]


@dataclass(frozen=True, eq=False)
class GroupSet:
    """The groups of one layer.

    Args:
        layer: name of the module that makes them.
        kind: of the groups.
        n: number of groups.
        entries: (m,) int64, the entries of w that belong to them.
        group: (m,) int64, the group of each of these.
    """

    layer: str
    kind: Kind
    n: int
    entries: Tensor
    group: Tensor

    def total(self, values: Tensor) -> Tensor:
        """Sum of values, (d,), over each group, (n,)."""
        sums = values.new_zeros(self.n)
        return sums.index_add_(0, self.group.to(values.device), values[self.entries])

    def without(self, keep: Tensor, kept: Tensor) -> Tensor:
        """A mask, (d,) bool, less the groups that are not kept, (n,) bool."""
        keep = keep.clone()
        keep[self.entries[~kept[self.group]]] = False
        return keep


def groups_of(network: Network) -> list[GroupSet]:
    """The groups of a network: units and channels from the input to the output, then heads.

    Example:
        >>> from bayesieve.core.likelihoods import Gaussian
        >>> model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
        >>> [(g.layer, g.kind, g.n) for g in groups_of(Network.of(model, Gaussian()))]
        [('0', 'unit', 4)]
    """
    return [*_units(network), *_heads(network)]


def _units(network: Network) -> list[GroupSet]:
    """Units and channels of linked layers, from the input to the output."""
    layout, units = network.layout, units_of(network)
    place = torch.arange(layout.size, device=network.device)
    sets = []
    for link in reversed(units.links):
        number = torch.arange(link.n_units, device=network.device)
        incoming, outgoing = units.incoming(place, link), units.outgoing(place, link)
        members = [(incoming, number[:, None]), (outgoing, number[None, :, None])]
        if link.bias is not None:
            members.append((place[layout.slices[link.bias]], number))
        layer = link.producer.rpartition(".")[0]
        is_linear = len(layout.shapes[layout.names.index(link.producer)]) == 2
        sets.append(_set(layer, "unit" if is_linear else "channel", link.n_units, members))
    return sets


def _heads(network: Network) -> list[GroupSet]:
    """Heads of the attention modules whose projections are prunable."""
    layout = network.layout
    place = layout.unflatten(torch.arange(layout.size, device=network.device))
    sets = []
    for name, module in network.skeleton.named_modules():
        if not isinstance(module, nn.MultiheadAttention) or not module._qkv_same_embed_dim:
            continue
        prefix, n = f"{name}." if name else "", module.num_heads
        rows, columns = place.get(f"{prefix}in_proj_weight"), place.get(f"{prefix}out_proj.weight")
        if rows is None or columns is None or module.bias_k is not None:
            continue
        number = torch.arange(n, device=network.device)[None, :, None]
        # query, key, value; heads; rows of each
        members = [(rows.view(3, n, -1), number), (columns.view(len(columns), n, -1), number)]
        bias = place.get(f"{prefix}in_proj_bias")
        if bias is not None:
            members.append((bias.view(3, n, -1), number))
        sets.append(_set(name, "head", n, members))
    return sets


def _set(layer: str, kind: Kind, n: int, members: list[tuple[Tensor, Tensor]]) -> GroupSet:
    """A set of groups from entries of w and the group of each, which broadcasts to them."""
    entries = torch.cat([entries.flatten() for entries, _ in members])
    group = torch.cat([number.expand_as(entries).flatten() for entries, number in members])
    return GroupSet(layer, kind, n, entries, group)
