"""Priors against torch.distributions, numerical integration and the published table."""

import math

import pytest
import torch
from torch import distributions as td

from bayesieve.core.priors import (
    Normal,
    SpikeSlab,
    inclusion_logit,
    member_number,
    per_model,
    profiled_kl,
    stack_priors,
)
from problems import normal

F64 = torch.float64
PRIORS = [Normal(0.3), Normal(2.0), SpikeSlab(1.0, 0.1, 0.3), SpikeSlab(0.5, 0.5), SpikeSlab()]
# log τ₁, log τ₀, spike σ, unstable σ, slab σ, half radius: docs/theory/sbnn.md
TABLE = [
    (0, -5, 0.0068, 0.0264, 1.00, 0.0213),
    (-1, -3, 0.0555, 0.1454, 0.368, 0.1005),
    (1, -6, 0.00248, 0.0111, 2.72, 0.0093),
    (0, -2, 0.151, 0.395, 1.00, 0.2732),
    (0, -3, 0.0519, 0.162, 1.00, 0.1221),
]


def of_logs(slab, spike):
    return SpikeSlab(math.exp(slab), math.exp(spike))


def by_torch(prior):
    zeros = torch.zeros(2, dtype=F64)
    if isinstance(prior, Normal):
        return td.Normal(zeros[0], torch.tensor(prior.std, dtype=F64))
    weights = torch.tensor([prior.slab_prob, 1 - prior.slab_prob], dtype=F64)
    scales = torch.tensor(prior.stds, dtype=F64)
    return td.MixtureSameFamily(td.Categorical(weights), td.Normal(zeros, scales))


@pytest.mark.parametrize("prior", PRIORS, ids=str)
def test_log_density_agrees_with_torch(prior):
    w = normal(200, seed=0)
    torch.testing.assert_close(prior.log_prob(w), by_torch(prior).log_prob(w))


@pytest.mark.parametrize("row", TABLE, ids=str)
def test_stationary_stds_and_half_radius_agree_with_the_table(row):
    prior = of_logs(*row[:2])
    assert prior.stationary_stds() == pytest.approx(row[2:5], rel=0.006)
    radii = torch.tensor([0.994, 1.006], dtype=F64) * row[5]
    assert (inclusion_logit(radii, 0 * radii, prior) > 0).tolist() == [False, True]


@pytest.mark.parametrize("row", TABLE, ids=str)
def test_safe_start_lies_below_the_unstable_point(row):
    prior = of_logs(*row[:2])
    spike, unstable = math.exp(row[1]), row[3]
    assert prior.safe_init_std() == pytest.approx(min(spike, unstable / 2), rel=0.006)
    assert prior.safe_init_std() < unstable


def test_a_safe_start_shrinks_where_the_unstable_point_comes_close():
    prior = SpikeSlab(1.0, 0.05, 0.9)
    unstable = prior.stationary_stds()[1]
    assert unstable < 2 * prior.spike_std
    assert prior.safe_init_std() == unstable / 2


@pytest.mark.parametrize("row", TABLE, ids=str)
def test_the_kl_is_stationary_there_and_only_the_outer_points_are_minima(row):
    prior = of_logs(*row[:2])
    log_std = torch.tensor(prior.stationary_stds(), dtype=F64).log()

    def slope(log_std):
        log_std = log_std.clone().requires_grad_()
        kl = profiled_kl(torch.zeros_like(log_std), log_std, prior).sum()
        return torch.autograd.grad(kl, log_std)[0]

    assert slope(log_std).abs().max() < 1e-5
    assert (slope(log_std + 0.01) > 0).tolist() == [True, False, True]
    assert (slope(log_std - 0.01) < 0).tolist() == [True, False, True]


@pytest.mark.parametrize("std", [0.3, 1.0, 2.0])
def test_equal_components_have_one_stationary_std(std):
    prior = SpikeSlab(std, std)
    assert prior.stationary_stds() == pytest.approx((std,))
    assert prior.safe_init_std() == std


def test_numbers_of_a_population_are_taken_by_member():
    prior = SpikeSlab((1.0, 2.0), 0.1, (0.5, 0.2))
    assert prior.member(1) == SpikeSlab(2.0, 0.1, 0.2)
    assert prior.stationary_stds(1) == SpikeSlab(2.0, 0.1, 0.2).stationary_stds()
    assert prior.safe_init_std(1) == SpikeSlab(2.0, 0.1, 0.2).safe_init_std()
    assert Normal((1.0, 3.0)).member(1) == Normal(3.0)
    assert member_number(4.0, 7) == 4.0
    like = torch.zeros(2, 3, dtype=F64)
    assert per_model((1.0, 2.0), like).shape == (2, 1)
    assert per_model(1.0, like).shape == ()
    assert per_model(1.0, like).dtype == F64


def test_priors_stack_and_take_apart():
    members = [SpikeSlab(1.0, 0.1), SpikeSlab(2.0, 0.2, 0.3)]
    stacked = stack_priors(members)
    assert [stacked.member(i) for i in range(2)] == members
    with pytest.raises(ValueError, match=r"priors of one class, got Normal, SpikeSlab\."):
        stack_priors([SpikeSlab(), Normal()])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Normal(0.0), r"^Normal: std must be > 0, got 0\.0\.$"),
        (lambda: Normal((1.0, -1.0)), r"^Normal: std must be > 0, got -1\.0\.$"),
        (lambda: SpikeSlab(-1.0), r"^SpikeSlab: slab_std must be > 0"),
        (lambda: SpikeSlab(1.0, 0.0), r"^SpikeSlab: spike_std must be > 0"),
        (lambda: SpikeSlab(1.0, 0.1, 1.0), r"^SpikeSlab: slab_prob must be strictly between"),
        (lambda: SpikeSlab(0.1, 1.0), r"spike_std must be <= slab_std, got 1\.0 > 0\.1\. Swap"),
        (lambda: SpikeSlab((1.0, 0.1), 0.5), r"got 0\.5 > 0\.1"),
        (lambda: SpikeSlab((1.0, 2.0), (0.1, 0.1, 0.1)), r"tuples must have one length"),
    ],
)
def test_impossible_numbers_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
