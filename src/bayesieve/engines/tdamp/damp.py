"""Module A: approximate message passing through the layers for one batch.

Every function is pure, uses matrix products only, and takes any leading axes: inputs are (n, i) or
(k, n, i), weights (k, o, i). Equation numbers are those of docs/theory/tdamp.md.

Convolutions are linear layers over patches. Every position is one more row for the same weights, so
messages to the weights add over positions as they do over examples. A unit in several patches
takes the product of their messages, hence the sum of their natural parameters.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import fold, unfold

from bayesieve.engines.tdamp.channels import (
    Message,
    Observation,
    Response,
    Unit,
    relu_channel,
    relu_moments,
)

Pair = tuple[int, int]


class Window(NamedTuple):
    """Where a convolution looks; images are (..., n, c, h, w), rows (..., n * positions, i)."""

    kernel: Pair
    stride: Pair
    padding: Pair
    dilation: Pair

    def size(self, height: int, width: int) -> Pair:
        """Height and width of the result.

        Example:
            >>> Window((3, 3), (2, 2), (1, 1), (1, 1)).size(8, 8)
            (4, 4)
        """
        spans = zip((height, width), *self, strict=True)
        high, wide = ((length + 2 * p - d * (k - 1) - 1) // s + 1 for length, k, s, p, d in spans)
        return high, wide

    def rows(self, images: Tensor) -> Tensor:
        """The patch around every position of every image."""
        *lead, n, _, _, _ = images.shape
        columns = unfold(
            images.flatten(0, -4), self.kernel, self.dilation, self.padding, self.stride
        )
        return columns.mT.reshape(*lead, n * columns.shape[-1], columns.shape[-2])

    def sums(self, rows: Tensor, height: int, width: int) -> Tensor:
        """Sum of the patches' messages to each entry of the images they were cut from."""
        high, wide = self.size(height, width)
        columns = rows.unflatten(-2, (-1, high * wide)).mT
        lead = columns.shape[:-2]
        flat = columns.flatten(0, -3)
        images = fold(flat, (height, width), self.kernel, self.dilation, self.padding, self.stride)
        return images.unflatten(0, lead)


def as_images(rows: Tensor, size: Pair) -> Tensor:
    """One value per position and channel, (..., n * positions, c) -> (..., n, c, h, w)."""
    return rows.unflatten(-2, (-1, size[0] * size[1])).mT.unflatten(-1, size)


def as_rows(images: Tensor) -> Tensor:
    """The reverse of `as_images`."""
    return images.flatten(-2).mT.flatten(-3, -2)


LEAST_VARIANCE = 1e-8


class Layer(NamedTuple):
    """Names of a layer's tensors, and where it looks if it is a convolution."""

    weight: str
    bias: str | None
    window: Window | None = None

    @property
    def tensors(self) -> tuple[str, ...]:
        """The names of weight and bias."""
        return (self.weight,) if self.bias is None else (self.weight, self.bias)

    def rows(self, units: Tensor) -> Tensor:
        """The rows that multiply the weights: patches, or the units of an example."""
        if self.window is not None:
            return self.window.rows(units)
        return units.flatten(-3) if units.dim() > 3 else units  # images have at least four axes

    def field(self, inputs: Unit | Tensor, weights: "Weights", below: Tensor) -> Unit:
        """Pre-activations of the layer's units, as images behind a convolution of `below`."""
        rows = forward(inputs, weights)
        if self.window is None:
            return rows
        size = self.window.size(*below.shape[-2:])
        return Unit(as_images(rows.mean, size), as_images(rows.var, size))

    def sums(self, message: Tensor, below: Tensor) -> Tensor:
        """A message to the rows, in the shape of the units below, summed over patches."""
        if self.window is None:
            return message.view_as(below)
        return self.window.sums(message, *below.shape[-2:])


class Weights(NamedTuple):
    """Mean and variance of a layer's weights, (k, o, i), and biases, (k, o); i covers a patch."""

    mean: Tensor
    var: Tensor
    bias_mean: Tensor | None
    bias_var: Tensor | None


class Sweep(NamedTuple):
    """The message of one batch to every weight and bias, and its outputs."""

    score: dict[str, Tensor]  # S by tensor name
    precision: dict[str, Tensor]  # G, which may be < 0 for want of examples
    output: Unit  # (ω, V)
    log_prob: Tensor  # predictive log density of the batch, (k,)
    grams: list[Tensor]  # eq. T26 per layer


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
    curvature = gamma @ weights.mean.square()
    a = curvature + (gamma - g.square()) @ weights.var
    return a, g @ weights.mean + inputs.mean * curvature


def weight_score(
    response: Response, inputs: Unit | Tensor, weights: Weights
) -> tuple[Tensor, Tensor]:
    """Score S = ∂ log Z / ∂m and precision G of a layer's weights, eq. T13.

    Both are sums over examples. The sum over a whole batch is what must not be negative.
    """
    g, gamma = response
    mean = inputs.mean if isinstance(inputs, Unit) else inputs
    score, precision = g.mT @ mean, gamma.mT @ mean.square()
    if isinstance(inputs, Unit):
        excess = (gamma - g.square()).mT @ inputs.var
        score, precision = score - weights.mean * excess, precision + excess
    return score, precision


def batch_score(
    layers: Sequence[Layer],
    mean: Mapping[str, Tensor],
    var: Mapping[str, Tensor],
    x: Tensor,
    channel: Observation,
    *,
    joint: bool = False,
) -> Sweep:
    """One sweep up and down.

    Args:
        layers: from input to output.
        mean: cavity means by name, each with a leading axis of k.
        var: cavity variances.
        x: (n, i) or (k, n, i); for a convolution (n, c, h, w) or (k, n, c, h, w).
        channel: of the outputs.
        joint: whether to compute the grams of eq. T26, from the first hidden layer to the last.
    """
    weights = [_weights(layer, mean, var) for layer in layers]
    inputs: list[Unit | Tensor] = [layers[0].rows(x)]
    fields = [layers[0].field(inputs[0], weights[0], x)]
    for layer, above in zip(layers[1:], weights[1:], strict=True):
        units = relu_moments(*fields[-1])
        inputs.append(Unit(layer.rows(units.mean), layer.rows(units.var)))
        fields.append(layer.field(inputs[-1], above, units.mean))
    response = channel(*fields[-1])
    scores: dict[str, Tensor] = {}
    precisions: dict[str, Tensor] = {}
    grams = _grams(layers, weights, inputs, fields, channel) if joint else []
    for i in reversed(range(len(layers))):
        layer, below = layers[i], inputs[i]
        if layer.window is not None:
            response = Response(*(as_rows(value) for value in response))
        scores[layer.weight], precisions[layer.weight] = weight_score(response, below, weights[i])
        if layer.bias is not None:
            scores[layer.bias] = response.g.sum(-2)
            precisions[layer.bias] = response.gamma.sum(-2)
        if isinstance(below, Unit):
            message = backward(response, below, weights[i])
            a, b = (layer.sums(value, fields[i - 1].mean) for value in message)
            response, _ = relu_channel(*fields[i - 1], a, b)
    return Sweep(scores, precisions, fields[-1], channel.log_prob(*fields[-1]), grams)


def _grams(
    layers: Sequence[Layer], weights: Sequence[Weights], inputs: Sequence[Unit | Tensor],
    fields: Sequence[Unit], channel: Observation,
) -> list[Tensor]:  # fmt: skip
    """Eq. T26 of every hidden layer, from the first to the last."""
    curvature, grams = channel.curvature(*fields[-1]), []
    for i in reversed(range(1, len(layers))):
        below, above = inputs[i], weights[i]
        assert isinstance(below, Unit)
        listening = (above.var > 0).any(-1).to(curvature.dtype)
        grams.append(readout_gram(below, curvature, listening, biased=layers[i].bias is not None))
        slope = (below.var / fields[i - 1].var).clamp(max=1)  # squared, on average
        curvature = slope * (curvature @ above.mean.square())
    return grams[::-1]


def readout_gram(units: Unit, curvature: Tensor, listening: Tensor, *, biased: bool) -> Tensor:
    """Precision that a batch gives to the outgoing weights of all units, (k, n, n), eq. T26.

    Args:
        units: activity of the layer, (k, batch, n - 1).
        curvature: of the log-likelihood in the units above, (k, batch, o).
        listening: 1 for units above that are left, (k, o).
        biased: whether the layer above has a bias; without, its row is 0.
    """
    share = listening / listening.sum(-1, keepdim=True).clamp(min=1)
    weight = (curvature * share[:, None]).sum(-1, keepdim=True)
    one = torch.full_like(units.mean[..., :1], float(biased))
    columns = torch.cat([units.mean, one], -1)
    spread = torch.cat([(weight * units.var).sum(-2), torch.zeros_like(one[..., 0, :])], -1)
    return (weight * columns).mT @ columns + torch.diag_embed(spread)


def cavity_(
    data: Message, prior: Message, decay: Tensor, prior_scale: Tensor, kept: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Let the data message decay in place; precision, mean and variance of every weight, eq. T1.

    Mean and variance are 0 where `kept` is.
    """
    data.linear.mul_(decay)
    data.precision.mul_(decay)
    precision = prior_scale * prior.precision + data.precision
    var = kept / precision
    return precision, (prior_scale * prior.linear + data.linear) * var, var


def absorb_(
    data: Message, precision: Tensor, mean: Tensor, var: Tensor, batch: Message,
    power: Tensor, trust: float, rate: Tensor,
) -> None:  # fmt: skip
    """Add the batch's message, counted `power` times and kept within `trust` std, in place.

    Eqs. T14 and T15. Where the variance is 0 nothing is added.

    Args:
        data: (H, G) so far.
        precision: of the weights, 1/σ where they are kept.
        mean: of the weights.
        var: of the weights.
        batch: S and G of eq. T13, in place of a message's linear part and precision.
        power: β.
        trust: κ.
        rate: share of the message that is added.

    Example:
        >>> one, data = torch.ones(1), Message(torch.zeros(1), torch.zeros(1))
        >>> absorb_(data, one, one, one, Message(one, one), one, 9.0, one)
        >>> data
        Message(linear=tensor([2.]), precision=tensor([1.]))
        >>> absorb_(data, one, one, one, Message(one, one), one, 0.25, one)
        >>> data.linear.item()
        3.5
    """
    gained = power * batch.precision * (var > 0)
    total = precision + gained
    limit = trust * var.sqrt()
    move = torch.clamp(power * batch.linear / total, -limit, limit)
    data.linear.add_(rate * (move * total + mean * gained))
    data.precision.add_(rate * gained)


def _weights(layer: Layer, mean: Mapping[str, Tensor], var: Mapping[str, Tensor]) -> Weights:
    bias = (None, None) if layer.bias is None else (mean[layer.bias], var[layer.bias])
    return Weights(mean[layer.weight].flatten(2), var[layer.weight].flatten(2), *bias)
