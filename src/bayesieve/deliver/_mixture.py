"""Posterior draws of a network as one module that returns the mean and the uncertainty."""

from collections.abc import Mapping, Sequence

import torch
from torch import Generator, Tensor, nn

from bayesieve.assess.predict import predict
from bayesieve.core.likelihoods import Likelihood
from bayesieve.core.network import materialise
from bayesieve.core.posterior import Posterior, Samples


class Mixture(nn.Module):
    """The predictive distribution of K networks, in the tensors that `likelihood.delivered` names.

    Args:
        draws: networks that return (n, ...).
        likelihood: says how their outputs become a distribution.
        numbers: its learned numbers under each draw, (K,) each.
    """

    def __init__(
        self, draws: Sequence[nn.Module], likelihood: Likelihood, numbers: Mapping[str, Tensor]
    ) -> None:
        super().__init__()
        self.draws = nn.ModuleList(draws)
        self.likelihood = likelihood
        self.names = tuple(numbers)
        for name, values in numbers.items():
            self.register_buffer(f"number_{name}", values.detach().clone())

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """Inputs (n, ...) to one tensor (n, ...) for each name."""
        output = torch.stack([draw(x) for draw in self.draws])
        numbers = {name: getattr(self, f"number_{name}") for name in self.names}
        return self.likelihood.summary(output, numbers)


def bake(posterior: Posterior, n_samples: int, seed: int) -> Mixture:
    """The posterior's network with `n_samples` draws, those that `predict` makes of this seed."""
    generator = Generator(posterior.mean.device).manual_seed(seed)
    own: Mapping[str, Tensor] = {}
    if isinstance(posterior, Samples):
        chosen = posterior.choose(n_samples, generator)
        w, own = chosen.draws, chosen.draw_buffers
    else:  # one by one
        w = torch.cat([posterior.draw(1, generator) for _ in range(n_samples)])
    network, likelihood = posterior.network, posterior.network.likelihood
    draws = []
    for i, row in enumerate(w):
        buffers = {**posterior.buffers, **{name: value[i] for name, value in own.items()}}
        draws.append(materialise(network, row, buffers))
    return Mixture(draws, likelihood, network.numbers(w)).eval()


def reference(posterior: Posterior, x: Tensor, n_samples: int, seed: int) -> dict[str, Tensor]:
    """What the mixture must return, by `predict`."""
    return predict(posterior, x, n_samples=n_samples, seed=seed).delivered
