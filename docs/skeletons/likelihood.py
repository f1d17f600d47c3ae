"""Poisson counts: the network returns the logarithm of the rate, one output for each target.

    log p(y | f) = y f - exp(f) - log y!

Mean and variance are exp(f). The Fisher information of f is exp(f).
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from bayesieve.core.likelihoods import Numbers, RealLikelihood, diagonal_roots, register


@register  # so that bundles and ONNX files can be read back
@dataclass(frozen=True)
class Poisson(RealLikelihood):
    """Counts with rate exp(output).

    Example:
        >>> three = torch.tensor([[3.0]])
        >>> round(Poisson().log_prob(torch.zeros(1, 1), three, {}).item(), 4)  # -1 - log 6
        -2.7918
    """

    # 1. The density, in the form that training uses: one number for each example.

    def log_prob(self, output: Tensor, target: Tensor, numbers: Numbers) -> Tensor:
        """Log probability of the counts of each example, shape (n,)."""
        log_rate = output.reshape(len(output), -1)
        counts = target.reshape(log_rate.shape)
        return (counts * log_rate - log_rate.exp() - torch.lgamma(counts + 1)).sum(1)

    # 2. The predictive distribution: mean and standard deviation under S weight vectors, and the
    #    density and random draws of targets with this mean and standard deviation.

    def moments(self, outputs: Tensor, numbers: Numbers) -> tuple[Tensor, Tensor]:
        """Rates (S, n, m) and their square roots."""
        rate = outputs.reshape(*outputs.shape[:2], -1).exp()
        return rate, rate.sqrt()

    def log_density(self, target: Tensor, mean: Tensor, std: Tensor) -> Tensor:
        """Log probability of each count at this rate."""
        return target * mean.log() - mean - torch.lgamma(target + 1)

    def draw(self, mean: Tensor, std: Tensor, generator: Generator) -> Tensor:
        """Counts of these rates, drawn at random."""
        return torch.poisson(mean, generator)

    # 3. The Fisher information of the outputs, for Laplace.

    def curvature(
        self, output: Tensor, numbers: Numbers, generator: Generator | None = None
    ) -> Iterator[Tensor]:
        """Yield exp(f / 2) e for each output."""
        return diagonal_roots((output / 2).exp(), generator)

    # 4. Words: one error that names the fix, and one line of the model card.

    def check(self, output: Tensor, target: Tensor) -> None:
        """Targets must be whole numbers from 0, one for each output."""
        self.check_targets(output[0].numel(), target)
        if bool(((target < 0) | (target != target.round())).any()):
            raise ValueError("Poisson: targets must be whole numbers >= 0. Use Gaussian.")

    def describe(self) -> str:
        """The noise in words."""
        return "Poisson, its variance is the mean"
