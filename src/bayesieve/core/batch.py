"""Small types that several rooms share."""

from typing import NamedTuple, Protocol, runtime_checkable

from torch import Tensor

Metrics = dict[str, Tensor]


class Batch(NamedTuple):
    """Inputs and targets of one step.

    x has shape (n, ...), y (n,) or (n, m). With `per_member` both carry a leading axis of k and
    each model of a population sees its own rows.
    """

    x: Tensor
    y: Tensor
    per_member: bool = False

    @property
    def n(self) -> int:
        """Examples per model."""
        return self.x.shape[1] if self.per_member else self.x.shape[0]


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
