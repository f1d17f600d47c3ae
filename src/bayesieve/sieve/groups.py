"""Entries of w that stay or go together: units, channels and heads.

    unit      a row of a Linear layer, its bias, and the columns of the layer that reads it
    channel   the same for a convolution
    head      rows of query, key and value, their biases, and columns of the output projection

Whatever must lose the same index belongs to one group: a channel of a residual stream is a row
of every layer that writes to it and a column of every layer that reads it, its scale and shift in
every normalisation, and its place in depthwise kernels, embeddings and layer scales. Groups are
found by following channels through the network (`compaction.flow.Coupling`).
"""

import copy
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from bayesieve.core.inputs import Input, as_inputs, mapped, tensors_of
from bayesieve.core.layout import Layout
from bayesieve.core.network import Network
from bayesieve.errors import UnsupportedModelError
from bayesieve.graph.graph import refill_
from bayesieve.sieve.compaction.flow import Coupling
from bayesieve.sieve.compaction.lifting import plain_layers
from bayesieve.sieve.compaction.passes import couple
from bayesieve.sieve.compaction.prepare import opened, tidied
from bayesieve.sieve.units import units_of


@dataclass(frozen=True)
class Groups:
    """Entries of w that go together, and why others cannot.

    Args:
        entries: (groups, entries) of each family, by the layer that first makes its units, from
            the input to the output.
        fixed: one sentence for each operation that keeps channels which weights make or read.
    """

    entries: dict[str, Tensor]
    fixed: tuple[str, ...]


_GROUPS: weakref.WeakKeyDictionary[Network, dict[Any, Groups]] = weakref.WeakKeyDictionary()


def groups_of(network: Network, example: Any = None) -> dict[str, Tensor]:
    """Entries of w of each group, (groups, entries), by the layer that makes the groups.

    Args:
        network: of a posterior.
        example: an input, (n, ...); None takes the network's own (that of its `Problem`). Without
            either, only layers that are linked one to one have groups.

    Example:
        >>> from bayesieve.core.likelihoods import Gaussian
        >>> model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
        >>> groups = groups_of(Network.of(model, Gaussian()), torch.zeros(1, 3))
        >>> groups["0"][1]  # the second unit: row, column and bias
        tensor([ 3,  4,  5, 13, 17, 21])
    """
    return find_groups(network, example).entries


def find_groups(network: Network, example: Any = None) -> Groups:
    """The groups of a network, found on first use and remembered while it lives.

    Arguments as for `groups_of`.
    """
    example = network.example if example is None else as_inputs("groups_of", example)
    known = _GROUPS.setdefault(network, {})
    key = None
    if example is not None:
        key = tuple((tensor.shape[1:], tensor.dtype) for tensor in tensors_of(example))
    if key not in known:
        if example is None:
            known[key] = _linked(network, "only links of two layers are known without an example")
        else:
            try:
                known[key] = _coupled(network, example)
            except (UnsupportedModelError, ValueError) as error:
                known[key] = _linked(network, str(error))
    return known[key]


def _linked(network: Network, why: str) -> Groups:
    """Groups of layers that are linked one to one, and of `nn.MultiheadAttention`."""
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
    return Groups(groups, (why,))


_OF_HEADS = ("in_proj_weight", "out_proj.weight", "in_proj_bias")  # query, key, value together


def _coupled(network: Network, example: Input) -> Groups:
    """Groups found by following channels through the graph, see `compaction.flow.Coupling`."""
    layout = network.layout
    inputs = mapped(lambda tensor: tensor[torch.arange(2) % len(tensor)].cpu(), example)
    if isinstance(inputs, Tensor):  # of several one may be a mask, which must let something through
        inputs = torch.zeros_like(inputs)
    traced, numbers = _numbered(network, inputs)
    movable = torch.zeros(layout.size, dtype=torch.bool)
    movable[layout.sparse] = True
    graph = tidied(traced, inputs, follow_ties=True)
    parameters = graph.module.named_parameters(remove_duplicate=False)
    entries = {name: numbers[p] for name, p in parameters if p in numbers}
    coupling = couple(graph, entries, movable)
    families = _families(coupling, network.layout)
    root = coupling.components()
    owners = torch.zeros(len(root), dtype=torch.bool)
    for labels, _ in coupling.owned:
        owners[root[labels]] = True
    reasons = dict.fromkeys(
        why for labels, why in coupling.fixed if bool(owners[root[labels]].any())
    )
    return Groups({k: v.to(network.device) for k, v in families.items()}, tuple(reasons))


def _numbered(network: Network, inputs: Input) -> tuple[fx.GraphModule, dict[Any, Tensor]]:
    """The traced network, and the entries of w that each of its parameters holds."""
    place = torch.arange(1, network.layout.size + 1, dtype=torch.float64)  # 0: not in w
    pieces, module = network.split(place)[0], copy.deepcopy(network.skeleton)
    numbers: dict[Any, Tensor] = {}

    def number(name: str, old: Tensor) -> Tensor | None:
        """The numbers of a weight of w, which has no device here; 0 for other parameters."""
        if not isinstance(old, nn.Parameter):
            return None
        return pieces[name] if old.is_meta else torch.zeros(old.shape, dtype=place.dtype)

    def take(module: nn.Module) -> None:
        """Take the numbers out of the parameters, which are 0 then."""
        for parameter in module.parameters():
            if bool(parameter.any()):
                numbers[parameter] = parameter.detach().long() - 1
            parameter.data = torch.zeros_like(parameter, dtype=network.dtype)

    refill_(module, number)
    module = plain_layers(module.cpu().eval())
    traced = opened("groups", module, inputs, before_export=take)  # export keeps the parameters
    take(traced)
    return traced, numbers


def _families(coupling: Coupling, layout: Layout) -> dict[str, Tensor]:
    """Units with the same kinds of entries, in one tensor, (units, entries), by layer."""
    root = coupling.components()
    fixed = torch.zeros(len(root), dtype=torch.bool)
    for labels, _ in coupling.fixed:
        fixed[root[labels]] = True
    owners: dict[int, list[tuple[int, int]]] = {}  # of each unit: what it owns, and how often
    for i, (labels, _) in enumerate(coupling.owned):
        units, counts = root[labels].unique(return_counts=True)
        free = ~fixed[units]
        for unit, n in zip(units[free].tolist(), counts[free].tolist(), strict=True):
            owners.setdefault(unit, []).append((i, n))
    families: dict[tuple[tuple[int, int], ...], list[int]] = {}
    for unit in sorted(owners):
        families.setdefault(tuple(owners[unit]), []).append(unit)
    groups: dict[str, Tensor] = {}
    for members, units in families.items():
        of_units = torch.tensor(units)
        columns = [_rows_of(of_units, root[labels], entries)
                   for labels, entries in (coupling.owned[i] for i, _ in members)]  # fmt: skip
        name = _layer_at(int(columns[0][0, 0]), layout)
        for part in _without_repeats(torch.cat(columns, 1).sort(1).values):
            if bool(coupling.movable[part[0]].any()):
                n = sum(key.partition(":")[0] == name for key in groups)
                groups[f"{name}:{n + 1}" if n else name] = part
    return groups


def _rows_of(units: Tensor, owner: Tensor, entries: Tensor) -> Tensor:
    """Entries of some units side by side, from rows of entries, (n, m), and their units, (n,)."""
    mine = torch.isin(owner, units)
    order = owner[mine].argsort(stable=True)
    return entries[mine][order].reshape(len(units), -1)


def _without_repeats(entries: Tensor) -> Iterator[Tensor]:
    """Sorted rows, (n, m), without repeated numbers, in as many tensors as there are lengths."""
    new = torch.ones_like(entries, dtype=torch.bool)
    new[:, 1:] = entries[:, 1:] != entries[:, :-1]
    lengths = new.sum(1)
    for length in lengths.unique().tolist():
        rows = lengths == length
        yield entries[rows][new[rows]].view(-1, length)


def _layer_at(entry: int, layout: Layout) -> str:
    """The layer that an entry of w belongs to; a tensor that is in no layer, by its own name."""
    name = next(n for n, part in layout.slices.items() if part.start <= entry < part.stop)
    return name.rpartition(".")[0] or name
