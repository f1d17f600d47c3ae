"""Waiting times: the network returns the logarithm of the mean, one output for each target.

    log p(y | f) = -f - y exp(-f),   y > 0

Mean and standard deviation are exp(f). The Fisher information of f is 1.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Generator, Tensor

from bayesieve.core.likelihoods import Numbers, RealLikelihood, diagonal_roots, register


@register  # so that bundles and ONNX files can be read back
@dataclass(frozen=True)
class Exponential(RealLikelihood):
    """Exponential waiting times with mean exp(output).

    Example:
        >>> three = torch.tensor([[3.0]])
        >>> Exponential().log_prob(torch.zeros(1, 1), three, {}).item()
        -3.0
    """

    standardised: ClassVar[bool] = False  # times have no other zero

    # 1. The density, in the form that training uses: one number for each example.

    def log_prob(self, output: Tensor, target: Tensor, numbers: Numbers) -> Tensor:
        """Log density of the times of each example, shape (n,)."""
        log_mean = output.reshape(len(output), -1)
        return (-log_mean - target.reshape(log_mean.shape) * (-log_mean).exp()).sum(1)

    # 2. The predictive distribution: mean and standard deviation under S weight vectors, and the
    #    density and random draws of targets with this mean and standard deviation.

    def moments(self, outputs: Tensor, numbers: Numbers) -> tuple[Tensor, Tensor]:
        """Means (S, n, m), which are the standard deviations too."""
        mean = outputs.reshape(*outputs.shape[:2], -1).exp()
        return mean, mean

    def log_density(self, target: Tensor, mean: Tensor, std: Tensor) -> Tensor:
        """Log density of each time at this mean."""
        return -mean.log() - target / mean

    def interval(self, mean: Tensor, std: Tensor, level: float) -> tuple[Tensor, Tensor]:
        """Ends of the central interval: a normal's would begin below 0."""
        return -mean * math.log((1 + level) / 2), -mean * math.log((1 - level) / 2)

    def draw(self, mean: Tensor, std: Tensor, generator: Generator) -> Tensor:
        """Times of these means, drawn at random."""
        return mean * torch.empty_like(mean).exponential_(generator=generator)

    # 3. The Fisher information of the outputs, for Laplace.

    def curvature(
        self, output: Tensor, numbers: Numbers, generator: Generator | None = None
    ) -> Iterator[Tensor]:
        """Yield e for each output."""
        return diagonal_roots(torch.ones_like(output), generator)

    # 4. Words: one error that names the fix, and one line of the model card.

    def check(self, output: Tensor, target: Tensor) -> None:
        """Targets must be above 0, one for each output."""
        self.check_targets(output[0].numel(), target)
        if bool((target <= 0).any()):
            raise ValueError("Exponential: targets must be waiting times > 0. Use Gaussian.")

    def describe(self) -> str:
        """The noise in words."""
        return "exponential, its standard deviation is the mean"
