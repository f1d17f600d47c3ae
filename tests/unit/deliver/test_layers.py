"""Layers of a network: what is read, folded and refused."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from bayesieve.deliver.layers import (
    Activation,
    Call,
    Conv,
    Linear,
    Pad,
    Scale,
    read_layers,
    run_layers,
)
from bayesieve.errors import UnsupportedModelError
from problems import normal32
from zoo import Calling


def mixed():
    """A flattening, a BatchNorm behind an activation, and calls of functions."""
    return Calling(
        lambda s, x: torch.tanh(s.b(s.norm(F.relu(s.a(torch.flatten(x, 1)))))),
        a=nn.Linear(4, 3),
        b=nn.Linear(3, 2),
        norm=nn.BatchNorm1d(3),
    )


def residual():
    return Calling(lambda s, x: x + s.inner(x), inner=nn.Linear(4, 4))


def test_layers_in_the_order_of_their_calls():
    layers = read_layers("test", mixed(), (2, 2))
    assert [type(layer) for layer in layers] == [Linear, Activation, Scale, Linear, Activation]
    assert [layer.kind for layer in layers if isinstance(layer, Activation)] == ["ReLU", "Tanh"]
    assert [layer.name for layer in layers if isinstance(layer, Linear)] == ["a", "b"]


def test_other_operations_may_stay_calls():
    net, x = mixed().eval(), normal32(5, 2, 2, seed=1)
    layers = read_layers("test", net, (2, 2), calls=True)
    assert [type(layer) for layer in layers] == [Linear, Activation, Call, Linear, Activation]
    torch.testing.assert_close(run_layers(layers, x), net(x).detach())


def test_batch_norm_is_folded_into_the_layer_before_it():
    net = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.BatchNorm2d(2), nn.ReLU()).eval()
    net[1].running_mean.normal_()
    x = normal32(3, 1, 5, 5, seed=1)
    layers = read_layers("test", net, (1, 5, 5))
    assert [type(layer) for layer in layers] == [Pad, Conv, Activation]
    torch.testing.assert_close(run_layers(layers, x), net(x).detach())


@pytest.mark.parametrize("calls", [True, False])
def test_why_a_network_has_no_such_form(calls):
    with pytest.raises(UnsupportedModelError, match="test: Calling cannot be traced"):
        read_layers("test", Calling(lambda s, x: x if x.sum() > 0 else -x), (4,), calls=calls)
    with pytest.raises(UnsupportedModelError, match="test: the network branches at 'add'"):
        read_layers("test", residual(), (4,), calls=calls)
