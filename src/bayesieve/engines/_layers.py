"""Layers of a layout, for priors with one number per layer."""

from functools import lru_cache

import torch
from torch import Tensor

from bayesieve.core.layout import Layout


class Layers:
    """Which Bayesian tensors of a layout share a scale: those of one module.

    Args:
        layout: where each tensor sits in w.
    """

    def __init__(self, layout: Layout) -> None:
        names = [n for n in layout.names if layout.slices[n].start < layout.n_bayesian]
        self.names = list(dict.fromkeys(name.rpartition(".")[0] for name in names))
        self.parts = [  # (layer, slice of w) in the order of w
            (self.names.index(name.rpartition(".")[0]), layout.slices[name]) for name in names
        ]
        prunable = [n for n in names if layout.slices[n].start < layout.n_sparse]
        self.last = self.names.index((prunable or names)[-1].rpartition(".")[0])
        self.prunable = [
            [part for own, part in self.parts if own == i and part.start < layout.n_sparse]
            for i in range(len(self.names))
        ]

    def spread(self, values: Tensor) -> Tensor:
        """One number per layer, (k, L), to one per Bayesian entry, (k, n_bayesian)."""
        columns = [
            values[:, i : i + 1].expand(-1, part.stop - part.start) for i, part in self.parts
        ]
        return torch.cat(columns, 1)

    def total(self, values: Tensor) -> Tensor:
        """Sum over the entries of each layer, (k, n_bayesian) -> (k, L)."""
        sums = [values[:, part].sum(1) for _, part in self.parts]
        owners = [[i for i, (own, _) in enumerate(self.parts) if own == j] for j in range(self.n)]
        return torch.stack([sum((sums[i] for i in own[1:]), sums[own[0]]) for own in owners], 1)

    @property
    def n(self) -> int:
        """L, the number of layers."""
        return len(self.names)


@lru_cache(maxsize=64)
def layers_of(layout: Layout) -> Layers:
    """The layers of a layout, computed once."""
    return Layers(layout)
