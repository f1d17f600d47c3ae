"""The posterior of a network under a horseshoe: scales of units in logs, and draws with them.

Layer l has unknown numbers â, b̂ and u = c⁻², unit i of it a and b, and

    log λ² = 2 log τ₀ + log â - log b̂ + log a - log b                                     (H2)
    log γ = ½ (log λ² - softplus(log λ² + log u))                                          (H3)

is the scale of the unit's weights, its bias included. In the last layer γ² = â / b̂; a layer with
one unit has no â, b̂ of its own. All logs are independent normals under the posterior, so that
log λ² is normal too, and E[γ] is an integral over two normals.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import torch
from torch import Generator, Tensor
from torch.nn.functional import softplus

from bayesieve.core.layout import EntryGroups, Layout
from bayesieve.core.network import Network
from bayesieve.core.posterior import Factorised, Posterior

_N_NODES = 12  # of the quadrature in each of two directions; unit_scales.c has both numbers too
_FAR = 80.0  # logs beyond it would leave the range of float32


class UnitScales(EntryGroups):
    """Places of each unit's numbers in a vector of S = 2 R + 3 L logs, and the scales they make.

    The order is a, b (R units each), â, b̂, u (L layers each).

    Args:
        layout: the slice of w of each tensor.
        device: of the logs.
        dtype: of the logs.
    """

    def __init__(self, layout: Layout, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__(layout, device, by_unit=True)
        is_last = torch.arange(self.n_layers, device=device) == self.last
        counts = [units.stop - units.start for units in self.layers]
        single = torch.tensor(counts, device=device) == 1
        self.slab = (~is_last).to(dtype)  # 0 where γ² = â / b̂
        self.common = (is_last | ~single).to(dtype)  # 0 where â = b̂ = 1
        self.local = self.to_units(self.slab[None])[0]  # 0 where a = b = 1
        self.active = torch.cat([self.local] * 2 + [self.common] * 2 + [self.slab])
        self.ends = torch.tensor([units.stop for units in self.layers])  # for C
        nodes, weights = np.polynomial.hermite_e.hermegauss(_N_NODES)
        self.nodes = torch.as_tensor(nodes, dtype=dtype, device=device)
        weights = np.outer(weights, weights) / weights.sum() ** 2
        self.weights = torch.as_tensor(weights, dtype=dtype, device=device)

    @property
    def size(self) -> int:
        """S, the number of logs."""
        return 2 * self.n_groups + 3 * self.n_layers

    def split(self, logs: Tensor) -> Iterator[Tensor]:
        """The logs of a, b, â, b̂ and u, (..., S) -> five tensors."""
        sizes = [self.n_groups] * 2 + [self.n_layers] * 3
        return iter(logs.split(sizes, -1))

    def to_units(self, values: Tensor) -> Tensor:
        """Numbers of each layer, (k, L, ...), to those of each unit, (k, R, ...)."""
        columns = [
            values[:, i : i + 1].expand(-1, part.stop - part.start, *values.shape[2:])
            for i, part in enumerate(self.layers)
        ]
        return torch.cat(columns, 1)

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
        """Log E[γᵖ] of each unit when the logs are N(mean, std²), (k, S) -> (k, R).

        Quadrature in log λ² and log u. By H3 γ⁻² = 1/λ² + u, so that the grid needs no exponential.
        """
        ratio = self.log_ratio(mean, log_std)
        variance = std.square()
        a, b, layer_a, layer_b, u = self.split(variance)
        ratio_variance = self.local * (a + b) + self.to_units(self.common * (layer_a + layer_b))
        *_, precision = self.split(mean)
        first = ratio[..., None] + ratio_variance.sqrt()[..., None] * self.nodes
        second = precision[..., None] + u.sqrt()[..., None] * self.nodes  # (k, L, Q)
        inverse = (-first).clamp(-_FAR, _FAR).exp()
        slab = self.slab[:, None] * second.clamp(-_FAR, _FAR).exp()
        scale = (inverse[..., None] + self.to_units(slab)[..., None, :]).rsqrt()  # (k, R, Q, Q)
        values = scale if power == 1 else scale**power
        return (self.weights * values).sum((-2, -1)).log()


@dataclass(frozen=True, eq=False, repr=False)
class UnitScaled(Posterior):
    """w = r (m + s ε), with r = γ / E[γ] one random number per unit, shared layer scales in it.

    A horseshoe has no inclusion probabilities; `unit_score` ranks its units.

    Args:
        network: the function these weights belong to.
        mean: m, (d,).
        spread: s, (d,), std of a weight when r = 1; 0 for point parameters.
        log_mean: means of the S logs of `UnitScales`.
        log_std: their stds.
        prior_std: τ₀.
        buffers: module buffers.
    """

    _masked: ClassVar[tuple[str, ...]] = ("mean", "spread")

    network: Network
    mean: Tensor
    spread: Tensor
    log_mean: Tensor
    log_std: Tensor
    prior_std: float
    buffers: Mapping[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        d, n_logs = self.layout.size, self._scales().size
        sizes = {"mean": d, "spread": d, "log_mean": n_logs, "log_std": n_logs}
        for name, size in sizes.items():
            shape = tuple(getattr(self, name).shape)
            if shape != (size,):
                raise ValueError(f"UnitScaled: {name} must have shape ({size},), got {shape}.")

    @property
    def std(self) -> Tensor:
        """Standard deviation of each weight with the scales at their centres, (d,).

        A weight is 0 exactly when ŵ is, whatever its scale, so |m| / s is what the data say of
        that (H6). A scale moves all weights of a unit together: it is no noise of each.
        """
        return self.spread

    @property
    def unit_score(self) -> Tensor:
        """1 - shrinkage of the unit each weight leads to, (d,): a score, not a probability.

        Near 0 the horseshoe has pulled the unit to 0, near 1 only the slab bounds it (H5). It is 1
        in the last layer and for point parameters, 0 for what is pruned.
        """
        scales = self._scales()
        ratio = scales.log_ratio(self.log_mean[None], self._log_prior_std())
        *_, precision = scales.split(self.log_mean[None])
        kept = torch.sigmoid(ratio + scales.to_units(precision))
        kept = torch.where(scales.local > 0, kept, 1.0)
        score = torch.ones_like(self.mean)
        score[self.layout.bayesian] = scales.to_entries(kept)[0]
        pruned = (self.mean == 0) & (self.spread == 0)
        pruned[self.layout.n_bayesian :] = False
        return score.masked_fill(pruned, 0)

    def draw(self, n: int, generator: Generator) -> Tensor:
        """Independent draws, shape (n, d); the scales are drawn anew in each."""
        scales, log_prior_std = self._scales(), self._log_prior_std()
        part = self.layout.bayesian
        noise = self.log_mean.new_empty((n, scales.size)).normal_(generator=generator)
        logs = torch.addcmul(self.log_mean, self.log_std, noise)
        expected = scales.log_expected_power(self.log_mean[None], self.log_std[None], log_prior_std)
        ratio = scales.to_entries((scales.log_scale(logs, log_prior_std) - expected).exp())
        draws = self.mean.expand(n, -1).clone()
        noise = torch.empty_like(ratio).normal_(generator=generator)
        draws[:, part] = ratio * torch.addcmul(self.mean[part], self.spread[part], noise)
        return draws

    def factorised(self) -> Factorised:
        """Independent normals, the scales at their centres: for bundles, and to be reduced."""
        spread = self.spread.clone()
        return Factorised(self.network, self.mean.clone(), spread, None, None, dict(self.buffers))

    def _scales(self) -> UnitScales:
        return UnitScales(self.layout, self.mean.device, self.mean.dtype)

    def _log_prior_std(self) -> Tensor:
        return self.mean.new_full((), self.prior_std).log()
