"""Fully connected networks, and the checks of sizes that every network of this room makes."""

import math
from collections import OrderedDict
from collections.abc import Sequence
from typing import Literal

from torch import nn

from bayesieve.checks import check_choice, check_counts


def check_sizes(who: str, input_shape: tuple[int, ...], n_outputs: int) -> None:
    """Raise unless `input_shape` is a non-empty tuple of counts and `n_outputs` a count."""
    if not isinstance(input_shape, tuple) or not input_shape:
        raise TypeError(
            f"{who}: input_shape must be a non-empty tuple such as (1, 28, 28), "
            f"got {input_shape!r}. Leave the batch size out."
        )
    check_counts(who, input_shape=input_shape, n_outputs=n_outputs)


def check_image(who: str, input_shape: tuple[int, ...], n_outputs: int) -> tuple[int, int, int]:
    """Channels, height and width of an input; raises if it is no image."""
    check_sizes(who, input_shape, n_outputs)
    if len(input_shape) != 3:
        raise ValueError(
            f"{who}: input_shape must be (channels, height, width), got {input_shape}. "
            "Reshape the data to images, or use mlp."
        )
    channels, height, width = input_shape
    return channels, height, width


Activation = Literal["relu", "tanh", "swish"]

_ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "tanh": nn.Tanh, "swish": nn.SiLU}


def mlp(
    input_shape: tuple[int, ...],
    n_outputs: int,
    widths: Sequence[int] = (400, 400),
    activation: Activation = "relu",
    dropout: float = 0.0,
) -> nn.Sequential:
    """Build a fully connected network: flatten, hidden layers, linear output.

    Args:
        input_shape: shape of one example, without the batch axis.
        n_outputs: number of outputs (logits, or regression targets).
        widths: units of each hidden layer; empty gives a linear model.
        activation: function after each hidden layer; "swish" is x * sigmoid(x).
        dropout: probability of dropping a hidden unit; for point estimates.

    Returns:
        Layers named "flatten", "fc1", "act1", "fc2", ..., "out"; maps (n, *input_shape) to
        (n, n_outputs).

    Example:
        >>> net = mlp((1, 28, 28), 10, widths=(300, 100))
        >>> [name for name, _ in net.named_children()]
        ['flatten', 'fc1', 'act1', 'fc2', 'act2', 'out']
        >>> sum(p.numel() for p in net.parameters())
        266610
    """
    check_sizes("mlp", input_shape, n_outputs)
    check_counts("mlp", widths=tuple(widths))
    check_choice("mlp", "activation", activation, _ACTIVATIONS)
    layers: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
    n_inputs = math.prod(input_shape)
    for i, width in enumerate(widths, start=1):
        layers[f"fc{i}"] = nn.Linear(n_inputs, width)
        layers[f"act{i}"] = _ACTIVATIONS[activation]()
        if dropout:
            layers[f"drop{i}"] = nn.Dropout(dropout)
        n_inputs = width
    layers["out"] = nn.Linear(n_inputs, n_outputs)
    return nn.Sequential(layers)
