"""Evaluations against the metrics written out here."""

import json
import math

import pytest
import torch
from scipy import stats
from torch import nn
from torch.nn import functional as F

from bayesieve.assess.evaluate import error_curve, evaluate, model_size
from bayesieve.assess.metrics import confusion_matrix
from bayesieve.assess.predict import predict
from bayesieve.core.likelihoods import Bernoulli, Gaussian, StudentT
from bayesieve.core.posterior import SparseModel
from bayesieve.data.examples import Examples
from bayesieve.sieve.prune import prune, sparsity_curve
from bayesieve.sieve.rules import keep_zeros
from problems import normal32, random_posterior, seeded
from zoo import chain

X = normal32(40, 3, seed=1)
LABELS = torch.randint(4, (40,), generator=seeded(2))
REALS = normal32(40, 2, seed=3)


def posterior_of(likelihood=None, n_outputs=4):
    return random_posterior(chain(3, 6, n_outputs, act=nn.ReLU), likelihood, 0.2, seed=4)


@pytest.mark.parametrize("n_samples", [0, 5])
def test_classes(n_samples):
    posterior = posterior_of()
    result = evaluate(posterior, (X, LABELS), n_samples=n_samples, seed=3)
    probs = predict(posterior, X, n_samples=n_samples, seed=3).probs
    assert result["error"] == pytest.approx((probs.argmax(-1) != LABELS).double().mean().item())
    assert result["accuracy"] == pytest.approx(1 - result["error"])
    assert result["nll"] == pytest.approx(F.nll_loss(probs.log(), LABELS).item())
    assert result["entropy"] == pytest.approx(result["aleatoric"] + result["epistemic"])
    assert (result["epistemic"] > 0) == (n_samples > 0)
    assert result["n_examples"] == 40
    assert torch.equal(result.prediction.probs, probs)


def test_soft_labels_count_as_their_most_probable_class():
    posterior = posterior_of()
    soft = 0.7 * F.one_hot(LABELS, 4) + 0.3 / 4
    assert evaluate(posterior, (X, soft)).to_dict() == (evaluate(posterior, (X, LABELS)).to_dict())


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32])
@pytest.mark.parametrize("shape", [(40,), (40, 1)])
def test_yes_or_no(dtype, shape):
    posterior = posterior_of(Bernoulli(), 1)
    y = (LABELS > 1).to(dtype)
    result = evaluate(posterior, (X, y.view(shape)))
    yes = predict(posterior, X).probs[:, 1]
    assert result["error"] == pytest.approx(((yes > 0.5) != y.bool()).double().mean().item())
    assert result["nll"] == pytest.approx(F.binary_cross_entropy(yes, y.double()).item())
    assert confusion_matrix(result.prediction.probs, y.long()).shape == (2, 2)


def test_temperature_rescales_the_averaged_probabilities():
    posterior, split = posterior_of(), (X, LABELS)
    warm = evaluate(posterior, split, n_samples=4, temperature=2.0)
    log_probs = F.log_softmax(predict(posterior, X, n_samples=4).log_probs / 2, -1)
    assert warm["nll"] == pytest.approx(F.nll_loss(log_probs, LABELS).item())
    assert warm["error"] == evaluate(posterior, split, n_samples=4)["error"]
    same = evaluate(posterior, split, temperature=1.0)
    assert same.to_dict() == evaluate(posterior, split).to_dict()


@pytest.mark.parametrize("n_samples", [0, 6])
def test_real_targets_come_back_in_their_unit(n_samples):
    posterior = posterior_of(Gaussian(0.5), 2)
    unit = torch.tensor([10.0, 3.0])
    plain = evaluate(posterior, (X, REALS), n_samples=n_samples)
    examples = Examples(X, REALS, torch.tensor([100.0, -7.0]), unit)
    scaled = evaluate(posterior, examples, n_samples=n_samples)
    prediction = predict(posterior, X, n_samples=n_samples)
    residual = prediction.mean - REALS
    assert plain["rmse"] == pytest.approx(residual.square().mean().sqrt().item())
    in_unit = (residual * unit).square().mean().sqrt().item()
    assert scaled["rmse"] == pytest.approx(in_unit)
    assert scaled["mae"] == pytest.approx((residual * unit).abs().mean().item())
    assert scaled["nll"] == pytest.approx(plain["nll"] + math.log(30.0))
    assert scaled["coverage_90"] == plain["coverage_90"]
    density = torch.distributions.Normal(prediction.sample_means.double(), 0.5)
    each = density.log_prob(REALS.double()).sum(-1)  # (S, N)
    mixture = each.logsumexp(0) - math.log(len(each))
    assert plain["nll"] == pytest.approx(-mixture.mean().item())


def test_one_output_takes_flat_targets():
    posterior = posterior_of(Gaussian(0.5), 1)
    flat = evaluate(posterior, (X, REALS[:, 0])).to_dict()
    assert flat == evaluate(posterior, (X, REALS[:, :1])).to_dict()


def test_size_counts_every_parameter():
    posterior = posterior_of()
    assert model_size(posterior) == {
        "zeros": 0.0,
        "removed": 0.0,
        "weights": 52,  # (3 + 1) 6 + (6 + 1) 4
        "parameters": 52,
    }
    sparse = prune(posterior, keep_zeros(0.5))
    size = model_size(sparse)
    assert size["weights"] == int((sparse.posterior.mean != 0).sum()) <= 26
    assert size["zeros"] == sparse.zeros == 1 - size["weights"] / 52
    assert size["removed"] == sparse.removed
    assert model_size(sparse.posterior) == size


def test_error_curve_equals_one_evaluation_per_mask():
    posterior, split = posterior_of(), (X, LABELS)
    masks = sparsity_curve(posterior, [0.0, 0.3, 0.6])
    rows = error_curve(posterior, masks, split)
    assert len(rows) == 3
    for keep, row in zip(masks, rows, strict=True):
        single = evaluate(SparseModel(posterior.masked(keep), keep), split).to_dict()
        assert row == {name: single[name] for name in row}
        assert set(row) == {"zeros", "removed", "weights", "error", "nll"}
        logits = posterior.network.outputs((posterior.mean * keep)[None], X, {})[0]
        wrong = (logits.argmax(-1) != LABELS).double().mean().item()
        assert row["error"] == pytest.approx(wrong)


def test_error_curve_of_a_regression_has_rmse():
    posterior = posterior_of(Gaussian(0.5), 2)
    rows = error_curve(posterior, sparsity_curve(posterior, [0.2]), (X, REALS))
    assert set(rows[0]) == {"zeros", "removed", "weights", "rmse", "nll"}


@pytest.mark.parametrize(
    ("posterior", "y"), [(posterior_of(), LABELS), (posterior_of(Gaussian(0.5), 2), REALS)]
)
def test_an_evaluation_prints_and_goes_into_json(posterior, y):
    result = evaluate(posterior, (X, y), n_samples=2)
    values = result.to_dict()
    assert json.loads(json.dumps(values)) == values
    lines = str(result).splitlines()
    assert [line.split()[0] for line in lines] == list(values)
    assert f"nll{' ' * (len(max(values, key=len)) - 1)}{values['nll']:.4f}" in lines
    assert lines[-1].split() == ["parameters", str(posterior.layout.size)]
    assert result["weights"] == posterior.layout.size
    assert "prediction" not in repr(result)
    with pytest.raises(KeyError, match="accurracy"):
        result["accurracy"]


def test_student_t_noise_is_scored_as_such():
    posterior = posterior_of(StudentT(0.5, 3.0), 2)
    result = evaluate(posterior, (X, REALS))
    output = posterior.network.outputs(posterior.mean[None], X, {})[0]
    expected = posterior.network.likelihood.log_prob(output, REALS, {}).mean().item()
    assert result["log_lik"] == pytest.approx(expected, rel=1e-6)
    wide = 2 * stats.t.ppf(0.95, 3.0, scale=0.5)
    assert result["interval_width_90"] == pytest.approx(wide, rel=1e-6)


def test_a_pair_of_tensors_will_do():
    whole = evaluate(posterior_of(), (X, LABELS)).to_dict()
    assert evaluate(posterior_of(), (X, LABELS)).to_dict() == whole
    masks = sparsity_curve(posterior_of(), [0.0])
    curve = error_curve(posterior_of(), masks, (X, LABELS))
    assert curve == error_curve(posterior_of(), masks, (X, LABELS))


def test_wrong_inputs_raise():
    posterior, real = posterior_of(), posterior_of(Gaussian(0.5), 2)
    with pytest.raises(ValueError, match="x and y must have the same length > 0, got 40 and 39"):
        evaluate(posterior, (X, LABELS[:-1]))
    with pytest.raises(TypeError, match=r"evaluate: data must be .* got dict"):
        evaluate(posterior, {"x": X, "y": LABELS})
    with pytest.raises(ValueError, match=r"labels must lie in 0\.\.3"):
        evaluate(posterior, (X, LABELS + 1))
    with pytest.raises(ValueError, match="temperature must be > 0"):
        evaluate(posterior, (X, LABELS), temperature=-1.0)
    with pytest.raises(ValueError, match=r"predictions have shape \(40, 2\), targets \(40,\)"):
        evaluate(real, (X, REALS[:, 0]))
    with pytest.raises(ValueError, match="target_std must be a number or have shape"):
        evaluate(real, Examples(X, REALS, torch.zeros(3), torch.ones(3)))


def test_an_evaluation_is_a_mapping():
    result = evaluate(posterior_of(), (X, LABELS))
    assert dict(result) == result.to_dict()
    assert list(result) == list(result.to_dict())
    assert "error" in result
    assert "rmse" not in result
    assert result.get("rmse") is None
    assert len(result) == len(result.keys())
    assert {**result}["zeros"] == result["zeros"]
