"""Links of layers and the table of operations, read from traced networks."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations

from bayesieve.core.layout import Roles, default_role
from bayesieve.core.likelihoods import Gaussian
from bayesieve.core.network import Network, sequential_layers
from bayesieve.core.workspace import ENTRYWISE
from bayesieve.errors import UnsupportedModelError
from bayesieve.graph import operations
from bayesieve.graph.capture import capture
from bayesieve.graph.links import links
from bayesieve.graph.operations import OPERATIONS, Kind, Operation
from bayesieve.nets.convnets import lenet5, lenet5_caffe, lenet_300_100


def network_of(model, rule=default_role):
    return Network.of(model, Gaussian(), rule)


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
    return [(link.producer, link.consumer) for link in links(network)]


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


def test_every_layer_of_the_lenets_is_linked():
    mlp = network_of(lenet_300_100((1, 28, 28), 10))
    assert pairs(mlp) == [("fc2.weight", "out.weight"), ("fc1.weight", "fc2.weight")]
    caffe = network_of(lenet5_caffe((1, 28, 28), 10))
    assert [name for name, _ in pairs(caffe)] == ["fc1.weight", "conv2.weight", "conv1.weight"]
    assert links(caffe)[1].n_units == 50
    assert len(pairs(network_of(lenet5((1, 28, 28), 10)))) == 4


@pytest.mark.parametrize("flatten", ["view size", "reshape shape", "torch", "method"])
def test_functions_and_spellings_of_flatten(flatten):
    assert pairs(network_of(Functional(flatten))) == [("conv.weight", "out.weight")]


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
def test_paths_without_a_link(model):
    assert pairs(network_of(model)) == []


def test_only_the_straight_parts_of_a_graph_are_linked():
    assert pairs(network_of(Residual())) == []
    assert pairs(network_of(Attended())) == [("a.weight", "c.weight")]
    assert pairs(network_of(ReadsWeight())) == []
    model = nn.Sequential(Residual(), nn.Linear(1, 3), nn.ReLU(), nn.Linear(3, 1))
    assert pairs(network_of(model)) == [("1.weight", "3.weight"), ("0.c.weight", "1.weight")]


def test_parametrised_layers_have_no_link():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
    parametrizations.weight_norm(model[0])
    assert pairs(network_of(model)) == []


def test_a_layer_that_is_never_pruned_keeps_its_units():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
    assert pairs(network_of(model, Roles(keep=("0.*",)))) == []
    assert pairs(network_of(model, Roles(keep=("2.*",)))) == [("0.weight", "2.weight")]


def test_tracing_runs_on_a_copy():
    class Counting(nn.Linear):
        calls = 0

        def forward(self, x):
            self.calls += 1
            return super().forward(x)

    network = network_of(nn.Sequential(Counting(2, 2), nn.Linear(2, 1)))
    before = network.skeleton.training
    links(network)
    assert network.skeleton[0].calls == 0
    assert network.skeleton.training == before


def test_no_spelling_has_two_rows():
    for kind, table in operations._PLAIN.items():
        for name, spellings in table.items():
            assert all(OPERATIONS[s] == Operation(name, kind) for s in spellings)
    for name, by_positions in operations._OVER_POSITIONS.items():
        for positions, spellings in by_positions.items():
            row = Operation(name, Kind.CHANNELWISE, positions)
            assert all(OPERATIONS[s] == row for s in spellings)


def test_layers_that_run_on_many_models_at_once_are_entrywise():
    assert {OPERATIONS[kind].kind for kind in ENTRYWISE} == {Kind.POINTWISE}


def test_pooling_is_separate_only_over_its_number_of_axes():
    assert OPERATIONS[nn.MaxPool2d].positions == (2,)
    assert OPERATIONS[nn.BatchNorm2d].positions == ()
    graph = capture("test", nn.Sequential(nn.PReLU(), nn.PReLU(3)))
    kinds = [graph.operation(node).kind for node in graph.nodes if node.op == "call_module"]
    assert kinds == [Kind.POINTWISE, Kind.CHANNELWISE]  # one slope for all, one for each channel


def test_a_trace_keeps_names_and_default_arguments():
    class Optional(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 2)

        def forward(self, pixels, mask=None):
            y = self.layer(pixels)
            return y if mask is None else y * mask

    graph = capture("test", Optional())
    assert [node.name for node in graph.nodes] == ["pixels", "layer", "output"]
    lone = capture("test", nn.Linear(2, 1))
    assert [str(node.target) for node in lone.nodes if node.op == "call_module"] == ["0"]


@pytest.mark.parametrize("training", [False, True])
def test_transformer_encoders_are_opened(training):
    layer = nn.TransformerEncoderLayer(4, 2, 6, dropout=0.0, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).train(training)
    graph = capture("test", encoder, training=training)
    x = torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(graph.module(x), encoder(x))
    assert pairs(network_of(nn.Sequential(layer, nn.Linear(4, 1)))) == [
        ("0.linear1.weight", "0.linear2.weight")
    ]


def test_leaves_are_not_entered():
    class Inner(nn.Linear):
        pass

    model = nn.Sequential(Inner(2, 2), nn.ReLU())
    inside = [node.op for node in capture("test", model).nodes]
    assert "get_attr" in inside
    graph = capture("test", model, leaves=(Inner,))
    assert [node.op for node in graph.nodes][1:3] == ["call_module", "call_module"]


def test_shared_layers_are_named():
    tied_layer = nn.Linear(3, 3)
    model = nn.Sequential(tied_layer, nn.ReLU(), tied_layer, nn.Linear(3, 3), nn.Tanh())
    model[4].register_forward_hook(lambda *_: None)
    assert capture("test", model).shared == {"0", "4"}  # both calls are of "0"


def test_an_untraceable_network_names_the_caller_and_the_remedy():
    with pytest.raises(UnsupportedModelError, match=r"^save: Untraceable cannot be traced beyond"):
        capture("save", Untraceable())


def test_shapes_come_from_one_run():
    graph = capture("test", nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten()))
    graph.measure(torch.zeros(2, 1, 5, 5))
    assert [graph.shape(node) for node in graph.nodes][1:3] == [(2, 2, 3, 3), (2, 18)]


def test_sequential_layers_open_nested_ones_and_count_repeated_ones():
    shared = nn.ReLU()
    model = nn.Sequential(nn.Sequential(nn.Linear(2, 2), shared), nn.Linear(2, 2), shared)
    assert [name for name, _ in sequential_layers(model)] == ["0.0", "0.1", "1", "2"]
    assert sequential_layers(shared) == [("", shared)]
