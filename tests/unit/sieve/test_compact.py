"""Compaction by hand: what goes, what is folded where, and what the result is good for."""

import copy
import json

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize
from torch.nn.utils import prune as torch_prune

from bayesieve.errors import UnsupportedModelError, VerificationError
from bayesieve.nets import lenet5_caffe, lenet_300_100
from bayesieve.sieve import compact as compact_file
from bayesieve.sieve.compact import CompactionReport, compact, report_of
from bayesieve.sieve.prune import prune
from bayesieve.sieve.rules import keep_zeros
from bayesieve.sieve.verify import verify
from problems import seeded
from zoo import Calling, chain


def filled(layer: nn.Module, weight: object, bias: object | None = None) -> nn.Module:
    """A layer with given numbers."""
    with torch.no_grad():
        layer.weight.copy_(torch.as_tensor(weight, dtype=torch.float32).view_as(layer.weight))
        if bias is not None:
            layer.bias.copy_(torch.as_tensor(bias, dtype=torch.float32))
    return layer


def changes(small: nn.Module) -> dict[str, tuple]:
    return {c.name: (c.units, c.inputs, c.parameters) for c in small.compaction.layers}


def n_parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def randomly_masked(model: nn.Module, zeros: float, seed: int = 0) -> nn.Module:
    generator = seeded(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
            if parameter.dim() > 1:
                parameter *= torch.rand(parameter.shape, generator=generator) >= zeros
    return model.eval()


def test_by_hand():
    # hidden 0 reads x0; hidden 1 reads nothing: relu(2) = 2; hidden 2 is read by nobody
    net = nn.Sequential(
        filled(nn.Linear(3, 3), [[1, 0, 0], [0, 0, 0], [0, 1, 1]], [0.5, 2, 1]),
        nn.ReLU(),
        filled(nn.Linear(3, 2), [[1, 10, 0], [0, 5, 0]], [1, 0]),
    )
    small = compact(net, torch.zeros(1, 3))
    assert changes(small) == {"0": ((3, 1), (3, 1), (12, 2)), "2": ((2, 2), (3, 1), (8, 4))}
    assert small.compaction.input_features == (0,)
    assert small.compaction.n_inputs == 3
    first, last = small.get_submodule("0"), small.get_submodule("2")
    assert (first.weight.tolist(), first.bias.tolist()) == ([[1.0]], [0.5])
    assert (last.weight.tolist(), last.bias.tolist()) == ([[1.0], [0.0]], [21.0, 10.0])
    assert small(torch.tensor([[2.0, 7.0, 7.0]])).tolist() == [[23.5, 10.0]]


@pytest.mark.parametrize(
    ("between", "value"),
    [
        (nn.ReLU(), 0.0),
        (nn.Tanh(), -0.761594),
        (nn.Sigmoid(), 0.268941),
        (nn.Sequential(nn.Dropout(0.5), nn.LeakyReLU(0.1)), -0.1),
        (nn.Softplus(), 0.313262),
    ],
)
def test_constants_pass_through_activations(between, value):
    net = nn.Sequential(
        filled(nn.Linear(1, 2), [[1], [0]], [0, -1]), between, filled(nn.Linear(2, 1), [[1, 2]], 0)
    )
    small = compact(net, torch.zeros(1, 1))
    assert small.get_submodule("2").bias.item() == pytest.approx(2 * value, abs=1e-6)
    assert small.compaction.parameters == (7, 4)


def test_constants_pass_through_batch_norm_and_pooling_into_a_flattened_layer():
    norm = filled(nn.BatchNorm2d(2), [1, 3], [0, 1])
    norm.running_mean[1], norm.running_var[1], norm.eps = 2.0, 4.0, 1e-12
    conv = nn.Conv2d(1, 2, 3)
    with torch.no_grad():
        conv.weight[1] = 0
        conv.bias[1] = 6  # normalised: 3 * (6 - 2) / 2 + 1 = 7
    head = filled(nn.Linear(8, 1), torch.ones(8), 0)
    net = nn.Sequential(conv, norm, nn.AvgPool2d(2), nn.MaxPool2d(1), nn.Flatten(), head)
    small = compact(net.eval(), torch.randn(2, 1, 6, 6))
    assert small.get_submodule("5").bias.item() == pytest.approx(4 * 7)
    assert changes(small)["0"] == ((2, 1), (1, 1), (20, 10))
    assert changes(small)["1"] == ((2, 1), (2, 1), (4, 2))
    assert len(small.get_submodule("1").running_var) == 1
    assert changes(small)["5"] == ((1, 1), (8, 4), (9, 5))


@pytest.mark.parametrize(
    ("padding", "mode", "bias", "kept"),
    [
        (0, "zeros", 1.0, 1),
        (1, "replicate", 1.0, 1),
        (1, "circular", 1.0, 1),
        (1, "zeros", -1.0, 1),  # relu(-1) = 0 is 0 in the padding as well
        (1, "zeros", 1.0, 2),
    ],
)
def test_a_constant_channel_is_folded_only_where_that_is_exact(padding, mode, bias, kept):
    first, second = nn.Conv2d(1, 2, 1), nn.Conv2d(2, 3, 3, padding=padding, padding_mode=mode)
    with torch.no_grad():
        first.weight[1], first.bias[1] = 0, bias
    net = nn.Sequential(first, nn.ReLU(), second)
    small = compact(net, torch.randn(2, 1, 5, 5))
    assert changes(small)["2"][1] == (2, kept)
    reasons = "\n".join(small.compaction.kept)
    assert ("2 keeps 1 constant input channel alive: zero padding" in reasons) == (kept == 2)


def test_one_constant_channel_carries_the_others_where_none_can_be_folded():
    first, second = nn.Conv2d(1, 4, 1), nn.Conv2d(4, 2, 3, padding=1)
    filled(first, [1, 0, 0, 0], [0, 2, -8, 4])
    ones = filled(second, torch.ones(2, 4, 3, 3), [0, 0])
    small = compact(nn.Sequential(first, ones), torch.randn(2, 1, 5, 5))
    assert changes(small)["0"][0] == (4, 2)
    weight = small.get_submodule("1").weight
    assert weight[:, 0].unique().tolist() == [1.0]
    assert weight[:, 1].unique().tolist() == [(2 - 8 + 4) / -8]  # on the largest constant
    assert "1 keeps 1 constant input channel alive" in small.compaction.kept[0]


def test_bias_is_made_where_there_was_none():
    net = nn.Sequential(
        filled(nn.Linear(1, 2), [[1], [0]], [0, 3]), filled(nn.Linear(2, 1, bias=False), [[1, 2]])
    )
    small = compact(net, torch.zeros(1, 1))
    assert small.get_submodule("1").bias.item() == 6
    assert small.compaction.parameters == (6, 4)


def test_death_travels_through_many_layers():
    net = chain(4, 4, 4, 4, 4, 4, act=None)
    with torch.no_grad():
        net[4].weight[:, 1:] = 0
        for layer in net[:4]:
            layer.weight[0, 1:] = 0
    small = compact(net, torch.zeros(1, 4))
    assert [after for _, after in (c.units for c in small.compaction.layers)] == [1, 1, 1, 1, 4]
    assert small.compaction.input_features == (0,)


@pytest.mark.parametrize("padding", [0, 1])
def test_a_network_of_zeros_keeps_one_unit_per_layer(padding):
    net = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=padding), nn.Tanh(), nn.Conv2d(4, 4, 3), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(4, 3, bias=False),
    )  # fmt: skip
    with torch.no_grad():
        for parameter in net.parameters():
            if parameter.dim() > 1:
                parameter.zero_()
    x = torch.randn(2, 2, 7, 7)
    small = compact(net, x)
    assert changes(small)["5"][:2] == ((3, 3), (4, 1))
    assert changes(small)["0"][0] == (4, 1)
    assert compact(small, x).compaction.parameters[1] == n_parameters(small)
    assert any("output must keep its shape: it keeps 3" in r for r in small.compaction.kept)


def test_units_of_lenet_as_counted_from_its_masks():
    net = randomly_masked(lenet_300_100((784,), 10), 0.985)
    w1, w2, w3 = (net.get_submodule(name).weight != 0 for name in ("fc1", "fc2", "out"))
    alive1, alive2 = w1.any(1), torch.zeros(100, dtype=torch.bool)
    alive2 = (w2 & alive1).any(1) & w3.any(0)
    alive1 = alive1 & w2[alive2].any(0)
    features = w1[alive1].any(0).nonzero().flatten()
    small = compact(net, torch.zeros(1, 784))
    assert changes(small)["fc1"][0] == (300, int(alive1.sum()))
    assert changes(small)["fc2"][0] == (100, int(alive2.sum()))
    assert small.compaction.input_features == tuple(features.tolist())
    assert small.compaction.n_inputs == 784


def test_input_channels_of_a_convolution_are_picked():
    conv = nn.Conv2d(3, 2, 1)
    with torch.no_grad():
        conv.weight[:, 1] = 0
    small = compact(nn.Sequential(conv), torch.randn(2, 3, 4, 4))
    assert small.compaction.input_features == (0, 2)
    assert small.get_buffer("_0_inputs").tolist() == [0, 2]
    assert compact(nn.Conv2d(3, 2, 1), torch.randn(2, 3, 4, 4)).compaction.input_features is None


def test_sparse_model(random_posterior, mlp):
    sparse = prune(random_posterior(mlp), keep_zeros(0.7))
    x = torch.randn(3, 5)
    small = compact(sparse, x)
    torch.testing.assert_close(small(x), sparse.to_module()(x))
    assert small.compaction.parameters[0] == sparse.layout.size
    assert small.compaction.parameters[1] < sparse.layout.size


class Mask(nn.Module):
    def __init__(self, keep: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("keep", keep)

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight * self.keep


def masks_by_parametrisation() -> nn.Module:
    net = chain(5, 8, 2, act=nn.ReLU)
    for layer in (net[0], net[2]):
        keep = torch.rand(layer.weight.shape, generator=seeded()) > 0.7
        parametrize.register_parametrization(layer, "weight", Mask(keep))
    return net


def masks_of_torch() -> nn.Module:
    net = chain(5, 8, 2, act=nn.ReLU)
    torch_prune.random_structured(net[0], "weight", 0.5, dim=0)
    return net


def weight_norm() -> nn.Module:
    return nn.Sequential(parametrizations.weight_norm(nn.Linear(5, 8)), nn.Linear(8, 2))


@pytest.mark.parametrize("build", [masks_by_parametrisation, masks_of_torch, weight_norm])
def test_masks_left_on_are_baked_in_and_the_argument_stays(build):
    net, x = build(), torch.randn(2, 5)
    before, names = net(x), [name for name, _ in net.named_parameters()]
    small = compact(net, x)
    torch.testing.assert_close(small(x), before)
    torch.testing.assert_close(net(x), before)
    assert [name for name, _ in net.named_parameters()] == names
    assert all(type(m).__name__ in ("Linear", "ReLU") for m in small.children())


def test_the_argument_and_the_random_state_are_left_alone(mlp):
    mlp.train()
    before, state = copy.deepcopy(mlp.state_dict()), torch.get_rng_state()
    x = torch.randn(2, 5)
    state, example = torch.get_rng_state(), x.clone()
    small = compact(mlp, x)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(x, example)
    assert mlp.training
    assert not small.training
    for name, value in mlp.state_dict().items():
        assert torch.equal(value, before[name])
    assert not {p.data_ptr() for p in mlp.parameters()} & {p.data_ptr() for p in small.parameters()}


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_dtype_is_kept(dtype):
    net = randomly_masked(lenet5_caffe((1, 16, 16), 3), 0.9).to(dtype)
    small = compact(net, torch.randn(2, 1, 16, 16, dtype=dtype))
    assert {p.dtype for p in small.parameters()} == {dtype}
    bound = {torch.float64: 1e-12, torch.bfloat16: 0.13}[dtype]
    assert small.compaction.max_difference < bound


def test_result_trains_and_exports():
    net, x = randomly_masked(lenet5_caffe((1, 16, 16), 3), 0.9), torch.randn(4, 1, 16, 16)
    small = compact(net, x)
    program = torch.export.export(
        small, (x,), dynamic_shapes=({0: torch.export.Dim("n", min=1, max=64)},)
    )
    torch.testing.assert_close(program.module()(x[:3]), small(x[:3]))
    optimizer = torch.optim.SGD(small.parameters(), lr=1e-9)
    loss = small.train()(x).square().mean()
    loss.backward()
    optimizer.step()
    assert small(x).square().mean() < loss


def test_frozen_parameters_stay_frozen(mlp):
    mlp[0].requires_grad_(False)
    small = compact(mlp, torch.randn(1, 5))
    frozen = {name for name, p in small.named_parameters() if not p.requires_grad}
    assert frozen == {"0.weight", "0.bias"}


def test_report_is_plain_data():
    net = nn.Sequential(filled(nn.Linear(2, 1), [[0, 1]], 0), nn.Linear(1, 1))
    report = report_of(compact(net, torch.zeros(1, 2)))
    data = json.loads(json.dumps(report.to_dict()))
    assert data["layers"][0] == {
        "name": "0", "kind": "Linear", "units": [1, 1], "inputs": [2, 1], "parameters": [3, 2]
    }  # fmt: skip
    assert data["parameters"] == [5, 4]
    assert data["input_features"] == [1]
    assert isinstance(report, CompactionReport)
    assert str(report).splitlines()[-1] == "reads 1 of 2 input features"


def test_only_compacted_modules_have_a_report(mlp):
    with pytest.raises(TypeError, match="Sequential was not made by compact"):
        report_of(mlp)


def test_bare_layer():
    small = compact(filled(nn.Linear(2, 1), [[0, 1]], 0), torch.zeros(1, 2))
    assert changes(small) == {"0": ((1, 1), (2, 1), (3, 2))}


def test_several_outputs():
    net = Calling(lambda s, x: {"a": s.a(x), "b": (s.b(x),)}, a=nn.Linear(2, 3), b=nn.Linear(2, 1))
    assert set(compact(net, torch.randn(1, 2))(torch.randn(4, 2))) == {"a", "b"}


def test_other_arguments_take_their_defaults():
    class Optional(nn.Sequential):
        def forward(self, x, mask=None, how="mean", sizes=(1, 2), **others):
            x = super().forward(x) if mask is None else x * mask
            return x.mean(1) if how == "mean" else x

    assert compact(Optional(nn.Linear(2, 2)), torch.randn(3, 2))(torch.randn(5, 2)).shape == (5,)


def test_input_is_not_overwritten():
    net = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(2, 2))
    x = torch.tensor([[-1.0, 1.0]])
    compact(net, x)(x)
    assert x.tolist() == [[-1.0, 1.0]]


def test_untraceable():
    net = Calling(lambda s, x: s.a(x) if x.sum() > 0 else -s.a(x), a=nn.Linear(2, 2))
    with pytest.raises(UnsupportedModelError, match=r"Calling cannot be traced beyond node 'gt'"):
        compact(net, torch.zeros(1, 2))


def test_hidden_writes():
    def forward(net, x):
        h = net.a(x)
        h.add_(1)  # the result has no name
        g = torch.relu_(h)
        return net.b(h + 2 * g)  # both are the overwritten tensor

    a = filled(nn.Linear(1, 3), [[0], [0], [1]], [1, -4, 0])
    net = Calling(forward, a=a, b=filled(nn.Linear(3, 1), [[1, 1, 1]], 0))
    small = compact(net, torch.zeros(1, 1))
    assert changes(small)["a"][0] == (3, 1)
    assert small.b.bias.item() == 6  # 3 relu(1 + 1) + 3 relu(-4 + 1)


@pytest.mark.filterwarnings("ignore:.*jit.*:DeprecationWarning")
def test_compiled_modules_are_refused_in_words():
    with pytest.raises(
        UnsupportedModelError, match=r"compact: the model is compiled by torch\.jit"
    ):
        compact(torch.jit.script(nn.Linear(2, 1)), torch.zeros(1, 2))


def test_example_must_fit(mlp):
    with pytest.raises(ValueError, match=r"does not run on an example of shape \(1, 4\)"):
        compact(mlp, torch.zeros(1, 4))
    with pytest.raises(ValueError, match=r"at least one input, got shape \(0, 5\)"):
        compact(mlp, torch.zeros(0, 5))


def test_arguments_of_another_type(mlp, random_posterior):
    with pytest.raises(TypeError, match="a SparseModel or a module, got Factorised"):
        compact(random_posterior(mlp), torch.zeros(1, 5))
    with pytest.raises(TypeError, match=r"one or more tensors, .* got a list with a float in it"):
        compact(mlp, [0.0] * 5)


def test_a_size_that_changes_with_the_batch_is_no_constant():
    net = Calling(
        lambda s, x: s.b(s.a(x) * x.size(0)),
        a=filled(nn.Linear(1, 2), [[1], [0]], [0, 1]), b=nn.Linear(2, 1),
    )  # fmt: skip
    assert changes(compact(net, torch.zeros(3, 1)))["a"][0] == (2, 2)


def test_selections_are_kept_by_name_when_compacted_again():
    net = filled(nn.Linear(3, 1), [[1, 0, 2]], 0)
    small = compact(net, torch.zeros(1, 3))
    again = compact(small, torch.zeros(1, 3))
    assert again.code == small.code
    assert again.compaction.input_features == (0, 2)


def test_a_wrong_result_is_never_returned(mlp, monkeypatch):
    class Wrong(compact_file.Rewriter):
        def run(self):
            module = super().run()
            with torch.no_grad():
                module.get_submodule("4").bias += 1e-3
            return module

    monkeypatch.setattr(compact_file, "Rewriter", Wrong)
    with pytest.raises(VerificationError, match=r"on the example the outputs differ by 0\.001"):
        compact(mlp, torch.randn(2, 5))


def scaled(*weight: float, bias: float = 0.0) -> nn.Module:
    return filled(nn.Linear(2, 1), [weight], bias)


def returning(n: int) -> nn.Module:
    return Calling(lambda s, x: (x,) * n)


@pytest.mark.parametrize(
    ("small", "reference", "said"),
    [
        (scaled(2, 2), scaled(1, 1), r"on the example .* differ by 2 at a scale of 2"),
        (scaled(2, 0), scaled(1, 1), "on 7 random inputs"),
        (nn.Sequential(scaled(1, 1), nn.Hardtanh(-50, 50)), scaled(1, 1),
         "on large inputs the outputs differ by"),
        (nn.Linear(2, 2), scaled(1, 1), r"a tensor of shape \(1, 1\), got .* \(1, 2\)"),
        (scaled(1, 1, bias=float("nan")), scaled(1, 1), "differ by nan"),
        (returning(1), returning(2), "must be a tuple of 2, got a tuple of 1"),
    ],
    ids=lambda value: value[:20] if isinstance(value, str) else "",
)  # fmt: skip
def test_verify_names_numbers_and_inputs(small, reference, said):
    assert verify(reference, reference, torch.ones(1, 2)) == 0
    with pytest.raises(VerificationError, match=said):
        verify(small, reference, torch.ones(1, 2))


def test_verify_accepts_a_difference_below_its_tolerance_and_restores_modes(mlp):
    other = copy.deepcopy(mlp)
    with torch.no_grad():
        other[-1].bias += 1e-3
    mlp.train()
    assert 0 < verify(other, mlp, torch.randn(2, 5), tolerance=1e-1) < 1e-1
    assert mlp.training
    with pytest.raises(VerificationError, match="more than 1e-05 of it"):
        verify(other, mlp, torch.randn(2, 5))


def test_verify_on_tokens():
    one = nn.Embedding(5, 2)
    other = copy.deepcopy(one)
    with torch.no_grad():
        other.weight[3] += 1
    assert verify(other, one, torch.tensor([[0, 1, 2]])) == 0  # tokens of the example only
    with pytest.raises(VerificationError, match="differ by 1"):
        verify(other, one, torch.tensor([[0, 1, 3]]))


def test_what_is_left_lies_in_one_piece() -> None:
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 3))
    with torch.no_grad():
        model[0].weight[1] = 0
        model[0].bias[1] = 0
    small = compact(model, torch.randn(2, 1, 8, 8))
    assert small.state_dict()
    assert all(value.is_contiguous() for value in small.state_dict().values())
