"""The library as the README shows it: data, a plain module, a posterior, a sparse model."""

import inspect
import re
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

import bayesieve as bs
from bayesieve.core.posterior import SparseModel
from problems import normal32
from zoo import built


@dataclass
class Split:
    x: Tensor
    y: Tensor


@pytest.fixture(scope="module")
def digits():
    return bs.load_data("digits")


@pytest.fixture(scope="module")
def model():
    return built(
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 10))
    )


@pytest.fixture(scope="module")
def run(digits, model):
    problem = bs.Problem(model, bs.likelihoods.Categorical(), digits.train)
    schedule = bs.Schedule(lr="cosine", kl=0.3)
    return bs.fit(
        problem, bs.SBNN(lr=0.01, local=True), epochs=30, batch_size=64, seed=0, schedule=schedule
    )


def test_a_dense_posterior_classifies_digits(digits, run):
    result = bs.evaluate(run.posterior, digits.test, n_samples=10)
    assert result["error"] < 0.08  # 0.044 when written
    assert result["nll"] < 0.3
    assert result["ece"] < 0.1
    assert result["zeros"] == 0.0


def test_a_tenth_of_the_weights_is_enough(digits, run):
    sparse = bs.prune(run.posterior, bs.rules.keep_zeros(0.9))
    result = bs.evaluate(sparse, digits.test)
    assert result["error"] < 0.08
    assert result["zeros"] == sparse.zeros >= 0.9
    module = sparse.to_module()
    exact_zeros = sum(int((p == 0).sum()) for p in module.parameters())
    assert exact_zeros == result["parameters"] - result["weights"]
    with torch.no_grad():
        labels = module(digits.test.x).argmax(-1)
    assert torch.equal(labels, bs.predict(sparse, digits.test.x).label)


def test_rules_and_curves(digits, run):
    probable = bs.prune(run.posterior, bs.rules.keep_probable(0.5))
    assert 0 < probable.zeros < 1
    two_of_four = bs.prune(run.posterior, bs.rules.keep_n_of_m(2, 4))
    assert two_of_four.removed >= 0.5
    curve = bs.sparsity_curve(run.posterior, [0.5, 0.9])
    assert torch.equal(curve[1], bs.prune(run.posterior, bs.rules.keep_zeros(0.9)).keep)


def test_the_users_model_is_left_alone(digits, model, run):
    fresh = built(lambda: nn.Sequential(nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 10)))
    for trained, other in zip(model.parameters(), fresh.parameters(), strict=True):
        assert torch.equal(trained, other)
        assert trained.grad is None
    assert model.training


def test_gradual_pruning_and_a_second_training(digits, model):
    problem = bs.Problem(model, bs.likelihoods.Categorical(), digits.train)
    engine = bs.SBNN(lr=0.01, local=True)
    pruning = bs.GradualPruning(zeros=0.95, start=0.1, end=0.6)
    schedule = bs.Schedule(lr="cosine", kl=0.3, kl_after=0.1)
    gradual = bs.fit(problem, engine, epochs=30, batch_size=64, pruning=pruning, schedule=schedule)
    result = bs.evaluate(gradual.posterior, digits.test)
    assert result["zeros"] == pytest.approx(0.95, abs=5e-4)  # to the nearest weight
    assert result["error"] < 0.12  # a network of 381 numbers
    keep = gradual.posterior.mean != 0
    start = SparseModel(gradual.posterior, keep)
    tuned = bs.fit(problem, engine, epochs=2, batch_size=64, start_from=start)
    assert torch.equal(tuned.posterior.mean != 0, keep)


def test_regression_learns_its_noise():
    x = torch.linspace(-1, 1, 512)[:, None]
    y = torch.sin(3 * x[:, 0]) + 0.1 * normal32(512, seed=1)
    model = built(lambda: nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 1)))
    problem = bs.Problem(model, bs.likelihoods.Gaussian(noise_std=1.0, learned=True), (x, y))
    engine = bs.FlatVI(prior=bs.priors.Normal(1.0), lr=0.02)
    schedule = bs.Schedule(lr="cosine", kl=0.3)
    run = bs.fit(problem, engine, epochs=150, batch_size=64, schedule=schedule)
    result = bs.evaluate(run.posterior, Split(x, y), n_samples=20)
    assert 0.08 < result["aleatoric_std"] < 0.16
    assert result["rmse"] < 0.14
    assert 0.8 < result["coverage_90"] <= 1.0
    low, high = bs.predict(run.posterior, x, n_samples=20).interval(0.9)
    assert (low < high).all()


NAMESPACES = ["likelihoods", "priors", "rules", "runs"]


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("SBN", "Did you mean 'SBNN'?"),
        ("SpikeSlab", "It is bayesieve.priors.SpikeSlab."),
        ("Categorical", "It is bayesieve.likelihoods.Categorical."),
        ("keep_probable", "It is bayesieve.rules.keep_probable."),
    ],
)
def test_an_unknown_name_is_answered_with_the_one_that_was_meant(name, hint):
    with pytest.raises(AttributeError, match=re.escape(f"no attribute {name!r}. {hint}")):
        getattr(bs, name)


def test_every_public_name_is_there():
    for name in bs.__all__:
        assert getattr(bs, name) is not None
    assert set(bs.__all__) <= set(dir(bs))
    without = [n for n in bs.__all__ if "Example:" not in (inspect.getdoc(getattr(bs, n)) or "")]
    assert without == ["AUTO", *NAMESPACES, "__version__"]
    assert len(bs.__all__) <= 41
    with pytest.raises(AttributeError, match="has no attribute 'no_such_name'"):
        bs.no_such_name  # noqa: B018
