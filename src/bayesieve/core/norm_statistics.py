"""The running statistics of normalisation layers, which belong to weights as weights belong to x.

A draw of the weights predicts as it did in training only with the means and variances that its own
layers have seen. Here they become one flat vector, so that a chain can keep them with each draw.
(`sieve.prune.reestimate_batchnorm` computes them anew, for weights that no batch has gone through.)
"""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _NormBase

from bayesieve.core.network import Network

_STATISTICS = ("running_mean", "running_var")


def statistics_names(network: Network) -> tuple[str, ...]:
    """The buffers that hold running means and variances.

    Example:
        >>> from torch import nn
        >>> from bayesieve.core.likelihoods import Gaussian
        >>> model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
        >>> statistics_names(Network.of(model, Gaussian()))
        ('1.running_mean', '1.running_var')
    """
    owners = {name for name, own in network.skeleton.named_modules() if isinstance(own, _NormBase)}
    found = []
    for name, _ in network.skeleton.named_buffers():
        owner, _, leaf = name.rpartition(".")
        if owner in owners and leaf in _STATISTICS:
            found.append(name)
    return tuple(found)


def flat_statistics(names: tuple[str, ...], buffers: Mapping[str, Tensor]) -> Tensor:
    """The named buffers of k models, (k, ...) each, as one tensor (k, b)."""
    return torch.cat([buffers[name].flatten(1) for name in names], 1)


def named_statistics(
    names: tuple[str, ...], flat: Tensor, like: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Rows (n, b) back to buffers (n, ...) each, of the shapes in `like`."""
    sizes = [like[name].numel() for name in names]
    parts = zip(names, flat.split(sizes, 1), strict=True)
    return {name: part.reshape(len(flat), *like[name].shape) for name, part in parts}
