"""Columns and targets in units of training and in their own: numbers, modules and likelihoods."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bayesieve.data.preprocessing import cut_moments
from bayesieve.estimators.population import DTYPE

FloatArray = NDArray[np.float64]
Array = NDArray[Any]
Seed = int | np.random.RandomState | None


@dataclass(frozen=True, eq=False)
class Scale:
    """Mean and standard deviation of columns, (p,); those that never vary have std 1.

    Standardised values end at ± limit, which is infinite unless the rows hold values far out
    (`data.preprocessing.cut_moments`).

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
