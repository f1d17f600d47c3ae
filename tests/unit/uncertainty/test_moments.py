"""Moments through a network against closed forms, quadrature and 10,000 draws."""

import math

import pytest
import torch
from torch import Generator, nn

from bayesieve.assess.evaluate import evaluate
from bayesieve.assess.predict import predict
from bayesieve.core.likelihoods import Categorical, Gaussian
from bayesieve.core.network import Network
from bayesieve.core.posterior import Factorised, Samples
from bayesieve.errors import UnsupportedModelError
from bayesieve.fast import native
from bayesieve.uncertainty.moments import MomentNetwork, relu_moments
from problems import normal32

N_DRAWS = 10_000


def posterior_of(module, likelihood=None, std=0.2, seed=0):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for layer in module.modules():
            if hasattr(layer, "reset_parameters"):
                layer.reset_parameters()
            if isinstance(layer, nn.BatchNorm2d):
                layer.running_var.uniform_(0.5, 2.0)
                layer.running_mean.normal_()
    network = Network.of(module, likelihood or Categorical())
    mean, n = network.weights_of(module), network.layout.n_bayesian
    stds = torch.zeros_like(mean)
    stds[:n] = std * (0.5 + torch.rand(n, generator=Generator().manual_seed(1)))
    return Factorised(network, mean, stds, buffers=network.buffers())


def drawn_outputs(posterior, x):
    source = Generator().manual_seed(3)
    parts = [posterior.network.outputs(posterior.draw(1000, source), x, posterior.buffers)
             for _ in range(N_DRAWS // 1000)]  # fmt: skip
    return torch.cat(parts)


def covariance(root):
    return root @ root.mT


def test_one_linear_layer_is_exact():
    posterior = posterior_of(nn.Linear(4, 3))
    x = normal32(5, 4, seed=2)
    mean, root = MomentNetwork(posterior).outputs(x)
    layer, stds = (
        posterior.layout.unflatten(posterior.mean),
        posterior.layout.unflatten(posterior.std),
    )
    torch.testing.assert_close(mean, x @ layer["weight"].T + layer["bias"])
    variance = x.square() @ stds["weight"].square().T + stds["bias"].square()
    torch.testing.assert_close(covariance(root), torch.diag_embed(variance), rtol=5e-3, atol=1e-5)


@pytest.mark.parametrize("compiled", [True, False])
def test_moments_of_relu_are_the_integrals(compiled, monkeypatch):
    if not compiled:
        monkeypatch.setattr(native, "steps", lambda: None)
    mean, std = (
        torch.linspace(-6, 6, 49).repeat(3),
        torch.tensor([0.05, 1.0, 3.0]).repeat_interleave(49),
    )
    made = relu_moments(mean, std.square())
    t = torch.linspace(-12, 12, 48_001, dtype=torch.float64)
    weight = (-0.5 * t.square()).exp() / math.sqrt(2 * math.pi) * (t[1] - t[0])
    values = (mean.double()[:, None] + std.double()[:, None] * t).clamp_min(0)
    first = values @ weight
    second = (values - first[:, None]).square() @ weight
    torch.testing.assert_close(made.mean.double(), first, rtol=1e-5, atol=2e-6)
    torch.testing.assert_close(made.variance.double(), second, rtol=1e-4, atol=1e-5)


class Residual(nn.Module):
    """A convolution beside a shortcut, pools, and a Linear layer."""

    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.second, self.last = nn.Conv2d(4, 4, 3, padding=1, groups=2), nn.Linear(4, 3)

    def forward(self, x):
        x = torch.relu(self.norm(self.first(x)))
        x = nn.functional.max_pool2d(x, 2)
        x = torch.relu(self.second(x) + x + 0.1)
        return self.last(x.view(x.size(0), 4, -1).mean(2))


class Doubled(nn.Module):
    """Adds a tensor to itself: not two independent terms."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x):
        x = self.layer(x)
        return x + x


NETS = {
    "mlp": (lambda: nn.Sequential(nn.Linear(6, 40), nn.ReLU(), nn.Linear(40, 40), nn.ReLU(),
                                  nn.Linear(40, 3)), (6,), 0.06, 0.03),
    "tanh": (lambda: nn.Sequential(nn.Linear(6, 40), nn.Tanh(), nn.Linear(40, 3)), (6,),
             0.02, 0.03),
    "cnn": (lambda: nn.Sequential(nn.Conv2d(2, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2),
                                  nn.Flatten(), nn.Linear(24, 3)), (2, 6, 6), 0.25, 0.1),
    "residual": (Residual, (2, 6, 6), 0.25, 0.45),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", NETS)
def test_moments_are_those_of_ten_thousand_draws(name):
    make, shape, off, spread = NETS[name]
    posterior = posterior_of(make(), std=0.1)
    x = normal32(8 if len(shape) == 1 else 2, *shape, seed=2)
    mean, root = MomentNetwork(posterior).outputs(x)
    outputs = drawn_outputs(posterior, x)
    std = outputs.std(0)
    assert float(((mean - outputs.mean(0)) / std).abs().max()) < off + 4 / N_DRAWS**0.5
    ratio = covariance(root).diagonal(dim1=-2, dim2=-1).sqrt() / std
    assert float((ratio - 1).abs().max()) < spread + 0.03
    exact = outputs.softmax(-1).mean(0)
    assert float((predict(MomentNetwork(posterior), x).probs - exact).abs().max()) < 0.03


def test_outputs_of_the_last_layer_move_together():
    posterior = posterior_of(NETS["mlp"][0](), std=0.1)
    x = normal32(1, 6, seed=5)
    found = covariance(MomentNetwork(posterior).outputs(x)[1])[0]
    wanted = torch.cov(drawn_outputs(posterior, x)[:, 0].T)
    scale = wanted.diagonal().sqrt()
    assert float(((found - wanted) / scale / scale[:, None]).abs().max()) < 0.1


def test_regression_states_both_parts_of_its_variance():
    posterior = posterior_of(nn.Sequential(nn.Linear(3, 20), nn.ReLU(), nn.Linear(20, 1)),
                             Gaussian(0.5))  # fmt: skip
    x, y = normal32(9, 3, seed=1), normal32(9, seed=2)
    exact, found = predict(posterior, x, n_samples=4096), predict(MomentNetwork(posterior), x)
    torch.testing.assert_close(found.mean, exact.mean, rtol=0.05, atol=0.05)
    torch.testing.assert_close(found.std, exact.std, rtol=0.05, atol=0.0)
    assert evaluate(MomentNetwork(posterior), (x, y))["nll"] == pytest.approx(
        evaluate(posterior, (x, y), n_samples=1024)["nll"], abs=0.05
    )


def test_a_point_estimate_is_the_plain_prediction():
    posterior = posterior_of(NETS["cnn"][0](), std=0.0)
    x = normal32(4, 2, 6, 6, seed=1)
    plain = predict(posterior, x, n_samples=0).probs
    torch.testing.assert_close(predict(MomentNetwork(posterior), x).probs, plain, atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (
            nn.Sequential(nn.Linear(4, 4), nn.Softmax(1), nn.Linear(4, 2)),
            r"no rule for 1 \(Softmax\)",
        ),
        (Doubled(), "no rule for add"),
        (nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 2)), "no rule for 1"),
    ],
)
def test_operations_without_a_rule_are_named(module, words):
    with pytest.raises(UnsupportedModelError, match=words):
        predict(MomentNetwork(posterior_of(module)), torch.zeros(1, 4))


def test_other_posteriors_and_words_are_refused():
    network = Network.of(nn.Linear(1, 2), Categorical())
    with pytest.raises(UnsupportedModelError, match="Samples has others"):
        predict(MomentNetwork(Samples(network, torch.zeros(2, 4))), torch.ones(1, 1))
    with pytest.raises(TypeError, match="n_samples"):
        predict(Samples(network, torch.zeros(2, 4)), torch.ones(1, 1), n_samples="many")
