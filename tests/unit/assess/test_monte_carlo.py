"""Monte-Carlo error of predictions: antithetic draws, their standard error, and the bias of MI."""

from itertools import product

import pytest
import torch

from bayesieve.assess.evaluate import evaluate
from bayesieve.assess.metrics import monte_carlo_error
from bayesieve.assess.predict import MOST_DRAWS, predict
from bayesieve.core.likelihoods import Categorical, ClassPrediction, Gaussian
from bayesieve.core.posterior import Samples
from bayesieve.estimators.mixture import pooled_predictions
from bayesieve.uncertainty.calibration import fit_temperature
from problems import normal, random_posterior, seeded
from zoo import chain

F64 = torch.float64


def posterior_of(likelihood, n_outputs, std, hidden=()):
    return random_posterior(chain(3, *hidden, n_outputs, dtype=F64), likelihood, std)


X = normal(40, 3, seed=1)
LABELS = torch.arange(40) % 3


def test_the_mean_of_a_linear_model_has_no_monte_carlo_error():
    posterior = posterior_of(Gaussian(0.5), 2, std=0.7)
    exact = predict(posterior, X).mean
    for seed in range(5):
        torch.testing.assert_close(predict(posterior, X, n_samples=8, seed=seed).mean, exact)


def test_pairs_lower_the_variance_of_a_network():
    """Var of a mean of pairs is (1 + correlation) / 2 of that of independent draws."""
    posterior = posterior_of(Gaussian(0.5), 1, std=0.3, hidden=(8,))
    draws = [predict(posterior, X, n_samples=16, seed=s).sample_means[..., 0] for s in range(100)]
    values = torch.stack(draws)  # (seeds, 16, N)
    variance = values.mean(1).var(0).mean()
    assert variance < 0.3 * values.var((0, 1)).mean() / 16


def enumerated(probs, n):
    """Mean MI of all equally likely sequences of n draws, as it is and corrected."""
    draws = torch.stack([probs[list(row)] for row in product(range(len(probs)), repeat=n)], 1).log()
    corrected = ClassPrediction(draws, "independent").epistemic.mean()
    return ClassPrediction(draws).epistemic.mean(), corrected


@pytest.mark.parametrize("n", [4, 6])
@pytest.mark.parametrize(
    "probs",
    [[[0.9, 0.1], [0.5, 0.5], [0.1, 0.9]], [[0.8, 0.1, 0.1], [0.2, 0.6, 0.2], [0.3, 0.1, 0.6]]],
)
def test_mutual_information_of_a_discrete_posterior_is_nearly_unbiased(probs, n):
    """Exact expectation over all 3^n draws; the first order of the bias, 1/n, is gone."""
    probs = torch.tensor(probs, dtype=F64)
    exact = ClassPrediction(probs[:, None].log()).epistemic.item()
    plain, corrected = enumerated(probs, n)
    assert plain < (1 - 0.8 / n) * exact
    assert abs(corrected - exact) < 0.15 * abs(plain - exact)


def test_the_whole_posterior_has_nothing_to_correct():
    draws = posterior_of(Categorical(), 3, 1.0).draw(6, seeded(0))
    posterior = Samples(posterior_of(Categorical(), 3, 1.0).network, draws)
    whole, some = (predict(posterior, X, n_samples=n) for n in (None, 4))
    assert (whole.n_draws, whole.drawn, some.drawn) == (6, "all", "independent")
    result = evaluate(posterior, (X, LABELS), n_samples=None)
    assert result["draws"] == 6
    assert "nll_mc_error" not in result
    point = Samples(posterior.network, draws[:1])
    assert "draws" not in evaluate(point, (X, LABELS), n_samples=None)


@pytest.mark.parametrize(
    ("likelihood", "options"),
    [(Categorical(), {}), (Categorical(), {"temperature": 2.0}), (Gaussian(0.5), {})],
    ids=["classes", "tempered", "reals"],
)
def test_the_standard_error_is_the_spread_over_seeds(likelihood, options):
    """120 seeds: the spread itself is known to 1 / sqrt(240) = 6 %, the mean error to less."""
    posterior = posterior_of(likelihood, 3, std=0.3, hidden=(6,))
    targets = LABELS if likelihood.task == "classification" else normal(40, 3, seed=5)
    rows = [evaluate(posterior, (X, targets), n_samples=64, seed=s, **options) for s in range(120)]
    spread = torch.tensor([row["nll"] for row in rows]).std()
    stated = torch.tensor([row["nll_mc_error"] for row in rows]).square().mean().sqrt()
    assert 0.75 < stated / spread < 1.35


def test_the_error_of_a_prediction_is_the_spread_over_seeds():
    posterior = posterior_of(Categorical(), 3, std=0.5, hidden=(6,))
    predictions = [predict(posterior, X, n_samples=16, seed=seed) for seed in range(120)]
    label = predictions[0].label
    probs = torch.stack([p.probs.gather(1, label[:, None])[:, 0] for p in predictions])
    stated = torch.tensor([monte_carlo_error(p) for p in predictions]).square().mean().sqrt()
    assert 0.8 < stated / probs.var(0).mean().sqrt() < 1.25


@pytest.mark.parametrize("std", [0.05, 0.6])
def test_draws_are_doubled_until_their_error_is_small(std):
    posterior = posterior_of(Categorical(), 3, std=std, hidden=(6,))
    result = evaluate(posterior, (X, LABELS), n_samples=None, seed=4)
    n = result["draws"]
    assert n in (32, 64, 128, 256)
    assert result["nll_mc_error"] <= 0.02 * result["nll"] or n == MOST_DRAWS
    assert result.to_dict() == evaluate(posterior, (X, LABELS), n_samples=n, seed=4).to_dict()
    if n > 32:  # no fewer would do
        fewer = evaluate(posterior, (X, LABELS), n_samples=n // 2, seed=4)
        assert fewer["nll_mc_error"] > 0.02 * fewer["nll"]
    assert (n == 32) == (std == 0.05)


def test_without_targets_the_prediction_itself_decides():
    narrow, wide = (posterior_of(Categorical(), 3, std=s, hidden=(6,)) for s in (0.05, 1.0))
    first, second = (predict(q, X, n_samples=None) for q in (narrow, wide))
    assert first.n_draws == 32 < second.n_draws
    assert monte_carlo_error(second) <= 0.02


def test_a_label_that_one_draw_alone_explains_is_not_settled():
    """The log of a mean that rests on one of 32 draws is off by nats."""
    draws = torch.tensor([[1e-6, 1 - 1e-6]] * 31 + [[0.5, 0.5]], dtype=F64)[:, None].log()
    assert monte_carlo_error(ClassPrediction(draws, "independent"), torch.tensor([0])) > 5


def test_pairs_stay_pairs_when_members_are_pooled():
    posterior = posterior_of(Categorical(), 3, 0.5)
    even, odd = ([predict(posterior, X, n_samples=n, seed=s) for s in (0, 1)] for n in (4, 3))
    assert pooled_predictions(even).drawn == "pairs"
    assert pooled_predictions(odd).drawn == "independent"


def joint_information(probs, temperature):
    """MI of draw and label, from the table p̄_T(label) p(draw | label); probs (S, C)."""
    mean = probs.mean(0)
    label = (mean.log() / temperature).softmax(0)
    joint = label * probs / probs.sum(0)  # (S, C)
    gap = joint.log() - joint.sum(1, keepdim=True).log() - label.log()
    return (joint * gap).sum()


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_the_doubt_at_a_temperature_is_that_of_the_nearest_joint_distribution(temperature):
    probs = normal(5, 4, seed=3).softmax(-1)
    hot = ClassPrediction(probs[:, None].log()).tempered(temperature)
    exact = joint_information(probs, temperature)
    assert hot.epistemic.item() == pytest.approx(exact.item(), rel=1e-9)
    entropy = -(hot.probs * hot.probs.log()).sum()
    assert (hot.aleatoric + hot.epistemic).item() == pytest.approx(entropy.item(), rel=1e-9)


def test_a_temperature_keeps_the_doubt_in_the_report():
    """It used to be 0: the average was rescaled as if one network had said it."""
    posterior = posterior_of(Categorical(), 3, std=0.6, hidden=(6,))
    plain, hot = (evaluate(posterior, (X, LABELS), n_samples=64, temperature=t) for t in (1.0, 2.0))
    assert hot["entropy"] > plain["entropy"]
    assert 0.1 * plain["epistemic"] < hot["epistemic"] < hot["entropy"]
    assert hot["draws"] == 64


def test_a_regression_finds_the_variance_of_held_out_targets():
    """One network, noise std 0.5 where targets have 2: the best factor is their mean square."""
    posterior = posterior_of(Gaussian(0.5), 2, std=0.0)
    prediction = predict(posterior, X)
    targets = prediction.mean + 2 * normal(40, 2, seed=6)
    temperature = fit_temperature(prediction, targets)
    exact = (targets - prediction.mean).square().mean() / 0.25
    assert temperature == pytest.approx(exact.item(), rel=1e-4)
    before, after = (evaluate(posterior, (X, targets), temperature=t) for t in (1.0, temperature))
    assert after["log_lik"] > before["log_lik"]
    assert abs(after["coverage_90"] - 0.9) < abs(before["coverage_90"] - 0.9)


def test_both_parts_of_a_regressions_doubt_follow_the_temperature():
    posterior = posterior_of(Gaussian(0.5), 2, std=0.4)
    plain = predict(posterior, X, n_samples=16)
    hot = plain.tempered(4.0)
    torch.testing.assert_close(hot.epistemic_std, 2 * plain.epistemic_std)
    torch.testing.assert_close(hot.aleatoric_std, 2 * plain.aleatoric_std)
    torch.testing.assert_close(hot.mean, plain.mean)
