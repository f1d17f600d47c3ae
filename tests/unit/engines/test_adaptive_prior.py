"""The stochastic approximation of the prior's latent numbers, against a slow plain version."""

import copy
import math
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.distributions import Laplace, Normal

from bayesieve.assess.predict import predict
from bayesieve.core.batch import Batch
from bayesieve.core.likelihoods import Categorical, Gaussian
from bayesieve.core.priors_laplace import GaussianLaplace
from bayesieve.core.problem import Problem
from bayesieve.core.state import snapshot
from bayesieve.engines.sampling import (
    Averaging,
    Chain,
    Residuals,
    Slope,
    drift,
    latents_of,
    share_noise_,
    update_latents_,
)
from bayesieve.engines.sgmcmc import SGHMC, SGLD
from problems import normal, seeded

F64 = torch.float64
PRIOR = GaussianLaplace(
    spike_scale=0.3, slab_std=1.5, slab_prob=0.4, slab_share=0.1, spike_share=0.7, scale=0.8,
    scale_count=3.0, scale_square=1.3, penalty=0.9,
)  # fmt: skip


def classifier():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    data = normal(6, 3, seed=0), torch.tensor([0, 1, 0, 1, 1, 0])
    return Problem(model, Categorical(), data)


def regression(noise_std=0.7, *, learned=False):
    torch.manual_seed(0)
    data = normal(6, 3, seed=0), normal(6, 2, seed=1)
    return Problem(nn.Linear(3, 2).double(), Gaussian(noise_std, learned), data)


def plain(latents, w, omega, square_sum, n_targets, prior):
    """One chain, weight by weight, with densities instead of log-odds."""
    scale = latents.scale.item()
    rho, laplace, gauss, probs, start = [], [], [], [], 0
    for layer, size in enumerate(latents.sizes):
        delta = latents.slab_prob[0, layer]
        layer_rho = []
        for j in range(start, start + size):
            wide = delta * Normal(0.0, scale * prior.slab_std).log_prob(w[0, j]).exp()
            narrow = (1 - delta) * Laplace(0.0, scale * prior.spike_scale).log_prob(w[0, j]).exp()
            new = (1 - omega) * latents.rho[0, j] + omega * wide / (wide + narrow)
            layer_rho.append(new)
            k0, k1 = (1 - new) / prior.spike_scale, new / prior.slab_std**2
            laplace.append((1 - omega) * latents.laplace[0, j] + omega * k0)
            gauss.append((1 - omega) * latents.gauss[0, j] + omega * k1)
        a, b = 1 + prior.slab_share * size, 1 + prior.spike_share * size
        best = (sum(layer_rho) + a - 1) / (a + b + size - 2)
        probs.append((1 - omega) * delta + omega * best)
        rho += layer_rho
        start += size
    laplace, gauss = torch.stack(laplace), torch.stack(gauss)
    size = w[0, :start].abs()
    r = (laplace * size).sum()
    c = (gauss * size**2).sum() + prior.scale_count * prior.scale_square + square_sum
    count = start + prior.scale_count + 2 + n_targets
    best = (r + (r**2 + 4 * count * c).sqrt()) / (2 * count)
    new_scale = ((1 - omega) * scale**2 + omega * best**2).sqrt()
    return torch.stack(rho), laplace, gauss, torch.stack(probs), new_scale


@pytest.mark.parametrize("adapt", ["none", "sa"])
def test_drift_is_the_slope_of_the_energy_with_a_normal_factor_beside_the_mixture(adapt):
    problem, engine = classifier(), SGHMC(replace(PRIOR, decay=2.5), adapt=adapt)
    state = engine.init(problem, seeded(0), 1)
    state.controls.kl_scale.fill_(0.5)
    point = state.w.clone().requires_grad_()
    (slope,) = torch.autograd.grad(engine.kl(replace(state, w=point)).sum(), point)
    at = Slope(torch.zeros(1, dtype=F64), torch.zeros_like(state.w), 6, None)
    assert torch.allclose(drift(engine, state, at), -0.5 * slope)
    plain_slope = drift(replace(engine, prior=PRIOR), state, replace(at, grad=0 * at.grad))
    n = problem.layout.n_sparse
    assert torch.allclose(at.grad[:, :n], plain_slope[:, :n] - 1.25 * state.w[:, :n])


@pytest.mark.parametrize("omega", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("shared", [False, True])
def test_one_round_agrees_with_the_plain_version(omega, shared):
    problem = regression() if shared else classifier()
    w = normal(1, problem.layout.size, seed=3)
    latents = latents_of(PRIOR, problem, w)
    n_targets = 12 if shared else 0
    residuals = Residuals(torch.tensor([5.0], dtype=F64), n_targets) if shared else None
    for _ in range(2):  # the second round starts from unequal numbers
        expected = plain(latents, w, omega, 5.0 if shared else 0.0, n_targets, PRIOR)
        weight = torch.tensor(omega, dtype=F64)
        update_latents_(latents, w, None, weight, Averaging(), residuals)
        ours = (latents.rho[0], latents.laplace[0], latents.gauss[0], latents.slab_prob[0])
        for value, theirs in zip((*ours, latents.scale[0, 0]), expected, strict=True):
            torch.testing.assert_close(value, theirs)


def test_frozen_numbers_stay():
    problem = classifier()
    w = normal(1, problem.layout.size, seed=3)
    latents = latents_of(PRIOR, problem, w)
    averaging = Averaging(scale=False, slab_prob=False)
    update_latents_(latents, w, None, torch.ones((), dtype=F64), averaging, None)
    assert (latents.slab_prob == 0.4).all()
    assert (latents.scale == 0.8).all()
    assert (latents.rho != 0.4).all()


@pytest.mark.parametrize("shared", [False, True])
def test_pruned_weights_are_no_observations_of_the_prior(shared):
    # The plain version, given the kept weights of each layer and nothing else.
    problem = regression() if shared else classifier()
    w = normal(1, problem.layout.size, seed=3)
    keep = torch.rand(w.shape, generator=seeded(0)) < 0.5
    latents = latents_of(PRIOR, problem, w)
    left = keep[0, : latents.rho.shape[1]]
    few = copy.deepcopy(latents)
    few.rho, few.laplace, few.gauss = (
        values[:, left] for values in (latents.rho, latents.laplace, latents.gauss)
    )
    few.sizes = tuple(int(part.sum()) for part in left.split(latents.sizes))
    assert 0 < min(few.sizes) <= max(few.sizes) < max(latents.sizes)
    n_targets = 12 if shared else 0
    residuals = Residuals(torch.tensor([5.0], dtype=F64), n_targets) if shared else None
    total = 5.0 if shared else 0.0
    expected = plain(few, w[:, : len(left)][:, left], 0.3, total, n_targets, PRIOR)
    weight = torch.tensor(0.3, dtype=F64)
    update_latents_(latents, w, keep, weight, Averaging(), residuals)
    ours = (latents.rho[0, left], latents.laplace[0, left], latents.gauss[0, left])
    for value, theirs in zip((*ours, latents.slab_prob[0]), expected[:4], strict=True):
        torch.testing.assert_close(value, theirs)
    torch.testing.assert_close(latents.scale[0, 0], expected[4])


def test_a_pruned_weight_has_the_inclusion_of_zero_and_an_emptied_layer_that_of_its_prior():
    problem = classifier()
    w = normal(2, problem.layout.size, seed=3)
    keep = torch.ones_like(w, dtype=torch.bool)
    keep[0, :12] = False  # the whole first layer of one chain
    latents = latents_of(PRIOR, problem, w)
    zeros = latents_of(PRIOR, problem, w)
    one = torch.ones((), dtype=F64)
    update_latents_(latents, w, keep, one, Averaging(), None)
    update_latents_(zeros, w * keep, None, one, Averaging(), None)
    assert torch.equal(latents.rho, zeros.rho)
    assert latents.slab_prob[0, 0].item() == pytest.approx(0.1 / 1.8)  # slab_share of all shares
    assert torch.equal(latents.slab_prob[1], zeros.slab_prob[1])
    assert torch.equal(latents.scale[1], zeros.scale[1])


def test_an_emptied_layer_can_fill_again():
    problem = regression()
    w = torch.zeros(1, problem.layout.size)
    latents = latents_of(GaussianLaplace(), problem, w)
    latents.slab_prob.zero_()
    w[0, 2] = 5.0
    update_latents_(latents, w, None, torch.ones(()), Averaging(), None)
    assert latents.rho[0, 2] > 0.99
    assert latents.rho[0, 0] < 1e-6


def test_the_shared_noise_replaces_the_likelihoods_own():
    problem, other = regression(0.7), regression(1.9)
    batch = Batch(problem.x, problem.y)
    w = normal(1, problem.layout.size, seed=4)
    scale = torch.tensor([[1.9]], dtype=F64)
    ours = Slope(*problem.value_and_grad(w, batch), problem.n_data)
    theirs, their_grad = other.value_and_grad(w, batch)
    share_noise_(problem, w, scale, ours)
    predicted = problem.network.outputs(w, problem.x, {})[0]
    exact = (predicted - problem.y).square().sum().item()
    assert ours.residuals.square_sum.item() == pytest.approx(exact)
    torch.testing.assert_close(ours.log_lik, theirs)
    torch.testing.assert_close(ours.grad, their_grad)


@pytest.mark.parametrize("kind", [SGLD, SGHMC])
def test_a_step_reports_the_likelihood_with_the_shared_noise(kind):
    problem, other = regression(0.7), regression(PRIOR.scale)
    engine = kind(PRIOR, 1e-6, adapt="sa")
    state = engine.init(problem, seeded(0), 2)
    batch = Batch(problem.x, problem.y)
    expected = other.value_and_grad(state.w, batch)[0].clone()
    torch.testing.assert_close(engine.step(problem, state, batch)["log_lik"], expected)


def test_the_noise_settles_by_the_residuals_alone():
    # A grid over σ of log-likelihood and log prior of σ²; the weights have no say.
    problem = regression()
    prior = GaussianLaplace(spike_scale=0.3, scale=0.8, scale_count=3.0, scale_square=1.3)
    engine = SGLD(prior, 1e-6, 0.0, "sa", Averaging(noise_first=2))
    state = engine.init(problem, seeded(0), 2)
    batch = Batch(problem.x, problem.y)
    residual = problem.network.outputs(state.w[:1], problem.x, {})[0] - problem.y
    total, n = residual.square().sum().item(), residual.numel()
    grid = torch.linspace(0.2, 5, 200_001, dtype=F64)
    value = -n * grid.log() - total / (2 * grid**2)
    value = value - (prior.scale_count + 2) * grid.log() - 3 * 1.3 / (2 * grid**2)
    best = grid[value.argmax()].item()
    engine.step(problem, state, batch)
    expected = math.sqrt(0.99 * 0.8**2 + 0.01 * best**2)
    assert state.latents.scale[0].item() == pytest.approx(expected, rel=1e-5)
    engine.step(problem, state, batch)
    later = copy.deepcopy(state.latents)  # the third follows eq. 14
    outputs = problem.network.outputs(state.w[:1], problem.x, {})[0]
    total = (outputs - problem.y).square().sum().expand(2)
    engine.step(problem, state, batch)
    omega = torch.tensor(1003**-0.7, dtype=F64)
    update_latents_(later, state.w, None, omega, Averaging(), Residuals(total, n))
    torch.testing.assert_close(state.latents.scale[0], later.scale[0])


def test_class_labels_have_no_noise_to_settle():
    engine = SGLD(PRIOR, adapt="sa", averaging=Averaging(noise_first=5))
    with pytest.raises(ValueError, match=r"SGLD: averaging\.noise_first is for real targets"):
        engine.init(classifier(), seeded(0))
    with pytest.raises(ValueError, match="Averaging: noise_first must be >= 0"):
        Averaging(noise_first=-1)


@pytest.mark.parametrize("kind", [SGLD, SGHMC])
@pytest.mark.parametrize("adapt", ["none", "sa"])
def test_a_noise_that_is_learned_follows_the_residuals_and_changes_nothing_else(kind, adapt):
    held, learned = regression(0.7), regression(0.7, learned=True)
    engine = kind(PRIOR, 1e-3, adapt=adapt, chain=Chain(thin=1, n_kept=3))
    batch = Batch(held.x, held.y)
    theirs, state = (engine.init(problem, seeded(0), 2) for problem in (held, learned))
    variance, expected = 0.7**2, []
    for _ in range(3):
        outputs = held.network.outputs(theirs.w[:1], held.x, {})[0]
        residual = (outputs - held.y).square().mean().item()
        variance += 0.01 * (residual - variance)
        expected.append(math.sqrt(variance))
        log_lik = engine.step(held, theirs, batch)["log_lik"]
        torch.testing.assert_close(engine.step(learned, state, batch)["log_lik"], log_lik)
    torch.testing.assert_close(state.w[:, :-1], theirs.w)
    torch.testing.assert_close(state.latents.scale, theirs.latents.scale)
    prediction = predict(engine.posterior(learned, state), learned.x, n_samples=3)
    assert prediction.noise_std.flatten().tolist() == pytest.approx(expected)


@pytest.mark.slow
def test_predictions_have_the_noise_that_the_chain_found():
    x = normal(200, 3, seed=0)
    y = x[:, :1] + 0.3 * normal(200, 1, seed=1)
    problem = Problem(nn.Linear(3, 1).double(), Gaussian(learned=True), (x, y))
    engine = SGLD(GaussianLaplace(), 3e-5, adapt="sa", chain=Chain(burn_in=500, thin=50))
    state = engine.init(problem, seeded(0))
    for _ in range(800):
        engine.step(problem, state, Batch(x, y))
    prediction = predict(engine.posterior(problem, state), x, n_samples=5)
    assert prediction.noise_std.mean().item() == pytest.approx(0.3, rel=0.2)


def test_omega_falls_from_its_first_value_and_never_exceeds_one():
    steps = torch.tensor([0.0, 1e3, 1e5], dtype=F64)
    ours = Averaging(weight=10.0, delay=1000.0, power=0.7).omega(steps)
    expected = [10 * (k + 1000) ** -0.7 for k in (0, 1e3, 1e5)]
    assert ours.tolist() == pytest.approx(expected)
    assert Averaging(weight=1e9).omega(steps).tolist() == [1, 1, 1]


@pytest.mark.parametrize("adapt", ["none", "sa", "em"])
def test_what_adapts_and_what_does_not(adapt):
    problem = classifier()
    engine = SGLD(prior=PRIOR, step_size=1e-3, adapt=adapt)
    state = engine.init(problem, seeded(0), 2)
    before = snapshot(state)
    engine.step(problem, state, Batch(problem.x, problem.y))
    after = snapshot(state)
    moved = [name for name in before if "latents" in name and (before[name] != after[name]).any()]
    learned = ["rho", "laplace", "gauss", "slab_prob", "scale"]
    assert moved == ([] if adapt == "none" else [f"latents.{name}" for name in learned])
    omega = {"none": 0.0, "sa": 1001**-0.7, "em": 1.0}[adapt]
    fresh = latents_of(PRIOR, problem, state.w)
    update_latents_(fresh, state.w, None, torch.tensor(omega, dtype=F64), Averaging(), None)
    torch.testing.assert_close(state.latents.rho, fresh.rho)
    inclusion = engine.posterior(problem, state).inclusion
    if adapt == "none":
        assert inclusion is None
    else:
        torch.testing.assert_close(inclusion[:20], state.latents.rho[0])
        assert (inclusion[20:] == 1).all()
