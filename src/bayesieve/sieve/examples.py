"""Posteriors small enough to check by eye, for the examples of this room."""

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


def three_weights(**fields: object) -> Factorised:
    """Three weights without bias: means 0 and stds 1, or the fields given."""
    network = Network.of(nn.Linear(3, 1, bias=False), Gaussian())
    tensors = {name: torch.tensor(v) if isinstance(v, list) else v for name, v in fields.items()}
    defaults: dict[str, object] = {"mean": torch.zeros(3), "std": torch.ones(3)}
    return Factorised(network, **{**defaults, **tensors})  # type: ignore[arg-type]
