"""A posterior small enough to check by eye, for the examples of this room."""

import torch
from torch import nn

from bayesieve.core.likelihoods import Gaussian
from bayesieve.core.network import Network
from bayesieve.core.posterior import Factorised


def small_posterior() -> Factorised:
    """A network 3-3-1 with weights 0.1, 0.2, ..., 1.2 and biases 0; inclusion grows with them.

    Example:
        >>> small_posterior().mean[:4]
        tensor([0.1000, 0.2000, 0.3000, 0.4000])
    """
    network = Network.of(nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 1)), Gaussian())
    mean = torch.cat([torch.arange(1, 13) / 10, torch.zeros(4)])
    return Factorised(network, mean, torch.full_like(mean, 0.1), logit_inclusion=mean - 0.65)
