"""Ranks by keys against plain stable sorts, and cuts against counting."""

import pytest
import torch

from bayesieve.sieve import ranking


def plain_ranks(values, mean):
    order = mean.abs().argsort(descending=True, stable=True)
    order = order[values[order].argsort(descending=True, stable=True)]
    ranks = torch.empty_like(order)
    ranks[order] = torch.arange(len(order), 0, -1)
    return ranks


@pytest.mark.parametrize("n", [1, 10, 1000])
@pytest.mark.parametrize("part", [1 << 22, 7])
def test_keys_rank_as_stable_sorts_do(monkeypatch, n, part):
    monkeypatch.setattr(ranking, "_PART", part)
    generator = torch.Generator().manual_seed(n)
    values = torch.randn(n, generator=generator).mul(3).round()  # with ties and both zeros
    values[::7] = -torch.inf
    values[3::11] = torch.inf
    mean = torch.randn(n, generator=generator).mul(2).round()
    expected = plain_ranks(values, mean)
    assert torch.equal(ranking._ranked(values.double(), mean), expected)
    assert torch.equal(ranking._ranked(values, mean).long(), expected)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_the_cut_is_that_of_a_whole_histogram(dtype):
    values = torch.randint(20_000, (5000,), generator=torch.Generator().manual_seed(0)).to(dtype)
    below = values.bincount().cumsum(0)
    for count in (0, 1, 2500, 4999, 5000):
        assert ranking._lowest_above(values, count) == int((below < count).sum())
