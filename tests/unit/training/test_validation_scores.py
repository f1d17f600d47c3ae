import pytest
import torch
from torch import nn
from torch.nn import functional as F

from bayesieve.core.likelihoods import Bernoulli, Categorical, Gaussian
from bayesieve.core.posterior import Samples
from bayesieve.core.problem import Problem
from bayesieve.training.validation import Validation
from problems import normal

X = normal(5000, 3, seed=1, dtype=torch.float32)  # more than one part of 4096


def scored(likelihood, n_outputs, y, x=X):
    problem = Problem(nn.Linear(3, n_outputs), likelihood, (x, y))
    posterior = Samples(problem.network, problem.initial[None])
    output = problem.network.outputs(problem.initial[None], x, {})[0]
    (nll,), (error,) = Validation((x, y)).scores(problem, [posterior])
    return (nll, error), output


def test_classes():
    y = torch.arange(5000) % 4
    (nll, error), output = scored(Categorical(), 4, y)
    assert nll == pytest.approx(F.cross_entropy(output, y).item(), rel=1e-5)
    assert error == pytest.approx((output.argmax(1) != y).double().mean().item())


def test_soft_labels_count_as_their_most_probable_class():
    soft = F.softmax(normal(5000, 4, seed=2, dtype=torch.float32), -1)
    (nll, error), output = scored(Categorical(), 4, soft)
    assert nll == pytest.approx(F.cross_entropy(output, soft).item(), rel=1e-5)
    assert error == pytest.approx((output.argmax(1) != soft.argmax(1)).double().mean().item())


@pytest.mark.parametrize("shape", [(5000,), (5000, 1)])
def test_yes_or_no(shape):
    y = (torch.arange(5000) % 2).float().view(shape)
    (nll, error), output = scored(Bernoulli(), 1, y)
    expected = F.binary_cross_entropy_with_logits(output.view(shape), y).item()
    assert nll == pytest.approx(expected, rel=1e-5)
    assert error == pytest.approx(((output.view(shape) > 0) != y.bool()).double().mean().item())


def test_several_yes_or_no_answers_are_averaged():
    y = (normal(5000, 2, seed=3) > 0).long()
    (_, error), output = scored(Bernoulli(), 2, y)
    assert error == pytest.approx(((output > 0) != y.bool()).double().mean().item())


@pytest.mark.parametrize(("n_outputs", "shape"), [(1, (5000,)), (2, (5000, 2))])
def test_numbers(n_outputs, shape):
    y = normal(*shape, seed=4, dtype=torch.float32)
    (nll, rmse), output = scored(Gaussian(0.5, learned=True), n_outputs, y)
    residual = output.view(shape) - y
    assert rmse == pytest.approx(residual.square().mean().sqrt().item(), rel=1e-5)
    density = torch.distributions.Normal(output.view(shape), 0.5).log_prob(y)
    assert nll == pytest.approx(-density.sum().item() / 5000, rel=1e-5)


def test_positions_of_a_sequence_are_averaged():
    x = normal(10, 6, 3, seed=5, dtype=torch.float32)
    y = torch.arange(60).view(10, 6) % 4
    (nll, error), output = scored(Categorical(), 4, y, x)
    assert nll == pytest.approx(F.cross_entropy(output.mT, y, reduction="sum").item() / 10)
    assert error == pytest.approx((output.argmax(-1) != y).double().mean().item())
