"""The arrays one batch needs, allocated once."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import DTypeLike

from bayesieve.scratch.arrays import Array


@dataclass(frozen=True, eq=False)
class Buffers:
    """One entry per layer, each of shape (rows, units).

    Args:
        outputs: a = g(z); z itself is overwritten by it.
        upstream: dL/da.
        deltas: dL/dz.
    """

    outputs: list[Array]
    upstream: list[Array]
    deltas: list[Array]

    @classmethod
    def allocate(cls, n_rows: int, units: Sequence[int], dtype: DTypeLike) -> "Buffers":
        """Uninitialised arrays for `n_rows` examples and layers of these sizes.

        Example:
            >>> Buffers.allocate(64, (500, 10), np.float32).outputs[0].shape
            (64, 500)
        """
        kinds = [[np.empty((n_rows, n), dtype) for n in units] for _ in range(3)]
        return cls(*kinds)

    def first(self, n_rows: int) -> "Buffers":
        """Views of the first rows, for a short last batch.

        Example:
            >>> Buffers.allocate(64, (500, 10), np.float32).first(16).deltas[1].shape
            (16, 10)
        """
        if n_rows == len(self.outputs[0]):
            return self
        kinds = (self.outputs, self.upstream, self.deltas)
        return Buffers(*([array[:n_rows] for array in kind] for kind in kinds))
