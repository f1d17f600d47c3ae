"""The kernel of images against torch: every step, odd sizes, sums, joins, and what is refused."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from bayesieve.deliver.runtime import as_runtime
from bayesieve.deliver.runtime.image_kernels import CompiledImages
from bayesieve.deliver.runtime.images import read_images
from bayesieve.errors import UnsupportedModelError
from bayesieve.nets import lenet5_caffe
from bayesieve.nets.convnets import ResidualBlock, resnet
from bayesieve.sieve.compact import compact

pytestmark = pytest.mark.usefixtures("compiler")


def seeded(build, zeros=0.7):
    """A network in eval mode with zeros, running statistics and biases drawn at random."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = build().eval()
        with torch.no_grad():
            for layer in net.modules():
                if isinstance(layer, nn.Conv2d | nn.Linear):
                    layer.weight.mul_(torch.rand_like(layer.weight) >= zeros)
                if isinstance(layer, nn.BatchNorm2d):
                    layer.running_mean.normal_(0, 0.1)
                    layer.running_var.uniform_(0.5, 2)
                    layer.weight.uniform_(0.5, 1.5)
                    layer.bias.normal_(0, 0.1)
    return net


def pictures(n, *shape, seed=1):
    return torch.randn(n, *shape, generator=torch.Generator().manual_seed(seed))


def assert_equal(net, x, threads=1):
    """The kernel agrees with torch, also on examples that follow others through its memory."""
    images = read_images("test", net, x)
    compiled = CompiledImages(images, threads)
    wanted = net(x).detach()
    for _ in range(2):
        flat = compiled.on_tensor(x)
        found = flat if images.tail is None else images.tail(flat).detach()
        scale = float(wanted.abs().max())
        assert float((found.reshape(wanted.shape) - wanted).abs().max()) <= 1e-5 * scale


@pytest.mark.parametrize("width", [1, 3, 7, 8, 12, 16, 24, 28, 32, 48])
@pytest.mark.parametrize("height", [1, 3, 9])
def test_sizes_that_fill_a_vector_and_sizes_that_do_not(height, width):
    net = seeded(lambda: nn.Sequential(nn.Conv2d(2, 5, 3, padding=1), nn.ReLU(),
                                       nn.Conv2d(5, 3, 3, padding=1)))  # fmt: skip
    assert_equal(net, pictures(2, 2, height, width))


@pytest.mark.parametrize("settings", [
    {"stride": 2}, {"stride": 2, "padding": 1}, {"stride": (1, 2)}, {"stride": (2, 1)},
    {"stride": 3, "padding": 2}, {"dilation": 2, "padding": 2},
    {"kernel_size": 5, "padding": "same"},
    {"stride": 2, "dilation": (1, 3), "padding": (0, 3)}, {"groups": 2}, {"groups": 4},
    {"padding": (0, 2), "bias": False},
])  # fmt: skip
def test_settings_of_a_convolution(settings):
    net = seeded(
        lambda: nn.Sequential(
            nn.Conv2d(4, 8, **{"kernel_size": (3, 2)} | settings), nn.BatchNorm2d(8)
        )
    )
    assert_equal(net, pictures(3, 4, 11, 13))


@pytest.mark.parametrize("pool", [
    nn.MaxPool2d(2), nn.MaxPool2d(3, 2), nn.MaxPool2d(3, 2, 1), nn.MaxPool2d((1, 2), (2, 1)),
    nn.AvgPool2d(2), nn.AvgPool2d(3, 2, 1), nn.AvgPool2d(2, divisor_override=3),
    nn.AdaptiveAvgPool2d(1), nn.AdaptiveAvgPool2d((3, 4)), nn.AdaptiveAvgPool2d((None, 2)),
], ids=str)  # fmt: skip
def test_pools(pool):
    net = seeded(lambda: nn.Sequential(nn.Conv2d(1, 3, 3, padding=1), nn.ReLU(), pool,
                                       nn.Conv2d(3, 2, 1)))  # fmt: skip
    assert_equal(net, pictures(2, 1, 9, 12))


@pytest.mark.parametrize("act", [
    nn.ReLU(), nn.LeakyReLU(0.3), nn.Tanh(), nn.Sigmoid(), nn.SiLU(), nn.GELU(),
], ids=str)  # fmt: skip
def test_activations(act):
    net = seeded(lambda: nn.Sequential(nn.Conv2d(1, 3, 3), act, nn.Flatten(), nn.Linear(75, 2)))
    assert_equal(net, pictures(2, 1, 7, 7))


class Wired(nn.Module):
    """Values that are read twice, joined, cut and padded."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.norm, self.c = nn.BatchNorm2d(8), nn.Conv2d(8, 4, 1)
        self.out = nn.Linear(4, 2)
        self.register_buffer("kept", torch.tensor([6, 0, 3, 1, 7, 2]))
        self.register_buffer("shift", torch.arange(6.0).view(6, 1, 1))
        self.d = nn.Conv2d(6, 4, 1)

    def forward(self, x):
        a = self.a(x)
        b = self.b(F.relu(a)) + a  # read before and after its ReLU
        joined = F.relu(self.norm(torch.cat([b, a], 1)))
        c = self.c(joined) + a + b
        small = F.pad(c[:, :, ::2, ::2], (0, 0, 0, 0, 2, 2))
        d = self.d(small.index_select(1, self.kept) + self.shift)
        return self.out((d + d).mean((2, 3)))


def test_values_that_are_read_twice_joined_cut_and_padded():
    assert_equal(seeded(Wired, 0.3), pictures(3, 3, 10, 9))


def test_sums_in_either_order_and_of_the_input():
    class Sums(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Conv2d(2, 2, 3, padding=1), nn.Conv2d(2, 2, 1)

        def forward(self, x):
            early, late = self.first(x), self.second(x)
            return F.relu(early + late) + x + (late + early)

    assert_equal(seeded(Sums, 0.2), pictures(2, 2, 6, 6))


def test_a_residual_block_is_two_convolutions_and_its_shortcut():
    net = seeded(lambda: ResidualBlock(4, 8, 2))
    x = pictures(2, 4, 8, 8)
    assert len(read_images("test", net, x).steps) == 3
    assert_equal(net, x)


@pytest.mark.parametrize("zeros", [0.0, 0.9, 1.0])
def test_a_small_resnet(zeros):
    assert_equal(seeded(lambda: resnet((3, 16, 16), 10, 1), zeros), pictures(3, 3, 16, 16))


def test_threads_share_a_batch():
    net = seeded(lambda: resnet((3, 8, 8), 10, 1))
    assert_equal(net, pictures(5, 3, 8, 8), threads=2)


def test_memory_is_used_again():
    net = seeded(lambda: resnet((3, 16, 16), 10, 5))
    images = read_images("test", net, pictures(1, 3, 16, 16))
    shallow = read_images("test", seeded(lambda: resnet((3, 16, 16), 10, 2)),
                          pictures(1, 3, 16, 16))  # fmt: skip
    assert CompiledImages(images)._memory.size == CompiledImages(shallow)._memory.size


@pytest.mark.parametrize("width", range(2, 20))
def test_pairs_of_every_width_are_pooled_with_nan(width):
    net = nn.Sequential(nn.Conv2d(1, 1, 1, bias=False), nn.MaxPool2d(2)).eval()
    net[0].weight.data.fill_(1.0)
    x = pictures(4, 1, 6, width)
    x[torch.rand(x.shape, generator=torch.Generator().manual_seed(2)) < 0.1] = torch.nan
    compiled = CompiledImages(read_images("test", net, x))
    wanted = net(x).detach()
    assert torch.equal(
        compiled.on_tensor(x).view_as(wanted).nan_to_num(9e9), wanted.nan_to_num(9e9)
    )


def test_nan_and_infinity_pass_where_a_weight_reads_them():
    net = seeded(lambda: nn.Sequential(nn.Conv2d(1, 1, 1), nn.ReLU(), nn.MaxPool2d(2)), 0.0)
    nn.init.constant_(net[0].weight, 1.0)
    x = pictures(1, 1, 4, 8)
    x[0, 0, 1, 1], x[0, 0, 2, 7] = torch.nan, torch.inf
    found = CompiledImages(read_images("test", net, x)).on_tensor(x).view(2, 4)
    assert torch.equal(found.isnan(), net(x)[0, 0].isnan())
    assert torch.equal(found.isinf(), net(x)[0, 0].isinf())


@pytest.mark.parametrize(("layer", "words"), [
    (nn.Conv2d(2, 2, 3, padding=1, padding_mode="reflect"), "padding_mode 'reflect'"),
    (nn.MaxPool2d(2, padding=1), "unless a ReLU comes before"),
    (nn.MaxPool2d(2, ceil_mode=True), "ceil_mode"),
    (nn.AvgPool2d(2, padding=1, count_include_pad=False), "not counted"),
    (nn.AdaptiveAvgPool2d(4), "sides must divide"),
    (nn.GELU(approximate="tanh"), "approximate"),
    (nn.InstanceNorm2d(2), "InstanceNorm2d"),
    (nn.BatchNorm2d(2, track_running_stats=False), "running statistics"),
])  # fmt: skip
def test_what_has_no_kernel_is_named(layer, words):
    net = nn.Sequential(nn.Conv2d(1, 2, 3), layer).eval()
    with pytest.raises(UnsupportedModelError, match=words):
        read_images("test", net, pictures(1, 1, 8, 8))


@pytest.mark.parametrize("small", [False, True])
def test_the_runtime_skips_zeros_of_convolutions(small):
    net = seeded(lambda: lenet5_caffe((1, 28, 28), 10), 0.99)
    x = pictures(70, 1, 28, 28)
    made = as_runtime(compact(net, x) if small else net, x)
    assert set(made.zeros) == {"conv1", "conv2", "fc1", "out"}
    assert {"torch", "kernel"} == set(made.plan[0].milliseconds)
    wanted = net(x).detach()
    for found in (made(x), torch.from_numpy(made(x.numpy()))):
        assert float((found - wanted).abs().max()) <= 1e-5 * float(wanted.abs().max())


def test_a_network_that_returns_images():
    net = seeded(lambda: nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.Tanh()), 0.5)
    x = pictures(2, 1, 8, 8)
    made = as_runtime(net, x)
    assert made(x).shape == (2, 2, 8, 8)
    assert float((made(x) - net(x).detach()).abs().max()) < 1e-5
