import copy
import io
import math
import pickle

import pytest
import torch
from torch import fx, nn

from bayesieve.deliver.quantise import (
    QuantisedConv,
    QuantisedLinear,
    quantisation_error,
    quantise,
    quantise_rows,
)
from bayesieve.nets import lenet5_caffe, mlp


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_rows_are_within_half_a_scale_and_use_the_whole_range():
    weight = normal(6, 3, 5, 5) * torch.logspace(-30, 30, 6).view(-1, 1, 1, 1)
    whole, scale = quantise_rows(weight)
    assert whole.dtype == torch.int8
    assert whole.flatten(1).abs().amax(1).tolist() == [127] * 6
    error = (weight.double() - whole.double() * scale.double().view(-1, 1, 1, 1)).abs()
    assert bool((error.flatten(1).amax(1) <= 0.5001 * scale.double()).all())


def test_zeros_stay_zeros():
    weight = normal(4, 50)
    weight[:, ::2] = 0
    weight[3] = 0
    whole, scale = quantise_rows(weight)
    assert not whole[:, ::2].any()
    assert not whole[3].any()
    assert bool((scale > 0).all())


def test_weights_must_be_finite():
    with pytest.raises(ValueError, match="finite"):
        quantise_rows(torch.tensor([[1.0, math.nan]]))


LAYERS = {
    "linear": (lambda: nn.Linear(6, 4), (6,)),
    "no bias": (lambda: nn.Linear(6, 4, bias=False), (6,)),
    "conv1d": (lambda: nn.Conv1d(2, 4, 3, stride=2, padding=1), (2, 9)),
    "conv2d": (lambda: nn.Conv2d(4, 6, 3, groups=2, dilation=2, padding="same"), (4, 7, 7)),
    "circular": (lambda: nn.Conv2d(2, 3, 3, padding=(1, 2), padding_mode="circular"), (2, 5, 6)),
    "reflect": (lambda: nn.Conv2d(2, 3, 3, padding="same", padding_mode="reflect"), (2, 5, 6)),
    "conv3d": (lambda: nn.Conv3d(1, 2, 2), (1, 3, 3, 3)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_computes_with_its_rounded_weights(name):
    build, shape = LAYERS[name]
    torch.manual_seed(0)
    layer, x = build(), normal(3, *shape)
    small = quantise(layer)
    rounded = copy.deepcopy(layer)
    rounded.weight.data.copy_(small.dequantised())
    torch.testing.assert_close(small(x), rounded(x))
    assert not torch.equal(rounded.weight, layer.weight)


@pytest.mark.parametrize("name", LAYERS)
def test_the_error_stays_under_its_bound(name):
    build, shape = LAYERS[name]
    torch.manual_seed(0)
    layer, x = build(), normal(3, *shape)
    found = quantisation_error(layer, quantise(layer), x)
    n_terms = layer.weight[0].numel()
    largest = layer.weight.abs().max().item() / 127
    assert 0 < found.max_abs_error <= 0.5 * largest * n_terms * float(x.abs().max())


def test_a_network_shrinks_to_a_quarter_and_keeps_its_labels():
    torch.manual_seed(0)
    module, x = lenet5_caffe((1, 28, 28), 10), normal(40, 1, 28, 28)
    small = quantise(module)
    error = quantisation_error(module, small, x)
    assert error.n_bytes_before == 4 * 431080
    assert error.n_bytes_after == 430500 + 2 * 4 * 580  # weights; scales and biases
    assert error.relative_error < 0.02
    assert error.changed_labels <= 0.05
    assert error.relative_error == error.max_abs_error / error.output_scale


def test_quantise_copies_pickles_saves_and_traces():
    torch.manual_seed(0)
    module, x = mlp((4,), 3, (5,)), normal(6, 4)
    small = quantise(module)
    expected = small(x)
    for other in (
        copy.deepcopy(small),
        pickle.loads(pickle.dumps(small)),
        fx.symbolic_trace(small),
        quantise(fx.symbolic_trace(module)),
    ):
        assert torch.equal(other(x), expected)
    file = io.BytesIO()
    torch.save(small.state_dict(), file)
    file.seek(0)
    state = torch.load(file, weights_only=True)
    assert state["fc1.weight"].dtype == torch.int8
    again = quantise(mlp((4,), 3, (5,)))
    again.load_state_dict(state)
    assert torch.equal(again(x), expected)


def test_the_original_is_left_alone():
    module = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)).train()
    before = copy.deepcopy(module.state_dict())
    small = quantise(module)
    quantisation_error(module, small, normal(4, 3))
    assert module.training
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    small[0].bias.data.add_(1)
    assert torch.equal(module[0].bias, before["0.bias"])


def test_shared_layers_stay_shared_and_subclasses_stay_as_they_are():
    layer = nn.Linear(3, 3)
    small = quantise(nn.Sequential(layer, nn.ReLU(), layer))
    assert small[0] is small[2]
    assert isinstance(small[0], QuantisedLinear)
    attention = quantise(nn.Sequential(nn.Conv1d(1, 1, 1), nn.MultiheadAttention(4, 2)))
    assert isinstance(attention[0], QuantisedConv)
    assert attention[1].out_proj.weight.dtype == torch.float32


def test_double_weights_stay_double():
    small = quantise(nn.Linear(3, 2).double())
    assert small(normal(2, 3).double()).dtype == torch.float64


def test_relative_error_of_outputs_that_are_zero():
    layer = nn.Linear(2, 1, bias=False)
    nn.init.zeros_(layer.weight)
    assert quantisation_error(layer, quantise(layer), torch.ones(1, 2)).relative_error == 0
    other = quantise(nn.Linear(2, 1))
    assert quantisation_error(layer, other, torch.ones(1, 2)).relative_error == math.inf


def test_there_must_be_something_to_do():
    with pytest.raises(ValueError, match="no Linear or Conv layer"):
        quantise(nn.Sequential(nn.ReLU()))
    with pytest.raises(ValueError, match="got no inputs"):
        quantisation_error(nn.Linear(2, 1), nn.Linear(2, 1), torch.zeros(0, 2))
