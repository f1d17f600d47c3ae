"""The horseshoe engine and its posterior: quadrature, gradients, draws, scores."""

import dataclasses
import math

import pytest
import torch
from torch import nn

from bayesieve.core.batch import Batch
from bayesieve.core.likelihoods import Gaussian
from bayesieve.core.posterior_horseshoe import UnitScaled, UnitScales
from bayesieve.core.problem import Problem
from bayesieve.core.storage import load_posterior, load_sparse, save
from bayesieve.engines.horseshoe import HorseshoeVI, log_widths
from bayesieve.engines.scaled import Horseshoe, log_normal_gamma_kl
from bayesieve.sieve.prune import prune
from bayesieve.sieve.rules import keep_scored, keep_zeros
from problems import normal, normal32, run, seeded
from zoo import chain


def network(dtype=torch.float64):
    layers = nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1), nn.Tanh(), nn.Linear(1, 2)
    return nn.Sequential(*layers).to(dtype)


def deep():
    """Layers of 4 units, of 1 unit and a last one."""
    model = network()
    for seed, p in enumerate(model.parameters()):
        p.data = 0.3 * normal(*p.shape, seed=seed)
    data = normal(10, 3, seed=8), normal(10, 2, seed=9)
    return Problem(model, Gaussian(0.5), data)


def scales_of(problem):
    return UnitScales(problem.layout, problem.device, torch.float64)


def test_units_are_rows_with_their_biases():
    scales = scales_of(deep())
    assert scales.layers == [slice(0, 4), slice(4, 5), slice(5, 7)]
    assert scales.n_groups == 7
    counts = scales.total(torch.ones(1, 25, dtype=torch.float64))
    assert counts.tolist() == [[4.0] * 4 + [5.0] + [2.0] * 2]
    units = torch.arange(7.0, dtype=torch.float64)[None]
    torch.testing.assert_close(scales.total(scales.to_entries(units)), units * counts)


def test_special_layers_have_fewer_scales():
    scales = scales_of(deep())
    assert scales.slab.tolist() == [1.0, 1.0, 0.0]
    assert scales.common.tolist() == [1.0, 0.0, 1.0]
    assert scales.local.tolist() == [1.0] * 5 + [0.0] * 2
    logs = normal(1, scales.size, seed=0)
    a, b, layer_a, layer_b, u = scales.split(logs)
    log_std = torch.tensor(0.01, dtype=torch.float64).log()
    scale = scales.log_scale(logs, log_std).exp()[0]
    nu2 = 1e-4 * (layer_a - layer_b).exp()[0, 0]
    tau2 = (a - b).exp()[0, 1]
    c2 = (-u).exp()[0, 0]
    torch.testing.assert_close(scale[1].square(), c2 * nu2 * tau2 / (c2 + nu2 * tau2))
    alone = 1e-4 * (a - b).exp()[0, 4]
    c2 = (-u).exp()[0, 1]
    torch.testing.assert_close(scale[4].square(), c2 * alone / (c2 + alone))
    torch.testing.assert_close(scale[5:].square(), (layer_a - layer_b).exp()[0, 2].expand(2))


def objective(problem, state, leaves, noise, scale_noise):
    """KL, and -ELBO / N at one draw, each as one differentiable expression in ŵ and γ."""
    mean, log_std, scale_mean, scale_log_std = leaves
    scales, log_prior = state.groups, state.prior.log_std
    width = scales.log_expected_power(scale_mean, scale_log_std.exp(), log_prior).exp()
    width = scales.to_entries(width)
    hidden_mean, hidden_std = mean / width, log_std.exp() / width
    logs = scale_mean + scale_log_std.exp() * scale_noise
    gamma = scales.to_entries(scales.log_scale(logs, log_prior).exp())
    if state.prior.held:
        gamma = width
    w = gamma * (hidden_mean + hidden_std * noise)
    pieces = problem.layout.unflatten(w[0])
    outputs = torch.func.functional_call(network(), pieces, (problem.x,))
    log_lik = Gaussian(0.5).log_prob(outputs, problem.y, {}).sum()
    q = torch.distributions.Normal(hidden_mean, hidden_std)
    p = torch.distributions.Normal(0, torch.ones_like(hidden_mean))
    kl = torch.distributions.kl_divergence(q, p).sum()
    scale_kl = log_normal_gamma_kl(scale_mean, scale_log_std, state.prior.shape, state.prior.rate)
    kl = kl + (scales.active * scale_kl).sum()
    return kl, (kl - log_lik) / problem.n_data


@pytest.mark.parametrize("held", [False, True])
def test_the_kl_and_the_gradient_are_those_of_the_elbo(held):
    problem, engine = deep(), HorseshoeVI(init_std=0.3)
    state = engine.init(problem, seeded(0))
    assert not state.prior.held
    state.prior.held = held
    source = seeded(0)
    scale_noise = torch.empty_like(state.scale_mean).normal_(generator=source)
    noise = torch.empty_like(state.log_std).normal_(generator=source)
    names = ("mean", "log_std", "scale_mean", "scale_log_std")
    leaves = [getattr(state, name).clone().requires_grad_() for name in names]
    kl, loss = objective(problem, state, leaves, noise, scale_noise)
    torch.testing.assert_close(engine.kl(state)[0], kl.detach())
    grads = list(torch.autograd.grad(loss, leaves))
    grads[0] = grads[0] * state.groups.to_entries(log_widths(state).exp())
    state.generator.manual_seed(0)
    engine.step(problem, state, Batch(problem.x, problem.y))
    for name, grad in zip(names, grads, strict=True):
        first = getattr(state, name + "_moments").first / 0.1  # after one step
        torch.testing.assert_close(first, grad, msg=name)


def test_layer_scales_start_at_the_size_of_the_weights():
    problem = deep()
    state = HorseshoeVI(Horseshoe(0.01)).init(problem, seeded(0))
    ratio = state.groups.log_ratio(state.scale_mean, state.prior.log_std)
    layout = problem.layout
    for layer, unit in (("0", 0), ("2", 4), ("4", 5)):  # many units, one unit, the last
        names = (f"{layer}.weight", f"{layer}.bias")
        weights = torch.cat([problem.initial[layout.slices[name]] for name in names])
        torch.testing.assert_close(ratio[0, unit].exp(), weights.square().mean())


def test_the_scales_have_the_priors_of_the_paper():
    """Gamma(½, 1) for the ratios of units and layers, Gamma(2, 6) for the slab's precision."""
    numbers = HorseshoeVI().init(deep(), seeded(0)).prior
    assert numbers.log_std.exp().item() == pytest.approx(0.01)
    assert numbers.shape.tolist() == [[0.5] * 20 + [2.0] * 3]
    assert numbers.rate.tolist() == [[1.0] * 20 + [6.0] * 3]


def posterior_of(init_std=0.4):
    problem, engine = deep(), HorseshoeVI(init_std=init_std)
    return engine.posterior(problem, engine.init(problem, seeded(0)))


def test_draws_have_the_stated_moments():
    posterior = posterior_of()
    draws = posterior.draw(100_000, seeded(1))
    error = draws.std(0) / math.sqrt(len(draws))
    assert ((draws.mean(0) - posterior.mean).abs() < 4.5 * error).all()
    scales = scales_of(deep())
    numbers = posterior.log_mean[None], posterior.log_std[None]
    log_prior = torch.tensor(posterior.prior_std, dtype=torch.float64).log()
    first, second = (scales.log_expected_power(*numbers, log_prior, power) for power in (1.0, 2.0))
    ratio_square = scales.to_entries((second - 2 * first).exp())[0]
    square = posterior.mean.square()
    variance = ratio_square * (square + posterior.std.square()) - square
    torch.testing.assert_close(draws.var(0), variance, rtol=0.06, atol=0)


def test_the_std_is_that_of_a_draw_at_the_centre_of_the_scales():
    posterior = posterior_of()
    centred = dataclasses.replace(posterior, log_std=torch.zeros_like(posterior.log_std))
    draws = centred.draw(100_000, seeded(1))
    error = 1 / math.sqrt(2 * len(draws))  # relative, of a std
    torch.testing.assert_close(draws.std(0), posterior.std, rtol=4.5 * error, atol=0)
    same = posterior.factorised()
    assert torch.equal(same.std, posterior.std)


def test_an_uncertain_scale_is_not_noise_of_the_weights_of_its_unit():
    posterior = posterior_of()
    log_std = posterior.log_std.clone()
    log_std[0] = 3.0  # a of the first unit
    other = dataclasses.replace(posterior, log_std=log_std)
    for rule in (keep_zeros(0.7), keep_zeros(0.4), keep_zeros(0.2)):
        assert torch.equal(prune(other, rule).keep, prune(posterior, rule).keep)


def normed():
    model = chain(3, 5, 1, act=nn.ReLU, norm=nn.BatchNorm1d)
    return Problem(model.double(), Gaussian(0.5), (normal(40, 3, seed=8), normal(40, 1, seed=9)))


def test_scales_that_a_batchnorm_undoes_do_not_enter_its_statistics_or_the_draws():
    """They are not determined, so statistics averaged over them would fit no weights at all."""
    posteriors = []
    for scale_std in (0.01, 2.0):
        problem, engine = normed(), HorseshoeVI()
        state = engine.init(problem, seeded(0))
        state.scale_log_std.fill_(math.log(scale_std))
        engine.step(problem, state, Batch(problem.x, problem.y))
        posteriors.append(engine.posterior(problem, state))
    narrow, wide = posteriors
    before = normed().network.buffers()
    assert (narrow.buffers["1.running_var"] != before["1.running_var"]).all()
    torch.testing.assert_close(narrow.buffers, wide.buffers)
    draws, n = wide.draw(2000, seeded(1)), wide.layout.n_bayesian
    error = 1 / math.sqrt(2 * len(draws))  # relative, of a std
    torch.testing.assert_close(draws[:, :n].std(0), wide.spread[:n], rtol=5 * error, atol=0)


def test_draws_share_scales_within_a_unit_only_beyond_the_layer():
    draws = posterior_of(init_std=1.0).draw(50_000, seeded(2)).abs().log()
    within = torch.corrcoef(draws[:, [0, 1]].T)[0, 1]  # two weights of unit 0
    between = torch.corrcoef(draws[:, [0, 3]].T)[0, 1]  # units 0 and 1 of one layer
    across = torch.corrcoef(draws[:, [0, 12]].T)[0, 1]  # another layer
    assert within > between + 0.02
    assert between > 0.01
    assert across.abs() < 4.5 / math.sqrt(50_000)


def unit_score(posterior):
    return posterior.unit_score


def irrelevant_inputs():
    """Hidden units with half of the weights needed: y depends on one direction only."""
    x = normal32(200, 4, seed=0)
    y = torch.tanh(2 * x[:, :1]) + 0.1 * normal32(200, 1, seed=1)
    model = chain(4, 12, 1)
    return Problem(model, Gaussian(0.1), (x, y))


@pytest.mark.slow
def test_units_that_are_not_needed_are_shrunk_and_can_be_sieved():
    problem = irrelevant_inputs()
    engine = HorseshoeVI(lr=0.05)
    state = run(engine, problem, 400, decay=True)
    posterior = engine.posterior(problem, state)
    assert posterior.inclusion is None
    score = posterior.unit_score
    assert ((score >= 0) & (score <= 1)).all()
    layout = problem.layout
    rows = score[layout.slices["0.weight"]].view(12, 4)
    assert (rows == rows[:, :1]).all()  # one score per unit
    assert torch.equal(score[layout.slices["0.bias"]], rows[:, 0])
    assert (score[layout.slices["2.weight"]] == 1).all()
    assert rows[:, 0].max() > 10 * rows[:, 0].median()
    sparse = prune(posterior, keep_scored(float(rows[:, 0].max()), unit_score))
    kept = sparse.keep[layout.slices["0.weight"]].view(12, 4)
    assert int(kept.any(1).sum()) == 1
    assert (sparse.posterior.unit_score[~sparse.keep] == 0).all()
    assert int(prune(posterior, keep_zeros(0.7)).keep.sum()) <= round(0.3 * layout.size)


def test_it_comes_back_from_a_file_with_its_scales_and_its_mask(tmp_path):
    posterior = posterior_of()
    again = load_posterior(save(posterior, tmp_path / "q"), posterior.network)
    assert isinstance(again, UnitScaled)
    assert torch.equal(again.draw(5, seeded(3)), posterior.draw(5, seeded(3)))
    assert again.prior_std == posterior.prior_std
    sparse = prune(posterior, keep_zeros(0.5))
    back = load_sparse(save(sparse, tmp_path / "s"), posterior.network)
    assert torch.equal(back.keep, sparse.keep)
    assert torch.equal(back.posterior.spread, sparse.posterior.spread)


def test_tensors_of_another_size_are_refused():
    posterior = posterior_of()
    with pytest.raises(ValueError, match=r"^UnitScaled: log_mean must have shape \(23,\), got"):
        dataclasses.replace(posterior, log_mean=posterior.log_mean[:-1])


def test_members_may_have_their_own_numbers():
    problem = deep()
    engine = HorseshoeVI(Horseshoe(std=(0.01, 0.1), rate=(6.0, 2.0)), lr=(1e-3, 2e-3))
    state = run(engine, problem, 2, n_models=2)
    assert torch.isfinite(engine.kl(state)).all()
    assert engine.posterior(problem, state, 1).prior_std == 0.1
