"""Which fractions of zeros a network can have."""

import pytest
from torch import nn

from bayesieve.compare.dropout import with_dropout
from bayesieve.compare.thinning import reachable
from bayesieve.core.likelihoods import Categorical
from bayesieve.core.network import Network
from bayesieve.core.posterior import Factorised
from bayesieve.sieve.rules import fewest_kept, keep_zeros

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


def test_what_always_stays_is_a_path_and_its_biases_unless_there_is_dropout():
    plain, dropped = (Network.of(MODELS[own](), Categorical()) for own in ("mlp", "dropout"))
    assert fewest_kept(plain) == 3 + 2 + 3  # weights, hidden biases, outputs
    assert fewest_kept(dropped) == 3 + 7 + 5 + 3
