"""The fully connected networks of the table studies, with starting weights that repeat."""

from collections.abc import Sequence

import torch
from torch import nn

from bayesieve.nets import mlp


def seeded_mlp(
    n_inputs: int, n_outputs: int, widths: Sequence[int], *, dropout: float = 0.0, seed: int = 0
) -> nn.Sequential:
    """`nets.mlp` whose weights depend on `seed` alone; the global generator is left as it was.

    Example:
        >>> first, second = (seeded_mlp(2, 1, (3,)).fc1.weight for _ in range(2))
        >>> bool((first == second).all())
        True
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return mlp((n_inputs,), n_outputs, widths=widths, dropout=dropout)
