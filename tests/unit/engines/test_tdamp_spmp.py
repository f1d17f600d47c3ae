"""Module B, the M-step and the federated rule against enumeration, quadrature and exact Bayes."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bayesieve.engines.tdamp.channels import Message
from bayesieve.engines.tdamp.groups import (
    LEAST_PRECISION,
    budget_shift,
    extrinsic,
    group_sum,
    log_evidence,
    noise_residual,
    noise_update,
    slab_moments,
    slab_update,
    sparsity_update,
)
from problems import normal
from studies.clients import average_clients, combine_clients

F64 = torch.float64
GROUP_OF = torch.tensor([0, 0, 0, 1, 1, 2])
RHO = 0.3


def messages():
    linear = 2 * normal(1, 6, seed=1)
    return Message(linear, normal(1, 6, seed=2).square()), normal(1, 6, seed=3).square() + 0.1


def enumerated():
    """P(s_g = 1), means and variances by summing over the 8 supports, each integral on a grid."""
    data, nu = messages()
    grid = torch.linspace(-30, 30, 60_001, dtype=F64)
    step = grid[1] - grid[0]
    slab = torch.distributions.Normal(torch.zeros(6, 1, dtype=F64), nu[0, :, None].sqrt())
    log_weight = slab.log_prob(grid) + data.linear.T * grid - 0.5 * data.precision.T * grid**2
    zeroth, first, second = ((log_weight.exp() * grid**k).sum(1) * step for k in range(3))
    total, active = 0.0, torch.zeros(3, dtype=F64)
    mean, square = torch.zeros(6, dtype=F64), torch.zeros(6, dtype=F64)
    for support in itertools.product((0, 1), repeat=3):
        s = torch.tensor(support, dtype=F64)
        on = s[GROUP_OF] > 0
        weight = torch.where(s > 0, RHO, 1 - RHO).prod() * torch.where(on, zeroth, 1).prod()
        total += weight
        active += weight * s
        mean += weight * torch.where(on, first / zeroth, 0)
        square += weight * torch.where(on, second / zeroth, 0)
    mean, square = mean / total, square / total
    return active / total, mean, square - mean.square()


def test_group_odds_equal_enumeration_of_all_supports():
    data, nu = messages()
    log_odds = math.log(RHO / (1 - RHO)) + group_sum(log_evidence(data, nu), GROUP_OF, 3)
    torch.testing.assert_close(torch.sigmoid(log_odds)[0], enumerated()[0], rtol=1e-6, atol=0)


def test_the_message_back_restores_the_exact_marginals():
    data, nu = messages()
    active, mean, var = enumerated()
    back = extrinsic(data, slab_moments(data, nu), nu, active[GROUP_OF][None])
    ours_var = 1 / (back.precision + data.precision)
    ours_mean = ours_var * (back.linear + data.linear)
    proper = (1 / var - data.precision[0] >= LEAST_PRECISION / nu[0]).nonzero().flatten()
    assert len(proper) >= 3
    torch.testing.assert_close(ours_mean[0, proper], mean[proper], rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(ours_var[0, proper], var[proper], rtol=1e-6, atol=0)
    assert (back.precision >= LEAST_PRECISION / nu).all()


def test_certain_groups_get_the_slab_itself():
    data, nu = messages()
    back = extrinsic(data, slab_moments(data, nu), nu, torch.ones(1, 6, dtype=F64))
    torch.testing.assert_close(back.precision, 1 / nu, rtol=0, atol=0)
    assert (back.linear == 0).all()


def test_improbable_groups_are_held_at_zero():
    data, nu = messages()
    back = extrinsic(data, slab_moments(data, nu), nu, torch.full((1, 6), 1e-9, dtype=F64))
    var = 1 / (back.precision + data.precision)
    assert (var < 1e-7).all()
    assert ((back.linear + data.linear).abs() * var < 1e-6).all()


WILD = st.floats(-1e6, 1e6)


@settings(max_examples=200, deadline=None)
@given(WILD, st.floats(0, 1e8), st.floats(1e-6, 1e3), st.floats(0, 1))
def test_extreme_messages_give_numbers_and_proper_densities(linear, precision, nu, active):
    numbers = (torch.tensor(v, dtype=torch.float32) for v in (linear, precision, nu, active))
    linear, precision, nu, active = numbers
    data = Message(linear, precision)
    back = extrinsic(data, slab_moments(data, nu), nu, active)
    assert torch.isfinite(back.linear)
    assert back.precision > 0
    assert torch.isfinite(log_evidence(data, nu))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(-1e4, 1e4), min_size=2, max_size=30), st.floats(0.05, 0.95))
def test_the_budget_is_met(evidence, fraction):
    odds = torch.tensor([evidence], dtype=F64)
    n_active = torch.tensor(fraction * len(evidence), dtype=F64)
    active = torch.sigmoid(budget_shift(odds, n_active) + odds)
    torch.testing.assert_close(active.sum(), n_active, rtol=0, atol=1e-4)


def test_removed_groups_take_no_share_of_the_budget():
    odds = torch.tensor([[3.0, -torch.inf, 1.0]], dtype=F64)
    active = torch.sigmoid(budget_shift(odds, torch.tensor(2.0)) + odds)
    torch.testing.assert_close(active, torch.tensor([[1.0, 0.0, 1.0]], dtype=F64))


def test_the_sparsity_update_counts_living_groups_only():
    active = torch.tensor([[0.8, 0.4, 0.0]], dtype=F64)
    alive = torch.tensor([[1.0, 1.0, 0.0]], dtype=F64)
    assert sparsity_update(active, alive).item() == pytest.approx(0.6)
    assert sparsity_update(active * 0, alive).item() > 0


def test_the_slab_update_rests_at_the_second_moment():
    nu = torch.tensor(3.0, dtype=F64)
    for _ in range(60):
        nu = slab_update(nu, torch.tensor(5.0, dtype=F64), torch.tensor(10.0, dtype=F64))
    assert nu.item() == pytest.approx(0.5)


def test_the_noise_update_recovers_a_known_noise():
    """z ~ N(0, 0.2) known to that extent, y = z + noise of variance 0.25: EM finds 0.25."""
    target = 0.45**0.5 * normal(200_000, seed=4)
    zero, var = torch.zeros(1, dtype=F64), torch.full((1,), 0.2, dtype=F64)
    noise = torch.tensor(1.0, dtype=F64)
    for _ in range(200):
        noise = noise_update(noise, noise_residual(zero, var, target, noise).mean())
    standard_error = 0.45 * (2 / 200_000) ** 0.5
    assert noise.item() == pytest.approx(0.25, abs=4 * standard_error)
    assert standard_error < 0.2 * 0.25


def natural(mean, std):
    """Natural parameters of N(mean, std²)."""
    return Message(mean / std.square(), 1 / std.square())


def test_clients_with_disjoint_data_join_to_the_posterior_of_all_data():
    """Orthogonal designs: every client's exact posterior is a product of normals."""
    parts = [torch.eye(3, dtype=F64) * scale for scale in (1.0, 0.5, 2.0)]
    y = [normal(3, seed=i) for i in range(3)]
    prior = natural(torch.full((3,), 0.2, dtype=F64), torch.full((3,), 0.7, dtype=F64))

    def learn(xs, ys):
        precision = prior.precision + (xs.mT @ xs).diagonal()
        return Message(prior.linear + xs.mT @ ys, precision)

    messages = [learn(a, b) for a, b in zip(parts, y, strict=True)]
    clients = Message(
        torch.stack([m.linear for m in messages]), torch.stack([m.precision for m in messages])
    )
    together = learn(torch.cat(parts), torch.cat(y))
    for ours, exact in zip(combine_clients(prior, clients), together, strict=True):
        torch.testing.assert_close(ours, exact)


def test_one_client_alone_and_equal_clients_on_average_change_nothing():
    prior = natural(torch.zeros(2), torch.ones(2))
    client = natural(torch.tensor([1.0, -2.0]), torch.tensor([0.5, 0.2]))
    alone = Message(client.linear[None], client.precision[None])
    torch.testing.assert_close(combine_clients(prior, alone), client)
    twice = Message(client.linear.expand(2, 2), client.precision.expand(2, 2))
    torch.testing.assert_close(average_clients(twice, torch.tensor([30, 10])), client)
