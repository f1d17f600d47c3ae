"""Training and eval mode of modules, put back after use."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def modes_kept(*modules: nn.Module) -> Iterator[None]:
    """Leave the block with every layer in the mode, training or eval, in which it came.

    Example:
        >>> net = nn.Sequential(nn.Dropout())
        >>> with modes_kept(net):
        ...     net.eval()[0].training
        False
        >>> net[0].training
        True
    """
    modes = {own: own.training for module in modules for own in module.modules()}
    try:
        yield
    finally:
        for own, training in modes.items():
            own.training = training
