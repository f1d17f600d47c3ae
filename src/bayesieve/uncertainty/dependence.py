"""Partial dependence: how the answer changes with one input, over all values of the others.

One input of every example is set to a value, the rest stays as it is, and the answers are averaged
over the examples [Friedman]. Draws of the posterior each give a curve; their spread is epistemic
uncertainty, so a band says where the data decide the curve and where they do not.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from bayesieve.assess.predict import draws_of, has_spread, predict
from bayesieve.checks import check_fraction, check_positive
from bayesieve.core.likelihoods import ClassPrediction, Prediction
from bayesieve.core.posterior import Model


class Dependence(NamedTuple):
    """Curves over a grid of m values: the mean answer, and its band over draws."""

    mean: Tensor  # (m, k): probabilities of k classes, or means of k targets
    low: Tensor | None  # (m, k); None without draws
    high: Tensor | None


def partial_dependence(
    model: Model,
    x: Tensor,
    place: slice,
    grid: Tensor,
    *,
    n_samples: int = 16,
    level: float = 0.9,
    seed: int = 0,
) -> Dependence:
    """Average answers with some inputs set to each value of a grid.

    Args:
        model: a posterior or a sparse model.
        x: examples, (n, d).
        place: which inputs are set: one number, or the columns of one category.
        grid: their values, (m, width of the place).
        n_samples: draws of the posterior; a posterior without spread has one curve and no band.
        level: share of the draws' curves inside the band at each value.
        seed: of the draws.

    Example:
        >>> from bayesieve.core.likelihoods import Gaussian
        >>> from bayesieve.core.network import Network
        >>> from bayesieve.core.posterior import Samples
        >>> network = Network.of(torch.nn.Linear(2, 1, bias=False), Gaussian())
        >>> draws = Samples(network, torch.tensor([[2.0, 1.0], [4.0, 1.0]]))
        >>> x = torch.tensor([[0.0, 5.0], [0.0, 7.0]])
        >>> curve = partial_dependence(draws, x, slice(0, 1), torch.tensor([[0.0], [1.0]]))
        >>> curve.mean.flatten().tolist()  # 3 x1 + the mean of x2
        [6.0, 9.0]
    """
    drawn = has_spread(model)
    rows = with_values(x, place, grid)
    n_draws = draws_of(model, n_samples) if drawn else 0
    each = answers(predict(model, rows, n_samples=n_draws, seed=seed))
    made = bands(each, len(grid), level)
    return made if drawn else Dependence(made.mean, None, None)


def with_values(x: Tensor, place: slice | Tensor, grid: Tensor) -> Tensor:
    """All examples, (n, d), with some inputs set to each value of a grid: (m · n, d)."""
    rows = x.repeat(len(grid), 1)
    rows[:, place] = grid.to(x.dtype).repeat_interleave(len(x), 0)
    return rows


def answers(prediction: Prediction) -> Tensor:
    """Class probabilities or means under every draw, (S, n, k)."""
    if isinstance(prediction, ClassPrediction):
        return prediction.sample_log_probs.double().exp()
    return prediction.sample_means.double()


def bands(each: Tensor, m: int, level: float) -> Dependence:
    """Curves of the answers by every draw, (S, m · n, k), to `with_values` on m values.

    Example:
        >>> each = torch.tensor([[1.0, 3.0, 5.0, 7.0], [2.0, 4.0, 6.0, 8.0]])[..., None]
        >>> bands(each, 2, 0.9).mean.flatten().tolist()
        [2.5, 6.5]
    """
    check_fraction("partial_dependence", open_ends=True, level=level)
    curves = each.detach().cpu().reshape(len(each), m, -1, each.shape[-1]).mean(2)
    tail = (1 - level) / 2
    low, high = curves.quantile(torch.tensor([tail, 1 - tail], dtype=curves.dtype), 0)
    return Dependence(curves.mean(0), low, high)


def spread_rows(values: Tensor, most: int) -> Tensor:
    """Choose rows of (n, k) that represent all: different ones, evenly spread in order.

    Example:
        >>> spread_rows(torch.tensor([[3.0], [1.0], [3.0], [2.0]]), 5).tolist()
        [1, 3, 0]
    """
    check_positive("partial_dependence", points=most)
    different, which = values.unique(dim=0, return_inverse=True)
    order = which.sort(stable=True).indices
    if len(different) > most:  # as many rows lie between one and the next
        order = order[torch.linspace(0, len(order) - 1, most).round().long()]
    first = torch.ones(len(order), dtype=torch.bool)
    first[1:] = which[order].diff() > 0
    return order[first]
