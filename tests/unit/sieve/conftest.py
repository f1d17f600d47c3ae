import pytest
import torch
from torch import nn

from bayesieve.core.layout import default_role
from bayesieve.core.likelihoods import Gaussian
from bayesieve.core.network import Network
from bayesieve.core.posterior import Factorised


@pytest.fixture
def network_of():
    def make(model: nn.Module, rule=default_role) -> Network:
        return Network.of(model, Gaussian(), rule)

    return make


@pytest.fixture
def random_posterior(network_of):
    def make(model: nn.Module, seed: int = 0, **fields) -> Factorised:
        network = network_of(model)
        generator = torch.Generator().manual_seed(seed)
        mean = torch.randn(network.layout.size, generator=generator)
        std = torch.rand(network.layout.size, generator=generator) + 0.1
        std[network.layout.n_bayesian :] = 0
        logit = torch.randn(network.layout.size, generator=generator)
        return Factorised(network, mean, std, logit_inclusion=logit, **fields)

    return make


@pytest.fixture
def mlp():
    return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 2))
