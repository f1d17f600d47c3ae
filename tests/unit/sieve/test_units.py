"""Units of linked layers: removal of units that nobody reads, and views of their weights."""

import gc
import weakref

import torch
from torch import nn

from bayesieve.sieve.units import units_of


def test_batchnorm_and_prelu_are_passed_and_left_alone(network_of):
    model = nn.Sequential(
        nn.Conv1d(2, 3, 3), nn.BatchNorm1d(3), nn.PReLU(3), nn.Dropout(), nn.Conv1d(3, 1, 3)
    )
    network = network_of(model)
    keep = torch.ones(network.layout.size, dtype=torch.bool)
    parts = dict(network.layout.pieces(keep))
    parts["4.weight"][:, 1] = False
    cleaned = dict(network.layout.pieces(units_of(network).clean(keep)))
    assert cleaned["0.weight"].flatten(1).any(1).tolist() == [True, False, True]
    assert cleaned["0.bias"].tolist() == [True, False, True]
    assert all(cleaned[name].all() for name in ("1.weight", "1.bias", "2.weight", "4.bias"))


def test_layers_without_a_link_are_left_alone(network_of):
    network = network_of(nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 1)))
    keep = torch.zeros(network.layout.size, dtype=torch.bool)
    keep[network.layout.n_sparse :] = True
    assert torch.equal(units_of(network).clean(keep), keep)


def test_units_are_traced_once_and_does_not_keep_the_network(network_of, mlp):
    network = network_of(mlp)
    assert units_of(network) is units_of(network)
    alive = weakref.ref(network)
    del network
    gc.collect()
    assert alive() is None


def test_death_travels_to_the_input_in_one_pass_and_members_are_independent(network_of, mlp):
    network = network_of(mlp)
    keep = torch.ones(3, network.layout.size, dtype=torch.bool)
    dict(network.layout.pieces(keep))["4.weight"][1] = False  # the second member reads nothing
    cleaned = units_of(network).clean(keep)
    assert cleaned[0].all()
    assert cleaned[2].all()
    assert int(cleaned[1].sum()) == 2  # the biases of the outputs
    assert keep.sum() > cleaned.sum()  # the argument is not changed


def test_cleaned_numbers_have_cleaned_thresholds(network_of, mlp):
    network = network_of(mlp)
    units = units_of(network)
    values = torch.randint(0, 9, (network.layout.size,), generator=torch.Generator().manual_seed(1))
    cleaned = units.clean(values)
    for threshold in range(9):
        assert torch.equal(cleaned > threshold, units.clean(values > threshold))


def test_fed_removes_what_leaves_units_that_nothing_reaches(network_of):
    network = network_of(nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1)))
    keep = torch.ones(9, dtype=torch.bool)
    keep[2:4] = False  # what leads into the second unit
    fed = units_of(network).fed(keep)
    assert fed.tolist() == [True, True, False, False, True, False, True, True, True]


def test_silence_travels_from_the_input_to_the_output(network_of, mlp):
    network = network_of(mlp)
    keep = torch.ones(network.layout.size, dtype=torch.bool)
    keep[:40] = False  # all of the first layer
    fed = dict(network.layout.pieces(units_of(network).fed(keep)))
    assert not any(fed[name].any() for name in ("0.weight", "2.weight", "4.weight"))
    assert fed["4.bias"].all()
