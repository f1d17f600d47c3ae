"""Bayesian model reduction against exact evidence and enumeration."""

import itertools
import math

import pytest
import torch

from bayesieve.engines.bmr import evidence_at_zero, mask_log_odds
from bayesieve.select.importance import evidence_change
from oracles import mask_free_energy
from problems import conjugate, normal, seeded

WIDTHS = [0.0, 0.01, 0.3, 1.0, 2.0]  # θ² in units of the prior's variance


def log_evidence(known, prior_std):
    """log p(y) with a prior std per weight, by the marginal Gaussian of y."""
    covariance = known.x @ torch.diag(prior_std.square()) @ known.x.T
    covariance = covariance + known.noise_std**2 * torch.eye(len(known.x), dtype=known.x.dtype)
    zero = torch.zeros(len(known.x), dtype=known.x.dtype)
    return torch.distributions.MultivariateNormal(zero, covariance).log_prob(known.y[:, 0])


def changed(known, index, width):
    prior = torch.full((4,), known.prior_std, dtype=torch.float64)
    reduced = prior.clone()
    reduced[index] *= math.sqrt(width)
    return prior, reduced


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("orthogonal", [True, False])
def test_the_change_is_the_exact_ratio_of_evidence(width, orthogonal):
    # With marginal variances this holds for correlated inputs too.
    known = conjugate(orthogonal=orthogonal)
    for j in range(4):
        prior, reduced = changed(known, j, width)
        delta = evidence_change(known.mean, known.std, prior, reduced)
        exact = log_evidence(known, reduced) - log_evidence(known, prior)
        assert delta[j].item() == pytest.approx(exact.item(), abs=1e-10)
        others = [i for i in range(4) if i != j]
        torch.testing.assert_close(
            delta[others], torch.zeros(3, dtype=torch.float64), rtol=0, atol=1e-12
        )


def test_special_cases_of_the_change():
    mean, std = normal(5, seed=0), normal(5, seed=1).abs()
    prior = torch.full((5,), 0.7, dtype=torch.float64)
    zero = torch.zeros(5, dtype=torch.float64)
    torch.testing.assert_close(evidence_change(mean, std, prior, prior), zero)
    at_zero = evidence_at_zero(mean, std, prior)
    torch.testing.assert_close(evidence_change(mean, std, prior, zero), at_zero)
    torch.testing.assert_close(evidence_change(mean, std, prior, zero + 1e-9), at_zero)
    torch.testing.assert_close(evidence_at_zero(zero, prior, prior), zero)


def test_priors_that_are_too_wide_are_refused():
    one = torch.ones(1, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"^evidence_change: the reduced prior is wider"):
        evidence_change(one, 1.2 * one, one, 2 * one)


def fixed_point(delta, n_updates=500):
    zeta = mask_log_odds(delta, n_updates=n_updates)
    keep = torch.sigmoid(zeta - delta)
    return keep, 1 + keep.sum(), 1 + (1 - keep).sum()


DELTA = torch.tensor([1.3, -2.0, 0.2], dtype=torch.float64)


def test_updates_never_raise_the_free_energy():
    delta = 2 * normal(40, seed=3)
    values = []
    for n in range(1, 12):
        zeta = mask_log_odds(delta, n_updates=n)
        keep = torch.sigmoid(zeta - delta)
        values.append(mask_free_energy(delta, keep, 1 + keep.sum(), 1 + (1 - keep).sum()))
    assert (torch.stack(values).diff() <= 1e-12).all()


def test_the_fixed_point_is_a_minimum():
    keep, kept, gone = fixed_point(DELTA)
    least = mask_free_energy(DELTA, keep, kept, gone)
    source = seeded(0)
    for size in (1e-3, 0.1, 1.0):
        for _ in range(200):
            noise = torch.empty(5, dtype=torch.float64).normal_(generator=source) * size
            moved = torch.sigmoid(keep.logit() + noise[:3])
            factors = noise[3:].exp()
            other = mask_free_energy(DELTA, moved, kept * factors[0], gone * factors[1])
            assert other >= least - 1e-12


def test_the_fixed_point_comes_near_the_sum_over_all_masks():
    # p(λ | D) ∝ exp(Σ ΔF of what is removed) B(1 + kept, 1 + removed)
    masks = torch.tensor(list(itertools.product([0.0, 1.0], repeat=3)), dtype=torch.float64)
    kept = masks.sum(1)
    log_beta = torch.lgamma(1 + kept) + torch.lgamma(4 - kept)
    weight = ((1 - masks) @ DELTA + log_beta).softmax(0)
    exact = weight @ masks
    torch.testing.assert_close(
        exact, torch.tensor([0.302, 0.825, 0.487]).double(), rtol=0, atol=1e-3
    )
    keep = fixed_point(DELTA)[0]
    torch.testing.assert_close(
        keep, torch.tensor([0.230, 0.890, 0.473]).double(), rtol=0, atol=1e-3
    )
    assert torch.equal(exact.argsort(), keep.argsort())


def layer_of(active, n=20_000):
    """ΔF of a layer in which a share of the weights is strongly supported."""
    source = seeded(1)
    delta = 1 + 0.5 * torch.empty(n).normal_(generator=source)
    delta[: int(active * n)] = -10
    return delta


def test_the_share_of_needed_weights_sets_the_threshold():
    zetas = torch.stack([mask_log_odds(layer_of(a)) for a in (0.02, 0.2, 0.5, 0.8, 0.98)])
    assert (zetas.diff(dim=0) > 0).all()


def test_junk_goes_and_strong_weights_stay():
    junk, strong = torch.full((1000,), 3.0), torch.full((1000,), -3.0)
    assert (junk > mask_log_odds(junk)).all()
    assert (strong <= mask_log_odds(strong)).all()


def test_layers_are_judged_one_by_one():
    rows = torch.stack([layer_of(0.1), layer_of(0.9)])
    together = mask_log_odds(rows)
    assert together.shape == (2, 1)
    torch.testing.assert_close(together[1], mask_log_odds(rows[1]))
