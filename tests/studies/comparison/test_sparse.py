"""Which fractions of zeros a network can have, and what pruned ones are trained with."""

import pytest
import torch
from torch import nn

from bayesieve.core.likelihoods import Categorical
from bayesieve.core.network import Network
from bayesieve.core.posterior import Factorised
from bayesieve.core.problem import Problem
from bayesieve.engines.map import MAP
from bayesieve.sieve.rules import fewest_kept, keep_zeros
from bayesieve.training.launch import fit
from bayesieve.training.schedule import Schedule
from studies.comparison import measure
from studies.comparison.budget import Compare
from studies.comparison.measure import reachable
from studies.comparison.methods import DroppedLinear, Method, with_dropout

MODELS = {
    "mlp": lambda: nn.Sequential(nn.Linear(6, 7), nn.ReLU(), nn.Linear(7, 5), nn.Tanh(),
                                 nn.Linear(5, 3)),
    "no hidden layer": lambda: nn.Linear(9, 2),
    "convolution": lambda: nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(),
                                         nn.Linear(16, 2)),
    "normalised": lambda: nn.Sequential(nn.Linear(6, 7), nn.BatchNorm1d(7), nn.ReLU(),
                                        nn.Linear(7, 2)),
    "dropout": lambda: with_dropout(MODELS["mlp"](), 0.1),
}  # fmt: skip


def point(model):
    network = Network.of(model, Categorical())
    mean = network.weights_of(model)
    return Factorised(network, mean, mean * 0)


@pytest.mark.parametrize("name", MODELS)
def test_pruning_succeeds_exactly_where_it_is_said_to(name):
    posterior = point(MODELS[name]())
    size, fewest = posterior.layout.size, fewest_kept(posterior.network)
    assert 0 < fewest < size
    levels = tuple(1 - n / size for n in (fewest - 1, fewest, fewest + 1))
    within, reasons = reachable(posterior.network, levels)
    assert within == levels[1:]
    assert list(reasons) == [levels[0]]
    assert reasons[levels[0]].startswith(f"{fewest - 1} of {size} parameters may stay")
    for zeros in within:
        assert int(keep_zeros(zeros, score="magnitude")(posterior).sum()) <= size * (1 - zeros) + 1
    assert int(keep_zeros(levels[1], score="magnitude")(posterior).sum()) == fewest
    with pytest.raises(ValueError, match=f"but {fewest} always do"):
        keep_zeros(levels[0], score="magnitude")(posterior)


def test_what_always_stays_is_a_path_and_its_biases():
    plain = Network.of(MODELS["mlp"](), Categorical())
    assert fewest_kept(plain) == 3 + 2 + 3  # weights, hidden biases, outputs


def trained_on(monkeypatch, kind, compile="off"):
    """What `sieved` makes of a network, and the arguments of its training."""
    given = {}

    def noted(*arguments, **named):
        given.update(named)
        return fit(*arguments, **named)

    monkeypatch.setattr(measure, "fit", noted)
    torch.manual_seed(0)
    plain = MODELS["mlp"]()
    model = with_dropout(plain, 0.1) if kind == "dropout" else plain
    problem = Problem(model, Categorical(), (torch.randn(32, 6), torch.arange(32) % 3))
    method = Method("it", MAP(), Schedule(), "magnitude", kind)
    budget = Compare(
        "unused", epochs=1, batch_size=16, seeds=1, zeros=(0.8,), finetune=1, compile=compile
    )
    learned = [fit(problem, MAP(), epochs=1, seed=0).posterior]
    units = Network.of(plain, Categorical())
    ((one,),) = measure.sieved(method, problem, learned, budget, units)
    return one, given


def test_dropout_loses_the_biases_of_dead_units_like_the_network_without_it(monkeypatch):
    dropped, plain = (trained_on(monkeypatch, kind)[0] for kind in ("dropout", "point"))
    hidden = dropped.layout.slices["0.bias"]
    assert 0 < dropped.keep[hidden].sum() < 7
    assert dropped.zeros == pytest.approx(plain.zeros, abs=0.05)
    assert any(isinstance(layer, DroppedLinear) for layer in dropped.network.skeleton.modules())


def test_what_is_left_trains_as_the_whole_did(monkeypatch):
    assert trained_on(monkeypatch, "point")[1]["schedule"].compile == "off"
    assert trained_on(monkeypatch, "point", "auto")[1]["schedule"].compile == "auto"
