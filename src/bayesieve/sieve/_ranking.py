"""The order in which weights go.

Each entry of w gets a priority: n_sparse + 1 for what always stays, n_sparse for the best
prunable weight down to 1 for the worst, and 0 for what is gone. Cleaning priorities instead of
masks (see `UnitChain.clean`) makes every threshold of them a cleaned mask, so one sort yields the
whole curve from dense to empty.
"""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from bayesieve.core.layout import Layout, Role
from bayesieve.core.posterior import Factorised, Posterior, Samples
from bayesieve.sieve.scores import Score, ScoreName, score_of
from bayesieve.sieve.units import UnitChain

Scope = Literal["global", "layer"]


def rank(posterior: Posterior, score: ScoreName | Score, scope: Scope = "global") -> Tensor:
    """Rank the prunable weights from 1 (first to go) to n_sparse, shape (n_sparse,)."""
    layout = posterior.layout
    values = score_of(posterior, score)[layout.sparse]
    size = posterior.mean[layout.sparse].abs()
    if scope == "layer":
        parts = [_ranked(values[p], size[p]).double() / (p.stop - p.start) for p, _ in
                 prunable_parts(layout)]  # fmt: skip
        values = torch.cat(parts) if parts else values
    return _ranked(values, size)


def _ranked(values: Tensor, size: Tensor) -> Tensor:
    """Ranks 1 to n of `values`; ties by `size`, then by lower index first."""
    order = size.argsort(descending=True, stable=True)
    order = order[values[order].argsort(descending=True, stable=True)]
    ranks = torch.empty_like(order)
    ranks[order] = torch.arange(len(order), 0, -1, device=order.device)
    return ranks


def keep_at_most(priorities: Tensor, targets: Sequence[int], layout: Layout) -> Tensor:
    """Keep as many of the highest priorities as fit into each target, never splitting ties.

    Args:
        priorities: (d,) integers from 0 to n_sparse + 1.
        targets: n numbers of entries that may stay.
        layout: of the entries.

    Returns:
        (n, d) bool.
    """
    d, top = layout.size, layout.n_sparse + 1
    up_to = priorities.bincount(minlength=top + 1).cumsum(0)  # entries of this priority or lower
    leaving = torch.tensor([max(d - target, 0) for target in targets], device=up_to.device)
    cuts = torch.searchsorted(up_to, leaving)  # the lowest cut that removes enough
    if top in cuts.tolist():
        least = d - int(up_to[top - 1])
        raise ValueError(
            f"keep_fraction: {min(targets)} of {d} parameters may stay, but {least} always do "
            "(biases of live units, point parameters and, unless allow_empty_layers, a path of "
            f"weights). The smallest fraction that can be reached is {least / d:.6g} (zeros "
            f"{1 - least / d:.6g})."
        )
    return priorities > cuts[:, None]


def protected_path(chain: UnitChain, priorities: Tensor) -> Tensor:
    """What must stay so that no layer is empty, (d,) bool.

    From the output to the input, each layer keeps its best weight among those that lead into a
    unit of the path so far, preferring weights from units that are themselves reached.
    """
    layout = chain.layout
    fed = chain.fed(priorities > 0)
    worth = torch.where(fed, priorities + layout.n_sparse + 1, priorities)
    path = priorities > layout.n_sparse
    links = {link.producer: link for link in chain.links}
    names = [n for n, role in zip(layout.names, layout.roles, strict=True) if role == Role.PRUNE]
    for name in [*(n for n in names if n not in links), *links]:
        own = worth[layout.slices[name]]
        if name in links:
            alive = chain.outgoing(path, links[name]).amax((-3, -1))
            own = (own.unflatten(0, (len(alive), -1)) * alive[:, None]).flatten()
        best = own.argmax(keepdim=True)
        path[layout.slices[name]].scatter_(0, best, own[best] > 0)
    return path


def base_priorities(posterior: Posterior, ranks: Tensor, within: Tensor | None) -> Tensor:
    """Ranks of prunable weights, n_sparse + 1 for the rest, 0 where not allowed, (d,)."""
    layout = posterior.layout
    fixed = ranks.new_full((layout.size - layout.n_sparse,), layout.n_sparse + 1)
    return torch.cat([ranks, fixed]) * allowed_entries(posterior, within)


def allowed_entries(posterior: Posterior, within: Tensor | None) -> Tensor:
    """What is not pruned yet, (d,) bool: `within`, else prunable entries that are not exactly 0."""
    layout = posterior.layout
    if within is not None:
        if within.shape != (layout.size,) or within.dtype != torch.bool:
            raise ValueError(
                f"prune: within must be a bool tensor of shape ({layout.size},), "
                f"got {within.dtype} of shape {tuple(within.shape)}."
            )
        return within
    allowed = posterior.mean != 0
    if isinstance(posterior, Factorised):
        allowed |= posterior.std != 0
    elif isinstance(posterior, Samples):
        allowed = (posterior.draws != 0).any(0)
    allowed[layout.n_sparse :] = True
    return allowed


def prunable_parts(layout: Layout) -> list[tuple[slice, torch.Size]]:
    rows = zip(layout.names, layout.shapes, layout.roles, strict=True)
    return [(layout.slices[name], shape) for name, shape, role in rows if role == Role.PRUNE]
