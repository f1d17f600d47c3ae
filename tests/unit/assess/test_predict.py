"""Predictions against averages written out here, from outputs of the plain module."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from bayesieve.assess import predict as predict_module
from bayesieve.assess.predict import ClassPrediction, RealPrediction, predict
from bayesieve.core.likelihoods import Bernoulli, Gaussian
from bayesieve.core.network import materialise
from bayesieve.core.posterior import Factorised, Samples, SparseModel
from bayesieve.engines.map import MAP
from problems import normal32, random_posterior, seeded
from runs import fit_toy, toy, with_batch_norm
from zoo import BY_NAME, chain

X = normal32(7, 3, seed=1)


def factorised(likelihood=None, n_outputs=4):
    return random_posterior(chain(3, 5, n_outputs), likelihood)


def outputs(posterior, draws, x=X):
    """(S, N, outputs), one plain module at a time."""
    modules = (materialise(posterior.network, w, posterior.buffers) for w in draws)
    with torch.no_grad():
        return torch.stack([module(x) for module in modules])


def drawn(posterior, n, seed=0):
    """Each draw and its mirror."""
    source = seeded(seed)
    half = torch.cat([posterior.draw(1, source) for _ in range((n + 1) // 2)])
    return torch.stack([half, 2 * posterior.mean - half], 1).flatten(0, 1)[:n]


def test_without_samples_the_mean_predicts():
    posterior = factorised()
    prediction = predict(posterior, X)
    expected = F.log_softmax(outputs(posterior, posterior.mean[None]), -1)
    torch.testing.assert_close(prediction.sample_log_probs, expected)
    torch.testing.assert_close(prediction.probs, expected[0].double().exp())
    assert torch.equal(prediction.label, expected[0].argmax(-1))
    assert not prediction.epistemic.any()


def test_samples_average_probabilities_not_logits():
    posterior = factorised()
    prediction = predict(posterior, X, n_samples=6, seed=3)
    each = F.softmax(outputs(posterior, drawn(posterior, 6, seed=3)).double(), -1)
    torch.testing.assert_close(prediction.probs, each.mean(0), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(prediction.probs.sum(-1), torch.ones(7, dtype=torch.float64))
    assert prediction.sample_log_probs.shape == (6, 7, 4)


@pytest.mark.parametrize("n_samples", [0, 1, 5])
def test_a_point_estimate_has_no_epistemic_uncertainty(n_samples):
    posterior = fit_toy(toy(), MAP(lr=0.05)).posterior
    prediction = predict(posterior, toy().x, n_samples=n_samples)
    assert prediction.epistemic.abs().max() < 1e-12
    torch.testing.assert_close(prediction.entropy, prediction.aleatoric)


def test_seeds_decide_the_draws_and_global_numbers_are_untouched():
    posterior = factorised()
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first, again, other = (predict(posterior, X, n_samples=3, seed=s) for s in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first.probs, again.probs)
    assert not torch.equal(first.probs, other.probs)


@pytest.mark.parametrize("n_samples", [1, 2, 5])
@pytest.mark.parametrize("block", [1, 2, 3])
def test_blocks_of_draws_change_nothing(monkeypatch, n_samples, block):
    samples = factorised(Gaussian(0.5, learned=True), 2)
    five = Samples(samples.network, samples.draw(5, seeded(4)))
    whole = [predict(model, X, n_samples=n_samples) for model in (samples, five)]
    monkeypatch.setattr(predict_module, "_DRAWS_AT_ONCE", block * samples.layout.size)
    for model, expected in zip((samples, five), whole, strict=True):
        drawn = predict(model, X, n_samples=n_samples)
        assert torch.equal(drawn.sample_means, expected.sample_means)
        assert torch.equal(drawn.noise_std, expected.noise_std)


def test_as_many_samples_as_a_posterior_holds_are_all_of_them(monkeypatch):
    base = factorised()
    posterior = Samples(base.network, base.draw(4, seeded(1)))
    monkeypatch.setattr(predict_module, "_DRAWS_AT_ONCE", 1)  # one at a time
    prediction = predict(posterior, X, n_samples=4)
    expected = F.log_softmax(outputs(posterior, posterior.draws), -1)
    torch.testing.assert_close(prediction.sample_log_probs, expected)


@pytest.mark.parametrize("batch_size", [1, 3, 7, 100])
def test_batches_of_inputs_change_nothing(batch_size):
    posterior = factorised()
    in_batches = predict(posterior, X, n_samples=2, batch_size=batch_size)
    torch.testing.assert_close(in_batches.probs, predict(posterior, X, n_samples=2).probs)


def test_fixed_noise_is_the_aleatoric_part():
    posterior = factorised(Gaussian(0.7), 2)
    prediction = predict(posterior, X, n_samples=8)
    means = outputs(posterior, drawn(posterior, 8)).double()
    torch.testing.assert_close(prediction.mean, means.mean(0), rtol=1e-5, atol=1e-6)
    spread = means.var(0, correction=0).sqrt()
    torch.testing.assert_close(prediction.epistemic_std, spread, rtol=1e-4, atol=1e-6)
    assert prediction.aleatoric_std.tolist() == [[pytest.approx(0.7)] * 2] * 7
    total = (0.49 + spread.square()).sqrt()
    torch.testing.assert_close(prediction.std, total, rtol=1e-4, atol=1e-6)


def test_learned_noise_is_read_from_the_weights():
    base = factorised(Gaussian(1.0, learned=True), 1)
    mean = base.mean.clone()
    mean[-1] = math.log(0.3)  # the noise is the last, a point parameter
    posterior = Factorised(base.network, mean, base.std)
    for n_samples in (0, 4):
        prediction = predict(posterior, X, n_samples=n_samples)
        assert prediction.aleatoric_std.flatten().tolist() == [pytest.approx(0.3)] * 7
    two = mean.repeat(2, 1)
    two[1, -1] = math.log(0.4)  # draws may differ in noise: variances are averaged
    both = predict(Samples(base.network, two), X, n_samples=2)
    assert both.aleatoric_std[0, 0].item() == pytest.approx(math.sqrt((0.09 + 0.16) / 2))


def test_a_bernoulli_has_two_classes():
    posterior = factorised(Bernoulli(), 1)
    prediction = predict(posterior, X, n_samples=3)
    yes = torch.sigmoid(outputs(posterior, drawn(posterior, 3))[..., 0]).double()
    assert prediction.sample_log_probs.shape == (3, 7, 2)
    torch.testing.assert_close(prediction.probs[:, 1], yes.mean(0), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(prediction.probs.sum(-1), torch.ones(7, dtype=torch.float64))


def test_a_sparse_model_predicts_with_what_is_kept():
    posterior = factorised()
    keep = torch.arange(posterior.layout.size) % 2 == 0
    sparse = SparseModel(posterior.masked(keep), keep)
    module = sparse.to_module()
    with torch.no_grad():
        expected = F.softmax(module(X), -1).double()
    torch.testing.assert_close(predict(sparse, X).probs, expected, rtol=1e-5, atol=1e-6)
    assert isinstance(predict(sparse, X, n_samples=2), ClassPrediction)


def test_batch_norm_uses_the_posteriors_statistics():
    problem = toy(with_batch_norm)
    posterior = fit_toy(problem, MAP(lr=0.05)).posterior
    one_by_one = torch.cat([predict(posterior, row[None]).probs for row in problem.x])
    torch.testing.assert_close(predict(posterior, problem.x).probs, one_by_one)


def test_word_numbers_are_inputs_too():
    case = BY_NAME["embedding"]
    problem = case.problem(dtype=torch.float32)
    posterior = Samples(problem.network, problem.initial[None])
    assert predict(posterior, problem.x).probs.shape == (6, 3)
    assert isinstance(predict(factorised(Gaussian(), 1), X), RealPrediction)


def test_wrong_inputs_raise():
    posterior = factorised()
    with pytest.raises(ValueError, match="n_samples must be >= 0, got -1"):
        predict(posterior, X, n_samples=-1)
    with pytest.raises(ValueError, match="got no inputs"):
        predict(posterior, X[:0])
    with pytest.raises(
        TypeError, match="x must be a tensor, or a tuple or dict of tensors, got ndarray"
    ):
        predict(posterior, X.numpy())
    with pytest.raises(TypeError, match=r"inputs are torch.float64 but the weights torch.float32"):
        predict(posterior, X.double())
    with pytest.raises(
        ValueError, match=r"fails on inputs of shape \(\d+, 1\) and torch.float32: mat1 and mat2"
    ):
        predict(posterior, X[:, :1])
    with pytest.raises(ValueError, match="inputs must be finite; example 2 holds NaN"):
        predict(posterior, X.index_fill(0, torch.tensor(2), torch.nan))
    with pytest.raises(TypeError, match=r"a sparse model, got Linear\. .* take run\.posterior"):
        predict(nn.Linear(3, 1), X)
    with pytest.raises(ValueError, match="batch_size must be > 0, got 0"):
        predict(posterior, X, batch_size=0)
