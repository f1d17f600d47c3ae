"""Small types that several rooms share."""

from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

Metrics = dict[str, Tensor]


class Batch(NamedTuple):
    """Inputs and targets of one step.

    x has shape (n, ...), y (n,) or (n, m), weight (n,) or None (all 1). With `per_member` all carry
    a leading axis of k and each model of a population sees its own rows.

    Example:
        >>> Batch(torch.zeros(5, 3), torch.zeros(5)).n
        5
    """

    x: Tensor
    y: Tensor
    per_member: bool = False
    weight: Tensor | None = None

    @property
    def n(self) -> int:
        """Examples per model."""
        return self.x.shape[1] if self.per_member else self.x.shape[0]

    def member(self, index: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """Inputs, targets and weights that one model of a population sees."""
        if not self.per_member:
            return self.x, self.y, self.weight
        weight = None if self.weight is None else self.weight[index]
        return self.x[index], self.y[index], weight


def weighted_sum(values: Tensor, weight: Tensor | None) -> Tensor:
    """Σ weight · value over examples, both (n,); None weighs all the same."""
    return values.sum() if weight is None else torch.dot(values, weight)


@runtime_checkable
class ExamplesLike(Protocol):
    """A split of a data set in memory: x of shape (N, ...) and y of shape (N,) or (N, m)."""

    @property
    def x(self) -> Tensor:
        """Inputs."""
        ...

    @property
    def y(self) -> Tensor:
        """Targets."""
        ...


def pair_of(who: str, data: ExamplesLike | tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Inputs, (N, ...), and targets, (N, ...), of an (x, y) pair or of anything with `.x` and `.y`.

    Example:
        >>> x, y = pair_of("evaluate", (torch.zeros(3, 2), torch.zeros(3)))
        >>> x.shape, y.shape
        (torch.Size([3, 2]), torch.Size([3]))
    """
    if isinstance(data, ExamplesLike):
        x, y = data.x, data.y
    elif isinstance(data, tuple | list) and len(data) == 2:
        x, y = data
    else:
        kind = type(data).__name__
        raise TypeError(
            f"{who}: data must be an (x, y) pair of tensors or have .x and .y, got {kind}. "
            "Read a Dataset or DataLoader into memory with bayesieve.data.gather."
        )
    if not isinstance(x, Tensor) or not isinstance(y, Tensor):
        raise TypeError(
            f"{who}: x and y must be tensors, got {type(x).__name__} and {type(y).__name__}. "
            "Use torch.as_tensor."
        )
    if x.layout != torch.strided or y.layout != torch.strided:
        raise TypeError(f"{who}: x and y must be dense tensors. Use .to_dense().")
    n_x, n_y = (part.shape[0] if part.dim() else 0 for part in (x, y))
    if n_x != n_y or n_x == 0:
        raise ValueError(f"{who}: x and y must have the same length > 0, got {n_x} and {n_y}.")
    return x, y
