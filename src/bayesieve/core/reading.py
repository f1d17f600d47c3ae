"""Read the data of a problem, or give it others."""

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from bayesieve.core.batch import Batch, Data, Streamed, TrainingData, pair_of
from bayesieve.core.inputs import mapped
from bayesieve.core.problem import Problem, check_examples


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
