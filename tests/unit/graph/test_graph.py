"""Links of layers and the table of operations, read from traced networks."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations

from bayesieve.core.layout import Roles, default_role
from bayesieve.core.likelihoods import Gaussian
from bayesieve.core.network import Network, sequential_layers
from bayesieve.deliver.layers import as_layer
from bayesieve.errors import UnsupportedModelError
from bayesieve.fast.evaluator import ENTRYWISE
from bayesieve.graph import operations
from bayesieve.graph.capture import capture
from bayesieve.graph.operations import OPERATIONS, Kind, Operation
from bayesieve.nets.convnets import lenet5, lenet5_caffe, lenet_300_100
from bayesieve.sieve.units import links
from problems import normal32
from zoo import Calling, chain


def network_of(model, rule=default_role):
    return Network.of(model, Gaussian(), rule)


FLATTENS = {
    "view size": lambda x: x.view(x.size(0), -1),
    "reshape shape": lambda x: x.reshape(x.shape[0], -1),
    "torch": lambda x: torch.flatten(x, 1),
    "method": lambda x: x.flatten(start_dim=1),
    "view columns": lambda x: x.view(-1, 12),
}


def functional(flatten: str) -> nn.Module:
    """A convolutional network written with functions, its flattening chosen by name."""

    def forward(net, x):
        x = FLATTENS[flatten](F.max_pool2d(F.relu(net.conv(x)), 2).tanh())
        return net.out(F.dropout(x, 0.1, training=net.training))

    return Calling(forward, conv=nn.Conv2d(1, 3, 3), out=nn.Linear(12, 2))


def wired(function) -> nn.Module:
    """Layers a and b of four units and c of one, called by a function."""
    return Calling(function, a=nn.Linear(4, 4), b=nn.Linear(4, 4), c=nn.Linear(4, 1))


def hidden(net, x):
    return torch.relu(net.a(x))


def residual() -> nn.Module:
    return wired(lambda s, x: s.c((h := s.a(x)) + s.b(torch.relu(h))))


def untraceable() -> nn.Module:
    return wired(lambda s, x: s.c(s.a(x) if x.sum() > 0 else s.b(x)))


NOT_LINKED = {
    "two readers": lambda s, x: (s.c(h := hidden(s, x)), s.b(h)),
    "called twice": lambda s, x: s.c(torch.relu(s.a(hidden(s, x)))),
    "other in training": lambda s, x: s.c(h := hidden(s, x)) + (s.b(h).sum() if s.training else 0),
    "other in evaluation": lambda s, x: (
        s.c(h := hidden(s, x)) + (0 if s.training else s.b(h).sum())
    ),
}  # fmt: skip


def pairs(network):
    return [(link.producer, link.consumer) for link in links(network)]


def changed(change, index=0) -> nn.Module:
    """Two layers and an activation between them, after a change of one of the three."""
    model = chain(4, 4, 1, act=nn.ReLU)
    change(model[index])
    return model


def tied():
    model = chain(4, 4, 4, 1, act=nn.ReLU)
    model[2].weight = model[0].weight
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
    assert pairs(network_of(functional(flatten))) == [("conv.weight", "out.weight")]


@pytest.mark.parametrize(
    "model",
    [
        *map(wired, NOT_LINKED.values()),
        functional("view columns"),
        untraceable(),
        tied(),
        changed(lambda layer: layer.requires_grad_(False), 0),
        changed(lambda layer: layer.requires_grad_(False), 2),
        changed(lambda layer: layer.register_forward_hook(lambda *_: None), 1),
        changed(lambda layer: layer.register_forward_hook(lambda *_: None), 2),
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
    assert pairs(network_of(residual())) == []
    attended = wired(lambda s, x: s.c(hidden(s, x)) * torch.softmax(s.b(x), 1).sum())
    assert pairs(network_of(attended)) == [("a.weight", "c.weight")]
    reads_weight = wired(lambda s, x: s.c(hidden(s, x)) + s.a.weight.sum())
    assert pairs(network_of(reads_weight)) == []
    model = nn.Sequential(residual(), *chain(1, 3, 1, act=nn.ReLU))
    assert pairs(network_of(model)) == [("1.weight", "3.weight"), ("0.c.weight", "1.weight")]


def test_parametrised_layers_have_no_link():
    assert pairs(network_of(changed(parametrizations.weight_norm))) == []


def test_a_layer_that_is_never_pruned_keeps_its_units():
    model = chain(4, 4, 1)
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
    class Optional(nn.Sequential):
        def forward(self, pixels, mask=None):
            y = super().forward(pixels)
            return y if mask is None else y * mask

    graph = capture("test", Optional(nn.Linear(2, 2)))
    assert [node.name for node in graph.nodes] == ["pixels", "_0", "output"]
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
    with pytest.raises(UnsupportedModelError, match=r"^save: Calling cannot be traced beyond"):
        capture("save", untraceable())


def test_shapes_come_from_one_run():
    graph = capture("test", nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten()))
    graph.measure(torch.zeros(2, 1, 5, 5))
    assert [graph.shape(node) for node in graph.nodes][1:3] == [(2, 2, 3, 3), (2, 18)]


def test_sequential_layers_open_nested_ones_and_count_repeated_ones():
    shared = nn.ReLU()
    model = nn.Sequential(nn.Sequential(nn.Linear(2, 2), shared), nn.Linear(2, 2), shared)
    assert [name for name, _ in sequential_layers(model)] == ["0.0", "0.1", "1", "2"]
    assert sequential_layers(shared) == [("", shared)]


def test_a_call_without_weights_is_the_layer_that_computes_the_same():
    net = Calling(
        lambda s, x: torch.flatten(torch.max_pool2d(F.leaky_relu(x, 0.3), 2, 2, 0, 1, True)).tanh()
    )
    graph, x = capture("test", net), normal32(2, 3, 5, 5)
    layers = [as_layer(graph, node) for node in graph.nodes[1:-1]]
    assert torch.equal(nn.Sequential(*layers)(x), net(x))
    weighted = capture("test", Calling(lambda s, x: F.layer_norm(x, (4,), s.w), w=nn.Parameter()))
    assert [as_layer(weighted, node) for node in weighted.nodes[1:-1]] == [None, None]


@pytest.mark.parametrize("name", ["add_", "div_", "mul_", "relu_", "sub_"])
def test_operators_that_overwrite_have_a_spelling_that_is_written_elsewhere(name):
    """`torch.export` gives such operators; compaction replaces what they become."""
    operator = getattr(getattr(operations.aten, name), "default" if name == "relu_" else "Tensor")
    assert not operations.overwrites(operator)
    assert operations.spelled(operator, (), {})[1] in operations.OUT_OF_PLACE
    assert operations.overwrites(operations.aten.exp_.default)
