"""The quick scores of a posterior mean that training watches; `assess` has the full ones."""

from collections.abc import Sequence

import torch
from torch import Tensor

from bayesieve.core.batch import ExamplesLike
from bayesieve.core.posterior import Posterior
from bayesieve.core.problem import Problem
from bayesieve.core.rows import Rows


def mean_scores(
    problem: Problem, posterior: Posterior, x: Tensor, y: Tensor
) -> tuple[float, float]:
    """Negative log-likelihood per example, and error or root-mean-square error, at the mean."""
    w = posterior.mean
    numbers = problem.network.numbers(w)
    total, wrong = 0.0, 0.0
    for start in range(0, len(x), 4096):
        part = slice(start, start + 4096)
        own_x, own_y = x[part].to(problem.device), y[part].to(problem.device)
        output = problem.network.outputs(w[None], own_x, posterior.buffers)[0]
        total -= problem.likelihood.log_prob(output, own_y, numbers).sum().item()
        wrong += problem.likelihood.mistakes(output, own_y, numbers).sum().item()
    mean = wrong / len(x)
    return total / len(x), mean if problem.likelihood.task == "classification" else mean**0.5


def member_scores(
    problem: Problem, members: Sequence[Posterior], data: ExamplesLike, rows: Rows
) -> tuple[list[float], list[float]]:
    """The same scores of k posteriors, each on its own rows of the data; 0 for one without rows."""
    network, device = problem.network, problem.device
    w = torch.stack([own.mean for own in members])
    names = members[0].buffers
    buffers = {name: torch.stack([own.buffers[name] for own in members]) for name in names}
    numbers = network.numbers(w)
    rows = rows.to(data.x.device)
    weights = torch.ones(rows.index.shape) if rows.weight is None else rows.weight
    total = w.new_zeros(len(w), dtype=torch.float64)
    wrong, count = torch.zeros_like(total), torch.zeros_like(total)
    for index, weight in zip(rows.index.split(4096, 1), weights.split(4096, 1), strict=True):
        y, weight = data.y[index].to(device), weight.to(device)
        output = network.member_outputs(w, data.x[index].to(device), buffers)
        for i in range(len(w)):
            own = {name: value[i] for name, value in numbers.items()}
            log_prob = problem.likelihood.log_prob(output[i], y[i], own)
            total[i] -= (log_prob * weight[i]).sum()
            wrong[i] += (problem.likelihood.mistakes(output[i], y[i], own) * weight[i]).sum()
        count += weight.sum(1)
    count = count.clamp(min=1e-12)
    nll, mean = total / count, wrong / count
    error = mean if problem.likelihood.task == "classification" else mean.sqrt()
    return nll.tolist(), error.tolist()
