"""What the studies of recipes and of `SieveRegressor` compute themselves."""

import numpy as np
import pytest

from studies.recipes import choose
from studies.uci import crps


def test_a_safer_candidate_wins_within_two_standard_errors():
    scores = [[0.50, 0.50], [0.21, 0.23], [0.20, 0.21]]
    assert choose(scores, [0.1, 0.3, 1.0]) == 0.3
    assert choose([[0.5, 0.5], [0.3, 0.3], [0.2, 0.2]], [0.1, 0.3, 1.0]) == 1.0


def test_the_ranked_score_of_normal_draws_is_the_closed_form():
    """σ (z (2 Φ(z) - 1) + 2 φ(z) - 1 / √π) with z = (y - μ) / σ; at z = 0 it is 0.2337 σ."""
    draws = 3 + 2 * np.random.default_rng(0).normal(size=(200, 400))
    assert crps(draws, np.full(200, 3.0)) == pytest.approx(2 * 0.2337, abs=0.01)
    assert crps(draws, np.full(200, 103.0)) == pytest.approx(100 - 2 / np.pi**0.5, abs=0.05)
