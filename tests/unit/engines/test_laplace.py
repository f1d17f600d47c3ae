"""The diagonal Laplace approximation against exact posteriors and brute-force Hessians."""

import itertools
from functools import partial

import pytest
import torch
from torch import nn
from torch.func import functional_call

from bayesieve.core.likelihoods import Bernoulli, Categorical, Gaussian
from bayesieve.core.priors import Normal
from bayesieve.core.problem import Problem
from bayesieve.engines.laplace import fitted_width, laplace, laplace_units
from bayesieve.engines.map import MAP
from bayesieve.errors import UnsupportedModelError
from problems import conjugate, normal, run, seeded
from zoo import BY_NAME, Calling, built, chain


def test_it_is_exact_for_linear_regression():
    known = conjugate()
    problem = known.problem
    engine = MAP(prior=Normal(known.prior_std), lr=0.05)
    point = engine.posterior(problem, run(engine, problem, 600, decay=True))
    found = laplace(problem, point, prior=Normal(known.prior_std), labels="exact")
    torch.testing.assert_close(found.mean, known.mean, rtol=0, atol=1e-4)
    torch.testing.assert_close(found.std, known.std)


def network(n_outputs):
    return chain(3, 4, n_outputs, dtype=torch.float64)


def case_of(likelihood):
    x = normal(12, 3, seed=0)
    if isinstance(likelihood, Categorical):
        return network(3), (x, torch.arange(12) % 3)
    if isinstance(likelihood, Bernoulli):
        return network(2), (x, (normal(12, 2, seed=1) > 0).double())
    return network(2), (x, normal(12, 2, seed=1))


def negative_log_prob(likelihood, y, f):
    return -likelihood.log_prob(f[None], y[None], {})[0]


def gauss_newton(problem, model, likelihood):
    """Σ diag(Jᵀ H J) with H the second derivative of -log p in the outputs, by autograd."""
    layout = problem.layout

    def outputs(w, x):
        return functional_call(model, layout.unflatten(w), (x[None],))[0]

    total = torch.zeros_like(problem.initial)
    for x, y in zip(problem.x, problem.y, strict=True):
        jacobian = torch.func.jacrev(outputs)(problem.initial, x)
        f = outputs(problem.initial, x)
        loss = partial(negative_log_prob, likelihood, y)
        hessian = torch.func.jacrev(torch.func.jacrev(loss))(f)
        total += (jacobian.T @ hessian @ jacobian).diagonal()
    return total


LIKELIHOODS = pytest.mark.parametrize(
    "likelihood", [Categorical(), Bernoulli(), Gaussian(0.7)], ids=lambda x: type(x).__name__
)


@LIKELIHOODS
def test_the_exact_precision_is_the_gauss_newton_diagonal(likelihood):
    model, data = case_of(likelihood)
    problem = Problem(model, likelihood, data)
    found = laplace(problem, prior=Normal(0.5), labels="exact", batch_size=5)
    expected = gauss_newton(problem, model, likelihood)
    torch.testing.assert_close(found.std**-2 - 4, expected.detach())
    assert torch.equal(found.mean, problem.initial)


def reader():
    """Two classes at each of three positions, from tokens mixed over the positions."""
    return Calling(
        lambda s, x: s.out(torch.tanh(s.mix(s.token(x).mT).mT)),
        token=nn.Embedding(5, 4),
        mix=nn.Linear(3, 3),
        out=nn.Linear(4, 2),
    )


def sequences(n):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        x = torch.randint(5, (n, 3))
        return reader().double(), (x, x % 2)


def test_positions_of_a_sequence_have_labels_of_their_own():
    """The mean of the squared score over all 2³ label sequences of each example."""
    model, data = sequences(4)
    problem = Problem(model, Categorical(), data)
    expected = torch.zeros(problem.layout.n_bayesian, dtype=torch.float64)
    names = [n for n in problem.layout.names if problem.layout.slices[n].stop <= len(expected)]
    parameters = [dict(model.named_parameters())[name] for name in names]
    for x in problem.x:
        for labels in itertools.product(range(2), repeat=3):
            log_probs = model(x[None])[0].log_softmax(-1)
            log_prob = log_probs[range(3), list(labels)].sum()
            grads = torch.autograd.grad(log_prob, parameters)
            score = torch.cat([grad.flatten() for grad in grads])
            expected += log_prob.exp().detach() * score.square()
    found = laplace(problem, prior=Normal(0.5), labels="exact", batch_size=3)
    torch.testing.assert_close(found.std[: len(expected)] ** -2 - 4, expected)


def test_sampled_labels_of_sequences_agree_on_average():
    model, (x, y) = sequences(4)
    many = Problem(model, Categorical(), (x.repeat(500, 1), y.repeat(500, 1)))
    exact, sampled = (
        laplace(many, prior=Normal(0.5), labels=labels, batch_size=1000).std
        for labels in ("exact", "sampled")
    )
    torch.testing.assert_close(sampled, exact, rtol=0.05, atol=0)


def test_few_outputs_are_summed_without_noise():
    model, data = case_of(Categorical())
    problem = Problem(model, Categorical(), data)
    first, other = (laplace(problem, prior=Normal(0.5), seed=seed).std for seed in (0, 1))
    exact = laplace(problem, prior=Normal(0.5), labels="exact").std
    assert torch.equal(first, exact)
    assert torch.equal(other, exact)


def test_many_outputs_average_ten_labels():
    """The variance of F is a tenth of that of one label, which enumeration of the labels gives."""
    model, x = network(12), normal(200, 3, seed=0)
    problem = Problem(model, Categorical(), (x, torch.zeros(200, dtype=torch.long)))

    def log_probs(w, row):
        return functional_call(model, problem.layout.unflatten(w), (row[None],))[0].log_softmax(0)

    per_label = torch.vmap(torch.func.jacrev(log_probs), in_dims=(None, 0))(problem.initial, x)
    p = torch.vmap(log_probs, in_dims=(None, 0))(problem.initial, x).exp()[..., None]
    squares = per_label.square()  # (n, labels, d)
    expected = (p * squares).sum(1)
    variance = ((p * squares.square()).sum(1) - expected.square()).sum(0)
    ratios = []
    for seed in range(20):
        found = laplace(problem, prior=Normal(0.5), seed=seed).std ** -2 - 4
        ratios.append((found - expected.sum(0)).square() / variance)
    # A mean of 20 seeds and 76 weights; 0.1 in theory, 1 with one label per example.
    assert 0.07 < torch.stack(ratios).mean() < 0.14


def test_equal_seeds_give_equal_results():
    model, data = case_of(Categorical())
    problem = Problem(model, Categorical(), data)
    first, again, other = (laplace(problem, labels="sampled", seed=s).std for s in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_the_width_of_the_prior_is_found():
    model, data = case_of(Gaussian())
    problem = Problem(model, Gaussian(), data)
    found = laplace(problem, labels="exact")
    second_moment = (found.mean.square() + found.std.square()).mean()
    assert found.prior.std**2 == pytest.approx(second_moment.item(), rel=1e-6)


@pytest.mark.parametrize("largest", [1e-6, 1.0, 1e9])
def test_the_width_solves_its_equation_whatever_the_information(largest):
    mean = normal(500, seed=0).float()
    information = largest * normal(500, seed=1).square() * (torch.arange(500) % 3 > 0)
    variance = fitted_width(mean, information) ** 2
    again = (mean.double().square() + 1 / (information + 1 / variance)).mean().item()
    assert variance == pytest.approx(again, rel=1e-9)


def test_without_information_the_width_is_that_of_the_means():
    assert fitted_width(torch.tensor([3.0, -4.0]), torch.zeros(2).double()) == 12.5**0.5
    assert fitted_width(torch.zeros(2), torch.ones(2).double()) < 1e-6


def test_points_have_no_spread_and_the_model_is_left_alone():
    case = BY_NAME["layer_norm"]
    problem = case.problem(11)
    found = laplace(problem)
    layout = problem.layout
    assert (found.std[layout.n_bayesian :] == 0).all()
    assert (found.std[layout.bayesian] > 0).all()
    assert found.draw(3, seeded(0)).shape == (3, layout.size)


def test_batch_statistics_are_those_of_the_posterior():
    problem = BY_NAME["batch_norm"].problem(11)
    engine = MAP(lr=0.01)
    point = engine.posterior(problem, run(engine, problem, 3))
    found = laplace(problem, point)
    assert found.buffers.keys() == point.buffers.keys()
    assert torch.isfinite(found.std).all()


def test_wrong_settings_and_models_are_refused():
    model, data = case_of(Gaussian())
    problem = Problem(model, Gaussian(), data)
    with pytest.raises(ValueError, match=r"^laplace: labels must be one of exact, sampled"):
        laplace(problem, labels="some")
    with pytest.raises(ValueError, match=r"^laplace: batch_size must be > 0"):
        laplace(problem, batch_size=0)
    with pytest.raises(UnsupportedModelError, match=r"^laplace: the gradient of a single example"):
        laplace(Problem(pairs().double(), Gaussian(), data))


def pairs():
    """Takes examples two by two: a batch of one fails."""
    return Calling(lambda s, x: s.out(x.reshape(2, -1, 3)).reshape(-1, 2), out=nn.Linear(3, 2))


def recurrent(kind):
    """Reads three inputs in turn, through a layer that `vmap` cannot batch."""
    return Calling(
        lambda s, x: s.out(s.cell(x[..., None])[0][:, -1]),
        cell=kind(1, 3, batch_first=True),
        out=nn.Linear(3, 2),
    )


@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM], ids=lambda kind: kind.__name__)
def test_recurrent_layers_have_the_gauss_newton_diagonal_too(kind):
    model = built(lambda: recurrent(kind).double())
    problem = Problem(model, Gaussian(0.5), (normal(5, 3, seed=0), normal(5, 2, seed=1)))
    found = laplace(problem, prior=Normal(0.5), labels="exact", batch_size=2)
    expected = torch.zeros_like(problem.initial)
    for x in problem.x:
        for output in model(x[None])[0]:
            grads = torch.autograd.grad(output, model.parameters(), retain_graph=True)
            named = dict(zip(dict(model.named_parameters()), grads, strict=True))
            pieces = [named[name].flatten() for name in problem.layout.names]
            expected += torch.cat(pieces).square() / 0.5**2
    torch.testing.assert_close(found.std**-2 - 4, expected)


def test_control_flow_on_values_and_attention_are_no_obstacle():
    for name in ("branching", "attention"):
        problem = BY_NAME[name].problem(8)
        found = laplace(problem)
        assert (found.std[problem.layout.bayesian] > 0).all()


@pytest.mark.parametrize("approximation", [laplace, laplace_units])
def test_weights_of_examples_are_refused_rather_than_left_out(approximation):
    model, data = case_of(Gaussian())
    problem = Problem(model, Gaussian(), data, weight=torch.arange(1.0, 13.0).double())
    with pytest.raises(ValueError, match=r"^laplace: every example counts once"):
        approximation(problem)
