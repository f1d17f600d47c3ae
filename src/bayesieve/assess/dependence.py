"""Partial dependence: how the answer changes with one input, over all values of the others.

One input of every example is set to a value, the rest stays as it is, and the answers are averaged
over the examples [Friedman]. Draws of the posterior each give a curve; their spread is doubt about
the weights, so a band says where the data decide the curve and where they do not.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from bayesieve.assess.predict import predict
from bayesieve.core.likelihoods import ClassPrediction
from bayesieve.core.posterior import Model, draws_of, has_spread


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
    n, m = len(x), len(grid)
    rows = x.repeat(m, 1)
    rows[:, place] = grid.to(x.dtype).repeat_interleave(n, 0)
    drawn = has_spread(model)
    answer = predict(model, rows, n_samples=draws_of(model, n_samples) if drawn else 0, seed=seed)
    if isinstance(answer, ClassPrediction):
        each = answer.sample_log_probs.double().exp()
    else:
        each = answer.sample_means.double()
    curves = each.detach().cpu().reshape(len(each), m, n, -1).mean(2)
    if not drawn:
        return Dependence(curves[0], None, None)
    tail = (1 - level) / 2
    low, high = curves.quantile(torch.tensor([tail, 1 - tail], dtype=curves.dtype), 0)
    return Dependence(curves.mean(0), low, high)
