"""Entries of w that only make sense together, and where a network has them; see `groups`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from bayesieve.checks import check_choice
from bayesieve.core.graph import blocks
from bayesieve.core.network import Network
from bayesieve.sieve.units import unit_chain

Kind = Literal["unit", "channel", "head", "block"]
KINDS: tuple[Kind, ...] = ("unit", "channel", "head", "block")
INSIDE: tuple[Kind, ...] = ("unit", "channel", "head")  # what narrows a layer


@dataclass(frozen=True, eq=False)
class GroupSet:
    """The groups of one layer.

    Args:
        layer: name of the module that makes them.
        kind: what they are.
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


def groups_of(network: Network, kinds: Sequence[Kind] = KINDS) -> list[GroupSet]:
    """The groups of a network, from the input to the output.

    Example:
        >>> from bayesieve.core.likelihoods import Gaussian
        >>> model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
        >>> [(own.layer, own.kind, own.n) for own in groups_of(Network.of(model, Gaussian()))]
        [('0', 'unit', 4)]
    """
    for kind in kinds:
        check_choice("groups_of", "kinds", kind, KINDS)
    found = [*_units(network), *_heads(network), *_blocks(network)]
    return [own for own in found if own.kind in kinds]


def _units(network: Network) -> list[GroupSet]:
    """Units and channels of linked layers, from the input to the output."""
    layout, chain = network.layout, unit_chain(network)
    place = torch.arange(layout.size, device=network.device)
    found = []
    for link in reversed(chain.links):
        number = torch.arange(link.n_units, device=network.device)
        incoming, outgoing = chain.incoming(place, link), chain.outgoing(place, link)
        parts = [
            (incoming, number[:, None].expand_as(incoming)),
            (outgoing, number[None, :, None].expand_as(outgoing)),
        ]
        if link.bias is not None:
            parts.append((place[layout.slices[link.bias]], number))
        layer = link.producer.rpartition(".")[0]
        is_linear = len(layout.shapes[layout.names.index(link.producer)]) == 2
        found.append(_set(layer, "unit" if is_linear else "channel", link.n_units, parts))
    return found


def _heads(network: Network) -> list[GroupSet]:
    """Heads of the attention modules whose projections are prunable."""
    layout = network.layout
    place = layout.unflatten(torch.arange(layout.size, device=network.device))
    found = []
    for name, module in network.skeleton.named_modules():
        if not isinstance(module, nn.MultiheadAttention) or not module._qkv_same_embed_dim:
            continue
        prefix, n = f"{name}." if name else "", module.num_heads
        rows, columns = place.get(f"{prefix}in_proj_weight"), place.get(f"{prefix}out_proj.weight")
        if rows is None or columns is None or module.bias_k is not None:
            continue
        number = torch.arange(n, device=network.device)
        inner = rows.view(3, n, -1)  # query, key, value; heads; rows of each
        outer = columns.view(len(columns), n, -1)
        parts = [
            (inner, number[None, :, None].expand_as(inner)),
            (outer, number[None, :, None].expand_as(outer)),
        ]
        bias = place.get(f"{prefix}in_proj_bias")
        if bias is not None:
            parts.append(
                (bias.view(3, n, -1), number[None, :, None].expand(3, n, len(bias) // 3 // n))
            )
        found.append(_set(name, "head", n, parts))
    return found


def _blocks(network: Network) -> list[GroupSet]:
    """Branches that are added to their own input, each a layer of one group."""
    layout, found = network.layout, []
    place = layout.unflatten(torch.arange(layout.size, device=network.device))
    for name, parameters in blocks(network):
        own = [place[parameter] for parameter in parameters if parameter in place]
        if own and len(own) == len(parameters):
            parts = [(part, torch.zeros_like(part)) for part in own]
            found.append(_set(name, "block", 1, parts))
    return found


def _set(layer: str, kind: Kind, n: int, parts: list[tuple[Tensor, Tensor]]) -> GroupSet:
    entries = torch.cat([entries.flatten() for entries, _ in parts])
    return GroupSet(layer, kind, n, entries, torch.cat([group.flatten() for _, group in parts]))
