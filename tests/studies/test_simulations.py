"""Simulated regressions: their noise, sizes, seeds and recipe."""

import json
import math

import pytest
import torch

from bayesieve.data import prepare_table
from studies.simulations import additive, additive_effect, two_inputs


def test_additive_noise_is_standard_normal_around_the_stated_sum() -> None:
    simulation = additive(n=4000, d=5, active_prob=0.5, alpha=2.0, nonlinear=True, seed=3)
    train = simulation.data.train
    y = train.in_target_unit(train.y).double()
    total = torch.zeros_like(y)
    for j in range(5):
        if simulation.active[j]:
            x = train.x[:, j].double()
            f = torch.exp(abs(x)) - 2 * x + torch.sin(2 * math.pi * x)
            total = total + (j + 1) / 2.0 * f
    noise = y - total
    assert abs(noise.mean()) < 4 / math.sqrt(3200)
    assert abs(noise.std() - 1) < 4 / math.sqrt(2 * 3200)
    assert abs(train.y.mean()) < 1e-5
    assert abs(train.y.std(correction=0) - 1) < 1e-5


def test_additive_linear_active_and_sizes() -> None:
    none, every = additive(n=50, d=7, active_prob=0.0), additive(n=50, d=7, active_prob=1.0)
    assert not none.active.any()
    assert every.active.all()
    assert (len(every.data.train), len(every.data.test)) == (40, 10)
    linear = additive(n=50, d=2, active_prob=1.0, alpha=1e-4, nonlinear=False)
    x, train = linear.data.train.x, linear.data.train
    expected = x @ torch.tensor([1e4, 2e4])
    torch.testing.assert_close(train.in_target_unit(train.y), expected, rtol=1e-3, atol=10)
    share = additive(n=10, d=2000, active_prob=0.2).active.float().mean()
    assert abs(share - 0.2) < 4 * math.sqrt(0.2 * 0.8 / 2000)


def test_simulation_seeds_and_recipe() -> None:
    first, again, other = (additive(n=50, d=4, seed=s).data for s in (1, 1, 2))
    assert first.train.x.equal(again.train.x)
    assert first.train.y.equal(again.train.y)
    assert not first.train.x.equal(other.train.x)
    recipe = json.loads(json.dumps(first.preprocessing))
    raw = {f"x{j + 1}": first.test.x[:, j].tolist() for j in range(4)}
    assert prepare_table(raw, recipe).equal(first.test.x)


def test_two_inputs_ends() -> None:
    assert two_inputs(n=20, mix=0.0).active.tolist() == [True, False]
    assert two_inputs(n=20, mix=1.0).active.tolist() == [False, True]
    with pytest.raises(ValueError, match="mix must be between 0 and 1"):
        two_inputs(mix=1.5)


def test_additive_effect_at_minus_quarter() -> None:
    value = additive_effect(torch.tensor(-0.25, dtype=torch.float64)).item()
    assert value == pytest.approx(math.exp(0.25) + 0.5 - 1)
