"""Graphs as JSON: every layer comes back, and nothing outside the list ever runs."""

import copy
import inspect
import json
import operator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bayesieve.deliver.bundle import allowed
from bayesieve.deliver.bundle.graph import graph_from_json, graph_to_json, output_shape, trace
from bayesieve.errors import UnsupportedModelError
from bayesieve.sieve.compaction.attention import HeadAttention
from zoo import Calling


class Residual(nn.Module):
    """Most kinds of node: slices, shapes, tuples, buffers, parameters, infix arithmetic."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(4)
        self.scale = nn.Parameter(torch.full((4, 1, 1), 1.5))
        self.register_buffer("places", torch.tensor([0, 3, 5]))
        self.head = nn.Linear(4 * 6 * 3, 3)

    def forward(self, x):
        h = F.relu(self.norm(self.conv(x)), inplace=False)
        h = torch.cat([h * self.scale, -h], dim=1)[:, 2:6]
        h = h + 2.0 - h.mean((2, 3), keepdim=True)
        h = torch.index_select(h, 3, self.places)
        return self.head(h.view(h.size(0), -1)) / h.shape[1]


def heads():
    return Calling(
        lambda s, x: s.attend(s.query(x), s.key(x), s.value(x)).mean(1),
        query=nn.Linear(4, 4),
        key=nn.Linear(4, 4),
        value=nn.Linear(4, 6),
        attend=HeadAttention(2, 0.7),
    )


def attention():
    return Calling(
        lambda s, x: s.attention(x, x, x, need_weights=False)[0].sum(1),
        attention=nn.MultiheadAttention(4, 2, batch_first=True),
    )


def rebuilt(module):
    """The module after a trip through JSON text, with its weights."""
    traced = trace(module)
    text = json.dumps(graph_to_json(traced))
    again = graph_from_json(json.loads(text))
    state = {**traced.state_dict(), **dict(traced.named_buffers())}
    again.load_state_dict(state, assign=True)
    return again


MODULES = {
    "residual": (Residual, (1, 6, 6)),
    "heads": (heads, (3, 4)),
    "attention": (attention, (3, 4)),
    "encoder": (
        lambda: nn.Sequential(
            nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), nn.Flatten(), nn.Linear(12, 2)
        ),
        (3, 4),
    ),
    "mlp": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(8, 4), nn.Tanh()), (2, 4)),
}


@pytest.mark.parametrize("name", MODULES)
def test_outputs_are_equal_bit_for_bit(name):
    torch.manual_seed(0)
    build, shape = MODULES[name]
    module, x = build().eval(), torch.randn(5, *shape)
    again = rebuilt(module)
    with torch.no_grad():
        if name == "encoder":  # torch's own layer takes a fused path of other rounding
            module = trace(module)
        torch.testing.assert_close(again(x), module(x), rtol=0, atol=0)


LAYERS = [
    nn.Linear(2, 3, bias=False), nn.Conv1d(2, 4, 3, groups=2, padding="same"),
    nn.Conv2d(1, 2, (3, 1), stride=2, dilation=2, padding_mode="circular"), nn.Conv3d(1, 2, 2),
    nn.ConvTranspose2d(1, 2, 3, output_padding=1, stride=2), nn.BatchNorm1d(3, affine=False),
    nn.BatchNorm2d(3, eps=0.1, momentum=None), nn.LayerNorm((2, 3), eps=1e-3),
    nn.LayerNorm(3, elementwise_affine=False), nn.GroupNorm(2, 4), nn.RMSNorm(3),
    nn.InstanceNorm2d(3, affine=True, track_running_stats=True), nn.MaxPool2d(3, 2, ceil_mode=True),
    nn.AvgPool2d((2, 1), count_include_pad=False), nn.AdaptiveAvgPool2d((1, None)),
    nn.LeakyReLU(0.3), nn.PReLU(4), nn.ELU(2.0), nn.GELU("tanh"), nn.Softplus(2.0),
    nn.Hardtanh(-2.0, 3.0), nn.Threshold(0.1, 20.0), nn.Softmax(dim=1), nn.Dropout(0.3),
    nn.Embedding(7, 3, padding_idx=2), nn.Flatten(2), nn.Unflatten(1, (2, 3)), nn.Identity(),
    nn.ZeroPad2d((1, 2, 3, 4)), nn.Upsample(scale_factor=2.0), nn.PixelShuffle(2),
    nn.MultiheadAttention(4, 2, dropout=0.1, bias=False, add_bias_kv=True, kdim=3, vdim=5),
    nn.Bilinear(2, 3, 4), HeadAttention(2, 0.5, batch_first=False),
]  # fmt: skip


@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: type(layer).__name__)
def test_every_argument_of_a_layer_comes_back(layer):
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    graph.output(graph.call_module("layer", (x,)))
    root = nn.Module()
    root.layer = layer
    row = json.loads(json.dumps(graph_to_json(torch.fx.GraphModule(root, graph))))
    again = graph_from_json(row).layer
    assert repr(again) == repr(layer.eval())
    hidden = {"training"}
    plain = (bool, int, float, str, tuple, type(None))
    for name, value in vars(layer).items():
        if isinstance(value, plain) and name not in hidden:
            assert getattr(again, name) == value, name
    shapes = {name: value.shape for name, value in layer.state_dict().items()}
    assert {name: value.shape for name, value in again.state_dict().items()} == shapes


def test_a_file_may_name_these_operations_and_no_others():
    """The list follows the table of operations; whoever adds a row decides here that it is safe."""
    names = [*(f"layer {name}" for name in allowed.MODULES),
             *(f"function {name}" for name in allowed.FUNCTIONS),
             *(f"method {name}" for name in allowed.METHODS)]  # fmt: skip
    golden = Path(__file__).parents[2] / "golden" / "bundle_names.txt"
    assert sorted(names) == golden.read_text(encoding="utf-8").splitlines()


def test_the_lists_name_things_that_exist():
    assert all(callable(function) for function in allowed.FUNCTIONS.values())
    assert all(hasattr(torch.Tensor, name) for name in allowed.METHODS)
    assert not {"torch.load", "torch.rand", "torch.save", "eval"} & set(allowed.FUNCTIONS)
    assert set(allowed.FUNCTIONS) >= allowed.MAKING
    assert not {"numpy", "apply_", "map_", "__class__", "repeat"} & allowed.METHODS


# --- what cannot be stored is refused at saving


class Strange(nn.Module):
    def __init__(self, call):
        super().__init__()
        self.call = call

    def forward(self, x):
        return self.call(x)


class Own(nn.Linear):
    pass


@pytest.mark.parametrize("kind", allowed.OURS)
def test_our_layers_are_written_as_they_stand(kind):
    """architecture.py has these imports, and no others."""
    names = {"torch": torch, "nn": nn, "Tensor": Tensor, "F": F}
    exec(inspect.getsource(allowed.OURS[kind]), names)
    given = {"p": 0.5, "n_heads": 2, "scale": 1.0, "n_features": 3}
    given |= dict.fromkeys(("sizes", "n_constant", "totals", "squares"), (1, 1))
    wanted = [
        n for n, p in allowed.arguments_of(allowed.OURS[kind]).items() if p.default is p.empty
    ]
    assert isinstance(names[kind](**{name: given[name] for name in wanted}), nn.Module)


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (Strange(torch.erfinv), r"calls .*erfinv"),
        (Strange(lambda x: x.erfinv()), "tensor method 'erfinv'"),
        (Strange(lambda x: x if x.sum() > 0 else -x), "cannot be traced"),
        (Strange(lambda x: (x, x)), "must return one tensor"),
        (nn.Sequential(nn.LSTM(2, 2)), r"layer '0' \(LSTM\)"),
        (Strange(lambda x: x.to(torch.device("cpu"))), "cannot hold"),
    ],
)
def test_what_a_bundle_cannot_hold(module, message):
    with pytest.raises(UnsupportedModelError, match=message):
        graph_to_json(trace(module))


def test_subclasses_and_hooks_are_not_taken_for_the_layer():
    layer = nn.Linear(2, 2)
    layer.register_forward_hook(lambda *_: None)
    for module in (layer, nn.utils.parametrizations.weight_norm(nn.Linear(2, 2))):
        with pytest.raises(UnsupportedModelError):
            graph_to_json(trace(nn.Sequential(module)))


def test_a_subclass_is_traced_into():
    assert graph_to_json(trace(nn.Sequential(Own(2, 2))))["modules"] == []
    assert [row[2] for row in graph_to_json(trace(nn.Sequential(Own(2, 2))))["nodes"]][-2:] == [
        "F.linear", "output",
    ]  # fmt: skip


# --- what is not on the list is refused at loading

GRAPH = graph_to_json(trace(nn.Sequential(nn.Linear(2, 3), nn.ReLU())))
INJECTION = '0"); __import__("os").system("touch owned") #'


def changed(change):
    graph = copy.deepcopy(GRAPH)
    change(graph)
    return graph


def node(*row):
    return lambda graph: graph["nodes"].insert(1, list(row))


def entry(key, index, place, value):
    return lambda graph: operator.setitem(graph[key][index], place, value)


REFERENCE = {"node": "input_1"}
HOSTILE = {
    "unknown function": node("f", "function", "os.system", ["true"], {}),
    "builtin": node("f", "function", "eval", ["1"], {}),
    "private attribute": node("f", "function", "getattr", [REFERENCE, "__class__"], {}),
    "attribute of data": node("f", "function", "getattr", [REFERENCE, "data"], {}),
    "three-argument getattr": node("f", "function", "getattr", [REFERENCE, "shape", 1], {}),
    "arithmetic of constants": node("f", "function", "operator.pow", [10**9, 10**9], {}),
    "change of a constant": node("f", "function", "operator.iadd", [[1], REFERENCE], {}),
    "unknown method": node("f", "method", "numpy", [REFERENCE], {}),
    "private method": node("f", "method", "__reduce__", [REFERENCE], {}),
    "method of text": node("f", "method", "split", ["a b"], {}),
    "unknown layer": entry("modules", 0, 1, "Module"),
    "layer by path": entry("modules", 0, 1, "bayesieve.os"),
    "code as path": entry("modules", 0, 0, INJECTION),
    "code as target": entry("nodes", 1, 2, INJECTION),
    "code as name": entry("nodes", 1, 0, "x = 1; import os"),
    "keyword as name": entry("nodes", 1, 0, "import"),
    "code as input": entry("nodes", 0, 2, "x=print(1)"),
    "code as keyword": entry("nodes", 1, 4, {"a=1, b": 2}),
    "unknown kind": entry("nodes", 1, 1, "call"),
    "later node": entry("nodes", 1, 3, [{"node": "_1"}]),
    "unknown argument": entry("modules", 0, 2, {"in_features": 2, "out_features": 3, "z": 1}),
    "missing argument": entry("modules", 0, 2, {"in_features": 2}),
    "argument of wrong type": entry("modules", 0, 2, {"in_features": "2", "out_features": 3}),
    "nested argument": entry("modules", 0, 2, {"in_features": [[2]], "out_features": 3}),
    "huge number": entry("modules", 0, 2, {"in_features": 10**30, "out_features": 3}),
    "huge layer": entry("modules", 0, 2, {"in_features": 2**39, "out_features": 2**39}),
    "negative size": entry("modules", 0, 2, {"in_features": -1, "out_features": 3}),
    "method of the module": entry("modules", 0, 0, "forward"),
    "dunder path": entry("modules", 0, 0, "__class__"),
    "no nodes": lambda graph: graph.update(nodes=[]),
    "no list": lambda graph: graph.update(nodes={"a": 1}),
    "short row": lambda graph: graph["nodes"].insert(1, ["f"]),
    "many inputs": lambda graph: graph["nodes"].extend(
        [f"f{i}", "input", f"f{i}", [], {}] for i in range(65)
    ),
    "twice": lambda graph: graph["modules"].append(graph["modules"][0]),
    "unknown tensor": node("f", "tensor", "hidden", [], {}),
    "huge tensor": lambda graph: graph["tensors"].append(["t", "buffer", [2**39] * 4, "int8"]),
    "unknown dtype": lambda graph: graph["tensors"].append(["t", "buffer", [1], "object"]),
    "wrong argument": node("f", "function", "torch.relu", [{"import": "os"}], {}),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_graphs_are_refused(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"."):
        graph_from_json(changed(HOSTILE[name]))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("values", [None, [], 3, "graph", {}, {"modules": 1}])
def test_other_data_are_refused(values):
    with pytest.raises(ValueError, match="graph must"):
        graph_from_json(values)


def shapes_of(*rows, shape=(2,)):
    graph = {"modules": [], "tensors": []}
    last = {"node": rows[-1][0]}
    graph["nodes"] = [
        ["input_1", "input", "x", [], {}], *map(list, rows),
        ["output", "output", "output", [last], {}],
    ]  # fmt: skip
    return output_shape(graph_from_json(graph), shape, torch.float32)


def test_shapes_without_computing():
    assert shapes_of(("a", "method", "expand", [REFERENCE, -1, 2], {})) == (2, 2)


@pytest.mark.parametrize(
    "rows",
    [
        [("a", "method", "unsqueeze", [REFERENCE, 0], {}),
         ("b", "method", "expand", [{"node": "a"}, 2**38, -1, -1], {})],
        [("n", "method", "size", [REFERENCE, 0], {}),
         ("a", "function", "operator.pow", [10**9, {"node": "n"}], {})],
        [("n", "method", "size", [REFERENCE], {}),
         ("a", "function", "operator.mul", [{"node": "n"}, 2**39], {})],
        [("n", "method", "size", [REFERENCE], {}),
         ("a", "function", "operator.iadd", [{"node": "n"}, {"node": "n"}], {})],
        [("n", "method", "size", [REFERENCE, 0], {}),
         ("a", "function", "operator.mul", [{"node": "n"}, 2**39], {}),
         ("b", "function", "operator.mul", [{"node": "a"}, {"node": "a"}], {})],
        [("a", "function", "F.pad", [REFERENCE, [0, 2**35]], {})],
        [("a", "function", "operator.getitem", [REFERENCE, 7], {})],
        [("a", "method", "dim", [REFERENCE], {})],
        [("a", "function", "torch.matmul", [REFERENCE, REFERENCE], {})],
    ],
)  # fmt: skip
def test_results_of_unbounded_size_and_wrong_shapes_are_refused(rows):
    with pytest.raises(ValueError, match=r"large|shapes|for tensors|return a tensor"):
        shapes_of(*rows, shape=(3,))
