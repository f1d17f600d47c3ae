"""Where weights start: drawn by a module's own rules, or by fan-in."""

import copy

import torch
from torch import Generator, Tensor, nn

from bayesieve.core.network import Network


class ResetByModule:
    """Fresh weights from the module's own `reset_parameters`, without touching the model.

    Args:
        model: whose layers know how to start.

    Example:
        >>> from bayesieve.core.likelihoods import Gaussian
        >>> model = nn.Linear(2, 1)
        >>> reset, network = ResetByModule(model), Network.of(model, Gaussian())
        >>> reset(network, 1).shape, torch.equal(reset(network, 1), reset(network, 1))
        (torch.Size([3]), True)
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model

    def __call__(self, network: Network, seed: int) -> Tensor:
        """The weights that a seed gives, (d,), on the network's device."""
        model = copy.deepcopy(self._model).to("cpu")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            for module in model.modules():
                reset = getattr(module, "reset_parameters", None) or getattr(
                    module, "_reset_parameters", None
                )
                if callable(reset):
                    reset()
        return network.weights_of(model.to(network.device))


def he_uniform(network: Network, initial: Tensor, k: int, generator: Generator) -> Tensor:
    """Weights from U(±√(6 / fan_in)), biases 0, point parameters as in `initial`; (k, d).

    Args:
        network: which tensors there are.
        initial: the model's own weights, (d,).
        k: number of models.
        generator: source of the draws.
    """
    layout = network.layout
    w = initial.repeat(k, 1)
    for name in layout.names:
        part = layout.slices[name]
        if part.start >= layout.n_bayesian:
            break
        fan_in = layout.fan_in(name)
        if fan_in > 1 or len(layout.shapes[layout.names.index(name)]) > 1:
            bound = (6 / fan_in) ** 0.5
            w[:, part] = w[:, part].uniform_(-bound, bound, generator=generator)
        else:
            w[:, part] = 0.0
    return w
