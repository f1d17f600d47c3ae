"""Columns and targets in units of training and in their own: numbers, modules and likelihoods."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bayesieve.core.likelihoods import Likelihood
from bayesieve.core.posterior import SparseModel
from bayesieve.data.frames import cut_moments
from bayesieve.estimators.population import DTYPE
from bayesieve.nets import PiecewiseLinear

FloatArray = NDArray[np.float64]
Array = NDArray[Any]
Seed = int | np.random.RandomState | None


@dataclass(frozen=True, eq=False)
class Scale:
    """Mean and standard deviation of columns, (p,); those that never vary have std 1.

    Standardised values end at ± limit, which is infinite unless the rows hold values far out
    (`data.frames.cut_moments`).

    Example:
        >>> scale = Scale.of(np.array([[0.0, 5.0], [2.0, 5.0]]))
        >>> scale.mean.tolist(), scale.std.tolist(), scale.varies.tolist()
        ([1.0, 5.0], [1.0, 1.0], [True, False])
    """

    mean: FloatArray
    std: FloatArray
    varies: NDArray[np.bool_]
    limit: float = np.inf

    @classmethod
    def of(
        cls,
        values: Array,
        weight: FloatArray | None = None,
        *,
        neutral: bool = False,
        cut: bool = False,
        switches: NDArray[np.bool_] | None = None,
    ) -> "Scale":
        """Fit the scaling to weighted rows, (n, p); a neutral one is the identity.

        With `cut` values far out do not decide the scale of their column. Columns of `switches`,
        (p,), which are 0 or 1, are centred and keep their unit.
        """
        values = values.astype(np.float64)
        mean = np.average(values, axis=0, weights=weight)
        std = np.sqrt(np.average((values - mean) ** 2, axis=0, weights=weight))
        varies = std > 1e-12 * np.abs(mean)  # else constant up to rounding
        if neutral:
            return cls(np.zeros_like(mean), np.ones_like(std), varies)
        limit = np.inf
        if switches is not None:
            std = np.where(switches, 1.0, std)
        numbers = varies if switches is None else varies & ~switches
        for j in np.flatnonzero(numbers) if cut else ():
            *moments, end = cut_moments(values[:, j], weight)
            if end < np.inf:
                (mean[j], std[j]), limit = moments, end
        # The value itself for a constant: of a huge one the mean's rounding would be an input.
        mean, std = np.where(varies, mean, values[0]), np.where(varies, std, 1.0)
        return cls(mean, std, varies, limit)

    def apply(self, values: Array) -> Tensor:
        """(n, p) in units of the standard deviation."""
        units = (values.astype(np.float64) - self.mean) / self.std
        return torch.as_tensor(units.clip(-self.limit, self.limit)).to(DTYPE)

    def undo(self, values: Tensor) -> FloatArray:
        """(..., p) back in the unit of the column."""
        raw: FloatArray = values.double().cpu().numpy() * self.std + self.mean
        return raw


def raw_module(sparse: SparseModel, x_scale: Scale, y_scale: Scale | None) -> nn.Module:
    """The posterior mean's network with standardisation folded into its first and last layer.

    W (x - μ) / s + b is (W / s) x + (b - W μ / s); zeros stay zeros. Inputs z that end at ±l pass
    through two layers of one unit each before: z + l = ReLU(2l - ReLU(l - z)) is exact however far
    out z is, and every form of delivery knows ReLU. The second half of a heteroscedastic network's
    outputs (log standard deviations) is left out.
    """
    module = sparse.to_module()
    if isinstance(embedding := next(iter(module.children()), None), PiecewiseLinear):
        module = nn.Sequential(embedding.layers(), *list(module.children())[1:])
    linear = [layer for layer in module.modules() if isinstance(layer, nn.Linear)]
    first, last = linear[0], linear[-1]
    with torch.no_grad():
        mean, std = torch.as_tensor(x_scale.mean), torch.as_tensor(x_scale.std)
        if (limit := x_scale.limit) < math.inf:
            ones = torch.ones_like(std)
            cut = [_diagonal(-1 / std, limit + mean / std), nn.ReLU()]
            cut += [_diagonal(-ones, 2 * limit * ones), nn.ReLU()]
            module = nn.Sequential(*cut, module)
            mean, std = limit * ones, ones
        weight = first.weight.double() / std
        first.bias.copy_(first.bias.double() - weight @ mean)
        first.weight.copy_(weight)
        if y_scale is not None:
            m = len(y_scale.std)
            mean, std = torch.as_tensor(y_scale.mean), torch.as_tensor(y_scale.std)
            weight, bias = last.weight[:m].double(), last.bias[:m].double()
            last.weight = nn.Parameter((weight * std[:, None]).to(last.weight.dtype))
            last.bias = nn.Parameter((bias * std + mean).to(last.weight.dtype))
            last.out_features = m
    return module


def _diagonal(factor: Tensor, shift: Tensor) -> nn.Linear:
    """A layer that multiplies each column by a factor and adds a shift, (p,) both."""
    layer = nn.Linear(len(factor), len(factor))
    layer.weight.copy_(factor.diag())
    layer.bias.copy_(shift)
    return layer


def raw_likelihood(sparse: SparseModel, y_scale: Scale | None) -> Likelihood | None:
    """The noise in the units of the target; None for a class, and where one number cannot say it.

    Targets of different spread share a noise level only once standardised, and the log standard
    deviations of a heteroscedastic network are not among the outputs of `raw_module`.
    """
    if y_scale is None:
        likelihood = sparse.network.likelihood
        return None if likelihood.soft_targets else likelihood  # several labels of a row stay
    if (y_scale.std != y_scale.std[0]).any():
        return None
    return sparse.network.likelihood_at(sparse.posterior.mean).scaled(float(y_scale.std[0]))
