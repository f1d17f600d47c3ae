"""The mixer: sizes of the paper, shapes, errors, and life with engines and pruning."""

import pytest
import torch

from bayesieve.core.likelihoods import Categorical
from bayesieve.core.problem import Problem
from bayesieve.engines.bmr import BMR, PAPER_ROLES
from bayesieve.nets.mixer import mixer
from bayesieve.sieve.bmr import reduce, support
from problems import normal, run


def count(net):
    return sum(p.numel() for p in net.parameters())


@pytest.mark.parametrize(
    ("channels", "n_outputs", "millions"), [(1, 10, 1.99), (3, 10, 2.0), (3, 100, 2.02)]
)
def test_the_paper_has_as_many_parameters(channels, n_outputs, millions):
    assert round(count(mixer((channels, 32, 32), n_outputs)) / 1e6, 2) == millions


def small():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return mixer((2, 4, 6), 3, patch=2, n_blocks=2, width=8, hidden=5, token_hidden=6)


def test_images_of_any_shape_become_logits():
    assert small()(normal(5, 2, 4, 6, seed=0, dtype=torch.float32)).shape == (5, 3)


def test_patches_are_cut_row_by_row():
    image = torch.arange(24.0).view(1, 1, 4, 6)
    patches = mixer((1, 4, 6), 3, patch=2, n_blocks=1, width=8, hidden=5, token_hidden=6).patches(
        image
    )
    assert patches.shape == (1, 6, 4)
    assert patches[0, 0].tolist() == [0.0, 1.0, 6.0, 7.0]
    assert patches[0, 3].tolist() == [12.0, 13.0, 18.0, 19.0]


@pytest.mark.parametrize("k", [1, 2])
@pytest.mark.parametrize("roles", [{}, {"roles": PAPER_ROLES}], ids=["default", "paper"])
def test_it_trains_and_can_be_reduced(k, roles):
    x = normal(8, 2, 4, 6, seed=1, dtype=torch.float32)
    problem = Problem(small(), Categorical(), (x, torch.arange(8) % 3), **roles)
    engine = BMR(lr=0.01)
    state = run(engine, problem, 4, n_models=k)
    posterior = engine.posterior(problem, state, k - 1)
    sparse = reduce(posterior, support(prior_std=engine.prior_stds(problem, state)))
    assert sparse.to_module()(x).isfinite().all()


def test_wrong_sizes_are_refused():
    with pytest.raises(ValueError, match=r"^mixer: height and width must be multiples of patch=4"):
        mixer((1, 30, 32), 10)
    with pytest.raises(ValueError, match=r"^mixer: input_shape must be \(channels, height, width"):
        mixer((784,), 10)
    with pytest.raises(ValueError, match=r"^mixer: n_blocks must be > 0"):
        mixer((1, 32, 32), 10, n_blocks=0)
