import pytest
import torch
from torch import nn

from bayesieve.sieve.prune import kept_per_layer, prune, reestimate_batchnorm, sparsity_curve
from bayesieve.sieve.rules import keep_zeros


@pytest.fixture
def sparse(random_posterior, mlp):
    return prune(random_posterior(mlp), keep_zeros(0.7))


def test_pruned_entries_are_exactly_zero_in_mean_and_spread(sparse):
    assert not sparse.posterior.mean[~sparse.keep].any()
    assert not sparse.posterior.std[~sparse.keep].any()
    assert sparse.zeros == pytest.approx(1 - int(sparse.keep.sum()) / 116)
    draws = sparse.posterior.draw(3, torch.Generator().manual_seed(0))
    assert not draws[:, ~sparse.keep].any()


def test_pruning_a_sparse_model_goes_on_from_it(sparse):
    more = prune(sparse, keep_zeros(0.8))
    assert not (more.keep & ~sparse.keep).any()
    assert more.zeros > sparse.zeros
    same = prune(sparse, keep_zeros(0.1))
    assert torch.equal(same.keep, sparse.keep)
    careless = prune(sparse, lambda q, within: torch.ones_like(within))
    assert torch.equal(careless.keep, sparse.keep)


def test_any_function_is_a_rule_but_must_return_a_mask(random_posterior, mlp):
    posterior = random_posterior(mlp)
    positive = prune(posterior, lambda q, within: q.mean > 0)
    assert torch.equal(positive.keep, posterior.mean > 0)
    for wrong in (torch.ones(116), torch.ones(3, dtype=torch.bool)):
        with pytest.raises(ValueError, match=r"rule must return a bool tensor of shape \(116,\)"):
            prune(posterior, lambda q, within, wrong=wrong: wrong)


def test_a_curve_is_the_rule_at_every_point_from_one_score(random_posterior, mlp):
    posterior, calls = random_posterior(mlp), []

    def counted(q):
        calls.append(1)
        return q.mean.abs()

    zeros = [0.9, 0.0, 0.5, 0.85]
    masks = sparsity_curve(posterior, zeros, score=counted)
    assert len(calls) == 1
    for mask, fraction in zip(masks, zeros, strict=True):
        assert torch.equal(mask, keep_zeros(fraction, score="magnitude")(posterior))
    assert sparsity_curve(posterior, []).shape == (0, 116)
    with pytest.raises(ValueError, match="sparsity_curve: zeros must be between 0 and 1"):
        sparsity_curve(posterior, [0.5, 1.5])


def test_layer_counts_add_up(sparse):
    counts = kept_per_layer(sparse)
    assert [row.name for row in counts] == list(sparse.layout.names)
    assert sum(row.kept for row in counts) == int(sparse.keep.sum())
    assert sum(row.total for row in counts) == 116


@pytest.fixture
def normed(random_posterior):
    model = nn.Sequential(nn.Linear(3, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 1))
    posterior = random_posterior(model)
    buffers = posterior.network.buffers()
    buffers["1.num_batches_tracked"] += 7  # of training
    buffers["1.running_mean"] += 3
    return prune(type(posterior)(posterior.network, posterior.mean, posterior.std, buffers=buffers),
                 keep_zeros(0.3))  # fmt: skip


def test_batchnorm_statistics_are_those_of_the_pruned_activations(normed):
    x = torch.randn(90, 3, generator=torch.Generator().manual_seed(0)) + 1
    fresh = reestimate_batchnorm(normed, x, batch_size=90)
    hidden = normed.to_module()[0](x).detach()
    assert torch.allclose(fresh.posterior.buffers["1.running_mean"], hidden.mean(0), atol=1e-5)
    assert torch.allclose(fresh.posterior.buffers["1.running_var"], hidden.var(0), rtol=1e-4)
    assert torch.equal(normed.posterior.buffers["1.running_mean"], torch.full((6,), 3.0))
    assert torch.equal(fresh.posterior.mean, normed.posterior.mean)
    assert torch.equal(fresh.keep, normed.keep)


def test_batches_are_of_equal_length_and_weigh_the_same(normed):
    x = torch.randn(91, 3, generator=torch.Generator().manual_seed(0))
    fresh = reestimate_batchnorm(normed, x, batch_size=30)  # 23 + 23 + 23 + 22, never 30 + ... + 1
    order = torch.randperm(91, generator=torch.Generator().manual_seed(0))
    hidden = normed.to_module()[0](x[order]).detach()
    variances = torch.stack([part.var(0) for part in hidden.tensor_split(4)])
    assert torch.allclose(fresh.posterior.buffers["1.running_var"], variances.mean(0), rtol=1e-4)
    assert fresh.posterior.buffers["1.num_batches_tracked"] == 4
    with pytest.raises(ValueError, match="batch_size must be > 0"):
        reestimate_batchnorm(normed, x, batch_size=0)


def test_inputs_sorted_by_class_give_the_statistics_of_mixed_batches(normed):
    x = torch.randn(400, 3, generator=torch.Generator().manual_seed(0))
    x[:200] += 10  # one class after the other, as image folders are read
    fresh = reestimate_batchnorm(normed, x, batch_size=100)
    hidden = normed.to_module()[0](x).detach()
    assert torch.allclose(fresh.posterior.buffers["1.running_var"], hidden.var(0), rtol=0.05)


def test_without_batchnorm_nothing_changes(sparse):
    assert reestimate_batchnorm(sparse, torch.ones(4, 5)) is sparse


def test_what_is_no_rule_or_no_posterior_is_named(sparse):
    with pytest.raises(TypeError, match=r"prune: rule must be one such as .* got 0\.5"):
        prune(sparse, 0.5)
    with pytest.raises(TypeError, match=r"a posterior or a sparse model, got Linear"):
        prune(nn.Linear(2, 1), keep_zeros(0.5))
