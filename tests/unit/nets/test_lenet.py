import pytest
import torch
from torch import nn

from bayesieve.nets import lenet5, lenet5_caffe, lenet_300_100


@pytest.mark.parametrize(
    ("factory", "n_weights"), [(lenet_300_100, 266_610), (lenet5, 61_706), (lenet5_caffe, 431_080)]
)
def test_size_on_mnist_is_the_published_one(factory, n_weights):
    net = factory((1, 28, 28), 10)
    assert sum(p.numel() for p in net.parameters()) == n_weights


@pytest.mark.parametrize("factory", [lenet_300_100, lenet5, lenet5_caffe])
@pytest.mark.parametrize("input_shape", [(1, 28, 28), (3, 32, 32), (2, 28, 41)])
def test_any_large_enough_image_goes_through(factory, input_shape):
    net = factory(input_shape, 7)
    assert net(torch.zeros(2, *input_shape)).shape == (2, 7)


def test_lenet5_is_tanh_with_average_pooling():
    kinds = [type(layer) for layer in lenet5((1, 28, 28), 10)]
    stage = [nn.Conv2d, nn.Tanh, nn.AvgPool2d]
    assert kinds == [
        *stage,
        *stage,
        nn.Conv2d,
        nn.Tanh,
        nn.Flatten,
        nn.Linear,
        nn.Tanh,
        nn.Linear,
    ]


def test_lenet5_caffe_has_max_pooling_and_a_relu_per_hidden_layer():
    kinds = [type(layer) for layer in lenet5_caffe((1, 28, 28), 10)]
    assert kinds.count(nn.MaxPool2d) == 2
    assert kinds.count(nn.ReLU) == 3


@pytest.mark.parametrize(("factory", "least"), [(lenet5, 28), (lenet5_caffe, 16)])
def test_smallest_image_is_accepted_and_one_less_is_refused(factory, least):
    assert factory((1, least, least), 3)(torch.zeros(1, 1, least, least)).shape == (1, 3)
    message = (
        rf"^{factory.__name__}: images must be at least {least}x{least}, got {least}x{least - 1}\. "
        r"Pad or enlarge them, or use mlp\.$"
    )
    with pytest.raises(ValueError, match=message):
        factory((1, least, least - 1), 3)


@pytest.mark.parametrize("factory", [lenet5, lenet5_caffe])
def test_flat_input_is_refused(factory):
    message = r"input_shape must be \(channels, height, width\), got \(784,\)\. .* use mlp\.$"
    with pytest.raises(ValueError, match=message):
        factory((784,), 10)


@pytest.mark.parametrize("factory", [lenet_300_100, lenet5, lenet5_caffe])
def test_wrong_sizes_are_refused(factory):
    with pytest.raises(ValueError, match=r"n_outputs must be > 0, got 0\.$"):
        factory((1, 28, 28), 0)
    with pytest.raises(TypeError, match=r"input_shape must be a non-empty tuple"):
        factory([1, 28, 28], 10)
