"""Mixer and ViT: sizes of the paper, shapes, errors, and life with engines and pruning."""

import pytest
import torch

from bayesieve.core.likelihoods import Categorical
from bayesieve.core.problem import Problem
from bayesieve.engines.bmr import BMR, PAPER_ROLES
from bayesieve.nets.patch_nets import mixer, vit
from bayesieve.sieve.evidence import prune_by_evidence, weight_evidence
from problems import normal, run

NETS = {"mixer": (mixer, {"token_hidden": 6}), "vit": (vit, {"n_heads": 2})}
each_net = pytest.mark.parametrize("name", NETS)


def small(name, channels=2):
    make, options = NETS[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return make((channels, 4, 6), 3, patch=2, n_blocks=2, width=8, hidden=5, **options)


@pytest.mark.parametrize(
    ("make", "channels", "n_outputs", "millions"),
    [
        (mixer, 1, 10, 1.99),
        (mixer, 3, 10, 2.0),
        (mixer, 3, 100, 2.02),
        (vit, 1, 10, 3.19),
        (vit, 3, 10, 3.2),
        (vit, 3, 100, 3.22),
    ],
)
def test_the_paper_has_as_many_parameters(make, channels, n_outputs, millions):
    net = make((channels, 32, 32), n_outputs)
    assert round(sum(p.numel() for p in net.parameters()) / 1e6, 2) == millions


@each_net
def test_images_of_any_shape_become_logits(name):
    assert small(name)(normal(5, 2, 4, 6, seed=0, dtype=torch.float32)).shape == (5, 3)


@each_net
def test_patches_are_cut_row_by_row(name):
    patches = small(name, channels=1).patches(torch.arange(24.0).view(1, 1, 4, 6))
    assert patches.shape == (1, 6, 4)
    assert patches[0, 0].tolist() == [0.0, 1.0, 6.0, 7.0]
    assert patches[0, 3].tolist() == [12.0, 13.0, 18.0, 19.0]


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # attention of two at once
@each_net
@pytest.mark.parametrize("k", [1, 2])
@pytest.mark.parametrize("roles", [{}, {"roles": PAPER_ROLES}], ids=["default", "paper"])
def test_it_trains_and_can_be_reduced(name, k, roles):
    x = normal(8, 2, 4, 6, seed=1, dtype=torch.float32)
    problem = Problem(small(name), Categorical(), (x, torch.arange(8) % 3), **roles)
    engine = BMR(lr=0.01)
    state = run(engine, problem, 4, n_models=k)
    posterior = engine.posterior(problem, state, k - 1)
    sparse = prune_by_evidence(
        posterior, weight_evidence(prior_std=engine.prior_stds(problem, state))
    )
    assert sparse.to_module()(x).isfinite().all()


@each_net
def test_wrong_sizes_are_refused(name):
    make, _ = NETS[name]
    with pytest.raises(
        ValueError, match=rf"^{name}: height and width must be multiples of patch=4"
    ):
        make((1, 30, 32), 10)
    with pytest.raises(
        ValueError, match=rf"^{name}: input_shape must be \(channels, height, width"
    ):
        make((784,), 10)
    with pytest.raises(ValueError, match=rf"^{name}: n_blocks must be > 0"):
        make((1, 32, 32), 10, n_blocks=0)


def test_heads_must_share_the_width():
    with pytest.raises(ValueError, match=r"^vit: width must be a multiple of n_heads=3, got 8"):
        vit((1, 32, 32), 10, width=8, n_heads=3)
