"""Order in which weights go.

Each entry of w gets a priority: n_sparse + 1 for what always stays, n_sparse for the best
prunable weight down to 1 for the worst, and 0 for what is gone. Cleaning priorities instead of
masks (see `Units.clean`) makes every threshold of them a cleaned mask, so one sort yields the
whole curve from dense to empty.
"""

from typing import Literal

import torch
from torch import Tensor

from bayesieve.core.layout import Layout, Role
from bayesieve.core.posterior import Posterior, present_entries
from bayesieve.sieve.groups import Units
from bayesieve.sieve.scores import Score, ScoreName, score_of

Scope = Literal["global", "layer"]


def rank(
    posterior: Posterior, score: ScoreName | Score, allowed: Tensor, scope: Scope = "global"
) -> Tensor:
    """Order in which entries go, before any cleaning.

    Args:
        posterior: what an engine has learned.
        score: larger = goes later; ties by |mean|, then by index.
        allowed: (d,) bool, what is not gone yet.
        scope: "layer" ranks by the place inside each tensor, as a fraction of its size.

    Returns:
        Priorities, (d,) whole numbers.
    """
    layout = posterior.layout
    values = score_of(posterior, score)[layout.sparse]
    values = torch.where(allowed[layout.sparse], values, -torch.inf)
    size = posterior.mean[layout.sparse].abs()
    if scope == "layer":
        values = values.double()
        for part, _ in prunable_tensors(layout):
            values[part] = _ranked(values[part], size[part]).double() / (part.stop - part.start)
    ranks = _ranked(values, size)
    fixed = ranks.new_full((layout.size - layout.n_sparse,), layout.n_sparse + 1)
    return torch.cat([ranks, fixed]) * allowed


def _ranked(values: Tensor, size: Tensor) -> Tensor:
    """Ranks 1 to n of `values`; ties by `size`, then by lower index first."""
    order = size.argsort(descending=True, stable=True)
    order = order[values[order].argsort(descending=True, stable=True)]
    short = torch.int32 if len(order) < 2**31 - 2 else torch.int64  # half the memory of a network
    ranks = torch.empty_like(order, dtype=short)
    ranks[order] = torch.arange(len(order), 0, -1, device=order.device, dtype=short)
    return ranks


def keep_at_most(priorities: Tensor, target: int, units: Units) -> Tensor:
    """Keep as many of the highest priorities as fit into `target` after cleaning, (d,) bool.

    The weight that brings a unit back to life brings its bias and all incoming weights of higher
    priority. Where that group is too large, the weight and the bias come first and the others
    follow in their own order, layer by layer.

    Args:
        priorities: (d,) integers from 0 to n_sparse + 1, not cleaned.
        target: number of entries that may stay.
        units: of the network.
    """
    layout = units.layout
    top = layout.n_sparse + 1
    keep = None
    for _ in range(len(units.links) + 1):
        cleaned = units.clean(priorities)
        up_to = cleaned.bincount(minlength=top + 1).cumsum_(0)  # entries this low or lower
        leaving = torch.full((1,), max(layout.size - target, 0), device=up_to.device)
        cut = int(torch.searchsorted(up_to, leaving))  # the lowest that removes enough
        if cut == top:
            if keep is None:
                least = int((cleaned == top).sum())
                share = least / layout.size
                raise ValueError(
                    f"keep_zeros: {target} of {layout.size} parameters may stay, but {least} "
                    "always do (biases of live units, point parameters and, unless "
                    "allow_empty_layers, a path of weights). The smallest fraction that can be "
                    f"reached is {share:.6g} (zeros {1 - share:.6g})."
                )
            return keep
        keep = cleaned > cut
        if cut == 0 or layout.size - int(up_to[cut]) == target:
            return keep
        group = torch.where(priorities == cut, top, priorities) * (cleaned == cut)
        priorities = torch.where(keep, top, group)
    assert keep is not None
    return keep


def protected_path(units: Units, priorities: Tensor) -> Tensor:
    """Entries that must stay so that no layer is empty, (d,) bool.

    From the output to the input, each layer keeps its best weight among those that lead into a
    unit of the path so far, preferring weights from units that are themselves reached.
    """
    layout = units.layout
    fed = units.fed(priorities > 0)
    worth = torch.where(fed, priorities + layout.n_sparse + 1, priorities)
    path = priorities > layout.n_sparse
    links = {link.producer: link for link in units.links}
    for name in [*(n for n in layout.prunable if n not in links), *links]:
        layer = worth[layout.slices[name]]
        if name in links:
            alive = units.outgoing(path, links[name]).amax((-3, -1))
            layer = (layer.unflatten(0, (len(alive), -1)) * alive[:, None]).flatten()
        best = layer.argmax(keepdim=True)
        path[layout.slices[name]].scatter_(0, best, layer[best] > 0)
    return path


def allowed_entries(posterior: Posterior, within: Tensor | None) -> Tensor:
    """Entries not pruned yet, (d,) bool: `within`, else prunable entries that are not exactly 0."""
    layout = posterior.layout
    if within is not None:
        if within.shape != (layout.size,) or within.dtype != torch.bool:
            raise ValueError(
                f"prune: within must be a bool tensor of shape ({layout.size},), "
                f"got {within.dtype} of shape {tuple(within.shape)}."
            )
        return within
    allowed = present_entries(posterior)
    allowed[layout.n_sparse :] = True
    return allowed


def prunable_tensors(layout: Layout) -> list[tuple[slice, torch.Size]]:
    """Slice of w and shape of every prunable tensor, in the order of w."""
    rows = zip(layout.names, layout.shapes, layout.roles, strict=True)
    return [(layout.slices[name], shape) for name, shape, role in rows if role == Role.PRUNE]
