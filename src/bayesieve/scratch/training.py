"""Training: optimisers on one flat vector of parameters, and the loop over mini-batches.

    gradient descent   θ ← θ - η g
    Adam               v ← β₁ v + (1 - β₁) g        s ← β₂ s + (1 - β₂) g²
                       θ ← θ - η (v / (1 - β₁ᵗ)) / (√(s / (1 - β₂ᵗ)) + ε)

t counts batches from 1; a common slip is to count parameters. Reference: [Kingma], algorithm 1.
Symbols: θ params, g gradient, η lr, β₁ mean_decay, β₂ square_decay, ε epsilon.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

from bayesieve.checks import check_counts, check_fraction, check_positive
from bayesieve.errors import DivergedError
from bayesieve.scratch.functions import Array

if TYPE_CHECKING:
    from bayesieve.scratch.net import FeedForwardNet


State = TypeVar("State")


class Optimiser(Protocol[State]):
    """Protocol of an optimiser: immutable settings, and a state beside them."""

    @property
    def lr(self) -> float:
        """The learning rate before any schedule."""

    def init(self, params: Array) -> State:
        """The state before the first step."""

    def step(self, params: Array, gradient: Array, state: State, lr: float) -> None:
        """Change `params` and `state` in place."""


@dataclass(frozen=True)
class GradientDescent:
    """Plain gradient descent.

    Args:
        lr: learning rate.

    Example:
        >>> params, rule = np.array([1.0, 2.0]), GradientDescent(lr=0.5)
        >>> rule.step(params, np.array([2.0, 0.0]), rule.init(params), rule.lr)
        >>> params.tolist()
        [0.0, 2.0]
    """

    lr: float = 0.01

    def __post_init__(self) -> None:
        check_positive("GradientDescent", lr=self.lr)

    def init(self, params: Array) -> None:
        """There is nothing to remember."""

    def step(self, params: Array, gradient: Array, state: None, lr: float) -> None:
        """θ ← θ - η g."""
        params -= lr * gradient


@dataclass
class AdamState:
    """Running means and the number of steps."""

    mean: Array  # v
    square: Array  # s
    step: int = 0  # t


@dataclass(frozen=True)
class Adam:
    """Adam with bias correction.

    Args:
        lr: learning rate.
        mean_decay: of the running mean of gradients.
        square_decay: of the running mean of squared gradients.
        epsilon: added to the root, against division by zero.

    Example:
        >>> params, rule = np.array([1.0, 2.0]), Adam(lr=0.5)
        >>> rule.step(params, np.array([2.0, -70.0]), rule.init(params), rule.lr)
        >>> params.round(6).tolist()  # the first step has length lr, whatever the gradient
        [0.5, 2.5]
    """

    lr: float = 1e-3
    mean_decay: float = 0.9
    square_decay: float = 0.999
    epsilon: float = 1e-8

    def __post_init__(self) -> None:
        check_positive("Adam", lr=self.lr, epsilon=self.epsilon)
        check_fraction(
            "Adam", open_ends=True, mean_decay=self.mean_decay, square_decay=self.square_decay
        )

    def init(self, params: Array) -> AdamState:
        """Both means start at 0."""
        return AdamState(np.zeros_like(params), np.zeros_like(params))

    def step(self, params: Array, gradient: Array, state: AdamState, lr: float) -> None:
        """One step: v, s, then θ."""
        state.step += 1
        state.mean += (gradient - state.mean) * (1 - self.mean_decay)
        state.square *= self.square_decay
        state.square += gradient * gradient * (1 - self.square_decay)
        root = np.sqrt(state.square) * (1 / math.sqrt(1 - self.square_decay**state.step))
        params -= state.mean / (root + self.epsilon) * (lr / (1 - self.mean_decay**state.step))


@dataclass(frozen=True)
class Record:
    """Losses at one moment, without the penalty, so that runs with and without one compare.

    Args:
        step: batches seen so far.
        epoch: passes over the data so far; a fraction in between.
        train_loss: mean loss of the batches since the last record, each at the weights it met.
        val_loss: loss of the validation data now; None without such data.
    """

    step: int
    epoch: float
    train_loss: float
    val_loss: float | None = None


@dataclass
class History:
    """Records in order.

    Example:
        >>> history = History([Record(1, 0.5, 2.5), Record(2, 1.0, 1.25)])
        >>> history
        History(2 records, epoch 1, train loss 1.25)
        >>> history.train_loss
        [2.5, 1.25]
    """

    records: list[Record] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.records)

    def __repr__(self) -> str:
        if not self.records:
            return "History(no records)"
        last = self.records[-1]
        validation = "" if last.val_loss is None else f", validation loss {last.val_loss:.4g}"
        return (
            f"History({len(self)} records, epoch {last.epoch:g}, "
            f"train loss {last.train_loss:.4g}{validation})"
        )

    @property
    def epoch(self) -> list[float]:
        """Epochs of all records."""
        return [record.epoch for record in self.records]

    @property
    def train_loss(self) -> list[float]:
        """Training losses of all records."""
        return [record.train_loss for record in self.records]

    @property
    def val_loss(self) -> list[float | None]:
        """Validation losses of all records; None where there were no validation data."""
        return [record.val_loss for record in self.records]


def constant(done: float) -> float:
    """Learning rate factor 1, whatever share of the run is done.

    Example:
        >>> constant(0.75)
        1.0
    """
    return 1.0


def linear_decay(done: float) -> float:
    """Learning rate factor that falls from 1 to 0 over the run.

    Example:
        >>> linear_decay(0.75)
        0.25
    """
    return 1.0 - done


@dataclass(frozen=True)
class Plan:
    """A plan of training.

    Args:
        optimiser: `GradientDescent(...)` or `Adam(...)`.
        epochs: passes over the data.
        batch_size: examples per step; the last batch of an epoch may be smaller.
        seed: of the shuffling.
        schedule: factor on the learning rate by the share of the run that is done.
        record_every: steps between two records; None records once per epoch.
    """

    optimiser: Optimiser[Any] = field(default_factory=GradientDescent)
    epochs: int = 15
    batch_size: int = 64
    seed: int = 0
    schedule: Callable[[float], float] = constant
    record_every: int | None = None

    def __post_init__(self) -> None:
        every = 1 if self.record_every is None else self.record_every
        check_counts("Plan", epochs=self.epochs, batch_size=self.batch_size, record_every=every)


def train_epochs(
    net: "FeedForwardNet",
    x: Array,
    target: Array,
    plan: Plan,
    validation: tuple[Array, Array] | None,
) -> Iterator[History]:
    """Train, and hand out the growing history after each epoch; the caller has checked the data."""
    rng = np.random.default_rng(plan.seed)
    state = plan.optimiser.init(net.params)
    n_batches = -(-len(x) // plan.batch_size)
    n_steps, every = plan.epochs * n_batches, plan.record_every or n_batches
    history, losses, step = History(), list[float](), 0
    for _ in range(plan.epochs):
        order = rng.permutation(len(x))
        for rows in np.split(order, range(plan.batch_size, len(x), plan.batch_size)):
            batch, wanted = x[rows], target[rows]
            # an overflow shows in the loss, and is reported there
            with np.errstate(over="ignore", invalid="ignore"):
                layers = net.forward(batch)
                loss = net.loss(layers[-1], wanted)
                net.backward(batch, wanted, layers)
                lr = plan.optimiser.lr * plan.schedule(step / n_steps)
                plan.optimiser.step(net.params, net.gradient, state, lr)
            step += 1
            if not math.isfinite(loss):
                before = losses or history.train_loss
                last = f"{before[-1]:.4g}" if before else "none"
                raise DivergedError(
                    f"FeedForwardNet: loss is not finite at step {step}; last finite value {last}. "
                    f"Lower lr ({plan.optimiser.lr:g})."
                )
            losses.append(loss)
            if step % every == 0 or step == n_steps:
                if not np.isfinite(net.params).all():
                    raise DivergedError(
                        f"FeedForwardNet: weights are not finite after step {step}. Lower lr "
                        f"({plan.optimiser.lr:g})."
                    )
                val_loss = None if validation is None else net.evaluate(*validation).loss
                mean = sum(losses) / len(losses)
                history.records.append(Record(step, step / n_batches, mean, val_loss))
                losses.clear()
        yield history
