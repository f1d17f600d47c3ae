"""The networks of the SG-MCMC studies: parameter counts, shapes, and training as a population."""

import pytest
import torch
from torch import Generator, nn

from bayesieve.core.batch import Batch
from bayesieve.core.layout import Role
from bayesieve.core.likelihoods import Categorical
from bayesieve.core.problem import Problem
from bayesieve.engines.sgmcmc import SGHMC
from bayesieve.nets.convnets import conv2_bn_fc3, conv2_fc2, resnet, resnet20, resnet32, vgg

SMALL_VGG = ((8, 8), (16,))


def count(net):
    return sum(p.numel() for p in net.parameters())


@pytest.mark.parametrize(
    ("net", "n_parameters"),
    [
        (lambda: conv2_fc2((1, 28, 28), 10), 681_506),
        (lambda: conv2_bn_fc3((1, 28, 28), 10), 493_772),
        (lambda: resnet20((3, 32, 32), 10), 272_474),
        (lambda: resnet32((3, 32, 32), 10), 466_906),
    ],
)
def test_sizes_are_those_published(net, n_parameters):
    assert count(net()) == n_parameters


def test_the_sparse_convolutions_of_resnet20_are_those_published():
    # all 3x3 convolutions but the first
    net = resnet20((3, 32, 32), 10)
    convs = [m for m in net.modules() if isinstance(m, nn.Conv2d) and m.kernel_size == (3, 3)]
    assert sum(m.weight.numel() for m in convs[1:]) == 267_264
    assert len([m for m in net.modules() if isinstance(m, nn.Linear)]) + len(convs) == 20


@pytest.mark.parametrize(
    ("net", "shape"),
    [
        (lambda s: conv2_fc2(s, 7), (1, 28, 28)),
        (lambda s: conv2_fc2(s, 7, dropout=0.5), (3, 9, 12)),
        (lambda s: conv2_bn_fc3(s, 7), (1, 28, 28)),
        (lambda s: conv2_bn_fc3(s, 7), (3, 17, 12)),
        (lambda s: resnet(s, 7, 1), (3, 16, 16)),
        (lambda s: vgg(s, 7, SMALL_VGG), (3, 9, 8)),
    ],
)
def test_shapes(net, shape):
    assert net(shape).eval()(torch.zeros(2, *shape)).shape == (2, 7)


def test_dropout_sits_before_the_first_dense_layer():
    names = [name for name, _ in conv2_fc2((1, 28, 28), 10, dropout=0.5).named_children()]
    assert names.index("drop") == names.index("fc1") - 1


@pytest.mark.parametrize(
    "net",
    [
        lambda: resnet((3, 8, 8), 3, 1),
        lambda: vgg((3, 8, 8), 3, SMALL_VGG),
        lambda: conv2_bn_fc3((3, 12, 12), 3),
    ],
    ids=["resnet", "vgg", "conv2_bn_fc3"],
)
@pytest.mark.parametrize("k", [1, 2])
def test_chains_train_them(net, k):
    torch.manual_seed(0)
    model = net()
    size = 12 if isinstance(model[0], nn.BatchNorm2d) else 8
    x = torch.rand(6, 3, size, size, generator=Generator().manual_seed(0))
    problem = Problem(model, Categorical(), (x, torch.tensor([0, 1, 2, 0, 1, 2])))
    engine = SGHMC(step_size=1e-4)
    state = engine.init(problem, Generator().manual_seed(0), k)
    for _ in range(2):
        log_lik = engine.step(problem, state, Batch(problem.x, problem.y))["log_lik"]
    assert torch.isfinite(log_lik).all()
    assert problem.layout.roles.count(Role.POINT) >= 2  # BatchNorm


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: conv2_fc2((1, 3, 28), 10), "at least 4x4, got 3x28"),
        (lambda: conv2_fc2((28, 28), 10), r"must be \(channels, height, width\)"),
        (lambda: conv2_bn_fc3((1, 8, 8), 10), "at least 9x9, got 8x8"),
        (lambda: resnet((3, 8), 10), r"must be \(channels, height, width\)"),
        (lambda: resnet((3, 8, 8), 10, 0), "n_blocks must be > 0"),
        (lambda: vgg((3, 16, 16), 10), "too small for 5 stages"),
    ],
)
def test_impossible_sizes_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
