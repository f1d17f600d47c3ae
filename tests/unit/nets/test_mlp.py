import pytest
import torch
from torch import nn

from bayesieve.nets import lenet_300_100, mlp


def test_layers_are_named_and_sized_in_order():
    net = mlp((3, 2), 4, widths=(5, 7), activation="tanh")
    names = [name for name, _ in net.named_children()]
    assert names == ["flatten", "fc1", "act1", "fc2", "act2", "out"]
    assert net.fc1.weight.shape == (5, 6)
    assert net.fc2.weight.shape == (7, 5)
    assert net.out.weight.shape == (4, 7)


@pytest.mark.parametrize(
    ("activation", "function"),
    [
        ("relu", lambda x: x.clamp(min=0)),
        ("tanh", lambda x: 1 - 2 / (torch.exp(2 * x) + 1)),
        ("swish", lambda x: x / (1 + torch.exp(-x))),
    ],
)
def test_output_equals_the_formula(activation, function):
    net = mlp((4,), 3, widths=(6,), activation=activation).double()
    x = torch.linspace(-2, 2, 20, dtype=torch.float64).reshape(5, 4)
    hidden = function(x @ net.fc1.weight.T + net.fc1.bias)
    expected = hidden @ net.out.weight.T + net.out.bias
    torch.testing.assert_close(net(x), expected)


def test_no_hidden_layer_is_a_linear_model():
    net = mlp((2, 3), 1, widths=())
    assert [type(layer) for layer in net] == [nn.Flatten, nn.Linear]
    assert net(torch.zeros(4, 2, 3)).shape == (4, 1)


def test_default_has_two_hidden_layers_of_400():
    n_weights = sum(p.numel() for p in mlp((1, 28, 28), 10).parameters())
    assert n_weights == 785 * 400 + 401 * 400 + 401 * 10


def test_lenet_300_100_has_the_published_size():
    assert sum(p.numel() for p in lenet_300_100((1, 28, 28), 10).parameters()) == 266_610


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"widths": (400, 0)}, r"^mlp: widths must be > 0, got 0\.$"),
        ({"widths": (-3,)}, r"^mlp: widths must be > 0, got -3\.$"),
        ({"n_outputs": 0}, r"^mlp: n_outputs must be > 0, got 0\.$"),
        ({"input_shape": (1, 0)}, r"^mlp: input_shape must be > 0, got 0\.$"),
        (
            {"activation": "relo"},
            r"activation must be one of relu, tanh, swish; got 'relo'\. Did you mean 'relu'\?",
        ),
    ],
)
def test_wrong_values_raise(arguments, message):
    with pytest.raises(ValueError, match=message):
        mlp(**{"input_shape": (4,), "n_outputs": 2} | arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"widths": (2.5,)}, r"^mlp: widths must be a whole number, got 2\.5\.$"),
        ({"widths": (True,)}, r"^mlp: widths must be a whole number, got True\.$"),
        ({"n_outputs": "10"}, r"^mlp: n_outputs must be a whole number, got '10'\.$"),
        ({"input_shape": ()}, r"non-empty tuple such as \(1, 28, 28\), got \(\)\."),
        ({"input_shape": 784}, r"non-empty tuple .* got 784\. Leave the batch size out\.$"),
    ],
)
def test_wrong_types_raise(arguments, message):
    with pytest.raises(TypeError, match=message):
        mlp(**{"input_shape": (4,), "n_outputs": 2} | arguments)
