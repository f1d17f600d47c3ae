"""Module A: approximate message passing through the layers for one batch.

Every function is pure, uses matrix products only, and takes any leading axes: inputs are (n, i) or
(k, n, i), weights (k, o, i). Equation numbers are those of docs/theory/tdamp.md.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from bayesieve.engines.tdamp.channels import Response, Unit, relu_channel, relu_moments

LEAST_VARIANCE = 1e-8


class Layer(NamedTuple):
    """Names of a linear layer's tensors."""

    weight: str
    bias: str | None


class Weights(NamedTuple):
    """Mean and variance of a layer's weights, (k, o, i), and biases, (k, o)."""

    mean: Tensor
    var: Tensor
    bias_mean: Tensor | None
    bias_var: Tensor | None


class Message(NamedTuple):
    """exp(H w - G w² / 2) on weights."""

    linear: Tensor
    precision: Tensor


class OutputChannel(Protocol):
    """What the targets say about the last pre-activations."""

    def __call__(self, omega: Tensor, var: Tensor) -> Response:
        """The response of eq. T2."""
        ...


def forward(inputs: Unit | Tensor, weights: Weights) -> Unit:
    """Mean and variance of pre-activations, eq. T3; a plain tensor is an input without noise."""
    mean = inputs.mean if isinstance(inputs, Unit) else inputs
    omega = mean @ weights.mean.mT
    var = mean.square() @ weights.var.mT
    if isinstance(inputs, Unit):
        var = var + inputs.var @ (weights.mean.square() + weights.var).mT
    if weights.bias_mean is not None and weights.bias_var is not None:
        omega = omega + weights.bias_mean[..., None, :]
        var = var + weights.bias_var[..., None, :]
    return Unit(omega, var.clamp(min=LEAST_VARIANCE))


def backward(response: Response, inputs: Unit, weights: Weights) -> tuple[Tensor, Tensor]:
    """(A, B) of the message exp(B u - A u² / 2) to the layer below, eq. T12."""
    g, gamma = response
    square = weights.mean.square()
    curvature = gamma @ square
    a = curvature + (gamma - g.square()) @ weights.var
    return a, g @ weights.mean + inputs.mean * curvature


def weight_score(
    response: Response, inputs: Unit | Tensor, weights: Weights
) -> tuple[Tensor, Tensor]:
    """Score S = ∂ log Z / ∂m and precision G >= 0 of a layer's weights, eq. T13."""
    g, gamma = response
    mean = inputs.mean if isinstance(inputs, Unit) else inputs
    score, precision = g.mT @ mean, gamma.mT @ mean.square()
    if isinstance(inputs, Unit):
        excess = (gamma - g.square()).mT @ inputs.var
        score, precision = score - weights.mean * excess, precision + excess
    return score, precision.clamp(min=0)


def batch_score(
    layers: Sequence[Layer],
    mean: Mapping[str, Tensor],
    var: Mapping[str, Tensor],
    x: Tensor,
    channel: OutputChannel,
) -> tuple[dict[str, Tensor], dict[str, Tensor], Unit]:
    """One sweep up and down: S and G by tensor name, and the outputs' (ω, V).

    Args:
        layers: from input to output.
        mean: cavity means by name, each with a leading axis of k.
        var: cavity variances.
        x: (n, i) or (k, n, i).
        channel: of the outputs.
    """
    weights = [_weights(layer, mean, var) for layer in layers]
    inputs: list[Unit | Tensor] = [x]
    fields = [forward(x, weights[0])]
    for own in weights[1:]:
        inputs.append(relu_moments(*fields[-1]))
        fields.append(forward(inputs[-1], own))
    response = channel(*fields[-1])
    scores, precisions = {}, {}
    for i in reversed(range(len(layers))):
        layer, below = layers[i], inputs[i]
        scores[layer.weight], precisions[layer.weight] = weight_score(response, below, weights[i])
        if layer.bias is not None:
            scores[layer.bias] = response.g.sum(-2)
            precisions[layer.bias] = response.gamma.sum(-2).clamp(min=0)
        if isinstance(below, Unit):
            a, b = backward(response, below, weights[i])
            response, _ = relu_channel(*fields[i - 1], a, b)
    return scores, precisions, fields[-1]


def trusted(
    mean: Tensor, var: Tensor, score: Tensor, precision: Tensor, power: float, trust: float
) -> Message:
    """The batch's message, counted `power` times and kept within `trust` std, eqs. T14 and T15.

    Where the variance is 0 the message is 0.

    Example:
        >>> one = torch.tensor(1.0)
        >>> trusted(one, one, one, one, power=1.0, trust=9.0)
        Message(linear=tensor(2.), precision=tensor(1.))
        >>> trusted(one, one, one, one, power=1.0, trust=0.25).linear.item()
        1.5
    """
    alive = var > 0
    precision = power * precision * alive
    prior = torch.where(alive, 1 / torch.where(alive, var, 1), 1)
    total = prior + precision
    limit = trust * var.sqrt()
    move = torch.clamp(power * score * alive / total, -limit, limit)
    return Message(move * total + mean * precision, precision)


def _weights(layer: Layer, mean: Mapping[str, Tensor], var: Mapping[str, Tensor]) -> Weights:
    bias = (None, None) if layer.bias is None else (mean[layer.bias], var[layer.bias])
    return Weights(mean[layer.weight], var[layer.weight], *bias)
