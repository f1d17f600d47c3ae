"""MAP against torch.optim on the original module."""

import pytest
import torch
from torch import distributions as td

from bayesieve.core.posterior import Samples
from bayesieve.core.priors import Normal, SpikeSlab, inclusion_logit
from bayesieve.engines.map import MAP
from problems import run, seeded
from zoo import BY_NAME, plain_log_lik

OPTIMIZERS = {"adamw": torch.optim.AdamW, "adam": torch.optim.Adam, "sgd": torch.optim.SGD}
PRIORS = [None, Normal(0.3), SpikeSlab(0.5, 0.1, 0.4)]


def log_density(prior, w):
    if isinstance(prior, Normal):
        return td.Normal(torch.zeros_like(w), prior.std).log_prob(w)
    weights = torch.tensor([prior.slab_prob, 1 - prior.slab_prob], dtype=w.dtype)
    scales = torch.tensor([prior.slab_std, prior.spike_std], dtype=w.dtype)
    components = td.Normal(torch.zeros_like(scales), scales)
    return td.MixtureSameFamily(td.Categorical(weights), components).log_prob(w)


def by_torch(engine, case, layout, batches, n_data, dtype, n_steps=20):
    model = case.model(dtype=dtype).train()
    named = dict(model.named_parameters())
    bayesian = [named[name] for name in layout.names[: sum(r < 2 for r in layout.roles)]]
    points = [named[name] for name in layout.names[len(bayesian) :]]
    settings = {"momentum": engine.momentum} if engine.optimizer == "sgd" else {}
    groups = [
        {"params": bayesian, "weight_decay": engine.weight_decay},
        {"params": points, "weight_decay": 0.0},
    ]
    optimizer = OPTIMIZERS[engine.optimizer](groups, lr=engine.lr, **settings)
    for step in range(n_steps):
        batch = batches[step % len(batches)]
        loss = -plain_log_lik(case.likelihood, model(batch.x), batch.y, torch.zeros(())) / batch.n
        if engine.prior is not None:
            loss = loss - sum(log_density(engine.prior, p).sum() for p in bayesian) / n_data
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return layout.flatten(model)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("prior", PRIORS, ids=str)
def test_twenty_steps_equal_torch(optimizer, weight_decay, prior):
    case = BY_NAME["layer_norm"]
    engine = MAP(prior=prior, optimizer=optimizer, lr=0.01, weight_decay=weight_decay)
    problem = case.problem(n=6)
    batches = [case.data(4, seed=8), case.data(2, seed=9)]
    state = run(engine, problem, 20, batches=batches)
    exact = by_torch(engine, case, problem.layout, batches, 6, torch.float64)
    torch.testing.assert_close(state.w[0], exact, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", ["batch_norm_2d", "embedding"])
def test_float32_networks_equal_torch_too(optimizer, name):
    case = BY_NAME[name]
    engine = MAP(optimizer=optimizer, lr=1e-3, weight_decay=0.1)
    problem = case.problem(n=6, dtype=torch.float32)
    batches = [case.data(4, seed=s, dtype=torch.float32) for s in (8, 9)]
    state = run(engine, problem, 20, batches=batches)
    exact = by_torch(engine, case, problem.layout, batches, 6, torch.float32)
    torch.testing.assert_close(state.w[0], exact, rtol=0, atol=1e-6)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_learning_rates_may_differ_between_members(optimizer):
    case = BY_NAME["mlp"]
    engine = MAP(optimizer=optimizer, lr=(0.01, 0.02), weight_decay=0.1, prior=Normal((0.5, 1.0)))
    problem = case.problem()
    start = engine.init(problem, seeded(0), 2).w
    state = run(engine, problem, 5, n_models=2)
    for i, lr in enumerate((0.01, 0.02)):
        alone = MAP(optimizer=optimizer, lr=lr, weight_decay=0.1, prior=engine.prior.member(i))
        single = alone.init(problem, seeded(0))
        single.w.copy_(start[i : i + 1])
        for _ in range(5):
            alone.step(problem, single, case.data())
        torch.testing.assert_close(state.w[i], single.w[0])


def test_scales_reach_the_step():
    case = BY_NAME["mlp"]
    state = MAP(prior=Normal(0.1), lr=0.01).init(case.problem(), seeded(0))
    state.controls.lr_scale.fill_(0.5)
    state.controls.kl_scale.fill_(0.25)
    other = MAP(prior=Normal(0.2), lr=0.005)  # a quarter of the precision
    expected = run(other, case.problem(), 5)
    problem = case.problem()
    for _ in range(5):
        MAP(prior=Normal(0.1), lr=0.01).step(problem, state, case.data())
    torch.testing.assert_close(state.w, expected.w)


@pytest.mark.parametrize("name", ["mlp", "layer_norm"])
@pytest.mark.parametrize("prior", PRIORS[1:], ids=str)
def test_kl_is_minus_the_log_prior_of_the_bayesian_weights(prior, name):
    problem = BY_NAME[name].problem()
    engine = MAP(prior=prior)
    state = engine.init(problem, seeded(0), 2)
    n = problem.layout.n_bayesian
    exact = -log_density(prior, state.w[:, :n]).sum(1)
    torch.testing.assert_close(engine.kl(state), exact)


def test_without_a_prior_the_kl_is_zero():
    state = MAP().init(BY_NAME["mlp"].problem(), seeded(0), 2)
    assert MAP().kl(state).tolist() == [0, 0]


def test_the_posterior_is_one_draw_with_the_responsibility_of_the_slab():
    problem = BY_NAME["layer_norm"].problem()
    engine = MAP(prior=PRIORS[2])
    state = run(engine, problem, 3, n_models=2)
    posterior = engine.posterior(problem, state, member=1)
    assert isinstance(posterior, Samples)
    assert torch.equal(posterior.draws, state.w[1:])
    n = problem.layout.n_bayesian
    weights = state.w[1, :n]
    logit = inclusion_logit(weights, torch.zeros_like(weights), PRIORS[2])
    torch.testing.assert_close(posterior.logit_inclusion[:n], logit)
    assert (posterior.inclusion[n:] == 1).all()
    assert MAP().posterior(problem, run(MAP(), problem, 1)).inclusion is None
