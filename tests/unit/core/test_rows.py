"""Rows and weights of each model: a population on subsets of the data against single models."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from bayesieve.core.batch import Batch, Rows
from bayesieve.core.likelihoods import Bernoulli, Categorical, Gaussian, Heteroscedastic, StudentT
from bayesieve.core.problem import Problem
from bayesieve.core.reading import with_data
from bayesieve.fast.evaluator import plain_layers
from oracles import log_likelihood
from problems import normal
from zoo import built


@given(st.lists(st.integers(1, 7), min_size=1, max_size=5))
@settings(max_examples=30, deadline=None)
def test_shorter_members_are_filled_up_with_rows_that_count_nothing(lengths):
    indices = [torch.arange(n) + 10 * i for i, n in enumerate(lengths)]
    rows = Rows.of(indices)
    assert rows.index.shape == (len(lengths), max(lengths))
    weight = torch.ones(rows.index.shape) if rows.weight is None else rows.weight
    for i, index in enumerate(indices):
        assert torch.equal(rows.index[i][weight[i] > 0], index)
        assert set(rows.index[i].tolist()) <= set(index.tolist())
    assert (rows.weight is None) == (len(set(lengths)) == 1)


@pytest.mark.parametrize(
    ("index", "weight", "message"),
    [
        (torch.zeros(3, dtype=torch.int64), None, r"shape \(models, rows\)"),
        (torch.zeros(2, 3), None, "int64"),
        (torch.zeros(2, 3, dtype=torch.int64), torch.ones(3), "shape of index"),
    ],
)
def test_rows_of_the_wrong_kind_are_refused(index, weight, message):
    with pytest.raises(ValueError, match=message):
        Rows(index, weight)


def test_no_member_may_be_empty():
    with pytest.raises(ValueError, match="at least one row"):
        Rows.of([torch.arange(2), torch.arange(0)])


def test_rows_must_lie_in_the_data():
    x = torch.zeros(4, 2)
    with pytest.raises(ValueError, match=r"0\.\.3, got 0\.\.4"):
        Problem(nn.Linear(2, 1), Gaussian(), (x, x[:, 0]), rows=Rows.of([torch.arange(5)]))


LIKELIHOODS = {
    "gaussian": (Gaussian(0.7, learned=True), 2),
    "student": (StudentT(0.7, learned=True), 2),
    "hetero": (Heteroscedastic(), 4),
    "classes": (Categorical((1.0, 2.0, 0.5, 1.0)), 4),
    "binary": (Bernoulli(pos_weight=3.0), 2),
}


def problem_of(name, layers, *, rows=None, weight=None, index=slice(None)):
    likelihood, n_outputs = LIKELIHOODS[name]
    model = built(lambda: layers(n_outputs).double())
    x = normal(9, 3, seed=1)
    if name == "classes":
        y = torch.arange(9) % 4
    elif name == "binary":
        y = torch.arange(18).reshape(9, 2) % 2
    else:
        y = normal(9, 2, seed=2)
    weight = None if weight is None else weight[index]
    return Problem(model, likelihood, (x[index], y[index]), rows=rows, weight=weight)


def plain(n_outputs):
    return nn.Sequential(nn.Flatten(), nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, n_outputs))


def not_plain(n_outputs):
    return nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.LayerNorm(4), nn.Linear(4, n_outputs))


@pytest.mark.parametrize("name", LIKELIHOODS)
@pytest.mark.parametrize("layers", [plain, not_plain], ids=["layers", "vmap"])
@pytest.mark.parametrize("weighted", [False, True])
def test_each_member_sees_its_rows_alone(name, layers, weighted):
    indices = [
        torch.tensor([0, 1, 2, 3, 4]),
        torch.tensor([5, 6, 7]),
        torch.tensor([8, 8, 1, 0, 2]),
    ]
    weight = torch.linspace(0.5, 2, 9, dtype=torch.float64) if weighted else None
    whole = problem_of(name, layers, rows=Rows.of(indices), weight=weight)
    assert (plain_layers(whole.network.skeleton) is not None) == (layers is plain)
    w = whole.initial + 0.3 * normal(3, whole.layout.size, seed=3)
    everything = torch.arange(whole.n_data).expand(3, -1)
    value, grad = whole.value_and_grad(w, whole.data.batch(everything))
    for i, part in enumerate(indices):
        alone = problem_of(name, layers, index=part, weight=weight)
        value_alone, grad_alone = alone.value_and_grad(
            w[i : i + 1], alone.data.batch(torch.arange(len(part)))
        )
        torch.testing.assert_close(value[i], value_alone[0])
        torch.testing.assert_close(grad[i], grad_alone[0])
    torch.testing.assert_close(log_likelihood(whole, w, whole.data.batch(everything)), value)


def test_a_weight_counts_as_repetition():
    weight = torch.tensor([2.0, 1, 0, 1, 1, 3, 1, 1, 1], dtype=torch.float64)
    index = torch.arange(9).repeat_interleave(weight.long())
    weighted = problem_of("gaussian", plain, weight=weight)
    repeated = problem_of("gaussian", plain, index=index)
    w = weighted.initial[None]
    first, first_grad = weighted.value_and_grad(w, weighted.data.batch(torch.arange(9)))
    second, second_grad = repeated.value_and_grad(w, repeated.data.batch(torch.arange(10 + 1)))
    torch.testing.assert_close(first, second)
    torch.testing.assert_close(first_grad, second_grad)


def test_batches_add_up_to_the_whole():
    problem = problem_of("gaussian", plain, rows=Rows.of([torch.arange(6), torch.arange(3, 8)]))
    w = problem.initial.repeat(2, 1)
    order = torch.tensor([[3, 1, 5, 0, 2, 4], [0, 5, 4, 3, 2, 1]])
    values = [log_likelihood(problem, w, problem.data.batch(part)) for part in order.split(2, 1)]
    whole = log_likelihood(problem, w, problem.data.batch(order))
    torch.testing.assert_close(torch.stack(values).mean(0), whole)


@pytest.mark.parametrize("bad", [torch.ones(3), torch.tensor([1.0, -1, 1, 1]), torch.zeros(4)])
def test_bad_weights_are_refused(bad):
    x = torch.zeros(4, 2)
    with pytest.raises(ValueError, match="weight"):
        Problem(nn.Linear(2, 1), Gaussian(), (x, x[:, 0]), weight=bad)


def test_other_data_come_without_weights_and_rows():
    problem = problem_of("gaussian", plain, weight=torch.ones(9, dtype=torch.float64))
    again = with_data(problem, (problem.x[:2], problem.y[:2]))
    assert problem.data.weighted
    assert not again.data.weighted
    assert again.n_data == 2


def test_a_shared_batch_may_carry_weights():
    problem = problem_of("gaussian", plain)
    weight = torch.linspace(0, 1, 9, dtype=torch.float64)
    w = problem.initial + 0.3 * normal(2, problem.layout.size, seed=3)
    value, _ = problem.value_and_grad(w, Batch(problem.x, problem.y, weight=weight))
    heavy = problem_of("gaussian", plain, weight=weight)
    for i in range(2):
        value_alone = log_likelihood(heavy, w[i : i + 1], heavy.data.batch(torch.arange(9)))
        torch.testing.assert_close(value[i], value_alone[0])
