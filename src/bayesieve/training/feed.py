"""Batches for the steps of a run: examples in random order, or the batches of a stream."""

from collections.abc import Generator
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from bayesieve.core.batch import Batch
from bayesieve.core.problem import Problem
from bayesieve.core.reading import checked
from bayesieve.engines.recipes import RunSize


def epoch_order(problem: Problem, order: torch.Generator) -> Tensor:
    """The order of an epoch on the problem's device: (N,), or (k, n) if each model has rows."""
    if problem.data.rows is None:
        permutation = torch.randperm(problem.n_data, generator=order)
    else:
        permutation = torch.rand(problem.data.rows.index.shape, generator=order).argsort(1)
    return permutation.to(problem.device)


def feed(problem: Problem, size: RunSize, seed: int, start: int) -> Generator[Batch]:
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


def _read(problem: Problem, size: RunSize, seed: int, start: int, *, pin: bool) -> Generator[Batch]:
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
