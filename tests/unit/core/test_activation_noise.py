"""Local reparameterisation against closed-form moments and against weight draws."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from bayesieve.core.batch import Batch, Rows
from bayesieve.core.execution import Backend
from bayesieve.core.layout import Roles
from bayesieve.core.likelihoods import Gaussian
from bayesieve.core.network import Network
from bayesieve.core.noise import ActivationNoise, perturbed
from bayesieve.core.problem import Problem
from bayesieve.core.workspace import Workspace
from bayesieve.fast.backend import Machine
from problems import normal, run_by, seeded
from zoo import BY_NAME, REPEATED, ZOO

# PyTorch's CPU attention has no batching rule: slow under vmap, but right.
pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop")
N_DRAWS = 4000


def value(space, batch):
    """The log-likelihood of a batch, whose gradients are then in the buffers."""
    return space.differentiate(batch, 1.0).flatten().log_lik


def spread(network, *, k=1, mean=None, std=None, seed=0):
    """A local workspace with k members of the same mean and std, bound to a generator."""
    space = Workspace(network, k, layers=ActivationNoise())
    d = network.layout.size
    space.weights.copy_(normal(d, seed=1) if mean is None else mean)
    space.variances.copy_((0.5 * normal(d, seed=2) if std is None else std).square())
    space.variances[:, network.layout.n_bayesian :] = 0
    space.bind(seeded(seed))
    return space


def assert_moments(samples, mean, var):
    """Sample moments over axis 0 within 4 standard errors of the exact ones (Gaussian samples)."""
    n = len(samples)
    assert ((samples.mean(0) - mean).abs() <= 4 * (var / n).sqrt()).all()
    ratio = samples.var(0) / var
    assert ((ratio - 1).abs() <= 4 * math.sqrt(2 / n)).all()


@pytest.mark.parametrize("bias", [True, False])
def test_linear_outputs_have_the_moments_of_weight_draws(bias):
    model = nn.Sequential(nn.Linear(3, 2, bias=bias)).double()
    network = Network.of(model, Gaussian())
    space = spread(network)
    x = torch.tensor([0.5, -2.0, 1.0], dtype=torch.float64)
    part = network.layout.unflatten(space.weights[0])
    variances = network.layout.unflatten(space.variances[0])
    zero = torch.zeros(2, dtype=torch.float64)
    mean = x @ part["0.weight"].T + part.get("0.bias", zero)
    var = x.square() @ variances["0.weight"].T + variances.get("0.bias", zero)
    local = space.module(x.expand(N_DRAWS, 3)).detach()  # noise differs between examples
    assert_moments(local, mean, var)


@pytest.mark.parametrize(
    ("layer", "conv", "shape"),
    [
        (nn.Conv1d(2, 3, 3, padding=1), F.conv1d, (2, 5)),
        (nn.Conv2d(1, 2, 3, padding=1), F.conv2d, (1, 4, 4)),
        (nn.Conv3d(1, 1, 2, padding=1), F.conv3d, (1, 2, 2, 2)),
    ],
    ids=["1d", "2d", "3d"],
)
def test_convolutions_have_the_marginal_moments_of_weight_draws(layer, conv, shape):
    network = Network.of(nn.Sequential(layer).double(), Gaussian())
    space = spread(network)
    x = normal(1, *shape, seed=4)
    part = network.layout.unflatten(space.weights[0])
    variances = network.layout.unflatten(space.variances[0])
    padding = layer.padding
    mean = conv(x, part["0.weight"], part["0.bias"], padding=padding)[0]
    var = conv(x**2, variances["0.weight"], variances["0.bias"], padding=padding)[0]
    local = space.module(x.expand(N_DRAWS, *shape)).detach()
    assert_moments(local, mean, var)


def gradients(network, x, y, k, *, local):
    """k independent gradient estimates for mean and log std, each (k, d)."""
    space = spread(network, k=k)
    if local:
        value(space, Batch(x, y))
        return space.grads, 2 * space.variances * space.variance_grads
    plain = Workspace(network, k)
    noise = normal(k, network.layout.size, seed=6)
    plain.weights.copy_(space.weights + space.variances.sqrt() * noise)
    value(plain, Batch(x, y))
    return plain.grads, plain.grads * space.variances.sqrt() * noise


@pytest.mark.parametrize("hidden", [False, True])
def test_gradients_have_equal_expectation_and_less_variance(hidden):
    layers = [nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)] if hidden else [nn.Linear(3, 1)]
    network = Network.of(nn.Sequential(*layers).double(), Gaussian())
    x, y = normal(8, 3, seed=4), normal(8, 1, seed=5)
    k = 4000
    ours, plain = (gradients(network, x, y, k, local=local) for local in (True, False))
    for local, weight in zip(ours, plain, strict=True):
        error = (local.var(0) / k + weight.var(0) / k).sqrt()
        assert ((local.mean(0) - weight.mean(0)).abs() <= 4 * error).all()
        assert local.var(0).sum() < 0.9 * weight.var(0).sum()


def test_without_spread_the_local_network_is_the_plain_one():
    for case in ZOO:
        problem = case.problem()
        w, batch = case.weights(problem), case.data()
        wanted, grad = problem.value_and_grad(w, batch)
        space = spread(problem.network, mean=w, std=torch.zeros_like(w))
        torch.testing.assert_close(value(space, batch), wanted, msg=case.name)
        torch.testing.assert_close(space.grads, grad, msg=case.name)
        assert torch.isfinite(space.variance_grads).all()


def test_units_without_variance_give_finite_gradients():
    case = BY_NAME["regression"]
    network = Network.of(case.model(), case.likelihood)
    space = spread(network)
    variances = network.layout.unflatten(space.variances)
    for name in ("0.weight", "0.bias"):
        variances[name][:, 1] = 0  # the whole of unit 1
    x, y = case.data()[:2]
    x[0] = 0
    value(space, Batch(x, y))
    assert torch.isfinite(space.grads).all()
    assert torch.isfinite(space.variance_grads).all()
    slopes = network.layout.unflatten(space.variance_grads)
    assert (slopes["0.weight"][:, 1] == 0).all()
    assert slopes["0.weight"][:, 0].abs().min() > 0


@pytest.mark.parametrize(
    "name", ["mlp", "conv1d", "conv2d", "attention", "branching", "layer_norm"]
)
def test_a_population_is_reproducible_and_its_members_differ(name):
    case = BY_NAME[name]
    network = Network.of(case.model(), case.likelihood)
    torch.manual_seed(0)
    before = torch.get_rng_state()
    values = [value(spread(network, k=3, seed=s), case.data()) for s in (0, 0, 1)]
    assert torch.equal(values[0], values[1])
    assert not torch.equal(values[0], values[2])
    assert len(values[0].unique()) == 3
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_noise_of_images_with_channels_last_fills_their_memory_in_order(dtype):
    x = torch.empty(20, 8, 5, 6, dtype=dtype).contiguous(memory_format=torch.channels_last)
    noise = Backend().noise(x, seeded(0))
    assert (noise.stride(), noise.dtype) == (x.stride(), dtype)
    row = torch.empty(x.numel(), dtype=dtype).normal_(generator=seeded(0))
    assert torch.equal(noise.permute(0, 2, 3, 1).flatten(), row)
    part = torch.empty(4, 6, dtype=dtype)[:, ::2]  # not dense: noise of its own layout
    assert torch.equal(Backend().noise(part, seeded(0)), torch.empty(4, 3, dtype=dtype).normal_(
        generator=seeded(0)))  # fmt: skip


def test_the_noise_advances_from_call_to_call():
    case = BY_NAME["mlp"]
    space = spread(Network.of(case.model(), case.likelihood))
    first, second = (value(space, case.data()) for _ in range(2))
    assert not torch.equal(first, second)
    space.bind(seeded(0))
    assert torch.equal(value(space, case.data()), first)


def test_each_member_has_its_spread():
    case = BY_NAME["mlp"]
    network = Network.of(case.model(), case.likelihood)
    std = torch.ones(2, network.layout.size, dtype=torch.float64)
    std[1] = 0
    quiet = spread(network, k=2, std=std)
    values = torch.stack([value(quiet, case.data()) for _ in range(5)])
    assert len(values[:, 0].unique()) == 5
    assert len(values[:, 1].unique()) == 1


class OneMatrixTwice(nn.Module):
    """Two layers that share a matrix must see the same draw of it."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.again = nn.Linear(3, 3)
        self.again.weight = self.first.weight
        self.head = nn.Linear(3, 1)

    def forward(self, x):
        return self.head(self.again(torch.tanh(self.first(x))))


def local_names(model, **settings):
    return Workspace(
        Network.of(model, Gaussian(), **settings), 1, layers=ActivationNoise()
    ).local_names


def test_only_plain_bayesian_layers_are_swapped():
    assert local_names(nn.Linear(2, 1)) == frozenset()  # the root module cannot be replaced
    assert local_names(nn.Sequential(nn.Linear(2, 1))) == {"0.weight", "0.bias"}
    assert local_names(OneMatrixTwice()) == {"head.weight", "head.bias"}
    names = local_names(BY_NAME["attention"].model())
    assert names == {"feed.1.weight", "feed.1.bias", "feed.3.weight", "feed.3.bias",
                     "head.weight", "head.bias"}  # fmt: skip
    assert local_names(BY_NAME["frozen"].model()) == {"2.weight", "2.bias"}
    rule = Roles(point=("0.bias",))
    assert local_names(BY_NAME["regression"].model(), rule=rule) == {"2.weight", "2.bias"}


class ReadsItsLayer(nn.Module):
    """A forward that looks at settings of its layers, as those that pad by hand do."""

    def __init__(self):
        super().__init__()
        self.conv, self.out = nn.Conv2d(1, 2, 3, stride=2), nn.Linear(18, 1)

    def forward(self, x):
        assert isinstance(self.conv, nn.Conv2d)
        stride, kernel = self.conv.stride[0], self.conv.kernel_size[0]
        padded = F.pad(x, (0, kernel - stride, 0, kernel - stride))
        return self.out(self.conv(padded).flatten(1)[:, : self.out.in_features])


def test_a_local_layer_has_the_settings_of_the_layer():
    network = Network.of(ReadsItsLayer().double(), Gaussian())
    space = spread(network, std=torch.zeros(network.layout.size))
    x = normal(2, 1, 6, 6, seed=0)
    plain = network.outputs(space.weights[:1], x, {})[0]
    torch.testing.assert_close(space.module(x).detach(), plain)
    with pytest.raises(AttributeError, match="no attribute 'strides'"):
        _ = space.module.conv.strides


def test_a_layer_under_two_names_is_not_swapped():
    assert local_names(REPEATED.model()) == {"head.weight", "head.bias"}


def test_batched_layers_draw_and_differentiate_as_vmap_does():
    x = torch.randn(20, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model = nn.Sequential(
            nn.Flatten(), nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4, bias=False), nn.ReLU(),
            nn.Linear(4, 1),
        ).double()  # fmt: skip
    rows = Rows.of([torch.arange(12), torch.arange(8, 20)])
    problem = Problem(model, Gaussian(0.5, learned=True), (x, x[:, 0]), rows=rows)
    run_by(problem, Machine())
    space = ActivationNoise().workspace(problem, 2)
    assert space._members is not None
    assert space.variances is not None
    assert space.variance_grads is not None
    space.weights.normal_(generator=torch.Generator().manual_seed(2))
    space.variances.uniform_(0.01, 0.25, generator=torch.Generator().manual_seed(3))
    space.variances[:, 0] = 0  # a weight without spread
    results = []
    for layers in (space._members, None):
        space._members = layers
        space.bind(torch.Generator().manual_seed(4))
        found = value(space, problem.data.batch(torch.arange(6).expand(2, -1)))
        results.append((found, space.grads.clone(), space.variance_grads.clone()))
    for batched, mapped in zip(*results, strict=True):
        torch.testing.assert_close(batched, mapped)


def test_an_output_without_spread_has_no_slope():
    mean, var = torch.zeros(3, requires_grad=True), torch.tensor([0.0, -1e-9, 4.0])
    var.requires_grad_()
    out = perturbed(mean, var, torch.Generator().manual_seed(0))
    out.sum().backward()
    noise = torch.randn(3, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(
        out.detach(), torch.stack([noise[0] * 0, noise[1] * 0, 2 * noise[2]])
    )
    torch.testing.assert_close(var.grad, torch.stack([noise[0] * 0, noise[1] * 0, noise[2] / 4]))
