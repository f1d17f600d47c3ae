"""The scales of a regularised horseshoe over the units of a network, in logs.

Layer l has unknown numbers â, b̂ and u = c⁻², unit i of it a and b, and

    log λ² = 2 log τ₀ + log â - log b̂ + log a - log b                                     (H2)
    log γ = ½ (log λ² - softplus(log λ² + log u))                                          (H3)

is the scale of the unit's weights, its bias included. In the last layer γ² = â / b̂; a layer with
one unit has no â, b̂ of its own. All logs are independent normals under the posterior, so that
log λ² is normal too, and E[γ] is an integral over two normals.
"""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import softplus

from bayesieve.core.layout import Layout

_N_NODES = 12  # of the quadrature in each of two directions


class UnitScales:
    """Where each unit's numbers lie in a vector of S = 2 R + 3 L logs, and what follows from them.

    The order is a, b (R units each), â, b̂, u (L layers each). The tensors of a module with equally
    many rows make a layer.

    Args:
        layout: where each tensor sits in w.
        device: of the logs.
        dtype: of the logs.
    """

    def __init__(self, layout: Layout, device: torch.device, dtype: torch.dtype) -> None:
        self.layout = layout
        names = [n for n in layout.names if layout.slices[n].start < layout.n_bayesian]
        rows = {name: _n_rows(layout, name) for name in names}
        keys = {name: (name.rpartition(".")[0], rows[name]) for name in names}
        self.keys = list(dict.fromkeys(keys.values()))
        ends = np.cumsum([0, *(n for _, n in self.keys)]).tolist()
        self.units = [slice(ends[i], ends[i + 1]) for i in range(len(self.keys))]
        self.parts = [(self.keys.index(keys[name]), layout.slices[name]) for name in names]
        self.n_units, self.n_layers = int(ends[-1]), len(self.keys)
        prunable = [n for n in names if layout.slices[n].start < layout.n_sparse]
        self.last = self.keys.index(keys[(prunable or names)[-1]])
        is_last = torch.arange(self.n_layers, device=device) == self.last
        single = torch.tensor([n == 1 for _, n in self.keys], device=device)
        self.index: Tensor | None = None  # unit of each entry; on a CPU a copy is faster
        if device.type != "cpu":
            units = torch.arange(self.n_units, dtype=torch.float64)[None]
            self.index = self.to_entries(units)[0].long().to(device)
        self.slab = (~is_last).to(dtype)  # 0 where γ² = â / b̂
        self.common = (is_last | ~single).to(dtype)  # 0 where â = b̂ = 1
        self.local = self.to_units(self.slab[None])[0]  # 0 where a = b = 1
        self.active = torch.cat([self.local] * 2 + [self.common] * 2 + [self.slab])
        nodes, weights = np.polynomial.hermite_e.hermegauss(_N_NODES)
        self.nodes = torch.as_tensor(nodes, dtype=dtype, device=device)
        self.log_weights = torch.as_tensor(
            np.log(weights / weights.sum()), dtype=dtype, device=device
        )

    @property
    def size(self) -> int:
        """S, the number of logs."""
        return 2 * self.n_units + 3 * self.n_layers

    def split(self, logs: Tensor) -> Iterator[Tensor]:
        """The logs of a, b, â, b̂ and u, (..., S) -> five tensors."""
        sizes = [self.n_units] * 2 + [self.n_layers] * 3
        return iter(logs.split(sizes, -1))

    def to_units(self, values: Tensor) -> Tensor:
        """One number per layer, (k, L), to one per unit, (k, R)."""
        columns = [
            values[:, i : i + 1].expand(-1, part.stop - part.start)
            for i, part in enumerate(self.units)
        ]
        return torch.cat(columns, 1)

    def to_entries(self, values: Tensor) -> Tensor:
        """One number per unit, (..., R), to one per Bayesian entry, (..., n_bayesian)."""
        if self.index is not None:
            return values[..., self.index]
        columns = []
        for i, part in self.parts:
            own = values[..., self.units[i], None]
            fan_in = (part.stop - part.start) // own.shape[-2]
            columns.append(own.expand(*own.shape[:-1], fan_in).flatten(-2))
        return torch.cat(columns, -1)

    def total(self, values: Tensor) -> Tensor:
        """Sum over the entries of each unit, (..., n_bayesian) -> (..., R)."""
        sums: dict[int, Tensor] = {}
        for i, part in self.parts:
            n_units = self.units[i].stop - self.units[i].start
            own = values[..., part].unflatten(-1, (n_units, -1)).sum(-1)
            sums[i] = sums[i] + own if i in sums else own
        return torch.cat([sums[i] for i in range(self.n_layers)], -1)

    def log_ratio(self, logs: Tensor, log_std: Tensor) -> Tensor:
        """Log λ² of each unit, (k, S) -> (k, R), H2; `log_std` is log τ₀, scalar or (k, 1)."""
        a, b, layer_a, layer_b, _ = self.split(logs)
        layer = self.common * (layer_a - layer_b) + 2 * self.slab * log_std
        return self.to_units(layer) + self.local * (a - b)

    def log_scale(self, logs: Tensor, log_std: Tensor) -> Tensor:
        """Log γ of each unit, (k, S) -> (k, R), H3."""
        ratio = self.log_ratio(logs, log_std)
        *_, precision = self.split(logs)
        return 0.5 * (ratio - self.local * softplus(ratio + self.to_units(precision)))

    def log_expected_power(
        self, mean: Tensor, std: Tensor, log_std: Tensor, power: float = 1.0
    ) -> Tensor:
        """Log E[γᵖ] of each unit when the logs are N(mean, std²), (k, S) -> (k, R); quadrature."""
        ratio = self.log_ratio(mean, log_std)
        variance = std.square()
        a, b, layer_a, layer_b, u = self.split(variance)
        ratio_variance = self.local * (a + b) + self.to_units(self.common * (layer_a + layer_b))
        *_, precision = self.split(mean)
        first = ratio[..., None] + ratio_variance.sqrt()[..., None] * self.nodes
        second = self.to_units(precision)[..., None] + self.to_units(u.sqrt())[..., None] * (
            self.nodes
        )
        bound = softplus(first[..., None] + second[..., None, :])  # (k, R, Q, Q)
        log_scale = 0.5 * (first[..., None] - self.local[:, None, None] * bound)
        log_weights = self.log_weights[:, None] + self.log_weights
        return (power * log_scale + log_weights).flatten(-2).logsumexp(-1)


def _n_rows(layout: Layout, name: str) -> int:
    shape = layout.shapes[layout.names.index(name)]
    return int(shape[0]) if len(shape) else 1
