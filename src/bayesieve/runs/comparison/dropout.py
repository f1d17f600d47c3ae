"""Monte-Carlo dropout as a posterior: each draw switches off its own inputs of linear layers.

Dropping input j of a layer is setting column j of its weight to 0 (and the others 1 / (1 - p) times
as large), so a draw of masks is a draw of weights: Gal and Ghahramani (2016), section 3.
Departure: within one draw the mask is the same for all inputs, as for every other posterior here.
"""

import copy

import torch
from torch import Generator, nn

from bayesieve.checks import check_fraction, check_positive
from bayesieve.core.posterior import Posterior, Samples


class DroppedLinear(nn.Linear):
    """A linear layer that drops its inputs in training, with the parameters of the layer it was.

    Example:
        >>> layer = DroppedLinear.of(nn.Linear(3, 2), p=0.5)
        >>> sorted(name for name, _ in layer.named_parameters())
        ['bias', 'weight']
    """

    p: float

    @classmethod
    def of(cls, layer: nn.Linear, p: float) -> "DroppedLinear":
        """The same weights with dropout in front."""
        own = cls(layer.in_features, layer.out_features, layer.bias is not None)
        own.load_state_dict(layer.state_dict())
        own.p = p
        return own.to(layer.weight)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Drop, then multiply."""
        return super().forward(nn.functional.dropout(input, self.p, self.training))


def with_dropout(model: nn.Module, p: float) -> nn.Module:
    """A copy whose linear layers drop their inputs, except a layer that reads the data itself.

    Example:
        >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> [type(layer).__name__ for layer in with_dropout(net, 0.1)]
        ['Linear', 'ReLU', 'DroppedLinear']
    """
    check_fraction("with_dropout", open_ends=True, p=p)
    clone = copy.deepcopy(model)
    weighted = [m for m in clone.modules() if isinstance(m, nn.Linear | nn.Conv1d | nn.Conv2d)]
    first = weighted[0] if weighted else None
    for parent in list(clone.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear and child is not first:
                setattr(parent, name, DroppedLinear.of(child, p))
    return clone


def dropout_draws(posterior: Posterior, model: nn.Module, n: int, generator: Generator) -> Samples:
    """N draws of a network trained with dropout.

    Args:
        posterior: point estimate of the network's weights.
        model: the network that `with_dropout` returned.
        n: draws.
        generator: of the masks.
    """
    check_positive("dropout_draws", n=n)
    draws = posterior.mean.repeat(n, 1)
    layers = {
        f"{name}.weight" if name else "weight": layer
        for name, layer in model.named_modules()
        if isinstance(layer, DroppedLinear)
    }
    for tensor, part in posterior.layout.slices.items():
        if tensor in layers:
            layer = layers[tensor]
            keep = torch.rand(n, layer.in_features, generator=generator, device=draws.device)
            factor = (keep >= layer.p).to(draws) / (1 - layer.p)
            weights = draws[:, part].view(n, layer.out_features, layer.in_features)
            draws[:, part] = (weights * factor[:, None]).view(n, -1)
    return Samples(posterior.network, draws, None, dict(posterior.buffers))
