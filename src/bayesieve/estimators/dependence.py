"""How predictions depend on one column of a table: partial dependence, with bands over draws.

For every value v of the column, all rows are given it, and the predictions of one draw of the
weights are averaged over the rows. The mean over draws is the curve; quantiles over draws are its
band, the doubt about the curve. Noise of the target is not in it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bayesieve.assess.predict import ClassPrediction
from bayesieve.checks import check_fraction, check_positive
from bayesieve.core.posterior import SparseModel
from bayesieve.estimators.mixture import predict_members

FloatArray = NDArray[np.float64]
_ROWS = 100  # over which predictions are averaged


@dataclass(frozen=True, eq=False)
class Dependence:
    """The mean prediction at g values of a column, for m targets or classes.

    Args:
        column: its name.
        at: the values, numbers, dates or levels as the table has them, (g,).
        mean: (g, m).
        low: lower end of the band, (g, m).
        high: upper end, (g, m).
    """

    column: str
    at: NDArray[Any]
    mean: FloatArray
    low: FloatArray
    high: FloatArray


def answers_of(models: Sequence[SparseModel], x: Tensor, n_samples: int) -> Tensor:
    """Means or class probabilities by every draw of every network, (S, n, m), at inputs (n, q)."""
    found = predict_members(models, x, n_samples)
    if isinstance(found, ClassPrediction):
        return found.sample_log_probs.exp()
    return found.sample_means


def dependence(
    answers: Callable[[FloatArray], Tensor],
    inputs: FloatArray,
    column: NDArray[np.intp],
    *,
    points: int = 20,
    level: float = 0.9,
) -> tuple[NDArray[np.intp], Tensor]:
    """Rows whose values stand for a column, (g,), and mean, low and high end there, (3, g, m).

    Args:
        answers: predictions of every draw, (S, n, m), at inputs, (n, q).
        inputs: of the rows of a table, (n, q).
        column: which of them belong to the column.
        points: values at most.
        level: share of the draws between the ends.

    Example:
        >>> x = np.array([[0.0, 1.0], [1.0, 3.0], [2.0, 5.0]])
        >>> lines = lambda x: torch.as_tensor(np.stack([x @ [[1.0], [1.0]], x @ [[3.0], [1.0]]]))
        >>> rows, band = dependence(lines, x, np.array([0]), level=0.5)
        >>> rows.tolist(), band[0, :, 0].tolist()  # 2 v + 3
        ([0, 1, 2], [3.0, 5.0, 7.0])
    """
    check_positive("partial_dependence", points=points)
    check_fraction("partial_dependence", open_ends=True, level=level)
    rows = rows_along(inputs[:, column], points)
    some = inputs[np.unique(np.linspace(0, len(inputs) - 1, _ROWS).round().astype(int))]
    everywhere = np.repeat(some[None], len(rows), 0)  # (g, n, q)
    everywhere[:, :, column] = inputs[rows][:, None, column]
    drawn = answers(everywhere.reshape(-1, inputs.shape[1])).double()
    curves = drawn.unflatten(1, (len(rows), len(some))).mean(2)
    side = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=curves.dtype)
    return rows, torch.cat([curves.mean(0, keepdim=True), curves.quantile(side, 0)])


def rows_along(values: FloatArray, most: int) -> NDArray[np.intp]:
    """Rows of (n, k) that stand for all of them: different ones, evenly spread in order.

    Example:
        >>> rows_along(np.array([[3.0], [1.0], [3.0], [2.0]]), 5).tolist()
        [1, 3, 0]
    """
    _, first = np.unique(values, axis=0, return_index=True)
    if len(first) > most:
        order = np.lexsort(values.T[::-1])
        places = np.linspace(0, len(order) - 1, most).round().astype(int)
        _, kept = np.unique(values[order[places]], axis=0, return_index=True)
        first = order[places[kept]]
    return first
