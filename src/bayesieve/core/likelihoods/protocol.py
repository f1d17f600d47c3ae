"""What a problem asks of a likelihood."""

from collections.abc import Mapping
from typing import Literal, Protocol, runtime_checkable

from torch import Tensor

Extra = Mapping[str, Tensor]
Task = Literal["classification", "regression"]


@runtime_checkable
class Likelihood(Protocol):
    """What a problem asks of a likelihood; outputs carry the batch axis first."""

    @property
    def task(self) -> Task:
        """Whether predictions are class probabilities or real numbers."""
        ...

    def parameters(self) -> dict[str, Tensor]:
        """Initial values of learned numbers (empty for most)."""
        ...

    def log_prob(self, output: Tensor, target: Tensor, extra: Extra) -> Tensor:
        """Log density of each example, shape (n,)."""
        ...

    def check(self, output: Tensor, target: Tensor) -> None:
        """Raise unless the network's output and the targets fit this likelihood."""
        ...


@runtime_checkable
class RealLikelihood(Likelihood, Protocol):
    """A likelihood of real numbers."""

    def moments(self, output: Tensor, extra: Extra) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of the targets under S weight vectors.

        Args:
            output: (S, n, ...), of the network.
            extra: learned numbers, each (S, ...).

        Returns:
            Means (S, n, m) and standard deviations that broadcast to them.
        """
        ...
