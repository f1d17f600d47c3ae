"""Chains keep statistics of norms, masks and the inclusion of the wide part besides positions."""

from itertools import pairwise

import pytest
import torch
from torch import nn

from bayesieve.core.batch import Batch
from bayesieve.core.likelihoods import Categorical
from bayesieve.core.priors_laplace import GaussianLaplace
from bayesieve.core.problem import Problem
from bayesieve.engines.sampling import Averaging, Chain
from bayesieve.engines.sgmcmc import SGHMC, SGLD
from bayesieve.sieve.schedule import AnnealedPruning
from bayesieve.training.launch import fit
from problems import known_support, seeded
from runs import fit_toy, toy, with_batch_norm

CHAIN = Chain(burn_in=4, thin=2, n_kept=3)
KEPT = [8, 10, 12]  # steps whose positions the ring holds after 12


def path_of(engine, problem, n_steps, k):
    """State after some steps, and the statistics after each of them."""
    state = engine.init(problem, seeded(0), k)
    path = [problem.workspace(k).all_buffers()["1.running_mean"].clone()]
    for step in range(n_steps):
        part = slice(step % 2 * 11, step % 2 * 11 + 11)
        engine.step(problem, state, Batch(problem.x[part], problem.y[part]))
        path.append(problem.workspace(k).all_buffers()["1.running_mean"].clone())
    return state, path


@pytest.mark.parametrize("k", [1, 2])
@pytest.mark.parametrize("n_steps", [0, 3, 7, 12])
def test_each_draw_has_the_statistics_of_its_own_moment(k, n_steps):
    problem, engine = toy(with_batch_norm), SGHMC(step_size=1e-3, chain=CHAIN)
    state, path = path_of(engine, problem, n_steps, k)
    moments = {0: [0], 3: [3], 7: [6, 7], 12: KEPT}[n_steps]
    for i in range(k):
        posterior = engine.posterior(problem, state, i)
        statistics = posterior.draw_buffers["1.running_mean"]
        assert torch.equal(statistics, torch.stack([path[step][i] for step in moments]))
        torch.testing.assert_close(posterior.buffers["1.running_mean"], statistics.mean(0))
        assert set(posterior.draw_buffers) == {"1.running_mean", "1.running_var"}
        assert engine.average(problem, state, i).draw_buffers == {}


def test_networks_without_norms_keep_no_statistics():
    run = fit_toy(toy(), SGLD(step_size=1e-3))
    assert run.state.norms is None
    assert run.posterior.draw_buffers == {}


def test_a_warm_start_takes_the_statistics_along():
    first = fit_toy(toy(with_batch_norm), SGHMC(step_size=1e-3, chain=CHAIN)).posterior
    engine = SGHMC(step_size=1e-3)
    problem = toy(with_batch_norm)
    state = engine.init(problem, seeded(0), 2)
    engine.warm_start_(state, first)
    mean = engine.posterior(problem, state, 1).draw_buffers["1.running_mean"]
    assert torch.equal(mean[0], first.buffers["1.running_mean"])


@pytest.mark.parametrize("k", [1, 2])
def test_annealed_pruning_ends_with_its_zeros_in_every_draw(k):
    # 20 epochs of 3 steps; draws are kept after the mask is final.
    engine = SGHMC(step_size=1e-3, temperature=0.1, chain=Chain.over(60, n_kept=5, burn_in=0.8))
    pruning = AnnealedPruning(zeros=0.6, periods=50, end=0.75)
    run = fit_toy(toy(), engine, epochs=20, pruning=pruning, n_models=k)
    for i in range(k):
        sparse = run.sparse(i)
        draws = sparse.posterior.draws
        assert len(draws) == 5
        assert torch.equal((draws != 0).all(0), sparse.keep)
        assert sparse.zeros == pytest.approx(0.6, abs=0.02)
    zeros = [row["zeros"] for row in run.history]
    first = zeros[0] if k == 1 else zeros[0][0]
    assert first == pytest.approx(pruning.zeros_at(1 / 20), abs=0.03)


def test_a_pruned_weight_goes_on_moving_and_may_come_back_before_the_end():
    engine = SGHMC(step_size=1e-3, chain=Chain(burn_in=1000))
    masks = []

    def watch(progress):
        masks.append(progress.posterior().mean != 0)
        return False

    pruning = AnnealedPruning(zeros=0.6, periods=50, end=0.75)
    fit_toy(toy(), engine, epochs=20, pruning=pruning, callbacks=[watch])
    back = [bool((b & ~a).any()) for a, b in pairwise(masks)]
    assert any(back[:13])
    assert not any(back[14:])


@pytest.mark.parametrize(("spike_scale", "slab_std"), [(0.1, 3.0), (0.3, 0.05)])
def test_inclusion_is_the_wider_components_whichever_that_is(spike_scale, slab_std):
    known = known_support()
    prior = GaussianLaplace(spike_scale, slab_std, slab_share=1.0)
    averaging = Averaging(scale=False, slab_prob=False)
    engine = SGLD(prior, 1e-5, adapt="em", averaging=averaging)
    state = engine.init(known.problem, seeded(0))
    state.w[0] = known.active.float()
    for _ in range(3):
        engine.step(known.problem, state, Batch(known.problem.x, known.problem.y))
    inclusion = engine.posterior(known.problem, state).inclusion
    assert inclusion[known.active].min() > inclusion[~known.active].max()


def test_a_chain_over_a_run_spreads_its_draws_over_the_end():
    chain = Chain.over(1000, n_kept=10, burn_in=0.2, last_temperature=0.01)
    assert (chain.burn_in, chain.thin, chain.n_kept) == (200, 80, 10)
    assert chain.cooling**1000 == pytest.approx(0.01)
    assert Chain.over(3, n_kept=10, burn_in=1.0).n_seen(torch.tensor(3.0)) == 1
    with pytest.raises(ValueError, match="burn_in must be between 0 and 1"):
        Chain.over(10, burn_in=2.0)


def test_a_normed_convolution_predicts_from_its_own_draws_as_in_training():
    # With a step size of 0 the draws are one network: every one of them must predict the same.
    x = torch.rand(24, 1, 6, 6, generator=seeded(0))
    y = torch.randint(3, (24,), generator=seeded(1))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        conv = nn.Conv2d(1, 2, 3, stride=2, bias=False)
        model = nn.Sequential(conv, nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3))
    engine = SGHMC(step_size=1e-12, temperature=0.0, chain=Chain(burn_in=150, thin=10, n_kept=3))
    run = fit(Problem(model, Categorical(), (x, y)), engine, steps=180, batch_size=24)
    statistics = run.posterior.draw_buffers["1.running_mean"]
    hidden = conv(x).mean((0, 2, 3)).detach()
    torch.testing.assert_close(statistics, hidden.expand(3, 2), rtol=1e-4, atol=1e-5)
