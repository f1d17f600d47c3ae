"""Conformal sets: ranks by hand, the definition by brute force, coverage by simulation."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bayesieve.uncertainty.conformal import (
    conformal_interval,
    conformal_labels,
    label_scores,
    residual_scores,
)
from problems import normal, seeded


def bound(scores, alpha):
    """The largest score that split conformal allows."""
    zero = torch.zeros(1, 1, dtype=scores.dtype)
    return conformal_interval(zero, torch.ones_like(zero), [scores], alpha)[1].item()


@given(st.integers(1, 60), st.floats(0.05, 0.9))
@settings(max_examples=60, deadline=None)
def test_leaving_one_out_covers_at_least_the_level(n, alpha):
    """Of n + 1 exchangeable scores each is as likely to be the new one: count them all."""
    scores = torch.rand(n + 1, generator=seeded(n), dtype=torch.float64)
    inside = [
        scores[i] <= bound(torch.cat([scores[:i], scores[i + 1 :]]), alpha) for i in range(n + 1)
    ]
    share = sum(map(bool, inside)) / (n + 1)
    assert share >= 1 - alpha - 1e-9
    if math.ceil((n + 1) * (1 - alpha)) <= n:
        assert share <= 1 - alpha + 1 / (n + 1) + 1e-9


def test_intervals_cover_whatever_the_model_claims():
    """A model whose standard deviations are wrong by a factor of 3 still covers nine in ten."""
    y = normal(4000, seed=1)
    mean, std = torch.zeros(4000, dtype=torch.float64), torch.full((4000,), 3.0).double()
    scores = residual_scores(mean[:2000], std[:2000], y[:2000])
    low, high = conformal_interval(mean[None, 2000:], std[None, 2000:], [scores], 0.1)
    share = float(((low <= y[2000:]) & (y[2000:] <= high)).double().mean())
    assert share == pytest.approx(0.9, abs=4 * math.sqrt(2 * 0.09 / 2000))
    assert high[0] == pytest.approx(1.645, abs=0.15)


@pytest.mark.parametrize("alpha", [0.1, 0.3])
def test_the_interval_of_folds_is_the_hull_of_the_set(alpha):
    """The set by its definition, on a fine grid of targets, for three models and one row."""
    mean, std = torch.tensor([[0.0], [2.0], [-1.0]]), torch.tensor([[1.0], [0.5], [2.0]])
    scores = [torch.rand(n, generator=seeded(n)) * 2 for n in (9, 8, 8)]
    grid = torch.linspace(-8, 8, 16001)
    stranger = sum(
        ((grid[:, None] - m).abs() / s > held_out).sum(1)
        for m, s, held_out in zip(mean, std, scores, strict=True)
    )
    inside = grid[stranger < (1 - alpha) * 26]
    low, high = conformal_interval(mean, std, scores, alpha)
    assert low.item() <= inside.min().item() + 1e-3
    assert high.item() >= inside.max().item() - 1e-3
    # A target beyond an end is stranger than enough held-out rows to be outside.
    for end in (low - 2e-3, high + 2e-3):
        beyond = (end - grid).abs().argmin()
        assert stranger[beyond] >= (1 - alpha) * 26 - 1e-9


def test_sets_of_labels_are_those_less_strange_than_the_bound():
    scores = [torch.tensor([0.2, 0.5]), torch.tensor([0.1, 0.6])]
    probs = torch.tensor([[[0.9, 0.45, 0.1]], [[0.95, 0.3, 0.2]]])
    # Strangeness .1 .55 .9 and .05 .7 .8: label 1 is stranger than 2 + 2 of 4 scores.
    assert conformal_labels(probs, scores, 0.5).tolist() == [[True, False, False]]
    assert bool(conformal_labels(probs, scores, 0.1).all())  # four scores are too few for .9
    torch.testing.assert_close(
        label_scores(probs[0].repeat(2, 1), torch.tensor([1, 0])), torch.tensor([0.55, 0.1])
    )


def test_sets_of_positions_hold_all_labels_of_an_example_at_once():
    """Four positions of which the last counts in every other example only."""
    n, source = 4000, seeded(0)
    probs = torch.rand(n, 4, 3, generator=source).softmax(-1)
    labels = probs.view(-1, 3).multinomial(1, generator=source).view(n, 4)
    labels[::2, -1] = -100
    scores = label_scores(probs[:2000], labels[:2000], ignore=-100)
    sets = conformal_labels(probs[None, 2000:], [scores], 0.2)
    rest = labels[2000:]
    inside = sets.gather(-1, rest.clamp(min=0)[..., None])[..., 0] | (rest == -100)
    assert 0.77 < float(inside.all(1).double().mean()) < 0.84


@pytest.mark.parametrize("scores", [torch.zeros(0), torch.zeros(2, 2), torch.tensor([math.nan])])
def test_bad_scores_are_refused(scores):
    with pytest.raises(ValueError, match="scores must have shape"):
        bound(scores, 0.1)


def test_bad_levels_and_widths_are_refused():
    with pytest.raises(ValueError, match="alpha must be strictly between"):
        bound(torch.ones(3), 0.0)
    with pytest.raises(ValueError, match="std must be > 0"):
        residual_scores(torch.zeros(2), torch.zeros(2), torch.zeros(2))
    with pytest.raises(ValueError, match="2 models need as many"):
        conformal_labels(torch.ones(2, 1, 3), [torch.ones(4)], 0.1)
