"""The algorithms, one file each, and the protocol they share.

Nothing here imports torch, so that the command line can read `recipes` for its help.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

if TYPE_CHECKING:
    from torch import Generator, Tensor

    from bayesieve.core.batch import Batch, Metrics
    from bayesieve.core.posterior import Posterior
    from bayesieve.core.problem import Problem
    from bayesieve.core.state import Controls


class EngineState(Protocol):
    """The state of an engine as `fit` sees it: controls to set, and the generator of all draws."""

    @property
    def controls(self) -> Controls:
        """Scales and masks, set from outside."""

    @property
    def generator(self) -> Generator:
        """Source of every random number the engine draws."""


S = TypeVar("S", bound=EngineState)


class Engine(Protocol[S]):
    """An algorithm that infers a posterior: a frozen, tensor-free dataclass with these methods."""

    def init(self, problem: Problem, generator: Generator, n_models: int = 1) -> S:
        """A fresh state of k models."""

    def warm_start_(self, state: S, posterior: Posterior) -> None:
        """Move a fresh state to another posterior, in place."""

    def step(self, problem: Problem, state: S, batch: Batch) -> Metrics:
        """Consume one batch, updating the state in place; metrics are detached, shape (k,)."""

    def kl(self, state: S) -> Tensor:
        """The prior's part of the objective in nats, (k,): elbo = log_lik - kl."""

    def posterior(self, problem: Problem, state: S, member: int = 0) -> Posterior:
        """The posterior of one member, as copies."""


@runtime_checkable
class Settling(Protocol):
    """A further method of an engine that removes weights by itself."""

    def settled(self, n_epochs: int) -> float | None:
        """Fraction of a run of so many epochs after which masks are final; None for no masks."""


@runtime_checkable
class Renewing(Protocol):
    """Further methods of an engine that changes its state between steps, such as its masks.

    Before step number t = 0, 1, ... `fit` calls `renew_` wherever t > 0 is a multiple of
    `renew_every`. Tensors must be changed in place.
    """

    def renew_every(self, n_steps: int) -> int:
        """Steps between two calls in a run of `n_steps`; 0 for none."""

    def renew_(self, problem: Problem, state: Any, step: int, n_steps: int) -> None:
        """Change the state before step number `step` of `n_steps`."""
