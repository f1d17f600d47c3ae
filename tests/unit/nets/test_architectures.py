"""The networks of the papers: published sizes, shapes, kinds of layers, and refused sizes."""

import pytest
import torch
from torch import nn

from bayesieve.core.layout import Role
from bayesieve.core.likelihoods import Categorical
from bayesieve.core.problem import Problem
from bayesieve.engines.sgmcmc import SGHMC
from bayesieve.nets import (
    conv2_bn_fc3,
    conv2_fc2,
    lenet5,
    lenet5_caffe,
    lenet5_wide,
    lenet_300_100,
    mixer,
    mlp,
    resnet20,
    resnet32,
    vgg,
    vit,
)
from bayesieve.nets.convnets import resnet
from problems import run
from zoo import built

MNIST, CIFAR, SMALL_VGG = (1, 28, 28), (3, 32, 32), ((8, 8), (16,))
PATCHED = {"mixer": {"token_hidden": 6}, "vit": {"n_heads": 2}}


def count(net):
    return sum(p.numel() for p in net.parameters())


def small(name, channels=2):
    options = dict(patch=2, n_blocks=2, width=8, hidden=5, **PATCHED[name])
    return built(lambda: {"mixer": mixer, "vit": vit}[name]((channels, 4, 6), 3, **options))


@pytest.mark.parametrize(
    ("net", "n_parameters"),
    [
        (lambda: mlp(MNIST, 10), 785 * 400 + 401 * 400 + 401 * 10),
        (lambda: mlp(MNIST, 10, (400,) * 5, "swish"), 959_610),
        (lambda: lenet_300_100(MNIST, 10), 266_610),
        (lambda: lenet5(MNIST, 10), 61_706),
        (lambda: lenet5_caffe(MNIST, 10), 431_080),
        (lambda: lenet5_wide(CIFAR, 10), 550_362),
        (lambda: lenet5_wide(CIFAR, 100), 573_492),
        (lambda: conv2_fc2(MNIST, 10), 681_506),
        (lambda: conv2_bn_fc3(MNIST, 10), 493_772),
        (lambda: resnet20(CIFAR, 10), 272_474),
        (lambda: resnet32(CIFAR, 10), 466_906),
    ],
)
def test_sizes_are_those_published(net, n_parameters):
    assert count(net()) == n_parameters


@pytest.mark.parametrize(
    ("channels", "n_outputs", "of_mixer", "of_vit"),
    [(1, 10, 1.99, 3.19), (3, 10, 2.0, 3.2), (3, 100, 2.02, 3.22)],
)
def test_patch_networks_have_the_published_millions(channels, n_outputs, of_mixer, of_vit):
    nets = (make((channels, 32, 32), n_outputs) for make in (mixer, vit))
    assert [round(count(net) / 1e6, 2) for net in nets] == [of_mixer, of_vit]


def test_the_sparse_convolutions_of_resnet20_are_those_published():
    # all 3x3 convolutions but the first
    net = resnet20(CIFAR, 10)
    convs = [m for m in net.modules() if isinstance(m, nn.Conv2d) and m.kernel_size == (3, 3)]
    assert sum(m.weight.numel() for m in convs[1:]) == 267_264
    assert len([m for m in net.modules() if isinstance(m, nn.Linear)]) + len(convs) == 20


@pytest.mark.parametrize(
    ("net", "shape"),
    [
        *((make, shape) for make in (lenet_300_100, lenet5, lenet5_caffe)
          for shape in (MNIST, CIFAR, (2, 28, 41))),
        (lenet5_caffe, (1, 16, 16)),  # the smallest
        (conv2_fc2, MNIST),
        (lambda s, n: conv2_fc2(s, n, dropout=0.5), (3, 9, 12)),
        (conv2_bn_fc3, MNIST),
        (conv2_bn_fc3, (3, 17, 12)),
        (lambda s, n: resnet(s, n, 1), (3, 16, 16)),
        (lambda s, n: vgg(s, n, SMALL_VGG), (3, 9, 8)),
        (lambda s, n: mixer(s, n, patch=2, n_blocks=1, width=8), (2, 4, 6)),
        (lambda s, n: vit(s, n, patch=2, n_blocks=1, width=8), (2, 4, 6)),
        (lambda s, n: mlp(s, n, widths=()), (2, 3)),
    ],
)  # fmt: skip
def test_images_of_many_shapes_become_outputs(net, shape):
    assert net(shape, 7).eval()(torch.zeros(2, *shape)).shape == (2, 7)


def test_layers_are_of_the_published_kinds():
    stage = [nn.Conv2d, nn.Tanh, nn.AvgPool2d]
    rest = [nn.Conv2d, nn.Tanh, nn.Flatten, nn.Linear, nn.Tanh, nn.Linear]
    assert [type(layer) for layer in lenet5(MNIST, 10)] == [*stage, *stage, *rest]
    kinds = [type(layer) for layer in lenet5_caffe(MNIST, 10)]
    assert (kinds.count(nn.MaxPool2d), kinds.count(nn.ReLU)) == (2, 3)
    assert [type(layer) for layer in mlp((2, 3), 1, widths=())] == [nn.Flatten, nn.Linear]


def test_dropout_stands_before_dense_layers_and_only_when_asked_for():
    for net, pairs in (
        (lenet5_wide(CIFAR, 10, dropout=0.2), {"drop1": "fc1", "drop2": "out"}),
        (conv2_fc2(MNIST, 10, dropout=0.5), {"drop": "fc1"}),
    ):
        names = [name for name, _ in net.named_children()]
        assert all(names.index(drop) == names.index(layer) - 1 for drop, layer in pairs.items())
    for dropout, n in ((0.2, 2), (0.0, 0)):
        net = mlp((4,), 2, (3, 3), dropout=dropout)
        assert sum(isinstance(layer, nn.Dropout) for layer in net) == n


@pytest.mark.parametrize("name", PATCHED)
def test_patches_are_cut_row_by_row(name):
    patches = small(name, channels=1).patches(torch.arange(24.0).view(1, 1, 4, 6))
    assert patches.shape == (1, 6, 4)
    assert patches[0, 0].tolist() == [0.0, 1.0, 6.0, 7.0]
    assert patches[0, 3].tolist() == [12.0, 13.0, 18.0, 19.0]


def test_layers_of_a_perceptron_are_named_and_sized_in_order():
    net = mlp((3, 2), 4, widths=(5, 7), activation="tanh")
    names = [name for name, _ in net.named_children()]
    assert names == ["flatten", "fc1", "act1", "fc2", "act2", "out"]
    shapes = [tuple(layer.weight.shape) for layer in (net.fc1, net.fc2, net.out)]
    assert shapes == [(5, 6), (7, 5), (4, 7)]


@pytest.mark.parametrize(
    ("activation", "function"),
    [
        ("relu", lambda x: x.clamp(min=0)),
        ("tanh", lambda x: 1 - 2 / (torch.exp(2 * x) + 1)),
        ("swish", lambda x: x / (1 + torch.exp(-x))),
    ],
)
def test_the_output_of_a_perceptron_equals_the_formula(activation, function):
    net = mlp((4,), 3, widths=(6,), activation=activation).double()
    x = torch.linspace(-2, 2, 20, dtype=torch.float64).reshape(5, 4)
    hidden = function(x @ net.fc1.weight.T + net.fc1.bias)
    expected = hidden @ net.out.weight.T + net.out.bias
    torch.testing.assert_close(net(x), expected)


@pytest.mark.parametrize(
    ("net", "side"),
    [
        (lambda: resnet((3, 8, 8), 3, 1), 8),
        (lambda: vgg((3, 8, 8), 3, SMALL_VGG), 8),
        (lambda: conv2_bn_fc3((3, 12, 12), 3), 12),
    ],
    ids=["resnet", "vgg", "conv2_bn_fc3"],
)
@pytest.mark.parametrize("k", [1, 2])
def test_chains_train_networks_with_batchnorm(net, side, k):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        x = torch.rand(6, 3, side, side)
        problem = Problem(net(), Categorical(), (x, torch.arange(6) % 3))
    engine = SGHMC(step_size=1e-4)
    state = run(engine, problem, 2, n_models=k)
    assert engine.posterior(problem, state, k - 1).mean.isfinite().all()
    assert problem.layout.roles.count(Role.POINT) >= 2


FLAT = r"input_shape must be \(channels, height, width\), got \(784,\)\. .* use mlp\.$"
SMALLEST = r"images must be at least {0}x{0}, got {0}x{1}\. Pad or enlarge them, or use mlp\.$"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: lenet5((1, 28, 27), 3), "^lenet5: " + SMALLEST.format(28, 27)),
        (lambda: lenet5_caffe((1, 16, 15), 3), "^lenet5_caffe: " + SMALLEST.format(16, 15)),
        (lambda: lenet5((784,), 10), FLAT),
        (lambda: lenet5_caffe((784,), 10), FLAT),
        (lambda: mixer((784,), 10), r"^mixer: input_shape must be \(channels, height, width"),
        (lambda: vit((784,), 10), r"^vit: input_shape must be \(channels, height, width"),
        *((lambda make=make: make(MNIST, 0), r"n_outputs must be > 0, got 0\.$")
          for make in (lenet_300_100, lenet5, lenet5_caffe, mlp)),
        (lambda: conv2_fc2((1, 3, 28), 10), "at least 4x4, got 3x28"),
        (lambda: conv2_fc2((28, 28), 10), r"must be \(channels, height, width\)"),
        (lambda: conv2_bn_fc3((1, 8, 8), 10), "at least 9x9, got 8x8"),
        (lambda: resnet((3, 8), 10), r"must be \(channels, height, width\)"),
        (lambda: resnet((3, 8, 8), 10, 0), "n_blocks must be > 0"),
        (lambda: vgg((3, 16, 16), 10), "too small for 5 stages"),
        (lambda: mixer((1, 30, 32), 10), "^mixer: height and width must be multiples of patch=4"),
        (lambda: vit((1, 30, 32), 10), "^vit: height and width must be multiples of patch=4"),
        (lambda: mixer((1, 32, 32), 10, n_blocks=0), "^mixer: n_blocks must be > 0"),
        (lambda: vit((1, 32, 32), 10, n_blocks=0), "^vit: n_blocks must be > 0"),
        (lambda: vit((1, 32, 32), 10, width=8, n_heads=3),
         "^vit: width must be a multiple of n_heads=3, got 8"),
        (lambda: mlp((4,), 2, (400, 0)), r"^mlp: widths must be > 0, got 0\.$"),
        (lambda: mlp((4,), 2, (-3,)), r"^mlp: widths must be > 0, got -3\.$"),
        (lambda: mlp((1, 0), 2), r"^mlp: input_shape must be > 0, got 0\.$"),
        (lambda: mlp((4,), 2, activation="relo"),
         r"activation must be one of relu, tanh, swish; got 'relo'\. Did you mean 'relu'\?"),
    ],
)  # fmt: skip
def test_impossible_sizes_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        *((lambda make=make: make([1, 28, 28], 10), "input_shape must be a non-empty tuple")
          for make in (lenet_300_100, lenet5, lenet5_caffe)),
        (lambda: mlp((4,), 2, (2.5,)), r"^mlp: widths must be a whole number, got 2\.5\.$"),
        (lambda: mlp((4,), 2, (True,)), r"^mlp: widths must be a whole number, got True\.$"),
        (lambda: mlp((4,), "10"), r"^mlp: n_outputs must be a whole number, got '10'\.$"),
        (lambda: mlp((), 2), r"non-empty tuple such as \(1, 28, 28\), got \(\)\."),
        (lambda: mlp(784, 2), r"non-empty tuple .* got 784\. Leave the batch size out\.$"),
    ],
)  # fmt: skip
def test_wrong_types_are_refused(make, message):
    with pytest.raises(TypeError, match=message):
        make()
