"""Likelihoods against torch.distributions, and every refusal by its message."""

import math

import pytest
import torch
from torch import distributions as td

from bayesieve.core.likelihoods import Bernoulli, Categorical, Gaussian, Likelihood
from problems import normal, seeded


@pytest.mark.parametrize("likelihood", [Categorical(), Bernoulli(), Gaussian()], ids=str)
def test_likelihoods_follow_the_protocol(likelihood):
    assert isinstance(likelihood, Likelihood)
    assert hash(likelihood) == hash(type(likelihood)())


def test_categorical_agrees_with_torch():
    logits, y = normal(8, 5, seed=0), torch.randint(5, (8,), generator=seeded(1))
    exact = td.Categorical(logits=logits).log_prob(y)
    torch.testing.assert_close(Categorical().log_prob(logits, y, {}), exact)


def test_categorical_sums_the_positions_of_a_sequence():
    logits, y = normal(8, 3, 5, seed=0), torch.randint(5, (8, 3), generator=seeded(1))
    exact = td.Categorical(logits=logits).log_prob(y).sum(1)
    torch.testing.assert_close(Categorical().log_prob(logits, y, {}), exact)


def test_probability_rows_weight_the_classes():
    logits, y = normal(8, 5, seed=0), torch.randint(5, (8,), generator=seeded(1))
    one_hot = torch.nn.functional.one_hot(y, 5).double()
    hard = Categorical().log_prob(logits, y, {})
    torch.testing.assert_close(Categorical().log_prob(logits, one_hot, {}), hard)
    even = torch.full((8, 5), 0.2, dtype=torch.float64)
    exact = logits.log_softmax(-1).mean(-1)
    torch.testing.assert_close(Categorical().log_prob(logits, even, {}), exact)


@pytest.mark.parametrize("classes", [1, 2, 10, 15, 16, 40])
@pytest.mark.parametrize("positions", [(), (3,)])
def test_few_classes_have_the_log_softmax_of_torch(classes, positions):
    outputs = normal(4, 6, *positions, classes, seed=0).requires_grad_()
    outputs.data[0, 0] = 1000.0 * torch.arange(classes)  # far apart
    found, exact = Categorical().log_probs(outputs), outputs.log_softmax(-1)
    assert found.is_contiguous()
    torch.testing.assert_close(found, exact)
    weights = normal(*outputs.shape, seed=1)
    slopes = [torch.autograd.grad((x * weights).sum(), outputs)[0] for x in (found, exact)]
    torch.testing.assert_close(*slopes)


@pytest.mark.parametrize("shape", [(8,), (8, 1)])
def test_bernoulli_agrees_with_torch(shape):
    logits, y = normal(8, 1, seed=0), torch.randint(2, shape, generator=seeded(1))
    exact = td.Bernoulli(logits=logits[:, 0]).log_prob(y.reshape(-1).double())
    torch.testing.assert_close(Bernoulli().log_prob(logits, y, {}), exact)


def test_bernoulli_sums_several_outputs():
    logits, y = normal(8, 3, seed=0), torch.randint(2, (8, 3), generator=seeded(1))
    exact = td.Bernoulli(logits=logits).log_prob(y.double()).sum(1)
    torch.testing.assert_close(Bernoulli().log_prob(logits, y, {}), exact)


def test_gaussian_agrees_with_torch():
    mean, y = normal(8, 3, seed=0), normal(8, 3, seed=1)
    exact = td.Normal(mean, 0.7).log_prob(y).sum(1)
    torch.testing.assert_close(Gaussian(0.7).log_prob(mean, y, {}), exact)
    one = Gaussian(0.7).log_prob(mean[:, :1], y[:, 0], {})
    torch.testing.assert_close(one, td.Normal(mean[:, 0], 0.7).log_prob(y[:, 0]))


def test_learned_noise_enters_the_density_and_its_gradient():
    likelihood = Gaussian(0.7, learned=True)
    start = likelihood.parameters()["log_noise_std"]
    assert start.item() == pytest.approx(math.log(0.7))
    log_noise = torch.tensor(math.log(0.4), dtype=torch.float64, requires_grad=True)
    mean, y = normal(8, 3, seed=0), normal(8, 3, seed=1)
    value = likelihood.log_prob(mean, y, {"log_noise_std": log_noise})
    torch.testing.assert_close(value, td.Normal(mean, 0.4).log_prob(y).sum(1))
    value.sum().backward()
    exact = ((y - mean).square() / 0.4**2 - 1).sum()
    torch.testing.assert_close(log_noise.grad, exact)


def test_fixed_numbers_are_no_parameters():
    for likelihood in (Categorical(), Bernoulli(), Gaussian()):
        assert likelihood.parameters() == {}


def test_tasks():
    tasks = [likelihood.task for likelihood in (Categorical(), Bernoulli(), Gaussian())]
    assert tasks == ["classification", "classification", "regression"]


GOOD = [
    (Categorical(), torch.zeros(2, 3), torch.tensor([0, 2])),
    (Categorical(), torch.zeros(2, 3), torch.tensor([0, 2], dtype=torch.uint8)),
    (Categorical(), torch.zeros(2, 3), torch.full((2, 3), 1 / 3)),
    (Categorical(), torch.zeros(2, 4, 3), torch.zeros(2, 4, dtype=torch.int64)),
    (Bernoulli(), torch.zeros(2, 1), torch.tensor([0, 1])),
    (Bernoulli(), torch.zeros(2, 1), torch.tensor([True, False])),
    (Bernoulli(), torch.zeros(2, 2), torch.tensor([[0.0, 1.0], [1.0, 0.0]])),
    (Gaussian(), torch.zeros(2, 1), torch.zeros(2)),
    (Gaussian(), torch.zeros(2, 3), torch.zeros(2, 3)),
]


@pytest.mark.parametrize(("likelihood", "output", "target"), GOOD)
def test_targets_that_pass_the_check_have_a_density(likelihood, output, target):
    likelihood.check(output, target)
    assert torch.isfinite(likelihood.log_prob(output, target, {})).all()


BAD = [
    (
        Categorical(),
        torch.zeros(2),
        torch.tensor([0, 1]),
        r"must return \(n, classes\), got \(2,\)",
    ),
    (Categorical(), torch.zeros(2, 3), torch.tensor([0.0, 1.0]), "Use int64 class numbers"),
    (Categorical(), torch.zeros(2, 3), torch.tensor([[0], [1]]), r"shape .*got \(2, 1\)"),
    (Categorical(), torch.zeros(2, 3), torch.tensor([0, 3]), r"labels must lie in 0\.\.2"),
    (Categorical(), torch.zeros(2, 3), torch.tensor([-1, 0]), r"got -1\.\.0"),
    (Categorical(), torch.zeros(2, 3), torch.tensor([0, 1], dtype=torch.int32), "int64"),
    (Categorical(), torch.zeros(2, 3), torch.tensor([True, False]), "int64"),
    (Bernoulli(), torch.zeros(2, 2), torch.tensor([0, 1]), "returns 2 outputs .* targets have 1"),
    (Bernoulli(), torch.zeros(2, 1), torch.tensor([0, 2]), "targets must be 0 or 1"),
    (
        Gaussian(),
        torch.zeros(2, 1),
        torch.tensor([0, 1]),
        "must be floating point, got torch.int64",
    ),
    (Gaussian(), torch.zeros(2, 1), torch.zeros(2, 3), "1 outputs per example .* have 3 columns"),
]


@pytest.mark.parametrize(("likelihood", "output", "target", "message"), BAD)
def test_targets_that_do_not_fit_are_refused(likelihood, output, target, message):
    with pytest.raises(ValueError, match=message):
        likelihood.check(output, target)


def test_noise_must_be_positive():
    with pytest.raises(ValueError, match=r"^Gaussian: noise_std must be > 0, got 0\.$"):
        Gaussian(noise_std=0)
