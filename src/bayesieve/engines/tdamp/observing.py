"""The output channel and predictive density that go with each likelihood."""

import math

import torch
from torch import Tensor
from torch.special import log_ndtr

from bayesieve.core.likelihoods import Bernoulli, Categorical, Gaussian, Likelihood
from bayesieve.engines.tdamp.channels import (
    PROBIT_VARIANCE,
    Response,
    bounded,
    class_log_probs,
    gaussian_channel,
    probit_channel,
    star_channel,
)

_UNDECIDED = 2 / math.pi  # h(0)², the curvature of log Φ at 0


class Observation:
    """The targets of a batch as an output channel, (ω, V) -> (g, Γ).

    Args:
        likelihood: `Categorical` (probit-product), `Bernoulli` (probit) or `Gaussian`.
        target: (n, ...) or (k, n, ...).
        noise: v of the Gaussian channel, (k, 1).
        shape: (n, outputs) or (k, n, outputs).
    """

    def __init__(
        self, likelihood: Likelihood, target: Tensor, noise: Tensor, shape: tuple[int, ...]
    ) -> None:
        self._likelihood = likelihood
        self._noise = noise[..., None]
        labels = isinstance(likelihood, Categorical)
        self.target = target.long() if labels else target.reshape(shape).to(noise.dtype)

    def __call__(self, omega: Tensor, var: Tensor) -> Response:
        """The response of eq. T2, of classes bounded by eq. T30."""
        if isinstance(self._likelihood, Categorical):
            return bounded(star_channel(omega, var, self.target, PROBIT_VARIANCE))
        if isinstance(self._likelihood, Bernoulli):
            return bounded(probit_channel(omega, var, 2 * self.target - 1, PROBIT_VARIANCE))
        return gaussian_channel(omega, var, self.target, self._noise)

    def curvature(self, omega: Tensor, var: Tensor) -> Tensor:
        """The largest Γ that targets can cause: that of a Gaussian, or at an undecided probit.

        Examples that are classified well have no curvature left, yet would suffer from a change.
        """
        if isinstance(self._likelihood, Categorical):
            return _UNDECIDED / (PROBIT_VARIANCE + 2 * var)
        if isinstance(self._likelihood, Bernoulli):
            return _UNDECIDED / (PROBIT_VARIANCE + var)
        return (1 / (var + self._noise)).expand_as(omega)

    def log_prob(self, omega: Tensor, var: Tensor) -> Tensor:
        """Σ over the batch of log p(y | ω, V), (k,)."""
        if isinstance(self._likelihood, Categorical):
            label = self.target.expand(omega.shape[:-1])[..., None]
            values = class_log_probs(omega, var, PROBIT_VARIANCE).gather(-1, label)
        elif isinstance(self._likelihood, Bernoulli):
            sign = 2 * self.target - 1
            values = log_ndtr(sign * omega / (PROBIT_VARIANCE + var).sqrt())
        else:
            total = (var + self._noise).sqrt()
            values = torch.distributions.Normal(omega, total, validate_args=False).log_prob(
                self.target
            )
        return values.sum((-2, -1))


def check_likelihood(likelihood: Likelihood, target: Tensor) -> None:
    """Raise unless there is a channel for these targets."""
    if not isinstance(likelihood, Categorical | Bernoulli | Gaussian):
        raise TypeError(
            f"TDAMP: {type(likelihood).__name__} has no channel; use Categorical, Bernoulli or "
            "Gaussian."
        )
    if isinstance(likelihood, Categorical) and target.is_floating_point():
        raise ValueError("TDAMP: class probabilities as targets are not supported; use labels.")
