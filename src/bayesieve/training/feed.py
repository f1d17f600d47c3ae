"""Batches of a stream for the steps of a run, copied to the device ahead of their step."""

from collections.abc import Generator
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from bayesieve.core.batch import Batch
from bayesieve.core.problem import Problem
from bayesieve.engines.recipes import RunSize
from bayesieve.training.fingerprint import Fingerprint, fingerprint


def feed(problem: Problem, size: RunSize, seed: int, start: int) -> Generator[Batch]:
    """The batch of each step from `start` on, on the problem's device.

    On a GPU the next batch is read and copied, on a CUDA stream of its own, while the step before
    it runs.
    """
    stream, device = problem.stream, problem.device
    assert stream is not None
    on_gpu = device.type == "cuda"
    pairs = stream.steps(size.batch_size, seed=seed, start=start, stop=size.n_steps, pin=on_gpu)
    if not on_gpu:
        yield from map(problem.checked, pairs)
        return
    side = torch.cuda.Stream(device)
    waiting: tuple[Batch, torch.cuda.Event] | None = None
    for pair in pairs:
        with torch.cuda.stream(side):
            copied = problem.checked(pair), side.record_event()
        if waiting is not None:
            yield _arrived(*waiting)
        waiting = copied
    if waiting is not None:
        yield _arrived(*waiting)


def _arrived(batch: Batch, event: "torch.cuda.Event") -> Batch:
    """The batch once its copy has ended, for the CUDA stream that computes."""
    current = torch.cuda.current_stream()
    current.wait_event(event)
    leaves: list[Any] = tree_leaves(batch)
    for leaf in leaves:
        if isinstance(leaf, Tensor):
            leaf.record_stream(current)  # memory is not reused before the step has read it
    return batch


def data_of(problem: Problem) -> Fingerprint | None:
    """What tells the data of a run from others; None of a stream that may come in any order."""
    if problem.stream is None:
        return fingerprint(problem.x, problem.y)
    if not problem.stream.repositionable:
        return None
    return fingerprint(problem.sample.x, problem.sample.y)
