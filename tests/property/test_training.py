"""Dials stay in range, move without jumps and only fall once they decay; plans add up."""

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bayesieve.engines.recipes import RunSize
from bayesieve.training.schedule import Schedule, minibatch_weight

fractions = st.floats(0.0, 1.0)
smooth = st.sampled_from(["constant", "cosine", "linear"])
holds = st.one_of(st.none(), fractions)


@given(st.sampled_from(["constant", "cosine", "linear", "step"]), holds, fractions, fractions)
def test_learning_rate_factors_are_bounded(kind, hold, warmup, progress):
    assert 0.0 <= Schedule(lr=kind, hold=hold, warmup=warmup).lr_scale(progress) <= 1.0


@given(smooth, st.one_of(st.none(), st.floats(0.0, 0.9)), st.floats(0.0, 0.9), st.floats(0.0, 0.9))
def test_learning_rate_moves_without_jumps(kind, hold, warmup, prune_end):
    schedule = Schedule(lr=kind, hold=hold, warmup=warmup)
    grid = torch.linspace(0, 1, 2001, dtype=torch.float64).tolist()
    values = [schedule.lr_scale(p, prune_end) for p in grid]
    steepest = max(1 / max(warmup, 1e-9), math.pi / 2 / 0.1)  # warm-up, shortest cosine
    if warmup >= 5e-4:  # a shorter warm-up falls between two points of the grid
        assert max(abs(a - b) for a, b in pairwise(values)) <= steepest / 2000 + 1e-9


@given(st.sampled_from(["constant", "cosine", "linear", "step"]), holds, fractions, fractions)
def test_after_the_warm_up_the_learning_rate_never_rises(kind, hold, warmup, prune_end):
    schedule = Schedule(lr=kind, hold=hold, warmup=warmup)
    values = [schedule.lr_scale(warmup + (1 - warmup) * i / 50, prune_end) for i in range(51)]
    assert all(b <= a + 1e-12 for a, b in pairwise(values))


@given(
    st.floats(0.0, 10.0),
    st.one_of(st.none(), st.floats(0.0, 10.0)),
    st.floats(0.0, 20.0),
    st.floats(0.0, 100.0),
    fractions,
    st.one_of(st.none(), fractions),
)
def test_kl_weight_is_bounded_and_rises_with_the_epochs(kl, after, warmup, epoch, progress, end):
    schedule = Schedule(kl=kl, kl_after=after, kl_warmup_epochs=warmup)
    value = schedule.kl_scale(epoch, progress, end)
    ended = end is not None and progress >= end
    full = after if ended and after is not None else kl
    assert 0.0 <= value <= full
    assert value <= schedule.kl_scale(epoch + 1.0, progress, end)
    assert schedule.kl_scale(max(warmup, 1.0), progress, end) == pytest.approx(full)


@given(st.integers(1, 10_000), st.data())
def test_geometric_shares_fall_and_are_finite(n_batches, data):
    index = data.draw(st.integers(0, n_batches - 1))
    weight = minibatch_weight(index, n_batches, "geometric")
    assert math.isfinite(weight)
    assert 0 <= minibatch_weight(index + 1, n_batches, "geometric") <= weight <= n_batches


@given(st.integers(1, 500), st.integers(1, 9), st.integers(1, 600))
def test_a_plan_sees_every_example_once_per_epoch(n_data, epochs, batch_size):
    plan = RunSize.of(None, n_data, epochs, None, batch_size)
    sizes = [len(part) for part in torch.arange(n_data).split(plan.batch_size)]
    assert len(sizes) == plan.per_epoch
    assert plan.n_steps == epochs * plan.per_epoch
    assert plan.n_epochs == epochs
    assert RunSize.of(None, n_data, None, plan.n_steps, batch_size) == plan
