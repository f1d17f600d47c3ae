"""Read the data of a problem: whole, in random order, or the batches of a stream."""

from collections.abc import Generator, Iterator
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from bayesieve.core.batch import Batch, Data, Streamed, TrainingData, pair_of
from bayesieve.core.inputs import mapped
from bayesieve.core.problem import Problem, check_examples


class Length(Protocol):
    """The length of a run; `engines.recipes.RunSize` is one."""

    @property
    def n_steps(self) -> int:
        """Steps of the run."""

    @property
    def batch_size(self) -> int:
        """Examples of a step."""

    @property
    def per_epoch(self) -> int:
        """Steps of an epoch."""


def with_data(problem: Problem, data: Data | Streamed | TrainingData) -> Problem:
    """Return the same network and starting point with other training data.

    Without weights and rows, unless the data bring them; the same changes of images.
    """
    if not isinstance(data, TrainingData):
        data = TrainingData.of(data, None, augment=problem.data.augment)
    clone = problem._copy()
    clone.data = data
    clone._check()
    return clone


def batches(problem: Problem, size: int) -> Iterator[Batch]:
    """Yield every example once, in order, at most `size` at a time, on the device of w."""
    if problem.data.stream is not None:
        for pair in problem.data.stream.epoch(size):
            yield checked(problem, pair)
        return
    for x, y in zip(problem.x.split(size), problem.y.split(size), strict=True):
        yield Batch(x, y)


def checked(problem: Problem, pair: tuple[Any, Tensor]) -> Batch:
    """Return a batch of a stream on the device of w; raises where its numbers cannot be used."""
    x, y = pair_of("Problem", pair)
    check_examples(x, y, problem.network.dtype)
    problem.likelihood.check(problem._first_output, y)

    def moved(values: Tensor) -> Tensor:
        return values.to(problem.device, non_blocking=True)

    return Batch(mapped(moved, x), moved(y))


def epoch_order(problem: Problem, order: torch.Generator) -> Tensor:
    """The order of an epoch on the problem's device: (N,), or (k, n) if each model has rows."""
    if problem.data.rows is None:
        permutation = torch.randperm(problem.n_data, generator=order)
    else:
        permutation = torch.rand(problem.data.rows.index.shape, generator=order).argsort(1)
    return permutation.to(problem.device)


def feed(problem: Problem, size: Length, seed: int, start: int) -> Generator[Batch]:
    """The batch of each step from `start` on, on the problem's device; of a process its share.

    On a GPU the next batch is read and copied, on a CUDA stream of its own, while the step before
    it runs.
    """
    device = problem.device
    on_gpu = device.type == "cuda"
    batches = _read(problem, size, seed, start, pin=on_gpu)
    if not on_gpu:
        yield from batches
        return
    side = torch.cuda.Stream(device)
    waiting: tuple[Batch, torch.cuda.Event] | None = None
    while True:
        with torch.cuda.stream(side):
            batch = next(batches, None)
            copied = None if batch is None else (batch, side.record_event())
        if waiting is not None:
            yield _arrived(*waiting)
        if copied is None:
            return
        waiting = copied


def _read(problem: Problem, size: Length, seed: int, start: int, *, pin: bool) -> Generator[Batch]:
    """The batches as they come; of several processes each reads its share."""
    stream, sharing, n = problem.data.stream, problem.execution.sharing, size.batch_size
    assert stream is not None
    part = (0, 1) if sharing is None else (sharing.rank, sharing.size)
    pairs = stream.steps(n, seed=seed, start=start, stop=size.n_steps, pin=pin, part=part)
    for step, pair in enumerate(pairs, start):
        batch = checked(problem, pair)
        if sharing is not None:
            first = step % size.per_epoch * n
            batch = batch._replace(n_shared=min(n, problem.n_data - first))
        yield batch


def _arrived(batch: Batch, event: "torch.cuda.Event") -> Batch:
    """The batch once its copy has ended, for the CUDA stream that computes."""
    current = torch.cuda.current_stream()
    current.wait_event(event)
    leaves: list[Any] = tree_leaves(batch)
    for leaf in leaves:
        if isinstance(leaf, Tensor):
            leaf.record_stream(current)  # memory is not reused before the step has read it
    return batch
