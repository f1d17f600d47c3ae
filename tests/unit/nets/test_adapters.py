"""Low-rank adapters: the given network at the start, exact when merged, ranks that are units."""

import pytest
import torch
from torch import nn

from bayesieve.core.likelihoods import Categorical, Gaussian
from bayesieve.core.problem import Problem
from bayesieve.engines.sbnn import SBNN
from bayesieve.nets.adapters import Adapter, adapters, merged
from bayesieve.sieve.schedule import GradualUnits
from bayesieve.training.launch import fit
from problems import normal
from zoo import built


class Transposed(nn.Module):
    """A linear map as GPT-2 has it: (inputs, outputs)."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.weight = nn.Parameter(normal(inputs, outputs, seed=inputs))
        self.bias = nn.Parameter(normal(outputs, seed=outputs))

    def forward(self, x):
        return torch.addmm(self.bias, x, self.weight)


def network():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers = [nn.Linear(4, 6), nn.Tanh(), Transposed(6, 5), nn.Tanh(), Transposed(5, 5)]
        return nn.Sequential(*layers, nn.Tanh(), nn.Linear(5, 2)).double()


def moved(model):
    """The same network after its adapters have learned something."""
    for module in model.modules():
        if isinstance(module, Adapter):
            module.up.weight.data.copy_(normal(*module.up.weight.shape, seed=3))
    return model


def test_at_the_start_it_is_the_given_network_and_the_given_one_is_left_alone():
    model, x = network(), normal(7, 4, seed=1)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    adapted = adapters(model, rank=2)
    assert torch.equal(adapted(x), model(x))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(p.requires_grad for p in model.parameters())
    trained = [name for name, p in adapted.named_parameters() if p.requires_grad]
    assert trained == [f"{i}.{part}.weight" for i in (0, 2, 4, 6) for part in ("down", "up")]


@pytest.mark.parametrize("alpha", [None, 8.0])
def test_merging_is_exact_and_gives_back_the_form_of_the_original(alpha):
    model, x = network(), normal(7, 4, seed=1)
    adapted = moved(adapters(model, rank=2, alpha=alpha))
    plain = merged(adapted)
    assert not torch.allclose(adapted(x), model(x))
    torch.testing.assert_close(plain(x), adapted(x), rtol=1e-12, atol=1e-12)
    assert [type(m) for m in plain.modules()] == [type(m) for m in model.modules()]
    assert all(p.requires_grad for p in plain.parameters())
    assert isinstance(adapted[0], Adapter)  # left as it was


@pytest.mark.parametrize("stride", [1, 2])
def test_convolutions_have_adapters_and_merge_exactly(stride):
    layers = [nn.Conv2d(3, 6, 3, stride, 1, padding_mode="circular"), nn.Tanh(), nn.Conv2d(6, 4, 1)]
    model, x = nn.Sequential(*layers).double(), normal(2, 3, 6, 6, seed=1)
    adapted = adapters(model, rank=2, alpha=3.0)
    assert torch.equal(adapted(x), model(x))
    plain = merged(moved(adapted))
    assert not torch.allclose(adapted(x), model(x))
    torch.testing.assert_close(plain(x), adapted(x), rtol=1e-12, atol=1e-12)
    assert [type(m) for m in plain.modules()] == [type(m) for m in model.modules()]


def test_modules_that_are_new_are_learned_whole():
    adapted = adapters(network(), rank=2, whole=("6",))
    trained = [name for name, p in adapted.named_parameters() if p.requires_grad]
    assert trained[-2:] == ["6.weight", "6.bias"]
    assert len(trained) == 2 * 3 + 2


def test_targets_are_names_or_types_and_a_bare_layer_is_a_network():
    chosen = adapters(network(), rank=2, target=("6", Transposed))
    kinds = [isinstance(layer, Adapter) for layer in chosen]
    assert kinds == [False, False, True, False, True, False, True]
    layer = adapters(nn.Linear(3, 2), rank=8)
    assert layer.down.weight.shape == (2, 3)  # no more than the matrix has
    assert type(merged(layer)) is nn.Linear


def test_a_posterior_is_over_the_adapters_alone_and_its_mean_merges():
    model, x = network(), normal(60, 4, seed=1)
    y = (x[:, 0] > 0).long()
    problem = built(lambda: Problem(adapters(model, rank=2), Categorical(), (x, y)))
    assert problem.layout.size == problem.layout.n_sparse == 2 * (10 + 11 + 10 + 7)
    before = Problem(model, Categorical(), (x, y))
    done = fit(problem, SBNN(lr=0.02), epochs=15, batch_size=20)
    adapted = done.posterior.to_module()
    plain = merged(adapted)
    torch.testing.assert_close(plain(x), adapted(x), rtol=1e-10, atol=1e-10)
    loss = nn.functional.cross_entropy
    assert loss(plain(x), y) < 0.8 * loss(before._model(x), y)


def test_ranks_are_units_that_can_be_sieved():
    model, x = nn.Sequential(nn.Linear(6, 5)).double(), normal(200, 6, seed=1)
    low = normal(5, 1, seed=2) @ normal(1, 6, seed=3)  # the data ask for one rank
    with torch.no_grad():
        y = model(x) + x @ low.T
    problem = Problem(adapters(model, rank=4), Gaussian(0.1), (x, y))
    pruning = GradualUnits(keep_units=0.25)
    sparse = fit(problem, SBNN(lr=0.03), epochs=60, batch_size=50, pruning=pruning).sparse()
    down, up = (sparse.keep[problem.layout.slices[f"0.{part}.weight"]] for part in ("down", "up"))
    ranks = down.view(4, 6).any(1)
    assert int(ranks.sum()) == 1
    assert torch.equal(up.view(5, 4).any(0), ranks)
    error = (sparse.to_module()(x) - y).square().mean() / y.var()
    assert error < 0.05


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (network(), {"rank": 0}, "rank must be > 0"),
        (network(), {"target": ("7",)}, r"target '7' fits no linear map of the model; they are 0"),
        (network(), {"whole": ("head",)}, "whole 'head' fits no module"),
        (nn.Sequential(nn.Conv2d(2, 2, 1, groups=2)), {}, "no linear map"),
    ],
)
def test_wrong_arguments_are_refused(model, options, message):
    with pytest.raises(ValueError, match=message):
        adapters(model, **options)
