"""Tests of SBNN alone: its start, its inclusion, the proximal step and the slab diagnostic."""

import math

import pytest
import torch

from bayesieve.assess.diagnostics import stuck_in_slab
from bayesieve.core.likelihoods import Gaussian
from bayesieve.core.network import Network
from bayesieve.core.posterior import Factorised
from bayesieve.core.priors import SpikeSlab, inclusion_logit, profiled_kl
from bayesieve.core.problem import Problem
from bayesieve.engines.sbnn import SBNN
from problems import linear_model, no_data, normal, run, seeded
from zoo import BY_NAME


def test_every_std_starts_in_the_basin_of_the_spike():
    prior = SpikeSlab((1.0, math.e), (math.exp(-5), math.exp(-6)))
    state = SBNN(prior=prior).init(BY_NAME["mlp"].problem(), seeded(0), 2)
    for i in range(2):
        expected = prior.member(i).safe_init_std()
        torch.testing.assert_close(
            state.log_std[i].exp(), torch.full_like(state.log_std[i], expected)
        )
        assert expected < prior.member(i).stationary_stds()[1]
    chosen = SBNN(init_std=0.3).init(BY_NAME["mlp"].problem(), seeded(0))
    assert chosen.log_std.exp().unique().item() == pytest.approx(0.3)


def test_means_that_start_in_the_spike_are_the_models_own_shrunk_into_its_basin():
    prior = SpikeSlab((1.0, 0.1), (math.exp(-5), 0.03), (0.5, 0.1))  # the second has one basin
    problem = BY_NAME["mlp"].problem()
    own = SBNN(prior=prior).init(problem, seeded(0), 2).mean
    state = SBNN(prior=prior, start="spike").init(problem, seeded(0), 2)
    assert bool((state.mean[1] == own[1]).all())
    edge = prior.stationary_stds(0)[1]
    for name, shape in zip(problem.layout.names, problem.layout.shapes, strict=True):
        part = problem.layout.slices[name]
        if len(shape) > 1:
            energy = state.mean[0, part].square() + state.log_std[0, part].exp().square()
            assert float(energy.max()) == pytest.approx(edge**2, rel=1e-4)
            ratio = state.mean[0, part] / own[0, part]
            torch.testing.assert_close(ratio, ratio[:1].expand_as(ratio))
        else:
            assert bool((state.mean[0, part] == own[0, part]).all())
    with pytest.raises(ValueError, match=r"outside the spike.s basin, which ends at 0\.0264"):
        SBNN(prior=prior, start="spike", init_std=0.1).init(problem, seeded(0), 2)


def test_inclusion_is_the_closed_form_of_mean_and_std():
    prior = SpikeSlab((0.5, 1.0), 0.1)
    problem = BY_NAME["layer_norm"].problem()
    engine = SBNN(prior=prior, lr=0.01)
    state = run(engine, problem, 5, n_models=2)
    n = problem.layout.n_bayesian
    for i in range(2):
        posterior = engine.posterior(problem, state, member=i)
        assert posterior.prior == prior.member(i)
        exact = inclusion_logit(state.mean[i, :n], state.log_std[i].exp(), prior.member(i))
        torch.testing.assert_close(posterior.logit_inclusion[:n], exact)
        torch.testing.assert_close(posterior.std[:n], state.log_std[i].exp())


def short_proximal_step(kl_scale=3.0, lr_scale=0.5):
    """What a short step moved and should have moved, for mean and std, per unit of its length."""
    case, lr = BY_NAME["mlp"], 1e-6
    engine = SBNN(prior=SpikeSlab(0.5, 0.1), lr=lr, init_std=0.2, optimizer="sgd")
    problem = case.problem(n=6)
    state = engine.init(problem, seeded(0))
    state.controls.kl_scale.fill_(kl_scale)
    state.controls.lr_scale.fill_(lr_scale)
    mean, std = state.mean.clone(), state.log_std.exp()
    noise = torch.empty_like(std).normal_(generator=seeded(0))
    grad = problem.value_and_grad(mean + std * noise, case.data())[1].clone()
    leaves = mean.clone().requires_grad_(), std.clone().requires_grad_()
    kl = kl_scale * profiled_kl(leaves[0], leaves[1].log(), engine.prior).sum()
    kl_mean, kl_std = torch.autograd.grad(kl, leaves)
    engine.step(problem, state, case.data())
    length = lr * lr_scale / 6
    moved = (state.mean - mean) / length, (state.log_std.exp() - std) / length
    return moved, (grad - kl_mean, grad * noise - kl_std)


def test_a_short_proximal_step_follows_the_gradient_in_mean_and_std():
    torch.testing.assert_close(*short_proximal_step(), rtol=1e-3, atol=1e-3)


def test_proximal_descent_survives_a_prior_that_is_stiff_for_gradient_descent():
    # MNIST at batch 128 with Blundell's first weight: lr κ kl_scale / N = 31, far above 2.
    x = torch.zeros(60000, 1)
    problem = Problem(linear_model(1, torch.float32), Gaussian(), (x, x))
    prior = SpikeSlab(1.0, 0.0025)
    engine = SBNN(prior=prior, lr=0.05, optimizer="sgd")
    state = engine.init(problem, seeded(0))
    state.mean.fill_(1e-3)
    state.controls.kl_scale.fill_(469 * 0.5)
    kappa = 1 / 0.0025**2
    assert 0.05 * 469 * 0.5 / 60000 * kappa > 30
    batch = BY_NAME["linear"].data(1, dtype=torch.float32)
    batch = batch._replace(x=torch.zeros(1, 1))
    for _ in range(200):
        engine.step(problem, state, batch)
    assert state.mean.abs().max() < 1e-6
    assert torch.isfinite(state.log_std).all()
    assert state.log_std.exp().item() == pytest.approx(prior.stationary_stds()[0], rel=0.05)


def test_plain_descent_of_a_stiff_prior_needs_no_masks_and_keeps_masked_weights_still():
    problem = no_data()
    engine = SBNN(lr=0.1, optimizer="sgd")
    state = engine.init(problem, seeded(0))
    state.mean.copy_(normal(1, 3, seed=1))
    state.controls.allow_masks_(state.mean)
    state.controls.trained[0, 1] = False
    before = state.mean.clone(), state.log_std.clone()
    for _ in range(3):
        engine.step(problem, state, BY_NAME["linear"].data(1)._replace(x=problem.x))
    still = [True, False, True]
    assert (state.mean[0] != before[0][0]).tolist() == still
    assert (state.log_std[0] != before[1][0]).tolist() == still


def test_weights_that_sit_in_the_slab_without_reason_are_counted():
    network = Network.of(linear_model(4), Gaussian())
    mean = torch.tensor([0.0, 0.1, 2.0, 0.0], dtype=torch.float64)
    std = torch.tensor([1.0, 1.0, 0.1, 0.1], dtype=torch.float64)
    logit = torch.tensor([5.0, 5.0, 5.0, -5.0], dtype=torch.float64)
    assert stuck_in_slab(Factorised(network, mean, std, logit_inclusion=logit)) == 0.5
    with pytest.raises(ValueError, match=r"^stuck_in_slab: this posterior has no inclusion"):
        stuck_in_slab(Factorised(network, mean, std))
