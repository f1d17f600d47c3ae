"""What belongs to a coupled group, entry by entry, and normalisation without constants."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from architectures import GPT, TOKENS, RMSNorm
from bayesieve.assess.predict import as_point
from bayesieve.core.layout import Roles
from bayesieve.core.likelihoods import Gaussian
from bayesieve.core.network import Network
from bayesieve.core.problem import Problem
from bayesieve.sieve.compact import compact
from bayesieve.sieve.compaction.norms import FoldedLayerNorm
from bayesieve.sieve.groups import find_groups, groups_of
from bayesieve.sieve.prune import prune
from bayesieve.sieve.unit_rules import keep_units
from problems import normal32
from zoo import Calling


def marked(network, name, unit, x):
    """The tensors of w with 1 at the entries of one unit."""
    w = torch.zeros(network.layout.size)
    w[groups_of(network, x)[name][unit]] = 1
    return network.layout.unflatten(w)


def test_a_channel_of_a_residual_stream_is_a_row_and_a_column_of_every_layer():
    net = Calling(
        lambda s, x: s.out(F.relu((h := s.norm(s.a(x))) + s.c(F.relu(s.b(h))))),
        a=nn.Linear(3, 4), norm=nn.BatchNorm1d(4), b=nn.Linear(4, 5), c=nn.Linear(5, 4),
        out=nn.Linear(4, 2),
    )  # fmt: skip
    network, x = Network.of(net, Gaussian()), torch.zeros(1, 3)
    assert {name: len(e) for name, e in groups_of(network, x).items()} == {"a": 4, "b": 5}
    named = marked(network, "a", 1, x)
    for name in ("a.weight", "a.bias", "c.weight", "c.bias", "norm.weight", "norm.bias"):
        rows = torch.zeros_like(named[name])
        rows[1] = 1
        assert torch.equal(named[name], rows), name
    for name in ("b.weight", "out.weight"):
        columns = torch.zeros_like(named[name])
        columns[:, 1] = 1
        assert torch.equal(named[name], columns), name
    assert not named["b.bias"].any()
    assert not named["out.bias"].any()


def test_a_gate_and_what_it_gates_are_one_unit():
    net = Calling(
        lambda s, x: s.down(F.silu(s.gate(x)) * s.up(x)),
        gate=nn.Linear(3, 4, bias=False), up=nn.Linear(3, 4, bias=False), down=nn.Linear(4, 2),
    )  # fmt: skip
    named = marked(Network.of(net, Gaussian()), "gate", 2, torch.zeros(1, 3))
    assert named["gate.weight"][2].all()
    assert named["up.weight"][2].all()
    assert named["down.weight"][:, 2].all()
    assert sum(int(t.sum()) for t in named.values()) == 3 + 3 + 2


@pytest.mark.parametrize(("groups", "units"), [(1, [6, 4]), (6, [6]), (3, [3]), (2, [3, 2])])
def test_groups_of_a_convolution(groups, units):
    """Depthwise and many groups go whole; of few groups the same member of each."""
    n_out = {6: 6, 3: 6}.get(groups, 4)
    net = nn.Sequential(
        nn.Conv1d(2, 6, 1), nn.ReLU(), nn.Conv1d(6, n_out, 1, groups=groups), nn.ReLU(),
        nn.Conv1d(n_out, 2, 1),
    )  # fmt: skip
    found = groups_of(Network.of(net, Gaussian()), torch.zeros(1, 2, 5))
    assert [len(entries) for entries in found.values()] == units


def test_layers_that_must_not_be_pruned_keep_their_units():
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2))
    network = Network.of(net, Gaussian(), Roles(keep=("0.weight",)))
    found = find_groups(network, torch.zeros(1, 3))
    assert [*found.entries] == ["2"]
    assert "0 (Linear) has weights that are not to be pruned" in found.fixed


def test_the_operation_that_keeps_all_units_is_named():
    net = Calling(lambda s, x: s.b(s.a(x).cumsum(1)), a=nn.Linear(3, 4), b=nn.Linear(4, 2))
    with pytest.raises(ValueError, match=r"cumsum \(cumsum\) is not known to treat channels"):
        keep_units(0.5, example=torch.zeros(1, 3))(as_point(net, Gaussian()))


def test_a_problem_knows_the_shape_of_its_inputs():
    net = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2))
    problem = Problem(net, Gaussian(), (torch.ones(5, 3), torch.ones(5, 2)))
    assert problem.network.example.tolist() == [[0.0] * 3] * 2
    assert len(groups_of(problem.network)["0"]) == 4
    assert groups_of(Network.of(net, Gaussian())) == {}  # linked layers only


@pytest.mark.parametrize("constant", [0.0, 1.5])
@pytest.mark.parametrize("make", [nn.LayerNorm, nn.RMSNorm, RMSNorm])
def test_a_norm_without_its_constants_is_the_same(make, constant):
    first, norm, last = nn.Linear(3, 6), make(6), nn.Linear(6, 2)
    with torch.no_grad():
        first.weight[[1, 4]], first.bias[[1, 4]] = 0.0, constant
        last.weight[:, [1, 4]] = 0.0
        norm.weight.copy_(1 + 0.1 * torch.arange(6))
    small = compact(nn.Sequential(first, norm, last), normal32(4, 3))
    assert (
        small.compaction.parameters[1] == 3 * 4 + 4 + 4 * (1 + (make is nn.LayerNorm)) + 4 * 2 + 2
    )
    assert small.compaction.max_difference < 1e-6
    twice = compact(small, normal32(4, 3))
    assert twice.compaction.parameters[0] == twice.compaction.parameters[1]


def test_a_folded_norm_that_loses_more_stays_exact():
    x = normal32(5, 6)
    full = torch.cat([x, torch.tensor([0.5, -2.0]).expand(5, 2)], 1)
    wanted = nn.LayerNorm(8)(full)[:, :6]
    folded = FoldedLayerNorm(6, n_constant=2, zero=False)
    folded.rest_(torch.tensor([-0.75]), torch.tensor([1.5625]))
    assert torch.allclose(folded(x), wanted, atol=1e-6)


@pytest.mark.parametrize("constants", [[0.0] * 5, [0.3, -2.0, 0.0]])
@pytest.mark.parametrize("offset", [0.0, 30.0])
def test_a_folded_norm_has_the_values_and_gradients_of_the_whole_one(constants, offset):
    rest = torch.tensor(constants, dtype=torch.float64)
    n, zero = 6 + len(rest), not bool(rest.any())
    folded = FoldedLayerNorm(6, len(rest), zero=zero, dtype=torch.float64)
    if not zero:
        folded.rest_(rest.mean(), rest.var(unbiased=False))
    x = (normal32(2, 5, 6).double() + offset).requires_grad_()
    whole = nn.LayerNorm(n, dtype=torch.float64)
    wanted = whole(torch.cat([x, rest.expand(2, 5, -1)], -1))[..., :6]
    assert torch.allclose(folded(x), wanted, atol=1e-12)
    weights = torch.linspace(-1.0, 1.0, 6, dtype=torch.float64)
    (gradient,) = torch.autograd.grad((folded(x) * weights).sum(), x)
    (right,) = torch.autograd.grad((wanted * weights).sum(), x)
    assert torch.allclose(gradient, right, atol=1e-11)
    single = folded.float()(x.detach().float())
    assert torch.allclose(single.double(), wanted, atol=1e-6 * max(1.0, offset))


class Placed(nn.Module):
    """Adds a table of positions that is not trained, before two norms."""

    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Linear(3, 8), nn.LayerNorm(8)
        self.inner, self.last, self.out = nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 2)
        self.register_buffer("table", torch.arange(40.0).view(1, 5, 8).sin())

    def forward(self, x):
        x = self.first(x) + self.table
        return self.out(self.last(x + self.inner(self.norm(x))))


def test_a_stream_loses_channels_that_hold_a_fixed_table_alone():
    net = Placed().eval()
    gone = [1, 4, 6]
    with torch.no_grad():
        for layer in (net.first, net.inner):
            layer.weight[gone], layer.bias[gone] = 0.0, 0.0
        for layer in (net.inner, net.out):
            layer.weight[:, gone] = 0.0
        for norm in (net.norm, net.last):
            norm.weight[gone], norm.bias[gone] = 0.0, 0.0
    x = normal32(4, 5, 3)
    small = compact(net, x)
    assert small.compaction.parameters[1] == (3 + 1) * 5 + 2 * 10 + (5 + 1) * 5 + (5 + 1) * 2
    assert small.compaction.max_difference < 1e-6
    assert small.get_submodule("norm").positions == (5,)
    again = copy.deepcopy(small).double()
    assert torch.allclose(again(x.double()), net.double()(x.double()), atol=1e-6)
    with torch.no_grad():  # one more
        for layer in (small.first, small.inner):
            layer.weight[2], layer.bias[2] = 0.0, 0.0
        for layer in (small.inner, small.out):
            layer.weight[:, 2] = 0.0
        for norm in (small.norm, small.last):
            norm.weight[2], norm.bias[2] = 0.0, 0.0
    twice = compact(small, x)
    assert twice.get_submodule("last").n_features == 4
    assert twice.compaction.max_difference < 1e-6


class Crossed(nn.Module):
    """Four heads that read another sequence, under a mask of zeros made for each head."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(8, 8) for _ in range(4))
        self.dropped = 0.3

    def forward(self, x):
        q, k, v = (
            layer(x).view(x.shape[0], -1, 4, 2).transpose(1, 2)
            for layer in (self.q, self.k, self.v)
        )
        mask = torch.zeros(1, 4, 6, 6)
        mask = torch.where(x[:, None, :, :1] > -9.0, mask, -1e9)
        p = self.dropped if self.training else 0.0
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=p)
        return self.o(out.transpose(1, 2).reshape(x.shape[0], -1, 8))


def test_heads_under_a_mask_of_their_own_go():
    net, x = Crossed().eval(), normal32(2, 6, 8)
    small = compact(prune(as_point(net, Gaussian()), keep_units(0.5, example=x)), x)
    assert small.compaction.max_difference < 1e-6
    assert small.get_submodule("q").out_features == 4
    assert torch.equal(small(x), small(x))
    assert not torch.equal(small.train()(x), small(x))  # drops attention weights as the whole one


@pytest.mark.parametrize("constant", [0.0, 1.5])
def test_group_norm_loses_constants_of_uneven_groups(constant):
    first, norm, last = nn.Conv2d(3, 9, 3), nn.GroupNorm(3, 9), nn.Conv2d(9, 2, 1)
    gone = [1, 2, 6, 7, 8]  # two of the first group, none of the second, all of the third
    with torch.no_grad():
        first.weight[gone], first.bias[gone] = 0.0, constant
        last.weight[:, gone] = 0.0
        norm.weight.copy_(1 + 0.1 * torch.arange(9))
    x = normal32(4, 3, 8, 8)
    small = compact(nn.Sequential(first, norm, last), x)
    assert small.get_submodule("1").sizes == (1, 3)
    assert small.compaction.max_difference < 1e-6
    with torch.no_grad():
        small.get_submodule("2").weight[:, 2] = 0.0
        small.get_submodule("0").weight[2], small.get_submodule("0").bias[2] = 0.0, 0.5
    twice = compact(small, x)
    assert twice.get_submodule("1").sizes == (1, 2)
    assert twice.compaction.max_difference < 1e-6


def test_tokens_that_two_embeddings_and_a_layer_read_by_one_weight():
    net = Calling(
        lambda s, x: F.linear(
            torch.tanh(s.left(F.embedding(x, s.table.weight)))
            + torch.tanh(s.right(F.embedding(x + 1, s.table.weight))),
            s.table.weight,
        ),
        table=nn.Embedding(9, 6), left=nn.Linear(6, 6), right=nn.Linear(6, 6),
    )  # fmt: skip
    x = torch.arange(8).view(2, 4)
    small = compact(prune(as_point(net, Gaussian()), keep_units(0.5, example=x)), x)
    assert small.compaction.parameters[1] == 9 * 3 + 2 * (3 * 3 + 3)  # one table of three columns
    assert small.compaction.max_difference < 1e-6


def test_channels_pass_through_where_roll_and_a_table_that_is_indexed():
    net = Calling(
        lambda s, x: s.last(
            torch.where(x[..., :1] > 0, torch.roll(s.first(x), 1, 1), 0.5)
            + s.bias.weight[torch.tensor([2, 0, 1])]
        ),
        first=nn.Linear(3, 6), bias=nn.Embedding(4, 6), last=nn.Linear(6, 2),
    )  # fmt: skip
    x = normal32(2, 3, 3)
    small = compact(prune(as_point(net, Gaussian()), keep_units(0.5, example=x)), x)
    assert small.get_submodule("first").out_features == 3
    assert small.compaction.max_difference < 1e-6


def test_a_tied_embedding_stays_tied():
    x = torch.zeros(TOKENS, dtype=torch.int64)
    small = compact(
        prune(as_point(GPT(tied=True), Gaussian()), keep_units({"tok": 5}, example=x)), x
    )
    table, layer = small.get_submodule("tok"), small.get_submodule("head")
    assert table.weight is layer.weight
    assert table.weight.shape == (11, 5)
