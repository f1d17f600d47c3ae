"""Dropout as draws of weights."""

import pytest
import torch
from torch import Generator, nn

from bayesieve.assess.predict import predict
from bayesieve.core.likelihoods import Gaussian
from bayesieve.core.posterior import Factorised
from bayesieve.core.problem import Problem
from studies.comparison.methods import DroppedLinear, dropout_draws, with_dropout


def a_point(p: float = 0.5) -> tuple[nn.Module, Factorised]:
    torch.manual_seed(0)
    net = with_dropout(nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 1)), p)
    problem = Problem(net, Gaussian(), (torch.randn(8, 3), torch.randn(8, 1)))
    mean = problem.initial
    return net, Factorised(problem.network, mean, torch.zeros_like(mean))


def test_the_layer_that_reads_the_data_keeps_its_inputs():
    conv = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(2, 4), nn.Linear(4, 2))
    kinds = [type(layer) for layer in with_dropout(conv, 0.2)]
    assert kinds == [nn.Conv2d, nn.Flatten, DroppedLinear, DroppedLinear]
    assert [layer.p for layer in with_dropout(conv, 0.2)[2:]] == [0.2, 0.2]
    assert type(conv[2]) is nn.Linear  # the model that was given stays as it was


def test_a_draw_is_the_network_with_inputs_switched_off():
    net, posterior = a_point()
    draws = dropout_draws(posterior, net, 16, Generator().manual_seed(1))
    second = posterior.layout.slices["2.weight"]
    ratio = draws.draws[:, second] / posterior.mean[second]
    assert set(ratio.round(decimals=4).unique().tolist()) == {0.0, 2.0}
    rest = torch.ones(posterior.layout.size, dtype=torch.bool)
    rest[second] = False
    assert torch.equal(draws.draws[:, rest], posterior.mean[rest].expand(16, -1))
    hidden = torch.relu(net[0](x := torch.randn(5, 3)))
    by_hand = net[2].bias + (hidden * ratio[0]) @ net[2].weight.T
    torch.testing.assert_close(
        predict(draws, x, n_samples=16).sample_means[0], by_hand.detach(), rtol=1e-5, atol=1e-6
    )


def test_draws_average_to_the_point():
    net, posterior = a_point(0.3)
    draws = dropout_draws(posterior, net, 20_000, Generator().manual_seed(2)).draws
    error = (draws.mean(0) - posterior.mean).abs()
    spread = posterior.mean.abs() * (0.3 / 0.7 / 20_000) ** 0.5
    assert bool((error <= 5 * spread + 1e-6).all())


def test_settings():
    with pytest.raises(ValueError, match="p must be"):
        with_dropout(nn.Linear(1, 1), 1.0)
    net, posterior = a_point()
    with pytest.raises(ValueError, match="n must be"):
        dropout_draws(posterior, net, 0, Generator())
