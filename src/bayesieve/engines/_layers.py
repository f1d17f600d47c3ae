"""Layers of a layout, for priors with one number per layer."""

from functools import lru_cache

import torch
from torch import Tensor

from bayesieve.core.layout import Layout


class Layers:
    """Which Bayesian tensors of a layout share a scale: those of one module.

    Args:
        layout: where each tensor sits in w.
        device: where the weights live.
    """

    def __init__(self, layout: Layout, device: torch.device) -> None:
        names = [n for n in layout.names if layout.slices[n].start < layout.n_bayesian]
        self.names = list(dict.fromkeys(name.rpartition(".")[0] for name in names))
        self.parts = [  # (layer, slice of w) in the order of w
            (self.names.index(name.rpartition(".")[0]), layout.slices[name]) for name in names
        ]
        prunable = [n for n in names if layout.slices[n].start < layout.n_sparse]
        self.last = self.names.index((prunable or names)[-1].rpartition(".")[0])
        self.prunable = [(i, part) for i, part in self.parts if part.start < layout.n_sparse]
        self.index: Tensor | None = None  # layer of each entry; on a CPU a copy is faster
        if device.type != "cpu":
            sizes = torch.tensor([part.stop - part.start for _, part in self.parts])
            owners = torch.tensor([i for i, _ in self.parts])
            self.index = owners.repeat_interleave(sizes).to(device)

    def to_entries(self, values: Tensor) -> Tensor:
        """One number per layer, (..., L), to one per Bayesian entry, (..., n_bayesian)."""
        if self.index is not None:
            return values[..., self.index]
        shape = values.shape[:-1]
        columns = [
            values[..., i : i + 1].expand(*shape, part.stop - part.start) for i, part in self.parts
        ]
        return torch.cat(columns, -1)

    def total(self, values: Tensor) -> Tensor:
        """Sum over the entries of each layer, (..., n_bayesian) -> (..., L)."""
        sums: dict[int, Tensor] = {}
        for i, part in self.parts:
            own = values[..., part].sum(-1)
            sums[i] = sums[i] + own if i in sums else own
        return torch.stack([sums[i] for i in range(self.n)], -1)

    @property
    def n(self) -> int:
        """L, the number of layers."""
        return len(self.names)


@lru_cache(maxsize=64)
def layers_of(layout: Layout, device: torch.device) -> Layers:
    """The layers of a layout, computed once for a device."""
    return Layers(layout, device)
