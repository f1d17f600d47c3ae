import gc
import weakref

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations

from bayesieve.core.layout import Roles
from bayesieve.nets.convnets import lenet5, lenet5_caffe, lenet_300_100
from bayesieve.sieve.groups import dead_unit_closure, units_of


class Functional(nn.Module):
    """A convolutional network written with functions, its flattening chosen by name."""

    def __init__(self, flatten: str) -> None:
        super().__init__()
        self.conv, self.out = nn.Conv2d(1, 3, 3), nn.Linear(12, 2)
        self.flatten = flatten

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv(x)), 2).tanh()
        match self.flatten:
            case "view size":
                x = x.view(x.size(0), -1)
            case "reshape shape":
                x = x.reshape(x.shape[0], -1)
            case "torch":
                x = torch.flatten(x, 1)
            case "method":
                x = x.flatten(start_dim=1)
            case "view columns":
                x = x.view(-1, 12)
        return self.out(F.dropout(x, 0.1, training=self.training))


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 1)

    def forward(self, x):
        h = self.a(x)
        return self.c(h + self.b(torch.relu(h)))


class Branching(Residual):
    def forward(self, x):
        h = torch.relu(self.a(x))
        return self.c(h), self.b(h)


class Untraceable(Residual):
    def forward(self, x):
        return self.c(self.a(x) if x.sum() > 0 else self.b(x))


class Repeated(Residual):
    def forward(self, x):
        return self.c(torch.relu(self.a(torch.relu(self.a(x)))))


class ReadsWeight(Residual):
    def forward(self, x):
        return self.c(torch.relu(self.a(x))) + self.a.weight.sum()


class OtherInTraining(Residual):
    def forward(self, x):
        h = torch.relu(self.a(x))
        return self.c(h) + (self.b(h).sum() if self.training else 0)


class OtherInEvaluation(Residual):
    def forward(self, x):
        h = torch.relu(self.a(x))
        return self.c(h) + (0 if self.training else self.b(h).sum())


class Attended(Residual):
    def forward(self, x):
        return self.c(torch.relu(self.a(x))) * torch.softmax(self.b(x), 1).sum()


def pairs(network):
    return [(link.producer, link.consumer) for link in units_of(network).links]


def hooked(model, index):
    model[index].register_forward_hook(lambda *_: None)
    return model


def tied():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
    model[2].weight = model[0].weight
    return model


def frozen(index):
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
    model[index].requires_grad_(False)
    return model


def test_the_lenets_are_whole_chains(network_of):
    mlp = network_of(lenet_300_100((1, 28, 28), 10))
    assert pairs(mlp) == [("fc2.weight", "out.weight"), ("fc1.weight", "fc2.weight")]
    caffe = network_of(lenet5_caffe((1, 28, 28), 10))
    assert [name for name, _ in pairs(caffe)] == ["fc1.weight", "conv2.weight", "conv1.weight"]
    assert units_of(caffe).links[1].n_units == 50
    assert len(pairs(network_of(lenet5((1, 28, 28), 10)))) == 4


@pytest.mark.parametrize("flatten", ["view size", "reshape shape", "torch", "method"])
def test_functions_and_ways_to_flatten(network_of, flatten):
    assert pairs(network_of(Functional(flatten))) == [("conv.weight", "out.weight")]


def test_batchnorm_and_prelu_are_passed_and_left_alone(network_of):
    model = nn.Sequential(
        nn.Conv1d(2, 3, 3), nn.BatchNorm1d(3), nn.PReLU(3), nn.Dropout(), nn.Conv1d(3, 1, 3)
    )
    network = network_of(model)
    keep = torch.ones(network.layout.size, dtype=torch.bool)
    parts = dict(network.layout.pieces(keep))
    parts["4.weight"][:, 1] = False
    cleaned = dict(network.layout.pieces(dead_unit_closure(network, keep)))
    assert cleaned["0.weight"].flatten(1).any(1).tolist() == [True, False, True]
    assert cleaned["0.bias"].tolist() == [True, False, True]
    assert all(cleaned[name].all() for name in ("1.weight", "1.bias", "2.weight", "4.bias"))


@pytest.mark.parametrize(
    "model",
    [
        Functional("view columns"),
        Branching(),
        Untraceable(),
        Repeated(),
        OtherInTraining(),
        OtherInEvaluation(),
        tied(),
        frozen(0),
        frozen(2),
        hooked(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1)), 1),
        hooked(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1)), 2),
        nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 1)),
        nn.Sequential(nn.Linear(4, 4), nn.Softmax(1), nn.Linear(4, 1)),
        nn.Sequential(nn.Linear(4, 4), nn.MaxPool1d(1), nn.Linear(4, 1)),
        nn.Sequential(nn.Linear(4, 4), nn.Unflatten(1, (4, 1)), nn.Conv1d(4, 1, 1)),
        nn.Sequential(nn.Linear(4, 2), nn.Flatten(1), nn.Linear(8, 1)),  # inputs (n, 4, 4)
        nn.Sequential(nn.Conv1d(2, 4, 1), nn.ReLU(), nn.Linear(4, 1)),  # reads positions
        nn.Sequential(nn.Conv1d(4, 4, 1), nn.ReLU(), nn.Conv1d(4, 4, 1, groups=2)),
        nn.Sequential(nn.Conv1d(4, 4, 1, groups=2), nn.ReLU(), nn.Conv1d(4, 4, 1)),
        nn.Sequential(nn.Conv1d(4, 4, 1), nn.ReLU(), nn.ConvTranspose1d(4, 4, 1)),
        nn.Sequential(nn.Conv1d(4, 4, 1), nn.Flatten(0), nn.Linear(8, 1)),
        nn.Sequential(nn.Conv1d(4, 4, 1), nn.Flatten(), nn.MaxPool1d(2), nn.Linear(8, 1)),
        nn.Linear(4, 1),
    ],
    ids=lambda model: f"{type(model).__name__}",
)
def test_what_has_no_link_is_left_alone(network_of, model):
    network = network_of(model)
    assert pairs(network) == []
    keep = torch.zeros(network.layout.size, dtype=torch.bool)
    keep[network.layout.n_sparse :] = True
    assert torch.equal(dead_unit_closure(network, keep), keep)


def test_only_the_straight_parts_of_a_graph_are_linked(network_of):
    assert pairs(network_of(Residual())) == []
    assert pairs(network_of(Attended())) == [("a.weight", "c.weight")]
    assert pairs(network_of(ReadsWeight())) == []
    model = nn.Sequential(Residual(), nn.Linear(1, 3), nn.ReLU(), nn.Linear(3, 1))
    assert pairs(network_of(model)) == [("1.weight", "3.weight"), ("0.c.weight", "1.weight")]


def test_parametrised_layers_have_no_link(network_of):
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
    parametrizations.weight_norm(model[0])
    assert pairs(network_of(model)) == []


def test_a_layer_that_is_never_pruned_keeps_its_units(network_of):
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
    assert pairs(network_of(model, Roles(keep=("0.*",)))) == []
    assert pairs(network_of(model, Roles(keep=("2.*",)))) == [("0.weight", "2.weight")]


def test_tracing_runs_on_a_copy(network_of):
    class Counting(nn.Linear):
        calls = 0

        def forward(self, x):
            self.calls += 1
            return super().forward(x)

    network = network_of(nn.Sequential(Counting(2, 2), nn.Linear(2, 1)))
    before = network.skeleton.training
    units_of(network)
    assert network.skeleton[0].calls == 0
    assert network.skeleton.training == before


def test_the_chain_is_traced_once_and_does_not_keep_the_network(network_of, mlp):
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
    chain = units_of(network)
    values = torch.randint(0, 9, (network.layout.size,), generator=torch.Generator().manual_seed(1))
    cleaned = chain.clean(values)
    for threshold in range(9):
        assert torch.equal(cleaned > threshold, chain.clean(values > threshold))


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
