"""The two array types of this package."""

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[np.floating[Any]]  # float32 or float64, rows are examples
Labels: TypeAlias = NDArray[np.integer[Any]]  # class numbers, shape (N,)
