"""Counts: Poisson and negative binomial against SciPy, their information, quantiles and files."""

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from bayesieve.core.likelihoods import NegativeBinomial, Poisson, from_dict, name_of

COUNTS = torch.arange(40, dtype=torch.float64)[:, None]
LOGS = torch.linspace(-3, 4, 40, dtype=torch.float64)[:, None]


def law(mean, dispersion):
    size = 1 / dispersion
    return stats.nbinom(size, size / (size + mean))


def test_poisson_is_scipys():
    exact = stats.poisson.logpmf(COUNTS, 2.5 * LOGS.exp().numpy())
    for dtype, error in ((torch.float64, 1e-10), (torch.float32, 1e-5)):
        found = Poisson(2.5).log_prob(LOGS.to(dtype), COUNTS.to(dtype), {})
        np.testing.assert_allclose(found, exact[:, 0], rtol=error, atol=error)


@pytest.mark.parametrize("dispersion", [1e-6, 0.01, 0.0199, 0.0201, 0.5, 4.0])
def test_negative_binomial_is_scipys(dispersion):
    exact = law(2.5 * LOGS.exp().numpy(), dispersion).logpmf(COUNTS)[:, 0]
    for dtype, error in ((torch.float64, 1e-7), (torch.float32, 3e-5)):
        found = NegativeBinomial(dispersion, 2.5).log_prob(LOGS.to(dtype), COUNTS.to(dtype), {})
        np.testing.assert_allclose(found, exact, rtol=error, atol=error)
    learned = NegativeBinomial(9.0, 2.5, learned=True)
    numbers = {"log_dispersion": torch.tensor(math.log(dispersion), dtype=torch.float64)}
    np.testing.assert_allclose(learned.log_prob(LOGS, COUNTS, numbers), exact, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("likelihood", [Poisson(3.0), NegativeBinomial(0.4, 3.0)], ids=str)
def test_curvature_is_the_expected_second_difference(likelihood):
    """Over all counts up to far out, with their probabilities, in place of random ones."""
    counts, f, h = torch.arange(4000.0, dtype=torch.float64)[:, None], 0.7, 1e-4
    middle, *sides = (
        likelihood.log_prob(torch.full_like(counts, f + d), counts, {}) for d in (0, -h, h)
    )
    expected = -(middle.exp() * (sides[0] + sides[1] - 2 * middle)).sum() / h**2
    (root,) = likelihood.curvature(torch.full((1, 1), f, dtype=torch.float64), {})
    assert root.item() ** 2 == pytest.approx(expected.item(), rel=1e-5)


def test_curvature_is_that_of_every_output():
    output = torch.tensor([[0.0, 1.0], [2.0, -1.0]], dtype=torch.float64)
    roots = torch.stack(list(NegativeBinomial(0.5, 2.0).curvature(output, {})))
    mean = 2 * output.exp()
    torch.testing.assert_close(roots.square().sum(0), mean / (1 + 0.5 * mean))
    assert (roots != 0).sum() == 4


@pytest.mark.parametrize("likelihood", [Poisson(2.5), NegativeBinomial(0.4, 2.5)], ids=str)
def test_moments_density_and_draws_are_one_law(likelihood):
    outputs = LOGS[None, ::8]
    mean, std = likelihood.moments(outputs, {})
    alpha = getattr(likelihood, "dispersion", 0.0)
    torch.testing.assert_close(mean, 2.5 * outputs.exp())
    torch.testing.assert_close(std, (mean + alpha * mean**2).sqrt())
    exact = likelihood.log_prob(outputs[0], COUNTS[::8], {})
    found = likelihood.log_density(COUNTS[::8], mean[0], std[0])[:, 0]
    torch.testing.assert_close(found, exact, rtol=1e-6, atol=1e-6)
    n = 50_000
    drawn = likelihood.draw(mean.expand(n, -1, -1), std, torch.Generator().manual_seed(0))
    assert torch.equal(drawn, drawn.round())
    torch.testing.assert_close(drawn.mean(0), mean[0], rtol=0.05, atol=0.01)
    torch.testing.assert_close(drawn.std(0), std[0], rtol=0.05, atol=0.01)


@given(st.floats(0.01, 2000), st.floats(0, 3), st.floats(0.05, 0.99))
def test_intervals_end_at_scipys_quantiles(mean, dispersion, level):
    std = torch.tensor([(mean + dispersion * mean**2) ** 0.5], dtype=torch.float64)
    ends = Poisson().interval(torch.tensor([mean], dtype=torch.float64), std, level)
    exact = law(mean, dispersion) if dispersion > 1e-7 else stats.poisson(mean)
    for end, share in zip(ends, ((1 - level) / 2, (1 + level) / 2), strict=True):
        assert exact.cdf(end.item()) >= share - 1e-6
        assert exact.cdf(end.item() - 1) <= share + 1e-6


def test_counts_are_checked_and_come_back_from_their_words():
    for likelihood in (Poisson(3.5), NegativeBinomial(0.3, 3.5), NegativeBinomial(learned=True)):
        assert from_dict(json.loads(json.dumps(likelihood.to_dict()))) == likelihood
        for wrong in (-1.0, 0.5):
            with pytest.raises(ValueError, match=r"whole numbers >= 0, .*not standardised"):
                likelihood.check(torch.zeros(1, 1), torch.tensor([[wrong]]))
        likelihood.check(torch.zeros(1, 1), torch.tensor([[7.0]]))
        assert likelihood.scaled(1.0) == likelihood
        assert likelihood.scaled(2.0) is None
        assert likelihood.around(torch.tensor([1.0, 4.0])).rate == 2.5
        assert likelihood.around(torch.zeros(2)).rate == 1
    assert name_of(NegativeBinomial()) == "negative-binomial"
    fixed = NegativeBinomial(learned=True).frozen({"log_dispersion": torch.tensor(0.0)})
    assert fixed == NegativeBinomial(1.0)
    with pytest.raises(ValueError, match="dispersion must be > 0"):
        NegativeBinomial(0.0)
