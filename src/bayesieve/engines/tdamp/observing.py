"""The output channel and predictive density that go with each likelihood."""

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor
from torch.special import log_ndtr

from bayesieve.core.likelihoods import Likelihood
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


class Observation(ABC):
    """The targets of a batch as an output channel, (ω, V) -> (g, Γ).

    Args:
        target: (n, ...) or (k, n, ...).
        noise: v of the Gaussian channel, (k, 1).
        shape: (n, outputs) or (k, n, outputs).
    """

    def __init__(self, target: Tensor, noise: Tensor, shape: tuple[int, ...]) -> None:
        self._noise = noise[..., None]
        self.target = target.reshape(shape).to(noise.dtype)

    @abstractmethod
    def __call__(self, omega: Tensor, var: Tensor) -> Response:
        """The response of eq. T2, of classes bounded by eq. T30."""

    @abstractmethod
    def curvature(self, omega: Tensor, var: Tensor) -> Tensor:
        """The largest Γ that targets can cause: that of a Gaussian, or at an undecided probit.

        Examples that are classified well have no curvature left, yet would suffer from a change.
        """

    @abstractmethod
    def log_prob(self, omega: Tensor, var: Tensor) -> Tensor:
        """Σ over the batch of log p(y | ω, V), (k,)."""


class _Classes(Observation):
    """One of several classes: a product of probits."""

    def __init__(self, target: Tensor, noise: Tensor, shape: tuple[int, ...]) -> None:
        self._noise = noise[..., None]
        self.target = target.long()

    def __call__(self, omega: Tensor, var: Tensor) -> Response:
        return bounded(star_channel(omega, var, self.target, PROBIT_VARIANCE))

    def curvature(self, omega: Tensor, var: Tensor) -> Tensor:
        return _UNDECIDED / (PROBIT_VARIANCE + 2 * var)

    def log_prob(self, omega: Tensor, var: Tensor) -> Tensor:
        label = self.target.expand(omega.shape[:-1])[..., None]
        return class_log_probs(omega, var, PROBIT_VARIANCE).gather(-1, label).sum((-2, -1))


class _YesOrNo(Observation):
    """Yes or no for each output: a probit."""

    def __call__(self, omega: Tensor, var: Tensor) -> Response:
        return bounded(probit_channel(omega, var, 2 * self.target - 1, PROBIT_VARIANCE))

    def curvature(self, omega: Tensor, var: Tensor) -> Tensor:
        return _UNDECIDED / (PROBIT_VARIANCE + var)

    def log_prob(self, omega: Tensor, var: Tensor) -> Tensor:
        sign = 2 * self.target - 1
        return log_ndtr(sign * omega / (PROBIT_VARIANCE + var).sqrt()).sum((-2, -1))


class _Real(Observation):
    """Real numbers with normal noise."""

    def __call__(self, omega: Tensor, var: Tensor) -> Response:
        return gaussian_channel(omega, var, self.target, self._noise)

    def curvature(self, omega: Tensor, var: Tensor) -> Tensor:
        return (1 / (var + self._noise)).expand_as(omega)

    def log_prob(self, omega: Tensor, var: Tensor) -> Tensor:
        density = torch.distributions.Normal(omega, (var + self._noise).sqrt(), validate_args=False)
        return density.log_prob(self.target).sum((-2, -1))


_CHANNELS: dict[str, type[Observation]] = {
    "probit-product": _Classes,
    "probit": _YesOrNo,
    "normal": _Real,
}


def observe(
    likelihood: Likelihood, target: Tensor, noise: Tensor, shape: tuple[int, ...]
) -> Observation:
    """The channel of this likelihood; arguments as those of `Observation`."""
    assert likelihood.channel is not None  # `check_likelihood` has been there
    return _CHANNELS[likelihood.channel](target, noise, shape)


def check_likelihood(likelihood: Likelihood, target: Tensor) -> None:
    """Raise unless there is a channel for these targets."""
    if likelihood.channel not in _CHANNELS:
        raise TypeError(
            f"TDAMP: {type(likelihood).__name__} has no channel; use Categorical, Bernoulli or "
            "Gaussian."
        )
    if likelihood.soft_targets and target.is_floating_point():
        raise ValueError("TDAMP: class probabilities as targets are not supported; use labels.")
