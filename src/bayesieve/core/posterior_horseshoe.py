"""The posterior of a network under a horseshoe: draws multiply scales into weights."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Generator, Tensor

from bayesieve.core.layout import Layout
from bayesieve.core.network import Network
from bayesieve.core.posterior import Factorised
from bayesieve.core.unit_scales import UnitScales


@dataclass(frozen=True, eq=False)
class UnitScaled:
    """w = r (m + s ε), with r = γ / E[γ] one random number per unit, shared layer scales in it.

    Args:
        network: the function these weights belong to.
        mean: m, (d,).
        spread: s, (d,), std of a weight when r = 1; 0 for point parameters.
        log_mean: means of the S logs of `UnitScales`.
        log_std: their stds.
        prior_std: τ₀.
        buffers: module buffers.
    """

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
    def layout(self) -> Layout:
        """Where each tensor sits in w."""
        return self.network.layout

    @property
    def inclusion(self) -> None:
        """None: a horseshoe has no inclusion probabilities; `unit_score` ranks its units."""
        return

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
        own = torch.empty_like(ratio).normal_(generator=generator)
        draws[:, part] = ratio * torch.addcmul(self.mean[part], self.spread[part], own)
        return draws

    def masked(self, keep: Tensor) -> "UnitScaled":
        """The same posterior with mean and spread 0 where `keep`, (d,), is False."""
        return replace(
            self,
            mean=self.mean.masked_fill(~keep, 0),
            spread=self.spread.masked_fill(~keep, 0),
        )

    def to(self, device: torch.device | str) -> "UnitScaled":
        """The same posterior on another device."""
        names = ("mean", "spread", "log_mean", "log_std")
        return replace(
            self,
            network=self.network.to(device),
            buffers={name: value.to(device) for name, value in self.buffers.items()},
            **{name: getattr(self, name).to(device) for name in names},
        )

    def factorised(self) -> Factorised:
        """Independent normals, the scales at their centres: for bundles, and to be reduced."""
        spread = self.spread.clone()
        return Factorised(self.network, self.mean.clone(), spread, None, None, dict(self.buffers))

    def _scales(self) -> UnitScales:
        return UnitScales(self.layout, self.mean.device, self.mean.dtype)

    def _log_prior_std(self) -> Tensor:
        return self.mean.new_full((), self.prior_std).log()
