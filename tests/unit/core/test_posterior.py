"""Posteriors: moments of draws, masks, and the module a sparse model becomes."""

import math

import pytest
import torch
from torch import nn

from bayesieve.core.likelihoods import Gaussian
from bayesieve.core.network import Network
from bayesieve.core.posterior import Factorised, Posterior, Samples, SparseModel
from problems import normal, seeded
from zoo import BY_NAME

F64 = torch.float64


def network():
    return Network.of(BY_NAME["layer_norm"].model(), BY_NAME["layer_norm"].likelihood)


def factorised(**changes):
    net = network()
    d = net.layout.size
    std = normal(d, seed=2).exp() / 10
    std[net.layout.n_bayesian :] = 0
    settings = {"logit_inclusion": normal(d, seed=3), "buffers": net.buffers()} | changes
    return Factorised(net, normal(d, seed=1), std, **settings)


def samples(n=5):
    net = network()
    return Samples(net, normal(n, net.layout.size, seed=1), normal(net.layout.size, seed=3))


BOTH = pytest.mark.parametrize("make", [factorised, samples])


@BOTH
def test_posteriors_follow_the_protocol(make):
    q = make()
    assert isinstance(q, Posterior)
    assert q.layout is q.network.layout
    assert q.mean.shape == (q.layout.size,)
    torch.testing.assert_close(q.inclusion, 1 / (1 + (-q.logit_inclusion).exp()))


def test_draws_have_the_stated_moments():
    q = factorised()
    n = 4000
    draws = q.draw(n, seeded(0))
    part = q.layout.bayesian
    error = (draws.mean(0) - q.mean)[part].abs() / q.std[part]
    assert error.max() < 4 / math.sqrt(n)
    ratio = (draws.std(0) / q.std)[part]
    assert (ratio - 1).abs().max() < 4 / math.sqrt(2 * n)
    assert (draws[:, q.layout.n_bayesian :] == q.mean[q.layout.n_bayesian :]).all()
    correlation = torch.corrcoef(draws[:, :5].T) - torch.eye(5, dtype=F64)
    assert correlation.abs().max() < 4.5 / math.sqrt(n)


@BOTH
def test_equal_generators_give_equal_draws(make):
    q = make()
    torch.manual_seed(0)
    before = torch.get_rng_state()
    assert torch.equal(q.draw(3, seeded(1)), q.draw(3, seeded(1)))
    assert not torch.equal(q.draw(3, seeded(1)), q.draw(3, seeded(2)))
    assert torch.equal(torch.get_rng_state(), before)


def test_draws_where_every_entry_is_bayesian():
    net = Network.of(nn.Linear(2, 1).double(), Gaussian())
    q = Factorised(net, torch.zeros(3, dtype=F64), torch.ones(3, dtype=F64))
    assert q.draw(2000, seeded(0)).std().item() == pytest.approx(1, abs=4 / math.sqrt(12000))
    assert q.inclusion is None


def test_samples_are_drawn_from_their_rows():
    q = samples(5)
    assert torch.equal(q.draw(5, seeded(0)), q.draws)  # each once
    assert q.draw(5, seeded(0)).data_ptr() != q.draws.data_ptr()
    many = q.draw(5000, seeded(0))
    counts = (many[:, :1] == q.draws[:, 0]).sum(0)
    assert counts.sum() == 5000
    assert (counts - 1000).abs().max() < 4 * math.sqrt(5000 * 0.2 * 0.8)
    torch.testing.assert_close(q.mean, q.draws.mean(0))


@BOTH
def test_masks_give_exact_zeros_and_leave_the_original(make):
    q = make()
    keep = torch.rand(q.layout.size, generator=seeded(4)) < 0.5
    before = q.mean.clone()
    masked = q.masked(keep)
    assert (masked.mean[~keep] == 0).all()
    assert (masked.draw(7, seeded(0))[:, ~keep] == 0).all()
    assert (masked.inclusion[~keep] == 0).all()
    assert torch.equal(masked.mean[keep], q.mean[keep])
    assert torch.equal(masked.inclusion[keep], q.inclusion[keep])
    assert torch.equal(q.mean, before)
    assert type(masked) is type(q)


def test_a_sparse_model_computes_what_the_masked_network_computes():
    case = BY_NAME["batch_norm"]
    net = Network.of(case.model(), case.likelihood)
    d = net.layout.size
    buffers = net.buffers()
    buffers["1.running_mean"] += 0.5
    q = Factorised(net, normal(d, seed=1), torch.zeros(d, dtype=F64), buffers=buffers)
    keep = torch.ones(d, dtype=torch.bool)
    keep[net.layout.sparse] = torch.rand(net.layout.n_sparse, generator=seeded(4)) < 0.3
    sparse = SparseModel(q.masked(keep), keep)
    module, x = sparse.to_module(), case.data().x
    dense = net.outputs((q.mean * keep)[None], x, buffers)[0]
    torch.testing.assert_close(module(x), dense)
    weights = [module[0].weight, module[3].weight]
    n_zeros = sum(int((w == 0).sum()) for w in weights)
    assert n_zeros == int((~keep).sum()) > 0
    assert sparse.removed == pytest.approx(n_zeros / net.layout.n_sparse)
    assert sparse.zeros == pytest.approx(n_zeros / d)
    assert not module.training
    assert sparse.layout is net.layout


def test_a_model_with_nothing_to_prune_removes_nothing():
    net = Network.of(nn.LayerNorm(2), Gaussian())
    q = Samples(net, torch.ones(1, 4))
    assert SparseModel(q, torch.ones(4, dtype=torch.bool)).removed == 0


@BOTH
def test_moving_takes_everything_along(make):
    q = make()
    moved = q.to("meta")
    assert moved.mean.device.type == "meta"
    assert moved.logit_inclusion.device.type == "meta"
    assert moved.network.device.type == "meta"
    keep = torch.ones(q.layout.size, dtype=torch.bool)
    assert SparseModel(q, keep).to("meta").keep.device.type == "meta"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda net: Factorised(net, torch.zeros(2), torch.zeros(3)), "mean must have shape"),
        (lambda net: Factorised(net, torch.zeros(3), torch.zeros(1, 3)), "std must have shape"),
        (
            lambda net: Factorised(net, torch.zeros(3), torch.zeros(3), None, torch.zeros(2)),
            "logit_inclusion must have shape",
        ),
        (lambda net: Samples(net, torch.zeros(3)), r"draws must have shape \(n, 3\)"),
        (lambda net: Samples(net, torch.zeros(0, 3)), r"n > 0, got \(0, 3\)"),
    ],
)
def test_wrong_shapes_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make(Network.of(nn.Linear(2, 1), Gaussian()))


@pytest.mark.parametrize("make", [factorised, samples])
def test_a_posterior_becomes_a_module_with_its_mean(make):
    posterior, x = make(), BY_NAME["layer_norm"].data().x
    module = posterior.to_module()
    assert not module.training
    outputs = posterior.network.outputs(posterior.mean[None], x, posterior.buffers)[0]
    torch.testing.assert_close(module(x), outputs)
    with torch.no_grad():
        next(module.parameters()).zero_()
    assert posterior.mean.any()


def test_posteriors_print_as_one_short_line():
    net = Network.of(nn.Linear(2000, 1), Gaussian())
    q = Factorised(net, torch.ones(2001), torch.ones(2001))
    keep = torch.arange(2001) < 500
    assert repr(q) == "Factorised(2,001 weights, float32, cpu)"
    assert repr(Samples(net, torch.ones(7, 2001))) == "Samples(7 x 2,001 weights, float32, cpu)"
    sparse = SparseModel(q.masked(keep), keep)
    assert repr(sparse) == "SparseModel(500 of 2,001 weights, 75.01% zeros)"
