"""The BMR engine: its gradient against autograd, its masks, its schedule."""

import copy
import dataclasses
import math

import pytest
import torch
from torch import nn

from bayesieve.assess.predict import predict
from bayesieve.core.batch import Batch
from bayesieve.core.layout import EntryGroups
from bayesieve.core.likelihoods import Gaussian
from bayesieve.core.problem import Problem
from bayesieve.engines.bmr import (
    BMR,
    PAPER_ROLES,
    Reduction,
    evidence_at_zero,
    mask_log_odds,
    widths,
)
from bayesieve.engines.scaled import LayerScaled, log_normal_gamma_kl
from problems import known_support, normal, normal32, renew, run, seeded
from zoo import BY_NAME, chain

EAGER = Reduction("savage-dickey", steps_per_epoch=50, start=0.0, end=2 / 3, spare_last=False)
LEARNED = Reduction("hierarchical")
CPU = torch.device("cpu")


def deep(dtype=torch.float64, roles=None):
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).to(dtype)
    for seed, p in enumerate(model.parameters()):
        p.data = 0.3 * normal(*p.shape, seed=seed, dtype=dtype)
    data = normal(10, 3, seed=8, dtype=dtype), normal(10, 2, seed=9, dtype=dtype)
    return Problem(model, Gaussian(0.5), data, **({} if roles is None else {"roles": roles}))


def test_a_layer_is_a_module_and_the_last_is_wider():
    problem = deep()
    layers = EntryGroups(problem.layout, CPU)
    assert [layer for layer, _ in layers.tensors] == [0, 1, 0, 1]  # weights, then biases
    assert layers.last == 1
    state = BMR(LayerScaled(std=0.1, last_std=1.0)).init(problem, seeded(0))
    mean_c = math.exp(0.1**2 / 8)
    torch.testing.assert_close(widths(state), torch.tensor([[0.1, 1.0]]).double() * mean_c)
    stds = BMR().prior_stds(problem, state)
    assert stds.keys() == {"0.weight", "0.bias", "2.weight", "2.bias"}
    assert stds["2.weight"] == stds["2.bias"] == pytest.approx(mean_c)


def test_the_papers_start_is_uniform_in_units_of_the_prior():
    model = nn.Sequential(nn.Linear(60, 40), nn.Tanh(), nn.Linear(40, 30)).double()
    data = normal(10, 60, seed=8), normal(10, 30, seed=9)
    problem = Problem(model, Gaussian(0.5), data, roles=PAPER_ROLES)
    state = BMR.paper().init(problem, seeded(0), n_models=20)
    width = state.groups.to_entries(widths(state))
    hidden = state.mean / width
    for numbers, n in ((hidden, hidden.numel()), (state.scale_mean, 40)):
        assert numbers.abs().max() <= 2
        error = 4 / math.sqrt(n)  # four standard errors, in units of the std
        assert abs(numbers.mean()) < error * 2 / math.sqrt(3)
        assert abs(numbers.square().mean() - 4 / 3) < error * math.sqrt(16 / 5 - 16 / 9)
    torch.testing.assert_close(state.log_std.exp(), 0.1 * width)
    assert (state.scale_log_std.exp() - 0.1).abs().max() < 1e-12


def test_sums_over_layers_undo_spreading():
    layers = EntryGroups(deep().layout, CPU)
    ones = torch.ones(1, 26, dtype=torch.float64)
    assert layers.total(ones).tolist() == [[16.0, 10.0]]
    values = torch.tensor([[2.0, 3.0]])
    assert torch.equal(layers.total(layers.to_entries(values)), torch.tensor([[32.0, 30.0]]))


def objective(problem, engine, start, leaves, noise, scale_noise):
    """-ELBO / N at one draw, in the coordinates of the engine, as one differentiable expression."""
    mean, log_std, scale_mean, scale_log_std = leaves
    layers, prior = start.groups, engine.prior
    scale_std = scale_log_std.exp()
    log_precision = scale_mean + scale_std * scale_noise  # of c⁻²
    c = (-0.5 * log_precision).exp()
    expected_c = (-0.5 * scale_mean + scale_std.square() / 8).exp()
    base = torch.tensor([[prior.std, prior.last_std]], dtype=mean.dtype)
    width = layers.to_entries(base * expected_c)
    hidden_mean, hidden_std = mean / width, log_std.exp() / width  # of ŵ
    w = layers.to_entries(base * c) * (hidden_mean + hidden_std * noise)
    keep = start.controls.keep
    pieces = problem.layout.unflatten((w * keep)[0])
    outputs = torch.func.functional_call(
        nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double(), pieces, (problem.x,)
    )
    log_lik = Gaussian(0.5).log_prob(outputs, problem.y, {}).sum()
    unit = torch.ones_like(hidden_mean)
    q, p = torch.distributions.Normal(hidden_mean, hidden_std), torch.distributions.Normal(0, unit)
    kl = torch.distributions.kl_divergence(q, p).sum()
    numbers = (torch.tensor(x, dtype=mean.dtype) for x in (prior.shape, prior.rate))
    kl = kl + log_normal_gamma_kl(scale_mean, scale_log_std, *numbers).sum()
    return (engine.reduction.kl * kl - log_lik) / problem.n_data


@pytest.mark.parametrize("masked", [False, True])
def test_the_gradient_is_that_of_the_elbo(masked):
    problem, engine = deep(), BMR(lr=1e-3, init_std=0.3)
    state = engine.init(problem, seeded(0))
    state.scale_mean.copy_(torch.tensor([[0.4, -0.3]]))
    if masked:
        state.controls.keep[:, ::3] = False
    start = copy.copy(state)
    names = ("mean", "log_std", "scale_mean", "scale_log_std")
    leaves = [getattr(state, name).clone().requires_grad_() for name in names]
    start.generator = seeded(0)
    scale_noise = torch.empty_like(state.scale_mean).normal_(generator=start.generator)
    noise = torch.empty_like(state.log_std).normal_(generator=start.generator)
    loss = objective(problem, engine, start, leaves, noise, scale_noise)
    grads = list(torch.autograd.grad(loss, leaves))
    grads[0] = grads[0] * state.groups.to_entries(widths(state))
    state.generator.manual_seed(0)
    engine.step(problem, state, Batch(problem.x, problem.y))
    for name, grad in zip(names, grads, strict=True):
        first = getattr(state, name + "_moments").first / 0.1  # after one step
        torch.testing.assert_close(first, grad, msg=name)


def test_standard_coordinates_have_the_gradient_of_the_papers_form_and_weights_follow():
    problem, engine = deep(), BMR(lr=1e-3, init_std=0.3, coordinates="standard")
    state = engine.init(problem, seeded(0))
    state.scale_mean.copy_(torch.tensor([[0.4, -0.3]]))
    start, before = copy.copy(state), state.groups.to_entries(widths(state))
    start.generator = seeded(0)
    scale_noise = torch.empty_like(state.scale_mean).normal_(generator=start.generator)
    noise = torch.empty_like(state.log_std).normal_(generator=start.generator)
    weights = state.mean / before, state.log_std - before.log()
    values = (*weights, state.scale_mean, state.scale_log_std)
    mu, log_sigma, scale_mean, scale_log_std = leaves = [x.clone().requires_grad_() for x in values]
    base = torch.tensor([[engine.prior.std, engine.prior.last_std]], dtype=torch.float64)
    expected_c = (-0.5 * scale_mean + (2 * scale_log_std).exp() / 8).exp()
    width = state.groups.to_entries(base * expected_c)
    moved = [mu * width, log_sigma + width.log(), scale_mean, scale_log_std]
    grads = torch.autograd.grad(
        objective(problem, engine, start, moved, noise, scale_noise), leaves
    )
    state.generator.manual_seed(0)
    engine.step(problem, state, Batch(problem.x, problem.y))
    for name, grad in zip(("mean", "log_std", "scale_mean", "scale_log_std"), grads, strict=True):
        first = getattr(state, name + "_moments").first / 0.1  # after one step
        torch.testing.assert_close(first, grad, msg=name)
    after = state.groups.to_entries(widths(state))
    assert (after / before - 1).abs().min() > 1e-4
    # what moved in units of τ is one step of the rate, though τ itself moved
    steps = (state.mean / after - values[0]).abs(), (state.log_std - after.log() - values[1]).abs()
    for step in steps:
        torch.testing.assert_close(step, torch.full_like(step, 1e-3 / 0.9), rtol=1e-3, atol=0)


def test_local_noise_has_the_gradient_of_the_same_objective():
    # One layer and one input: the noise of the activation is that of the weight.
    x = torch.full((1, 1), 1.5, dtype=torch.float64)
    model = nn.Sequential(nn.Linear(1, 1, bias=False)).double()
    moments = []
    for local in (False, True):
        problem = Problem(model, Gaussian(0.5), (x, 2 * x))
        engine = BMR(init_std=0.3, local=local)
        state = engine.init(problem, seeded(0))
        engine.step(problem, state, Batch(problem.x, problem.y))
        names = ("mean", "log_std", "scale_mean", "scale_log_std")
        moments.append(torch.cat([getattr(state, n + "_moments").first for n in names]))
    torch.testing.assert_close(*moments)


def test_a_step_has_the_length_of_the_rate_in_units_of_the_prior():
    problem, engine = deep(), BMR(lr=1e-3)
    state = engine.init(problem, seeded(0))
    before, width = state.mean.clone(), state.groups.to_entries(widths(state))
    engine.step(problem, state, Batch(problem.x, problem.y))
    moved = (state.mean - before).abs() / width
    torch.testing.assert_close(moved, torch.full_like(moved, 1e-3 / 0.9), rtol=1e-3, atol=0)


@pytest.mark.slow
def test_masks_shrink_and_never_come_back():
    known = known_support()
    engine = BMR(LayerScaled(last_std=1.0), EAGER, lr=0.05)
    state = engine.init(known.problem, seeded(0))
    batch = Batch(known.problem.x, known.problem.y)
    kept = state.controls.keep.clone()
    for step in range(600):
        renew(engine, known.problem, state, step, 600)
        engine.step(known.problem, state, batch)
        assert not (state.controls.keep & ~kept).any()
        kept = state.controls.keep.clone()
    assert kept[0, known.active].all()
    assert int(kept[0, ~known.active].sum()) <= 2
    posterior = engine.posterior(known.problem, state)
    assert (posterior.mean[~kept[0]] == 0).all()
    assert (posterior.std[~kept[0]] == 0).all()


@pytest.mark.slow
def test_pruned_weights_relax_to_the_prior():
    known = known_support()
    engine = BMR(LayerScaled(last_std=1.0), dataclasses.replace(EAGER, end=0.26), lr=0.1)
    state = run(engine, known.problem, 750, decay=True)
    gone = ~state.controls.keep[0]
    assert gone.any()
    sigma = (state.log_std.exp() / widths(state))[0, gone]
    torch.testing.assert_close(sigma, torch.ones_like(sigma), rtol=0, atol=0.1)
    delta = evidence_at_zero(state.mean, state.log_std.exp(), widths(state))[0, gone]
    assert (delta.abs() < 0.1).all()


def test_masks_are_renewed_when_an_epoch_begins_and_only_until_the_end():
    known = known_support()
    reduction = dataclasses.replace(EAGER, steps_per_epoch=40, end=0.04)
    engine = BMR(LayerScaled(last_std=1.0), reduction, lr=0.1)
    state = engine.init(known.problem, seeded(0))
    counts, weights = [], []
    for step in range(200):
        renew(engine, known.problem, state, step, 2000)
        engine.step(known.problem, state, Batch(known.problem.x, known.problem.y))
        counts.append(int(state.controls.keep.sum()))
        weights.append(round(state.kl.item(), 6))
    changes = [i for i in range(1, 200) if counts[i] != counts[i - 1]]
    assert set(changes) <= {40, 80}  # the steps that begin the second and third epoch
    assert changes
    assert weights == [0.1] * 80 + [1.0] * 120


def test_short_runs_have_short_epochs():
    engine = BMR()
    assert [engine.renew_every(n) for n in (100_000, 5_000, 10)] == [500, 100, 1]
    assert BMR(reduction=None).renew_every(1000) == 0
    state = engine.init(deep(), seeded(0))
    state.mean.zero_()
    engine.renew_(deep(), state, 400, 5_000)  # before a tenth of the run is over
    assert state.controls.keep.all()
    engine.renew_(deep(), state, 500, 5_000)
    assert not state.controls.keep.all()
    assert BMR(reduction=None).settled(10) is None


def test_the_last_layer_is_spared_and_layers_have_their_own_thresholds():
    problem = deep()
    state = BMR().init(problem, seeded(0))
    state.mean.zero_()  # nothing is supported
    assert BMR().reduced(state)[:, 12:20].all()  # 12 weights of layer 0, then 8 of layer 2
    assert not BMR().reduced(state)[:, :12].any()
    everywhere = BMR(reduction=Reduction(spare_last=False)).reduced(state)
    assert not everywhere[:, :20].any()
    assert everywhere[:, 20:].all()  # biases


def test_one_threshold_for_all_layers_prunes_a_layer_that_keeps_itself_dense():
    # Layer 2: five of eight weights are needed for certain, three have no support to speak of.
    # Its own share of needed weights, about 5/8, protects the three; the network's does not.
    problem = deep()
    separate, shared = (
        BMR(reduction=Reduction("hierarchical", spare_last=False, scope=scope))
        for scope in ("layer", "global")
    )
    state = separate.init(problem, seeded(0))
    width = state.groups.to_entries(widths(state))
    state.mean.zero_()
    state.log_std.copy_((0.4 * width).log())  # ΔF = log 2.5 = 0.92 at mean 0
    state.mean[:, 12:17] = 10 * width[:, 12:17]
    assert separate.reduced(state)[:, 12:20].all()
    keep = shared.reduced(state)
    assert keep[:, 12:17].all()
    assert not keep[:, 17:20].any()
    assert not keep[:, :12].any()
    delta = evidence_at_zero(state.mean, state.log_std.exp(), width)[:, :20]
    assert torch.equal(keep[:, :20], delta <= mask_log_odds(delta))


def test_biases_are_pruned_with_the_roles_of_the_paper():
    problem = deep(roles=PAPER_ROLES)
    assert problem.layout.n_sparse == problem.layout.size
    state = BMR.paper().init(problem, seeded(0))
    state.mean.zero_()
    keep = BMR.paper().reduced(state)
    slices = problem.layout.slices
    assert not keep[:, slices["0.bias"]].any()
    assert keep[:, slices["2.bias"]].all()


def test_the_threshold_is_that_of_the_layer():
    problem, engine = deep(), BMR(reduction=LEARNED)
    state = engine.init(problem, seeded(0))
    state.mean[:, :9] = 0
    keep = engine.reduced(state)
    delta = evidence_at_zero(state.mean[:, :12], state.log_std[:, :12].exp(), widths(state)[:, :1])
    assert torch.equal(keep[:, :12], delta <= mask_log_odds(delta))
    assert 0 < int(keep[:, :12].sum()) < 12


def test_weights_the_caller_pruned_count_as_relaxed():
    """As needed ones they would raise ζ of the other six of their layer above the ΔF of these."""
    problem, engine = deep(), BMR(reduction=LEARNED)
    state = engine.init(problem, seeded(0))
    width = state.groups.to_entries(widths(state))
    state.mean[:, :12] = 0
    state.log_std[:, :12] = (0.6 * width[:, :12]).log()  # ΔF = 0.51
    state.mean[:, :6] = 50.0
    assert engine.reduced(state)[:, :12].all()
    state.controls.keep[:, :6] = False
    state.controls.trained[:, :6] = False
    assert not engine.reduced(state)[:, :12].any()


def test_weights_that_are_kept_but_not_trained_count_by_their_evidence():
    problem, engine = deep(), BMR()
    state = engine.init(problem, seeded(0))
    state.mean[:, :6] = 0
    state.controls.trained[:, :6] = False
    assert not engine.reduced(state)[:, :6].any()


def test_the_moments_of_the_posterior_are_those_of_a_draw_at_the_centre_of_the_scales():
    problem = deep()
    engine = BMR(init_std=0.5)
    state = engine.init(problem, seeded(0))
    posterior = engine.posterior(problem, state)
    torch.testing.assert_close(posterior.mean, state.mean[0])
    torch.testing.assert_close(posterior.std, state.log_std[0].exp())


def test_a_scale_that_nothing_determines_is_not_noise_of_the_weights():
    def spread_of_predictions(scale_std):
        model = chain(3, 40, 1, act=nn.ReLU, norm=nn.BatchNorm1d)
        data = normal32(64, 3, seed=8), normal(64, 1, seed=9).float()
        problem = Problem(model, Gaussian(0.5), data)
        engine = BMR(init_std=0.1)
        state = engine.init(problem, seeded(0))
        state.scale_log_std[:, 0] = math.log(scale_std)  # BatchNorm undoes this layer's scale
        return predict(engine.posterior(problem, state), data[0], n_samples=50).epistemic_std

    torch.testing.assert_close(spread_of_predictions(2.0), spread_of_predictions(0.01))


def test_norms_can_be_bayesian():
    case = BY_NAME["layer_norm"]
    data = case.data(11, dtype=torch.float32)
    problem = Problem(case.model(dtype=torch.float32), case.likelihood, data[:2], roles=PAPER_ROLES)
    assert problem.layout.n_bayesian == problem.layout.size
    state = run(BMR.paper(), problem, 3)
    assert torch.isfinite(state.mean).all()


def test_members_may_have_their_own_numbers():
    problem = deep()
    engine = BMR(LayerScaled(std=(0.1, 0.2)), lr=(1e-3, 2e-3))
    state = run(engine, problem, 2, n_models=2)
    assert widths(state).shape == (2, 2)
    assert widths(state)[1, 0] > 1.5 * widths(state)[0, 0]
    assert engine.kl(state).shape == (2,)
