"""Partial dependence: exact for linear networks, flat where an input is not read."""

import pytest
import torch
from torch import nn

from bayesieve.core.likelihoods import Categorical, Gaussian
from bayesieve.core.network import Network
from bayesieve.core.posterior import Factorised, Samples
from bayesieve.nets import mlp
from bayesieve.uncertainty.dependence import partial_dependence

X = torch.tensor([[0.0, 5.0, 1.0], [2.0, 7.0, 0.0]])


def test_the_band_of_a_linear_network_is_that_of_its_slope():
    network = Network.of(nn.Linear(3, 1), Gaussian())
    slopes = torch.linspace(1.0, 3.0, 101)
    draws = torch.zeros(101, 4)
    draws[:, 0], draws[:, 1] = slopes, 1.0
    grid = torch.tensor([[-1.0], [0.0], [2.0]])
    curve = partial_dependence(Samples(network, draws), X, slice(0, 1), grid, n_samples=101)
    assert curve.mean.flatten().tolist() == pytest.approx([6 - 2, 6, 6 + 4])
    assert (curve.high - curve.low).flatten().tolist() == pytest.approx([1.8, 0.0, 3.6], abs=1e-5)


def test_a_level_of_a_category_is_set_alone_and_a_point_has_no_band():
    network = Network.of(nn.Linear(3, 1, bias=False), Gaussian())
    point = Samples(network, torch.tensor([[1.0, 10.0, 20.0]]))
    curve = partial_dependence(point, X, slice(1, 3), torch.eye(2))
    assert curve.mean.flatten().tolist() == [11.0, 21.0]
    assert curve.low is curve.high is None
    assert X[0].tolist() == [0.0, 5.0, 1.0]  # not written to


def test_an_input_that_is_not_read_gives_a_flat_line_of_probabilities():
    torch.manual_seed(0)
    network = Network.of(mlp((3,), 4, (5,)), Categorical())
    mean = torch.randn(network.layout.size)
    mean[network.layout.slices["fc1.weight"]].view(5, 3)[:, 1] = 0
    q = Factorised(network, mean, 0.1 * mean.abs())
    curve = partial_dependence(q, X, slice(1, 2), torch.linspace(-3, 3, 5)[:, None])
    assert curve.mean.shape == (5, 4)
    assert torch.allclose(curve.mean, curve.mean[:1].expand(5, 4), atol=1e-6)
    assert torch.allclose(curve.mean.sum(1), torch.ones(5, dtype=torch.float64), atol=1e-6)
