"""Mean-field engines against the same objective written naively and left to autograd.

The naive version knows nothing of the chain rule in closed form, of flat buffers or of the
library's formulas: torch.distributions, functional_call and torch.optim only.
"""

import math

import pytest
import torch
from torch import distributions as td
from torch import nn
from torch.func import functional_call

from bayesieve.core import execution
from bayesieve.core.batch import Batch
from bayesieve.core.priors import Normal, SpikeSlab, member_number
from bayesieve.core.state import named_tensors
from bayesieve.engines.flat_vi import FlatVI
from bayesieve.engines.sbnn import SBNN
from problems import run, seeded
from zoo import BY_NAME, plain_log_lik

MIXED = SpikeSlab(0.5, 0.1, 0.4)
ENGINES = [
    SBNN(prior=MIXED, lr=0.01),
    FlatVI(prior=Normal(0.3), lr=0.01, init_std=0.1),
    FlatVI(prior=MIXED, lr=0.01, init_std=0.1),
]


def centred(std, like):
    return td.Normal(torch.zeros_like(like), torch.full_like(like, std))


def naive_kl(engine, prior, mean, std, w):
    """Prior term of one member, differentiable in mean and std."""
    q = td.Normal(mean, std)
    if isinstance(prior, Normal):
        return td.kl_divergence(q, centred(prior.std, mean)).sum()
    slab, spike = centred(prior.slab_std, mean), centred(prior.spike_std, mean)
    log_pi, log_rest = math.log(prior.slab_prob), math.log1p(-prior.slab_prob)
    if isinstance(engine, FlatVI):  # log q(w) - log p(w) at the draw
        log_prior = torch.logaddexp(slab.log_prob(w) + log_pi, spike.log_prob(w) + log_rest)
        return (q.log_prob(w) - log_prior).sum()
    # p = argmin of p (A + log p) + (1 - p) (B + log(1 - p)), held fixed while (m, s) move
    in_slab = td.kl_divergence(q, slab) - log_pi
    in_spike = td.kl_divergence(q, spike) - log_rest
    p = torch.softmax(torch.stack([-in_slab, -in_spike]), 0)[0].detach()
    entropy = td.Bernoulli(p).entropy()
    return (p * in_slab + (1 - p) * in_spike - entropy).sum()


def weight_draw(case, layout, mean, log_std, noise, batch, generator):
    """The log-likelihood at a draw, and the draw."""
    w = mean[: layout.n_bayesian] + log_std.exp() * noise
    tensors = layout.unflatten(torch.cat([w, mean[layout.n_bayesian :]]))
    log_noise = tensors.pop("likelihood.log_noise_std", None)
    if log_noise is None:
        log_noise = torch.tensor(getattr(case.likelihood, "noise_std", 1.0)).log()
    output = functional_call(case.model(), tensors, (batch.x,))
    return plain_log_lik(case.likelihood, output, batch.y, log_noise), w


def local_draw(case, layout, mean, log_std, noise, batch, generator):
    """The log-likelihood of a Linear-Tanh-Linear network with noise on its activations."""
    means, stds = layout.unflatten(mean), layout.unflatten(log_std.exp())
    h = batch.x
    for name in ("0", "2"):
        var = h**2 @ (stds[f"{name}.weight"] ** 2).T + stds[f"{name}.bias"] ** 2
        h = h @ means[f"{name}.weight"].T + means[f"{name}.bias"]
        h = h + var.sqrt() * torch.empty_like(h).normal_(generator=generator)
        h = torch.tanh(h) if name == "0" else h
    return plain_log_lik(case.likelihood, h, batch.y, torch.zeros(())), None


def naive_run(engine, case, batches, *, k, draw, lr_scale, kl_scale, n_steps):
    problem = case.problem(n=6)
    start = engine.init(problem, seeded(0), k)
    generator = start.generator  # after whatever the starting points took from it
    means = [row.clone().requires_grad_() for row in start.mean]
    log_stds = [row.clone().requires_grad_() for row in start.log_std]
    optimizers = [
        torch.optim.Adam([m, s], lr=member_number(engine.lr, i) * lr_scale)
        for i, (m, s) in enumerate(zip(means, log_stds, strict=True))
    ]
    for step in range(n_steps):
        batch = batches[step % len(batches)]
        noise = torch.empty_like(start.log_std)
        if draw is weight_draw:
            noise.normal_(generator=generator)
        for i in range(k):
            args = problem.layout, means[i], log_stds[i], noise[i], batch, generator
            log_lik, w = draw(case, *args)
            mean = means[i][: problem.layout.n_bayesian]
            kl = naive_kl(engine, engine.prior.member(i), mean, log_stds[i].exp(), w)
            optimizers[i].zero_grad()
            (kl_scale * kl / 6 - log_lik / batch.n).backward()
            optimizers[i].step()
    return torch.stack(means).detach(), torch.stack(log_stds).detach()


def assert_same_path(engine, case, *, k=1, draw=weight_draw, lr_scale=1.0, kl_scale=1.0):
    batches = [case.data(4, seed=8), case.data(2, seed=9)]
    problem = case.problem(n=6)
    state = engine.init(problem, seeded(0), k)
    state.controls.lr_scale.fill_(lr_scale)
    state.controls.kl_scale.fill_(kl_scale)
    for step in range(20):
        engine.step(problem, state, batches[step % 2])
    mean, log_std = naive_run(
        engine, case, batches, k=k, draw=draw, lr_scale=lr_scale, kl_scale=kl_scale, n_steps=20
    )
    torch.testing.assert_close(state.mean, mean, rtol=1e-7, atol=1e-8)
    torch.testing.assert_close(state.log_std, log_std, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("engine", ENGINES, ids=str)
@pytest.mark.parametrize("name", ["layer_norm", "learned_noise", "conv2d"])
def test_twenty_steps_equal_autograd_and_torch_adam(engine, name):
    assert_same_path(engine, BY_NAME[name])


@pytest.mark.parametrize("engine", ENGINES, ids=str)
def test_scales_of_learning_rate_and_prior_reach_the_step(engine):
    assert_same_path(engine, BY_NAME["mlp"], lr_scale=0.5, kl_scale=3.0)


@pytest.mark.parametrize(
    "engine",
    [
        SBNN(prior=SpikeSlab((0.5, 0.7), (0.1, 0.2), (0.4, 0.6)), lr=(0.01, 0.02)),
        FlatVI(prior=Normal((0.3, 0.6)), lr=(0.01, 0.02), init_std=(0.1, 0.05)),
        FlatVI(prior=SpikeSlab((0.5, 0.7), 0.1), lr=0.01, init_std=0.1),
    ],
    ids=str,
)
def test_members_of_a_population_follow_their_own_settings(engine):
    assert_same_path(engine, BY_NAME["mlp"], k=2)


@pytest.mark.parametrize(
    "engine",
    [
        SBNN(prior=MIXED, lr=0.01, local=True),
        FlatVI(prior=Normal(0.3), lr=0.01, init_std=0.1, local=True),
    ],
    ids=str,
)
def test_local_noise_equals_autograd_through_the_activations(engine):
    assert_same_path(engine, BY_NAME["mlp"], draw=local_draw)


@pytest.mark.parametrize("engine", [SBNN(prior=MIXED, local=True), FlatVI(local=True)], ids=str)
def test_layers_that_cannot_be_local_are_drawn_in_weight_space(engine):
    # The root module cannot be replaced, so `local` must change nothing here.
    case = BY_NAME["linear"]
    plain = type(engine)(prior=engine.prior)
    batch = [case.data()]
    ours, theirs = (run(e, case.problem(), 5, batches=batch) for e in (engine, plain))
    torch.testing.assert_close(ours.mean, theirs.mean)
    torch.testing.assert_close(ours.log_std, theirs.log_std)


@pytest.mark.parametrize("engine", ENGINES[:2], ids=str)
def test_kl_is_that_of_the_naive_objective(engine):
    case = BY_NAME["layer_norm"]
    state = run(engine, case.problem(), 5, n_models=2)
    n = case.problem().layout.n_bayesian
    for i in range(2):
        exact = naive_kl(engine, engine.prior, state.mean[i, :n], state.log_std[i].exp(), None)
        torch.testing.assert_close(engine.kl(state)[i], exact)
    assert engine.kl(state).dtype == torch.float64
    state.controls.allow_masks_(state.mean)
    state.controls.trained[:, :n] = False
    assert (engine.kl(state) == 0).all()


def test_kl_at_a_draw_estimates_the_kl_to_the_mixture():
    # With equal components the mixture is one Gaussian and the KL is known.
    model = nn.Sequential(nn.Linear(50, 100)).double()
    case = BY_NAME["mlp"]
    engine = FlatVI(prior=SpikeSlab(0.4, 0.4), init_std=0.2)
    problem = type(case.problem())(
        model, case.likelihood, (torch.zeros(1, 50).double(), torch.zeros(1).long())
    )
    state = engine.init(problem, seeded(0))
    q = td.Normal(state.mean, state.log_std.exp())
    exact = td.kl_divergence(q, centred(0.4, state.mean)).sum()
    # log q - log p at one draw has variance of at most (1 + mean²/prior²) per weight here
    assert (engine.kl(state) - exact).abs() < 4 * math.sqrt(state.mean.numel())
    before = state.generator.get_state()
    assert engine.kl(state) == engine.kl(state)
    assert torch.equal(state.generator.get_state(), before)


@pytest.mark.parametrize("engine", ENGINES, ids=str)
def test_point_parameters_have_no_spread_and_no_prior(engine):
    case = BY_NAME["layer_norm"]
    problem = case.problem()
    state = run(engine, problem, 3)
    posterior = engine.posterior(problem, state)
    points = slice(problem.layout.n_bayesian, None)
    assert (posterior.std[points] == 0).all()
    assert (posterior.std[: points.start] > 0).all()
    if posterior.inclusion is not None:
        assert (posterior.inclusion[points] == 1).all()
    start = engine.init(problem, seeded(0)).mean
    assert (state.mean != start)[0, points].all()  # they are trained all the same


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("engine", ENGINES)
def test_a_step_in_parts_is_the_step_as_a_whole(engine, masked, monkeypatch):
    """Parts save memory; they must change no more than rounding, and cover every weight once."""
    states = []
    for size in (1 << 16, 7):
        monkeypatch.setattr(execution, "_PART", size)
        problem = BY_NAME["batch_norm"].problem(11)
        w, n = problem.initial[None], problem.layout.n_bayesian
        parts = execution._parts(w, n)
        assert [i for part in parts for i in range(part.start, part.stop)] == [*range(w.shape[1])]
        assert len(parts) == 1 or all(part.stop <= n or part.start >= n for part in parts)
        assert (len(parts) > 1) == (size == 7)
        state = engine.init(problem, seeded(0), 2)
        if masked:
            mask = torch.arange(w.shape[1]).expand(2, -1) % 3 > 0
            state.controls.keep, state.controls.trained = mask, mask
        for _ in range(3):
            engine.step(problem, state, Batch(problem.x, problem.y))
        states.append(state)
    for (name, one), (_, other) in zip(*map(named_tensors, states), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-14, msg=name)
