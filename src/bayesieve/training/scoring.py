"""The quick scores of a posterior mean that training watches; `assess` has the full ones."""

from torch import Tensor

from bayesieve.core.likelihoods import Bernoulli, Likelihood
from bayesieve.core.posterior import Posterior
from bayesieve.core.problem import Problem


def mean_scores(
    problem: Problem, posterior: Posterior, x: Tensor, y: Tensor
) -> tuple[float, float]:
    """Negative log-likelihood per example, and error or root-mean-square error, at the mean."""
    w = posterior.mean
    extra = problem.network.split(w)[1]
    total, wrong = 0.0, 0.0
    for start in range(0, len(x), 4096):
        part = slice(start, start + 4096)
        own_x, own_y = x[part].to(problem.device), y[part].to(problem.device)
        output = problem.network.outputs(w[None], own_x, posterior.buffers)[0]
        total -= problem.likelihood.log_prob(output, own_y, extra).sum().item()
        wrong += _mistakes(problem.likelihood, output, own_y)
    mean = wrong / len(x)
    return total / len(x), mean if problem.likelihood.task == "classification" else mean**0.5


def _mistakes(likelihood: Likelihood, output: Tensor, y: Tensor) -> float:
    """Sum over examples of the squared error, or of the share of wrong labels."""
    n = len(y)
    if likelihood.task == "regression":
        return (output.reshape(n, -1) - y.reshape(n, -1)).square().mean(1).sum().item()
    if isinstance(likelihood, Bernoulli):
        wrong = output.reshape(n, -1).gt(0) != y.reshape(n, -1).bool()
    else:
        labels = y.argmax(-1) if y.is_floating_point() else y
        wrong = (output.argmax(-1) != labels).reshape(n, -1)
    return wrong.double().mean(1).sum().item()
