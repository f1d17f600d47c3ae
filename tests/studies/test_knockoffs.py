"""Knockoff copies of Gaussian inputs, and the filter that they make possible."""

import math

import pytest
import torch

from problems import seeded
from studies import knockoffs


def test_knockoffs_have_the_moments_that_define_them():
    d, n = 4, 60_000
    sigma = torch.tensor([[0.5 ** abs(i - j) for j in range(d)] for i in range(d)]).double()
    sigma = sigma * torch.tensor([1.0, 2.0, 1.0, 3.0])[:, None] * torch.tensor([1.0, 2, 1, 3])
    source = seeded(9)
    x = torch.randn(n, d, generator=source).double() @ torch.linalg.cholesky(sigma).T + 5
    copy = knockoffs.gaussian_knockoffs(x, source, covariance=sigma)
    joint = torch.cov(torch.cat([x, copy], 1).T)
    scale = sigma.diagonal().sqrt()
    s = (2 * torch.linalg.eigvalsh(sigma / scale / scale[:, None])[0]).clamp(max=1) * scale.square()
    tolerance = 5 * float(sigma.max()) / math.sqrt(n)
    torch.testing.assert_close(joint[:d, :d], sigma, atol=tolerance, rtol=0)
    torch.testing.assert_close(joint[d:, d:], sigma, atol=tolerance, rtol=0)
    torch.testing.assert_close(joint[:d, d:], sigma - s.diag(), atol=tolerance, rtol=0)
    torch.testing.assert_close(copy.mean(0), x.mean(0), atol=tolerance, rtol=0)


def test_knockoff_filter_by_hand():
    w = torch.tensor([9.0, 8.0, 7.0, 6.0, -5.0, 4.0, 3.0, -2.0, 1.0])
    # at t = 3: (1 + 1) / 6; at t = 4: 2 / 5; at t = 6: 1 / 4
    assert knockoffs.knockoff_select(w, 0.25).sum() == 4
    assert knockoffs.knockoff_select(w, 0.34).sum() == 6
    assert knockoffs.knockoff_select(w, 0.2).sum() == 0
    assert knockoffs.knockoff_select(torch.zeros(3), 0.5).sum() == 0


def test_knockoff_filter_controls_false_discoveries_of_a_linear_model():
    n_sets, d, active, level = 200, 30, 10, 0.2
    source, shares = seeded(10), []
    for _ in range(n_sets):
        x = torch.randn(100, d, generator=source).double()
        y = x[:, :active].sum(1) + 2 * torch.randn(100, generator=source).double()
        both = torch.cat([x, knockoffs.gaussian_knockoffs(x, source)], 1)
        weights = torch.linalg.lstsq(both, y[:, None]).solution[:, 0].abs()
        keep = knockoffs.knockoff_select(knockoffs.knockoff_statistic(weights), level)
        shares.append(float(keep[active:].sum()) / max(int(keep.sum()), 1))
    shares = torch.tensor(shares)
    assert shares.mean() <= level + 4 * shares.std() / n_sets**0.5
    assert shares.mean() > 0.02  # a filter that keeps nothing would pass the line above


def test_knockoffs_refuse_constant_and_dependent_columns():
    x = torch.randn(50, 2, generator=seeded(0))
    with pytest.raises(ValueError, match="column 1 is constant"):
        knockoffs.gaussian_knockoffs(torch.stack([x[:, 0], torch.ones(50)], 1), seeded(1))
    with pytest.raises(ValueError, match="linearly dependent"):
        knockoffs.gaussian_knockoffs(torch.cat([x, x], 1), seeded(1), ridge=0.0)
