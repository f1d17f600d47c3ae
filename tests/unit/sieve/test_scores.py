import math

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal
from torch import nn

from bayesieve.core.posterior import Factorised, Samples
from bayesieve.core.priors import Normal, SpikeSlab, inclusion_logit
from bayesieve.sieve.ranking import (
    SCORES,
    evidence_score,
    inclusion_score,
    magnitude_score,
    score_of,
    second_moment_score,
    snr_score,
    std_of,
)


@pytest.fixture
def one_weight(network_of):
    network = network_of(nn.Linear(1, 1, bias=False).double())

    def make(mean, std, prior):
        return Factorised(
            network,
            torch.tensor([mean], dtype=torch.float64),
            torch.tensor([std], dtype=torch.float64),
            prior,
        )

    return make


@pytest.mark.parametrize("slope", [0.0, 0.3, -2.0])
@pytest.mark.parametrize("tau", [0.2, 1.5])
def test_evidence_is_the_exact_log_evidence_ratio_of_a_conjugate_regression(one_weight, slope, tau):
    rng = np.random.default_rng(3)
    x, noise = rng.normal(size=12), 0.7
    y = slope * x + noise * rng.normal(size=12)
    precision = tau**-2 + x @ x / noise**2
    posterior = one_weight(x @ y / noise**2 / precision, precision**-0.5, Normal(tau))
    white = noise**2 * np.eye(12)
    with_weight = multivariate_normal(np.zeros(12), white + tau**2 * np.outer(x, x)).logpdf(y)
    without = multivariate_normal(np.zeros(12), white).logpdf(y)
    assert evidence_score(posterior).item() == pytest.approx(with_weight - without, rel=1e-9)


def test_evidence_at_the_ends(random_posterior):
    model = nn.Sequential(nn.Linear(2, 1), nn.BatchNorm1d(1))
    posterior = random_posterior(model, prior=Normal(1.0))
    keep = torch.tensor([True, False, True, True, True])
    posterior.mean[3] = 0  # a point parameter at 0 is no pruned weight
    score = evidence_score(posterior.masked(keep))
    assert score[1] == -torch.inf
    assert score[:1].isfinite().all()
    assert torch.equal(score[3:], torch.full((2,), torch.inf))


def test_snr_over_draws_and_at_zero_std(network_of):
    network = network_of(nn.Linear(2, 1))
    draws = torch.tensor([[1.0, 0.0, 2.0], [3.0, 0.0, 2.0], [5.0, 0.0, 2.0]])
    score = snr_score(Samples(network, draws))
    assert score.tolist() == [3 / 2, 0.0, math.inf]


def test_a_single_draw_has_no_snr_but_a_magnitude(network_of):
    posterior = Samples(network_of(nn.Linear(2, 1)), torch.tensor([[1.0, -4.0, 2.0]]))
    with pytest.raises(ValueError, match=r"single draw \(MAP\).*score='magnitude'"):
        snr_score(posterior)
    assert magnitude_score(posterior).tolist() == [1.0, 4.0, 2.0]


def test_second_moment_orders_as_inclusion_does(random_posterior):
    posterior = random_posterior(nn.Linear(40, 3))
    logit = inclusion_logit(posterior.mean.double(), posterior.std.double(), SpikeSlab(1.0, 0.1))
    assert torch.equal(second_moment_score(posterior).argsort(), logit.argsort())


def test_inclusion_is_missing_without_a_sparse_prior(network_of):
    network = network_of(nn.Linear(2, 1))
    one = torch.ones(3)
    with pytest.raises(ValueError, match=r"no inclusion.*\(Factorised, Normal prior\)\. Rank by"):
        inclusion_score(Factorised(network, one, one, Normal(1.0)))
    with pytest.raises(ValueError, match=r"\(Samples of 1 draws\)"):
        inclusion_score(Samples(network, one[None]))


@pytest.mark.parametrize(
    "make", [lambda n, o: Samples(n, o[None]), lambda n, o: Factorised(n, o, o)]
)
def test_evidence_needs_a_prior(network_of, make):
    with pytest.raises(ValueError, match="the evidence needs a normal posterior and its prior"):
        evidence_score(make(network_of(nn.Linear(2, 1)), torch.ones(3)))


def test_an_unknown_posterior_may_bring_inclusion_but_needs_a_std(random_posterior):
    class Other:
        logit_inclusion = None

        def __init__(self, inner):
            self.mean, self.inclusion, self.layout = inner.mean, inner.inclusion, inner.layout

    inner = random_posterior(nn.Linear(2, 1))
    assert torch.allclose(inclusion_score(Other(inner)), inner.logit_inclusion, atol=1e-5)
    with pytest.raises(TypeError, match="Other has no std"):
        std_of(Other(inner))
    other = Other(inner)
    other.std = inner.std
    assert std_of(other) is inner.std


def test_the_table_is_complete_and_frozen(random_posterior):
    assert list(SCORES) == ["inclusion", "snr", "evidence", "magnitude", "second-moment"]
    with pytest.raises(TypeError):
        SCORES["mine"] = magnitude_score
    posterior = random_posterior(nn.Linear(2, 1), prior=Normal(1.0))
    for name, score in SCORES.items():
        assert torch.equal(score_of(posterior, name), score(posterior))


def test_wrong_scores_raise(random_posterior, mlp):
    posterior = random_posterior(mlp)
    with pytest.raises(ValueError, match=r"shape \(116,\), got \(3,\)"):
        score_of(posterior, lambda q: torch.ones(3))
    posterior.mean[41] = torch.nan
    with pytest.raises(ValueError, match=r"score of 1 weights is NaN, first in '2\.weight'"):
        score_of(posterior, "snr")
