"""Scalar channels: the information a nonlinearity or an observation gives on its pre-activation.

With z ~ N(ω, V) and anything else known about z, a channel returns

    g = ∂ log Z / ∂ω = (E z - ω) / V,   Γ = -∂² log Z / ∂ω² = (1 - Var z / V) / V      (T2)

All functions are pure and elementwise over any leading axes; probabilities stay in log space.
Equation numbers are those of docs/theory/tdamp.md. `observe` picks the output channel and the
predictive density of a likelihood.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import one_hot
from torch.special import log_ndtr

from bayesieve.core.likelihoods import Likelihood

PROBIT_VARIANCE = 1.702**2  # Φ(t / 1.702) is within 0.01 of sigmoid(t): outputs read as logits
STAR_SWEEPS = 4
_DENSITY_AT_0 = (2 * math.pi) ** -0.5
_LOG_DENSITY_AT_0 = -0.5 * math.log(2 * math.pi)
_ROOT_HALF = 0.5**0.5
_RIGHT = 8.5  # above this Φ is 1 to double precision
_FAR = -6.0  # below this b the plain truncated moments cancel in float32
_LEAST_VARIANCE = 1e-12


class Response(NamedTuple):
    """g and Γ of eq. T2, each of the shape of ω."""

    g: Tensor
    gamma: Tensor


class Unit(NamedTuple):
    """Mean and variance of a unit's output or of a weight."""

    mean: Tensor
    var: Tensor


class Message(NamedTuple):
    """exp(H w - G w² / 2), a Gaussian factor on a weight or an output."""

    linear: Tensor
    precision: Tensor


class Mills(NamedTuple):
    """The normal distribution restricted to z > 0, at a = mean / std, eq. T6.

    With h(a) = φ(a) / Φ(a): the ratio h, the excess a + h, the curvature r = h (a + h) in (0, 1),
    the rest 1 - r, and Φ(max(a, -6)).
    """

    ratio: Tensor
    excess: Tensor
    curvature: Tensor
    rest: Tensor
    near_cdf: Tensor


def inverse_mills(a: Tensor) -> Mills:
    """The inverse Mills ratio and what goes with it, accurate in both tails, eq. T6.

    Example:
        >>> inverse_mills(torch.tensor([0.0, -30.0], dtype=torch.float64)).ratio.numpy().round(4)
        array([ 0.7979, 30.0333])
    """
    near, far = a.clamp(min=_FAR), a.clamp(max=_FAR)
    cdf = 0.5 * torch.erfc(near * -_ROOT_HALF)  # above -6 neither φ nor Φ underflows
    ratio = (-0.5 * near.square()).exp() * _DENSITY_AT_0 / cdf
    excess = near + ratio
    curvature = ratio * excess
    i = far.square().reciprocal()
    far_excess = (1 + i * (-2 + i * (10 - 74 * i))) / -far
    far_rest = i * (1 + i * (-6 + i * (50 - 518 * i)))
    is_near = a >= _FAR
    return Mills(
        torch.where(is_near, ratio, far_excess - far),
        torch.where(is_near, excess, far_excess),
        torch.where(is_near, curvature, 1 - far_rest),
        torch.where(is_near, 1 - curvature, far_rest),
        cdf,
    )


def log_mills(a: Tensor, ratio: Tensor) -> Tensor:
    """Logarithm of h(a), whose ratio may have underflowed, eq. T6.

    Example:
        >>> a = torch.tensor([0.0, 30.0])
        >>> [round(v, 3) for v in log_mills(a, inverse_mills(a).ratio).tolist()]
        [-0.226, -450.919]
    """
    right, density = a > _RIGHT, -0.5 * a.square() + _LOG_DENSITY_AT_0
    return torch.where(right, density, torch.where(right, 1, ratio).log())


def restricted(mills: Mills, std: Tensor) -> Unit:
    """Moments of N(mean, std²) restricted to z > 0, from `inverse_mills(mean / std)`, eq. T7."""
    return Unit(std * mills.excess, (std.square() * mills.rest).clamp(min=_LEAST_VARIANCE))


def relu_moments(omega: Tensor, var: Tensor) -> Unit:
    """Mean and variance of relu(z) for z ~ N(ω, V), eq. T4."""
    std = var.sqrt()
    a = omega / std
    mills = inverse_mills(a)
    far = (-0.5 * a.square()).exp() * _DENSITY_AT_0 / mills.ratio
    positive = torch.where(a >= _FAR, mills.near_cdf, far)
    upper = restricted(mills, std)
    mean = positive * upper.mean
    return Unit(mean, positive * upper.var + positive * (1 - positive) * upper.mean.square())


def relu_channel(omega: Tensor, var: Tensor, a: Tensor, b: Tensor) -> tuple[Response, Unit]:
    """Combine z ~ N(ω, V) with the message exp(B u - A u² / 2) on u = relu(z), eq. T5.

    Args:
        omega: ω.
        var: V.
        a: A, raised to -1 / (2V) where it is lower, so that 1 + AV stays positive.
        b: B.

    Example:
        >>> numbers = (torch.tensor(v, dtype=torch.float64) for v in (0.3, 1.0, 2.0, 1.0))
        >>> response, unit = relu_channel(*numbers)
        >>> round(response.g.item(), 8), round(unit.mean.item(), 8)
        (-0.18863068, 0.39277981)
    """
    a = torch.maximum(a, -0.5 / var)
    d = 1 + a * var
    plus_var = var / d
    plus_mean = (omega + b * var) / d
    std, plus_std = var.sqrt(), plus_var.sqrt()
    above, below = plus_mean / plus_std, -omega / std
    plus, minus = inverse_mills(above), inverse_mills(below)
    odds = log_mills(below, minus.ratio) - log_mills(above, plus.ratio) - 0.5 * d.log()
    p = torch.sigmoid(odds)
    upper, lower = restricted(plus, plus_std), restricted(minus, std)
    z_mean = p * upper.mean - (1 - p) * lower.mean
    spread = p * (1 - p)
    z_var = p * upper.var + (1 - p) * lower.var + spread * (upper.mean + lower.mean).square()
    unit = Unit(p * upper.mean, p * upper.var + spread * upper.mean.square())
    return Response((z_mean - omega) / var, (1 - z_var / var) / var), unit


def gaussian_channel(omega: Tensor, var: Tensor, target: Tensor, noise: Tensor) -> Response:
    """Response to y ~ N(z, v), eq. T8.

    Example:
        >>> zero, one = torch.tensor(0.0), torch.tensor(1.0)
        >>> gaussian_channel(zero, one, one, one).g.item()
        0.5
    """
    gamma = 1 / (var + noise)
    return Response((target - omega) * gamma, gamma.expand_as(omega))


def probit_channel(omega: Tensor, var: Tensor, sign: Tensor, noise: float) -> Response:
    """P(y | z) = Φ(±z / √v), exact, eq. T9; `sign` is 1 or -1."""
    total = noise + var
    d = sign * omega / total.sqrt()
    mills = inverse_mills(d)
    return Response(sign * mills.ratio / total.sqrt(), mills.curvature / total)


def star_channel(omega: Tensor, var: Tensor, label: Tensor, noise: float) -> Response:
    """P(y | z) = Π_{k≠y} Φ((z_y - z_k) / √v), by expectation propagation on the star, eq. T10.

    Only differences of outputs matter, so the g of an example sum to 0 (eq. T31): that of the true
    class is taken from the others. Its own sites are not converged after a few damped sweeps, and
    what lacked would push all outputs down together, which no target holds.

    Args:
        omega: (..., n, C).
        var: (..., n, C).
        label: (..., n) class numbers; leading axes may lack.
        noise: v.
    """
    label = label.expand(omega.shape[:-1])
    true = one_hot(label, omega.shape[-1]).to(omega.dtype)
    other = 1 - true
    omega_y, prior = omega.gather(-1, label[..., None]), 1 / var.gather(-1, label[..., None])
    start = Message(prior * omega_y, prior)
    linear, precision = torch.zeros_like(omega), torch.zeros_like(omega)
    for _ in range(STAR_SWEEPS):
        site, _ = _star_sites(omega, var, start, Message(linear, precision), noise)
        linear = 0.5 * (linear + other * site.linear)
        precision = 0.5 * (precision + other * site.precision)
    _, away = _star_sites(omega, var, start, Message(linear, precision), noise)
    pi = prior + precision.sum(-1, keepdim=True)
    pushed = other * away.g
    g = true * pushed.sum(-1, keepdim=True) - pushed
    gamma = true * (1 - prior / pi) * prior + other * away.gamma
    return Response(g, gamma)


def bounded(response: Response) -> Response:
    """The response of each example, (..., n, C), scaled to slopes of at most 1, eq. T30.

    The tail of log Φ is a parabola: an example on the wrong side pulls the harder the further it
    is, and in a deep network, whose outputs grow with every layer, that runs away. A logit, which
    the outputs are read as, has a slope of at most 1.

    Example:
        >>> bounded(Response(torch.tensor([[4.0, -2.0]]), torch.tensor([[0.4, 0.2]]))).gamma
        tensor([[0.1000, 0.0500]])
    """
    scale = response.g.abs().amax(-1, keepdim=True).clamp(min=1).reciprocal()
    return Response(response.g * scale, response.gamma * scale)


def _star_sites(
    omega: Tensor, var: Tensor, start: Message, sites: Message, noise: float
) -> tuple[Message, Response]:
    """New sites of every factor, and what each pushes its own output away by."""
    cavity_var = 1 / (start.precision + sites.precision.sum(-1, keepdim=True) - sites.precision)
    cavity_mean = cavity_var * (start.linear + sites.linear.sum(-1, keepdim=True) - sites.linear)
    scale = torch.rsqrt(noise + cavity_var + var)
    h, _, r, rest, _ = inverse_mills((cavity_mean - omega) * scale)
    t = r / (noise + var + cavity_var * rest)  # S - v_c r, without the cancellation
    slope = h * scale
    site = Message(t * cavity_mean + slope * (1 + t * cavity_var), t)
    return site, Response(slope, r * scale.square())


def class_log_probs(omega: Tensor, var: Tensor, noise: float) -> Tensor:
    """Predictive log class probabilities: outputs as logits, shrunk by their spread, eq. T11.

    Example:
        >>> class_log_probs(torch.zeros(1, 4), torch.ones(1, 4), 1.0).exp()[0, 0].item()
        0.25
    """
    return (omega * torch.rsqrt(1 + var / noise)).log_softmax(-1)


_UNDECIDED = 2 / math.pi  # h(0)², the curvature of log Φ at 0


@dataclass(frozen=True)
class Observation(ABC):
    """The targets of a batch as an output channel, (ω, V) -> (g, Γ).

    Args:
        target: (n, outputs) or (k, n, outputs); class numbers without the last axis.
        noise: v of the Gaussian channel, (k, 1, 1).
    """

    target: Tensor
    noise: Tensor

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
        return gaussian_channel(omega, var, self.target, self.noise)

    def curvature(self, omega: Tensor, var: Tensor) -> Tensor:
        return (1 / (var + self.noise)).expand_as(omega)

    def log_prob(self, omega: Tensor, var: Tensor) -> Tensor:
        density = torch.distributions.Normal(omega, (var + self.noise).sqrt(), validate_args=False)
        return density.log_prob(self.target).sum((-2, -1))


_CHANNELS: dict[str, type[Observation]] = {
    "probit-product": _Classes,
    "probit": _YesOrNo,
    "normal": _Real,
}


def observe(
    likelihood: Likelihood, target: Tensor, noise: Tensor, shape: tuple[int, ...]
) -> Observation:
    """The channel of this likelihood for outputs of `shape`; `noise` is (k, 1)."""
    assert likelihood.channel is not None  # `check_likelihood` has been there
    channel = _CHANNELS[likelihood.channel]
    values = target.long() if channel is _Classes else target.reshape(shape).to(noise.dtype)
    return channel(values, noise[..., None])


def check_likelihood(likelihood: Likelihood, target: Tensor) -> None:
    """Raise unless there is a channel for these targets."""
    if likelihood.channel not in _CHANNELS:
        raise TypeError(
            f"TDAMP: {type(likelihood).__name__} has no channel; use Categorical, Bernoulli or "
            "Gaussian."
        )
    if likelihood.soft_targets and target.is_floating_point():
        raise ValueError("TDAMP: class probabilities as targets are not supported; use labels.")
