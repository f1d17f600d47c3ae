"""Mini-batch training: shuffle, forward, backward, step; losses are recorded at intervals."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from bayesieve.errors import DivergedError
from bayesieve.scratch.arrays import Array
from bayesieve.scratch.buffers import Buffers
from bayesieve.scratch.history import History, Record
from bayesieve.scratch.inputs import check_counts
from bayesieve.scratch.optimisers import GradientDescent, Optimiser

if TYPE_CHECKING:
    from bayesieve.scratch.net import FeedForwardNet


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
    """How to train.

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
    batches = _Batches(x, target, min(plan.batch_size, len(x)))
    buffers = Buffers.allocate(batches.size, net.units, net.dtype)
    n_steps = plan.epochs * len(batches)
    every = plan.record_every or len(batches)
    history, losses, step = History(), list[float](), 0
    for _ in range(plan.epochs):
        for batch_x, batch_target in batches.shuffled(rng):
            # an overflow shows in the loss, and is reported there
            with np.errstate(over="ignore", invalid="ignore"):
                own = buffers.first(len(batch_x))
                loss = net.loss(net.forward(batch_x, own), batch_target)
                net.backward(batch_x, batch_target, own)
                lr = plan.optimiser.lr * plan.schedule(step / n_steps)
                plan.optimiser.step(net.params, net.gradient, state, lr)
            step += 1
            _check_loss(loss, step, losses or history.train_loss, plan.optimiser)
            losses.append(loss)
            if step % every == 0 or step == n_steps:
                _check_params(net.params, step, plan.optimiser)
                val_loss = None if validation is None else net.evaluate(*validation).loss
                mean = sum(losses) / len(losses)
                history.records.append(Record(step, step / len(batches), mean, val_loss))
                losses.clear()
        yield history


class _Batches:
    """Rows in random order, copied batch by batch into one pair of arrays."""

    def __init__(self, x: Array, target: Array, size: int) -> None:
        self.x, self.target, self.size = x, target, size
        self._x = np.empty((size, x.shape[1]), x.dtype)
        self._target = np.empty((size, target.shape[1]), target.dtype)

    def __len__(self) -> int:
        return -(-len(self.x) // self.size)

    def shuffled(self, rng: np.random.Generator) -> Iterator[tuple[Array, Array]]:
        order = rng.permutation(len(self.x))
        for start in range(0, len(order), self.size):
            rows = order[start : start + self.size]
            x, target = self._x[: len(rows)], self._target[: len(rows)]
            # mode="clip" lets numpy write straight into `out`; rows are in range
            np.take(self.x, rows, axis=0, out=x, mode="clip")
            np.take(self.target, rows, axis=0, out=target, mode="clip")
            yield x, target


def _check_params(params: Array, step: int, optimiser: Optimiser[Any]) -> None:
    if not np.isfinite(params).all():
        raise DivergedError(
            f"FeedForwardNet: weights are not finite after step {step}. Lower lr "
            f"({optimiser.lr:g})."
        )


def _check_loss(loss: float, step: int, before: list[float], optimiser: Optimiser[Any]) -> None:
    if math.isfinite(loss):
        return
    last = f"{before[-1]:.4g}" if before else "none"
    raise DivergedError(
        f"FeedForwardNet: loss is not finite at step {step}; last finite value {last}. "
        f"Lower lr ({optimiser.lr:g})."
    )
