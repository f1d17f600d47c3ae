"""Compaction beyond chains: sums, concatenation, groups, heads, views, and what has to stay."""

import operator

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from bayesieve.sieve.compact import compact
from bayesieve.sieve.compaction.attention import HeadAttention
from zoo import Calling


def without(layer: nn.Module, rows=(), columns=(), bias: float | None = None) -> nn.Module:
    """A layer with some rows (and their biases, if given) and columns set to 0."""
    with torch.no_grad():
        layer.weight[list(rows)] = 0
        layer.weight[:, list(columns)] = 0
        if bias is not None:
            layer.bias[list(rows)] = bias
    return layer


def sizes(small: nn.Module) -> dict[str, tuple[int, int]]:
    """Inputs and units of every layer that is left."""
    rows = small.compaction.layers
    return {c.name: (c.inputs[1], c.units[1]) for c in rows if c.units[1]}


def reasons(small: nn.Module) -> str:
    return "\n".join(small.compaction.kept)


def blocks() -> Calling:
    """A stem, one residual block of 16 channels and a head."""

    def conv(n: int) -> nn.Conv2d:
        return nn.Conv2d(n, 16, 3, padding=1)

    block = Calling(
        lambda s, x: torch.relu(x + s.two(torch.relu(s.one(x)))), one=conv(16), two=conv(16)
    )
    return Calling(
        lambda s, x: s.head(s.layer2(s.stem(x)).mean((2, 3))),
        stem=conv(3), layer2=nn.Sequential(block), head=nn.Linear(16, 2),
    )  # fmt: skip


def compacted(function) -> nn.Module:
    """A layer with two dead units of four, a function of them, and a last layer, compacted."""
    net = Calling(
        lambda s, x: s.last(function(s.first(x))),
        first=without(nn.Linear(3, 4), rows=[1, 2]), last=nn.Linear(4, 2),
    )  # fmt: skip
    return compact(net, torch.randn(2, 3))


IMAGES = torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(0))


def test_residual_sum_keeps_what_is_dead_in_one_term():
    net = blocks()
    without(net.layer2[0].two, rows=range(14))
    small = compact(net, IMAGES)
    assert "layer2.0 residual sum keeps 14 channels alive: constant in one term" in reasons(small)
    assert sizes(small)["layer2.0.two"] == (16, 16)


def test_residual_channel_dead_in_all_terms_goes():
    net = blocks()
    without(net.layer2[0].two, rows=range(5), bias=0)
    without(net.stem, rows=range(5), bias=0)
    small = compact(net, IMAGES)
    assert sizes(small) == {
        "stem": (3, 11), "layer2.0.one": (11, 16), "layer2.0.two": (16, 11), "head": (11, 2)
    }  # fmt: skip
    assert reasons(small) == ""


def test_residual_channel_nobody_reads_goes():
    net = blocks()
    without(net.head, columns=range(4))
    without(net.layer2[0].one, columns=range(4))
    small = compact(net, IMAGES)
    assert sizes(small)["stem"] == (3, 12)
    assert sizes(small)["layer2.0.two"] == (16, 12)


@pytest.mark.parametrize("bias", [0.0, 0.5])
def test_dead_branch_goes_as_a_whole(bias):
    net = blocks()
    without(net.layer2[0].two, rows=range(16), bias=bias)
    small = compact(net, IMAGES)
    assert set(sizes(small)) == {"stem", "head"}
    shifts = [p.shape for name, p in small.named_parameters() if name.endswith("shift")]
    assert shifts == ([] if bias == 0 else [(16, 1, 1)])
    assert reasons(small) == ""


def test_gate_of_zeros_removes_channels():
    gate = nn.Parameter(torch.tensor([0.0, 1.0, 0.0, 2.0]))
    net = Calling(
        lambda s, x: s.head(s.gate[:, None, None] * s.conv(x)).sum((2, 3)),
        gate=gate, conv=nn.Conv2d(3, 4, 1), head=nn.Conv2d(4, 2, 1),
    )  # fmt: skip
    small = compact(net, IMAGES)
    assert sizes(small) == {"conv": (3, 2), "head": (2, 2)}
    assert small.gate.tolist() == [1.0, 2.0]


def test_concatenation_maps_indices():
    net = Calling(
        lambda s, x: s.head(torch.cat([s.a(x), x, s.b(x)], 1)),
        a=without(nn.Linear(3, 3), rows=[0], bias=2), b=nn.Linear(3, 2),
        head=without(nn.Linear(8, 2), columns=[1, 4, 7]),
    )  # fmt: skip
    small = compact(net, torch.randn(2, 3))
    assert sizes(small) == {"a": (3, 1), "b": (3, 1), "head": (4, 2)}
    assert small.compaction.input_features is None
    gone = compact(
        Calling(net.function, a=net.a, b=net.b, head=without(net.head, columns=[6, 7])),
        torch.randn(2, 3),
    )
    assert set(sizes(gone)) == {"a", "head"}


def test_depthwise_channels_go_with_their_group():
    net = nn.Sequential(
        nn.Conv2d(3, 6, 1), nn.ReLU(), without(nn.Conv2d(6, 6, 3, groups=6), rows=[2]), nn.ReLU(),
        without(nn.Conv2d(6, 4, 1), columns=[0]),
    )  # fmt: skip
    small = compact(net, IMAGES)
    assert sizes(small) == {"0": (3, 4), "2": (4, 4), "4": (4, 4)}
    assert small.get_submodule("2").groups == 4


def test_groups_stay_equally_large():
    last = without(nn.Conv2d(6, 2, 1), columns=[0, 2, 3])
    net = nn.Sequential(nn.Conv2d(3, 6, 1), nn.Conv2d(6, 6, 1, groups=3), last)
    small = compact(net, IMAGES)
    assert sizes(small) == {"0": (3, 4), "1": (4, 4), "2": (3, 2)}  # group 1 goes, 0 keeps both
    assert "1 keeps 1 unread channel alive: groups have one size" in reasons(small)
    without(net[2], columns=[5])
    assert sizes(compact(net, IMAGES))["1"] == (4, 2)


def test_inputs_that_every_group_can_spare_go():
    net = nn.Sequential(nn.Conv2d(3, 6, 1), without(nn.Conv2d(6, 4, 1, groups=2), columns=[1]))
    assert sizes(compact(net, IMAGES)) == {"0": (3, 4), "1": (4, 4)}


def test_constant_branch_next_to_a_broadcast_one_stays():
    net = Calling(
        lambda s, x: s.last(x + s.b(x)), last=nn.Linear(4, 2),
        b=without(nn.Linear(1, 4), rows=range(4)),
    )  # fmt: skip
    assert sizes(compact(net, torch.randn(2, 1))) == {"b": (1, 4), "last": (4, 2)}


def test_transposed_convolution():
    first = without(nn.Conv2d(3, 4, 1), rows=[0], bias=1)
    net = nn.Sequential(first, nn.ConvTranspose2d(4, 4, 2, stride=2), nn.Conv2d(4, 2, 1))
    without(net[2], columns=[1, 2])
    small = compact(net, IMAGES)
    assert sizes(small) == {"0": (3, 4), "1": (4, 2), "2": (2, 2)}
    assert "1 keeps 1 constant input channel alive: not every position" in reasons(small)
    without(first, rows=[0], bias=0)
    assert sizes(compact(net, IMAGES))["1"] == (3, 2)


def attention(d: int = 8, heads: int = 4) -> Calling:
    return Calling(
        lambda s, x: s.head(x + s.attend(*[s.norm(x)] * 3, need_weights=False)[0]),
        norm=nn.LayerNorm(d), attend=nn.MultiheadAttention(d, heads, batch_first=True),
        head=nn.Linear(d, 2),
    )  # fmt: skip


TOKENS = torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(1))


def test_head_without_value_or_output_goes():
    net = attention()
    with torch.no_grad():
        net.attend.in_proj_weight[16:18] = 0  # the values of head 0
        net.attend.in_proj_bias[16:18] = 0.7
        net.attend.out_proj.weight[:, 6:] = 0  # what leaves head 3
    small = compact(net, TOKENS)
    assert sizes(small) == {
        "norm": (8, 8), "attend.q_proj": (8, 4), "attend.k_proj": (8, 4), "attend.v_proj": (8, 4),
        "attend.attend": (2, 2), "attend.out_proj": (4, 8), "head": (8, 2),
    }  # fmt: skip
    heads = small.get_submodule("attend.attend")
    assert isinstance(heads, HeadAttention)
    assert heads.scale == pytest.approx(2**-0.5)


def test_single_dimensions_of_heads_go_where_all_heads_can_spare_one():
    net = attention(heads=2)
    with torch.no_grad():
        net.attend.out_proj.weight[:, [0, 5]] = 0
        net.attend.out_proj.weight[:, 6] = 0  # head 1 could be narrower than head 0
        net.attend.in_proj_weight[1] = 0  # query dimension 1 of head 0 is always 0
        net.attend.in_proj_bias[1] = 0
        net.attend.in_proj_weight[8 + 4] = 0  # key dimension 0 of head 1 is the same everywhere
        net.attend.in_proj_bias[8 + 4] = 0.3
    small = compact(net, TOKENS)
    found = sizes(small)
    assert [found[f"attend.{name}"] for name in ("q_proj", "k_proj", "v_proj")] == [(8, 6)] * 3
    assert found["attend.out_proj"] == (5, 8)
    assert "attend.attend keeps 1 unread value dimension alive" in reasons(small)


def test_layer_norm_keeps_the_width():
    net = nn.Sequential(without(nn.Linear(4, 6), rows=[0, 1]), nn.LayerNorm(6), nn.Linear(6, 2))
    small = compact(net, torch.randn(2, 4))
    assert sizes(small)["0"] == (4, 6)
    assert "1 (LayerNorm) reads all channels together: it keeps 2 constant channels" in reasons(
        small
    )


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("batch_first", [True, False])
def test_encoder_of_torch(norm_first, batch_first):
    layer = nn.TransformerEncoderLayer(
        8, 2, 6, norm_first=norm_first, batch_first=batch_first, activation="gelu"
    )
    encoder = nn.TransformerEncoder(layer, 2, nn.LayerNorm(8), enable_nested_tensor=False)
    without(encoder.layers[0].linear1, rows=[0, 1], bias=1)
    without(encoder.layers[1].linear2, columns=[3])
    with torch.no_grad():
        encoder.layers[1].self_attn.out_proj.weight[:, :4] = 0
    small = compact(nn.Sequential(encoder, nn.Linear(8, 2)).eval(), TOKENS)
    found = sizes(small)
    assert found["0.layers.0.linear1"] == (8, 4)
    assert found["0.layers.1.linear2"] == (5, 8)
    assert found["0.layers.1.self_attn.attend"] == (1, 1)


@pytest.mark.parametrize(
    "call",
    [
        lambda s, x: s.attend(x, x, x, attn_mask=s.mask)[0],
        lambda s, x: s.attend(x, x, x)[1],
        lambda s, x: s.attend(s.attend(x, x, x)[0], x, x)[0],
    ],
)
def test_attention_with_masks_or_weights_is_a_barrier(call):
    attend = nn.MultiheadAttention(8, 2, batch_first=True)
    net = Calling(call, attend=attend, mask=nn.Parameter(torch.zeros(3, 3), requires_grad=False))
    small = compact(net, TOKENS)
    assert "attend (MultiheadAttention)" in reasons(small)
    assert isinstance(small.attend, nn.MultiheadAttention)


def test_hidden_units_of_a_token_mixer():
    net = Calling(
        lambda s, x: s.head((x + s.mix(s.norm(x).transpose(1, 2)).transpose(1, 2)).mean(1)),
        norm=nn.LayerNorm(8), head=nn.Linear(8, 2),
        mix=nn.Sequential(without(nn.Linear(3, 5), rows=[1]), nn.GELU(), nn.Linear(5, 3)),
    )  # fmt: skip
    assert sizes(compact(net, TOKENS))["mix.0"] == (3, 4)


def test_embedding_columns():
    table = nn.Embedding(5, 4)
    with torch.no_grad():
        table.weight[:, 1] = 0.5
    net = nn.Sequential(table, nn.Tanh(), without(nn.Linear(4, 2), columns=[3]))
    small = compact(net, torch.tensor([[0, 1, 2], [4, 3, 0]]))
    assert sizes(small) == {"0": (5, 2), "2": (2, 2)}


VIEWS = {
    "view size": lambda x: x.view(x.size(0), -1),
    "reshape shape": lambda x: x.reshape(x.shape[0], -1),
    "view columns": lambda x: x.view(-1, 16),
    "torch reshape": lambda x: torch.reshape(x, (-1, 16)),
    "flatten": lambda x: torch.flatten(x, 1),
    "two steps": lambda x: x.view(x.size(0), x.size(1), -1).flatten(1),
    "all sizes": lambda x: x.view(x.size(0), x.size(1) * x.size(2) * x.size(3)),
}


@pytest.mark.parametrize("name", VIEWS)
def test_flattening_views(name):
    net = Calling(
        lambda s, x: s.head(VIEWS[name](F.max_pool2d(F.relu(s.conv(x)), 2))),
        conv=without(nn.Conv2d(3, 4, 3), rows=[1, 2]), head=nn.Linear(16, 2),
    )  # fmt: skip
    small = compact(net, IMAGES)
    assert sizes(small) == {"conv": (3, 2), "head": (8, 2)}


POOLED = {
    "mean": lambda x: x.mean((-1, -2)),
    "amax": lambda x: x.amax((2, 3)),
    "adaptive": lambda x: F.adaptive_avg_pool2d(x, 1).squeeze(-1).squeeze(-1),
    "permute": lambda x: x.permute(0, 2, 3, 1)[:, 0, 1],
    "first": lambda x: x[:, :, 0, 0],
}


@pytest.mark.parametrize("name", POOLED)
def test_channels_are_followed_through_other_shapes(name):
    net = Calling(
        lambda s, x: s.head(POOLED[name](s.conv(x))),
        conv=without(nn.Conv2d(3, 4, 3), rows=[1, 2]), head=nn.Linear(4, 2),
    )  # fmt: skip
    assert sizes(compact(net, IMAGES)) == {"conv": (3, 2), "head": (2, 2)}


def test_some_channels_are_taken_by_slices():
    def taken(x, y):
        return torch.cat([x[:, 1:4], y[..., 4:]], 1)[:, None, :-1]

    for forward, left in (
        (lambda s, x: s.last(taken(s.first(x), s.first(x))), {"first": (3, 6), "last": (4, 2)}),
        (lambda s, x: s.last(taken(y := s.first(x), y)), {"first": (3, 2), "last": (2, 2)}),
    ):  # called twice, a layer stays
        first = without(nn.Linear(3, 6), rows=[2, 4])
        net = Calling(forward, first=first, last=nn.Linear(4, 2))
        assert sizes(compact(net, torch.randn(2, 3))) == left


BARRIERS = {
    "chunk": (lambda x: torch.cat(x.chunk(2, 1), 1), r"chunk \(chunk\) is not known"),
    "sort": (lambda x: x.sort(1)[0], r"sort \(sort\) is not known"),
    "cumsum": (lambda x: x.cumsum(1), r"cumsum \(cumsum\) is not known"),
    "slice": (lambda x: x[:, [0, 1, 2, 3]], r"getitem \(getitem\) indexes in a way"),
    "number": (
        lambda x: x[:, 1, None] + torch.zeros(4),
        r"getitem \(getitem\) takes one channel by number",
    ),
    "view": (lambda x: x.view(-1, 2).tanh().view(-1, 4), r"view \(view\) does not keep"),
    "squeeze": (lambda x: x.squeeze(), r"squeeze \(squeeze\) removes axes of size 1"),
    "shape": (lambda x: x * x.shape[1:][0], r"getattr_1 reads the number of channels"),
    "softmax": (lambda x: x.softmax(1), r"softmax \(softmax\) reads all .* 2 constant channels"),
    "axes": (
        lambda x: x[:, :, None].expand(-1, -1, 4) + x[:, None].expand(-1, 4, -1),
        r"add \(add\) joins tensors whose",
    ),
}


@pytest.mark.parametrize("name", BARRIERS)
def test_what_is_not_known_keeps_everything(name):
    function, reason = BARRIERS[name]
    small = compacted(function)
    assert sizes(small)["first"] == (3, 4)
    with pytest.raises(AssertionError, match=reason):  # pytest's own way to search a text
        raise AssertionError(reasons(small))


@pytest.mark.parametrize("read", [lambda x: x.size(1), lambda x: x.shape[-1]])
def test_a_number_of_channels_that_is_read_stays_as_it_was(read):
    assert sizes(compacted(lambda h: h * read(h)))["first"] == (3, 2)


def test_layer_called_twice_stays():
    net = Calling(
        lambda s, x: s.out(s.twice(s.twice(x))),
        twice=without(nn.Linear(3, 3), rows=[0]), out=nn.Linear(3, 1),
    )  # fmt: skip
    small = compact(net, torch.randn(2, 3))
    assert sizes(small)["twice"] == (3, 3)
    assert small.compaction.kept.count(
        "twice (Linear) is called twice, hooked or shares its weights: all its channels stay"
    ) == 1  # fmt: skip


def test_shared_activation_is_no_obstacle():
    relu = nn.ReLU(inplace=True)
    net = nn.Sequential(without(nn.Linear(3, 3), rows=[0]), relu, nn.Linear(3, 3), relu)
    assert sizes(compact(net, torch.randn(2, 3)))["0"] == (3, 2)


def test_hooked_layer_stays():
    net = nn.Sequential(without(nn.Linear(3, 3), rows=[0]), nn.Linear(3, 1))
    net[0].register_forward_hook(lambda module, inputs, output: output + 1)
    assert sizes(compact(net, torch.randn(2, 3)))["0"] == (3, 3)


@pytest.mark.parametrize("join", [operator.sub, torch.sub, torch.add, operator.mul, torch.mul])
def test_joins_by_function(join):
    net = Calling(
        lambda s, x: s.last(join(s.a(x), s.b(x))),
        a=without(nn.Linear(3, 4), rows=[0, 1]), b=without(nn.Linear(3, 4), rows=[1, 2]),
        last=nn.Linear(4, 2),
    )  # fmt: skip
    assert sizes(compact(net, torch.randn(2, 3)))["a"] == (3, 3)


def test_difference_from_a_constant_branch():
    def forward(net, x):
        a, b = net.a(x), net.b(x)
        return net.last(a - b) + net.last_too(b - a)

    net = Calling(
        forward, a=nn.Linear(3, 4), b=without(nn.Linear(3, 4), rows=range(4), bias=0.5),
        last=nn.Linear(4, 2), last_too=nn.Linear(4, 2),
    )  # fmt: skip
    small = compact(net, torch.randn(2, 3))
    assert small.sub_shift.tolist() == [-0.5] * 4
    assert sizes(small)["b"][1] == 4  # the second difference still reads it


def test_arithmetic_with_numbers():
    assert sizes(compacted(lambda h: 1 - (2 * h + 1) / 3)) == {"first": (3, 2), "last": (2, 2)}


def test_dropout_that_is_called_is_on_again_when_a_compacted_network_trains():
    def forward(net, x):
        x = F.dropout(torch.relu(net.first(x)), 0.5, training=net.training)
        return net.last(F.dropout(x, p=0.0, training=True))

    model, x = Calling(forward, first=nn.Linear(4, 6), last=nn.Linear(6, 2)), torch.ones(64, 4)
    with torch.no_grad():
        model.first.bias.fill_(3.0)  # no unit is silent by chance
        model.first.weight[:3] = 0
        model.last.weight[:, :3] = 0
    small = compact(model.eval(), x)
    assert small.first.out_features == 3
    assert torch.equal(small(x), small(x))
    small.train()
    assert not torch.equal(small(x), small(x))
