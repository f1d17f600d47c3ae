"""Conformal bounds: the rank by hand, coverage by simulation and by exchangeability."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bayesieve.assess.calibration import (
    conformal_quantile,
    label_scores,
    label_sets,
    residual_scores,
)
from problems import normal, seeded


@given(st.integers(1, 60), st.floats(0.05, 0.9))
@settings(max_examples=60, deadline=None)
def test_leaving_one_out_covers_at_least_the_level(n, alpha):
    """Of n + 1 exchangeable scores each is as likely to be the new one: count them all."""
    scores = torch.rand(n + 1, generator=seeded(n), dtype=torch.float64)
    inside = [
        scores[i] <= conformal_quantile(torch.cat([scores[:i], scores[i + 1 :]]), alpha)
        for i in range(n + 1)
    ]
    share = sum(map(bool, inside)) / (n + 1)
    assert share >= 1 - alpha - 1e-9
    if math.ceil((n + 1) * (1 - alpha)) <= n:
        assert share <= 1 - alpha + 1 / (n + 1) + 1e-9


def test_intervals_cover_whatever_the_model_claims():
    """A model whose standard deviations are wrong by a factor of 3 still covers nine in ten."""
    y = normal(4000, seed=1)
    mean, std = torch.zeros(4000, dtype=torch.float64), torch.full((4000,), 3.0).double()
    bound = conformal_quantile(residual_scores(mean[:2000], std[:2000], y[:2000]), 0.1)
    share = float(((y - mean).abs() <= bound * 3)[2000:].double().mean())
    assert share == pytest.approx(0.9, abs=4 * math.sqrt(2 * 0.09 / 2000))
    assert 3 * bound == pytest.approx(1.645, abs=0.15)


def test_label_sets_hold_the_likeliest_label_and_what_the_bound_allows():
    probs = torch.tensor([[0.6, 0.3, 0.1], [0.34, 0.33, 0.33]])
    assert label_sets(probs, 0.0).tolist() == [[True, False, False], [True, False, False]]
    assert label_sets(probs, 0.68).tolist() == [[True, False, False], [True, True, True]]
    assert bool(label_sets(probs, math.inf).all())
    torch.testing.assert_close(label_scores(probs, torch.tensor([1, 0])), torch.tensor([0.7, 0.66]))


@pytest.mark.parametrize("scores", [torch.zeros(0), torch.zeros(2, 2), torch.tensor([math.nan])])
def test_bad_scores_are_refused(scores):
    with pytest.raises(ValueError, match="scores must have shape"):
        conformal_quantile(scores, 0.1)


def test_bad_levels_and_widths_are_refused():
    with pytest.raises(ValueError, match="alpha must be strictly between"):
        conformal_quantile(torch.ones(3), 0.0)
    with pytest.raises(ValueError, match="std must be > 0"):
        residual_scores(torch.zeros(2), torch.zeros(2), torch.zeros(2))
