"""Units of columns and targets, and a fitted network in those units: as a module, as files."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bayesieve.core.likelihoods import Likelihood
from bayesieve.core.posterior import SparseModel
from bayesieve.estimators.population import DTYPE

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Scale:
    """Mean and standard deviation of columns, (p,); those that never vary have std 1.

    Example:
        >>> scale = Scale.of(np.array([[0.0, 5.0], [2.0, 5.0]]))
        >>> scale.mean.tolist(), scale.std.tolist(), scale.varies.tolist()
        ([1.0, 5.0], [1.0, 1.0], [True, False])
    """

    mean: FloatArray
    std: FloatArray
    varies: NDArray[np.bool_]

    @classmethod
    def of(cls, values: NDArray[Any], weight: FloatArray | None = None) -> "Scale":
        """Of the rows of (n, p), each counting as its weight says."""
        values = values.astype(np.float64)
        mean = np.average(values, axis=0, weights=weight)
        std = np.sqrt(np.average((values - mean) ** 2, axis=0, weights=weight))
        varies = std > 1e-12 * np.abs(mean)  # else constant up to rounding
        # The value itself for a constant: of a huge one the mean's rounding would be an input.
        return cls(np.where(varies, mean, values[0]), np.where(varies, std, 1.0), varies)

    def neutral(self) -> "Scale":
        """The scale that changes nothing, for columns that are standardised already."""
        return Scale(np.zeros_like(self.mean), np.ones_like(self.std), self.varies)

    def apply(self, values: NDArray[Any]) -> Tensor:
        """(n, p) in units of the standard deviation."""
        return torch.as_tensor((values.astype(np.float64) - self.mean) / self.std).to(DTYPE)

    def undo(self, values: Tensor) -> FloatArray:
        """(..., p) back in the unit of the column."""
        raw: FloatArray = values.double().cpu().numpy() * self.std + self.mean
        return raw


def raw_module(sparse: SparseModel, x_scale: Scale, y_scale: Scale | None) -> nn.Module:
    """The posterior mean's network with standardisation folded into its first and last layer.

    W (x - μ) / s + b is (W / s) x + (b - W μ / s); zeros stay zeros. The second half of a
    heteroscedastic network's outputs (log standard deviations) is left out.
    """
    module = sparse.to_module()
    linear = [layer for layer in module.modules() if isinstance(layer, nn.Linear)]
    first, last = linear[0], linear[-1]
    with torch.no_grad():
        weight = first.weight.double() / torch.as_tensor(x_scale.std)
        first.bias.copy_(first.bias.double() - weight @ torch.as_tensor(x_scale.mean))
        first.weight.copy_(weight)
        if y_scale is not None:
            m = len(y_scale.std)
            mean, std = torch.as_tensor(y_scale.mean), torch.as_tensor(y_scale.std)
            weight, bias = last.weight[:m].double(), last.bias[:m].double()
            last.weight = nn.Parameter((weight * std[:, None]).to(last.weight.dtype))
            last.bias = nn.Parameter((bias * std + mean).to(last.weight.dtype))
            last.out_features = m
    return module


def raw_likelihood(sparse: SparseModel, y_scale: Scale | None) -> Likelihood | None:
    """The noise in the units of the target; None for classes, and where one number cannot say it.

    Targets of different spread share a noise level only once standardised, and the log standard
    deviations of a heteroscedastic network are not among the outputs of `raw_module`.
    """
    if y_scale is None or (y_scale.std != y_scale.std[0]).any():
        return None
    return sparse.network.likelihood_at(sparse.posterior.mean).scaled(float(y_scale.std[0]))
