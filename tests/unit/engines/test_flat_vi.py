"""Tests of FlatVI alone: its start and its inclusion."""

import torch

from bayesieve.core.priors import Normal, SpikeSlab, inclusion_logit
from bayesieve.engines.flat_vi import FlatVI
from problems import run, seeded
from zoo import BY_NAME


def test_every_std_starts_where_it_is_told():
    state = FlatVI(init_std=(0.1, 0.2)).init(BY_NAME["layer_norm"].problem(), seeded(0), 2)
    for row, std in zip(state.log_std, (0.1, 0.2), strict=True):
        torch.testing.assert_close(row.exp(), torch.full_like(row, std))


def test_a_normal_prior_gives_no_inclusion():
    problem = BY_NAME["layer_norm"].problem()
    engine = FlatVI(prior=Normal((0.3, 0.6)))
    posterior = engine.posterior(problem, run(engine, problem, 2, n_models=2), member=1)
    assert posterior.inclusion is None
    assert posterior.prior == Normal(0.6)


def test_a_mixture_prior_gives_its_responsibility_at_the_mean():
    problem = BY_NAME["layer_norm"].problem()
    engine = FlatVI(prior=SpikeSlab(0.5, 0.1))
    state = run(engine, problem, 2)
    posterior = engine.posterior(problem, state)
    n = problem.layout.n_bayesian
    mean = state.mean[0, :n]
    exact = inclusion_logit(mean, torch.zeros_like(mean), engine.prior)
    torch.testing.assert_close(posterior.logit_inclusion[:n], exact)
