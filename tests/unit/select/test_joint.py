"""The joint posterior of an additive model, against enumeration and in the cases that need care."""

import itertools
import math

import numpy as np
import pytest
import torch

from bayesieve.select import joint_posterior, select_fdr
from bayesieve.select.joint import _Chains, _moments, screened
from problems import seeded


def correlated(n, p, rho, seed):
    """Columns whose neighbours have correlation rho."""
    distance = (torch.arange(p)[:, None] - torch.arange(p)).abs()
    root = torch.linalg.cholesky(rho ** distance.double())
    return torch.randn(n, p, generator=seeded(seed), dtype=torch.float64) @ root.T


def by_enumeration(x, y, n_hinges, numbers, groups):
    """Probability that each column matters, from all 2^F models with the learned numbers given."""
    pi, line, hinge, v, widths = numbers
    gram, moment, present, _ = (torch.as_tensor(a) for a in _moments(x, y, None, n_hinges))
    k, weights, matters = n_hinges + 1, [], []
    width = torch.tensor([widths[0]] + [widths[1]] * n_hinges).repeat(x.shape[1])
    for states in itertools.product((False, True), repeat=len(gram)):
        on = torch.tensor(states)
        if (on & ~present).any():
            continue
        log_p = 0.0
        inputs = zip(groups.tolist(), on.view(-1, k), present.view(-1, k), strict=True)
        for group, states_of, there in inputs:
            shares = [line] + [hinge] * n_hinges
            candidate = pi / int((groups == group).sum())
            chosen = candidate * math.prod(
                share if state else 1 - share
                for share, state in zip(shares, states_of[there].tolist(), strict=False)
            )
            log_p += math.log(chosen + (0 if states_of.any() else 1 - candidate))
        inner = gram[on][:, on] + (1 / width[on]).diag()
        fit = moment[on].T @ torch.linalg.solve(inner, moment[on])
        volume = torch.logdet(inner) + width[on].log().sum()
        weights.append(log_p + float(fit.trace() / v - moment.shape[1] * volume) / 2)
        inside = on.view(-1, k).any(1)
        matters.append(torch.stack([inside[groups == g].any() for g in groups.unique()]))
    share = torch.tensor(weights, dtype=torch.float64).softmax(0)
    return share @ torch.stack(matters).double()


@pytest.mark.parametrize(
    ("n_targets", "groups"), [(1, [0, 1, 2, 3]), (2, [0, 1, 2, 3]), (1, [0, 1, 2, 1])]
)
def test_chains_sample_the_joint_posterior_of_all_models(n_targets, groups, monkeypatch):
    x = correlated(60, 4, 0.9, seed=0)
    x[:, 3] = (x[:, 3] > 0).double()  # a line says all of a column of two values
    noise = torch.randn(60, n_targets, generator=seeded(1), dtype=torch.float64)
    y = 0.5 * x[:, :1] + 0.4 * x[:, 1:2].abs() + noise
    numbers = (0.4, 0.7, 0.3, 0.8 / 60, (20.0, 8.0))

    def fixed(chains):
        chains.shares[:] = numbers[:3]
        chains.noise[:], chains.widths[:] = numbers[3], numbers[4]

    monkeypatch.setattr(_Chains, "_learn", fixed)
    groups = torch.tensor(groups)
    exact = by_enumeration(x, y, 1, numbers, groups)
    found = joint_posterior(x, y, groups=groups, n_hinges=1, sweeps=400, most_sweeps=400)
    assert 0.1 < exact.min() < 0.5 < exact.max()
    # five standard errors of the mean over 8 chains, which are t-distributed
    assert bool(((found.inclusion - exact).abs() < 5 * found.error + 1e-6).all())
    assert float(found.error.max()) < 0.03


@pytest.mark.slow
def test_a_null_neighbour_of_a_strong_column_is_not_included():
    kept, right = [], []
    for seed in range(2):
        x = correlated(200, 50, 0.9, seed)
        true = torch.randperm(50, generator=seeded(seed))[:10]
        y = x[:, true].sum(1) + torch.randn(200, generator=seeded(100 + seed))
        keep = select_fdr(joint_posterior(x, y, seed=seed).inclusion, 0.1)
        kept.append(int(keep.sum()))
        right.append(int(keep[true].sum()))
    assert sum(right) >= 18  # of 20; mean-field evidence found .45 of them
    assert sum(kept) - sum(right) <= 4  # .355 of what it kept was false


def test_a_column_of_many_levels_is_no_likelier_than_another():
    """Levels that do nothing, beside one column that does; then levels that do."""
    levels = torch.randint(25, (250,), generator=seeded(0))
    x = torch.cat([torch.randn(250, 3, generator=seeded(1)), torch.eye(25)[levels]], 1)
    groups = torch.tensor([0, 1, 2] + [3] * 25)
    noise = torch.randn(250, generator=seeded(2))
    found = joint_posterior(x, x[:, 0] + noise, groups=groups)
    assert len(found.inclusion) == 4
    assert found.inclusion[0] > 0.95
    assert found.inclusion[3] < 0.3
    steps = torch.randn(25, generator=seeded(3))[levels]
    found = joint_posterior(x, steps + 0.5 * noise, groups=groups)
    assert found.inclusion[3] > 0.95
    assert found.inclusion[:3].max() < 0.3
    assert found.effect.argmax() == 3


def test_more_columns_than_rows():
    x = torch.randn(100, 300, generator=seeded(0))
    y = x[:, :5].sum(1) + torch.randn(100, generator=seeded(1))
    keep = select_fdr(joint_posterior(x, y, tolerance=1.0).inclusion, 0.1)
    assert keep[:5].all()
    assert keep[5:].sum() <= 1


def test_equal_columns_are_one_and_constant_ones_have_no_probability():
    x = torch.randn(150, 6, generator=seeded(3))
    x[:, 1], x[:, 4] = 2 - 3 * x[:, 0], 7.0
    x[:, 5] = x[:, 0] + 0.01 * x[:, 5]
    y = x[:, 0] + 0.5 * torch.randn(150, generator=seeded(4))
    found = joint_posterior(x, y)
    assert found.inclusion[4] == found.effect[4] == 0.0
    assert found.inclusion[0] == found.inclusion[1]
    assert 0.95 < found.inclusion[0] + found.inclusion[5] < 1.5  # nearly equal: they share it
    assert found.inclusion[2:4].max() < 0.3


def test_a_weight_counts_rows():
    x = correlated(80, 4, 0.7, seed=5)
    y = 0.4 * x[:, 0] + torch.randn(80, generator=seeded(6))
    twice = torch.cat([x, x[:30]]), torch.cat([y, y[:30]])
    weight = torch.ones(90)
    weight[:30], weight[80:] = 2.0, 0.0
    padded = torch.cat([x, 1000 * x[:10]]), torch.cat([y, y[:10]])  # weight 0: no rows at all
    settings = {"sweeps": 150, "tolerance": 1.0}
    counted, repeated = (
        joint_posterior(*padded, weight=weight, **settings),
        joint_posterior(*twice, seed=1, **settings),
    )
    error = (counted.error.square() + repeated.error.square()).sqrt()
    # quantiles of repeated rows place the hinges a little elsewhere
    assert bool(((counted.inclusion - repeated.inclusion).abs() < 5 * error + 0.03).all())


@pytest.mark.parametrize("n_classes", [2, 3])
def test_classes(n_classes):
    x = correlated(240, 8, 0.5, seed=7)
    scores = 2 * x[:, 1] + 2 * x[:, 4].abs() + torch.randn(240, generator=seeded(8))
    edges = scores.quantile(torch.arange(1, n_classes).double() / n_classes)
    found = joint_posterior(x, torch.bucketize(scores, edges))
    assert found.inclusion[[1, 4]].min() > 0.9
    assert found.inclusion[[0, 2, 3, 5, 6, 7]].max() < 0.5
    assert joint_posterior(x, torch.zeros(240, dtype=torch.int64)).inclusion.max() < 0.3


def test_many_rows_take_the_same_way_as_few(monkeypatch):
    x = torch.randn(300, 3, generator=seeded(9))
    y = x[:, 0].abs() + torch.randn(300, generator=seeded(10))
    once = _moments(x, y, None, 3)
    monkeypatch.setattr("bayesieve.select.joint._AT_ONCE", 64)
    for a, b in zip(once, _moments(x, y, None, 3), strict=True):
        torch.testing.assert_close(torch.as_tensor(a), torch.as_tensor(b))
    monkeypatch.setattr("bayesieve.select.joint._MOST_STORED", 4)
    phi = torch.as_tensor(_moments(x[:10], y[:10], None, 3)[0])
    monkeypatch.undo()
    gram = torch.as_tensor(_moments(x[:10], y[:10], None, 3)[0])
    assert phi.shape == (10, 12)
    torch.testing.assert_close(phi.T @ phi, gram)
    assert bool(((gram.diagonal() - 1).abs() < 1e-9).all())


def test_targets_without_noise_are_no_trouble():
    x = torch.randn(50, 3, generator=seeded(11))
    found = joint_posterior(x, x[:, 1])
    assert found.inclusion[1] > 0.99
    assert found.effect.tolist() == pytest.approx([0, 1, 0], abs=0.01)


def test_an_unsure_probability_is_said():
    x = correlated(60, 3, 0.9, seed=12)
    y = x[:, 0] + torch.randn(60, generator=seeded(13))
    with pytest.warns(RuntimeWarning, match="Monte-Carlo standard error of 0.*Raise most_sweeps"):
        joint_posterior(x, y, chains=2, sweeps=2, most_sweeps=2, tolerance=1e-6)
    with pytest.raises(ValueError, match="chains must be 2 or more"):
        joint_posterior(x, y, chains=1)


def test_odds_stay_exact_where_there_is_hardly_any_noise():
    x = correlated(60, 3, 0.5, seed=14)
    rng = np.random.default_rng(0)
    chains = _Chains(x, x[:, 0] - x[:, 1], None, 1, 4, rng)
    chains.widths[:] = 2e8, 7.0  # what these targets lead to
    chains._refresh()
    everywhere = np.ones(4, dtype=bool)
    for f in rng.integers(0, 6, 200):
        chains._flip(np.full(4, f), everywhere)
    inside = np.flatnonzero(chains.inside[0])
    width = chains.width[0, inside]
    inverse = np.linalg.inv(chains.gram[np.ix_(inside, inside)] + np.diag(1 / width))
    assert len(inside) > 1
    assert chains.h[0, inside] == pytest.approx(np.diag(inverse) / width, rel=1e-6)


def test_many_inputs_are_screened_and_the_search_stays_one_among_many():
    """Effects of all kinds among 1,500 inputs; noise alone enters no more than before."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(250, 1500, generator=g)
    y = 1.5 * x[:, 3].abs() + x[:, 700] + torch.sin(2 * x[:, 1400])
    y = y + 0.3 * torch.randn(250, generator=g)
    kept = screened(x, y, None, 3, 60)
    assert len(kept) == 60
    assert {3, 700, 1400} <= set(kept.tolist())
    found = joint_posterior(x, y, screen=60, sweeps=10, chains=4, tolerance=1.0)
    assert found.inclusion.shape == (1500,)
    assert found.inclusion[[3, 700, 1400]].min() > 0.95
    others = torch.ones(1500, dtype=torch.bool)
    others[[3, 700, 1400]] = False
    assert float(found.inclusion[others].sum()) < 1.0
    target = torch.randn(250, generator=g)
    noise = joint_posterior(x, target, screen=60, sweeps=10, chains=4, tolerance=1.0)
    assert float(noise.inclusion.max()) < 0.5


def test_few_inputs_are_not_screened():
    x = torch.randn(20, 5, generator=torch.Generator().manual_seed(0))
    assert screened(x, x[:, 0], None, 3, 5).tolist() == [0, 1, 2, 3, 4]


def test_an_input_that_only_shows_when_others_are_gone_is_kept():
    """Two strong inputs hide a weak one; it comes in with what they leave."""
    g = torch.Generator().manual_seed(1)
    x = torch.randn(150, 400, generator=g)
    y = 5 * x[:, 0] + 5 * x[:, 1] + 0.5 * x[:, 2] + 0.1 * torch.randn(150, generator=g)
    assert 2 in screened(x, y, None, 3, 8).tolist()
