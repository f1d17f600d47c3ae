"""Memory of a run, estimated before anything is allocated.

The run is rehearsed on the meta device: the engine starts, takes two steps, is copied for a
checkpoint and predicts, and the bytes of all tensors alive are counted. A share for what allocator
and libraries keep in reserve is added, as measured by benchmarks/memory.py.
"""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Generator, Tensor, nn

from bayesieve.assess.evaluate import evaluate
from bayesieve.assess.memory import LiveBytes, free_bytes
from bayesieve.assess.predict import FEWEST_DRAWS, draws_of
from bayesieve.core.batch import Batch
from bayesieve.core.execution import Bounds
from bayesieve.core.inputs import mapped, tensors_of
from bayesieve.core.problem import Problem
from bayesieve.core.state import snapshot
from bayesieve.data.cache import is_mapped
from bayesieve.engines import Engine
from bayesieve.errors import ShortOfMemoryError, UnsupportedModelError, shortage
from bayesieve.text import as_bytes
from bayesieve.training.population import Population

_COPIES = 3  # of the state while a checkpoint is written: the copy, its bytes, the file
_RESERVE, _LIBRARIES = 1.08, 20_000_000
_STEPS = 2  # the first makes what later ones reuse


@dataclass(frozen=True)
class MemoryNeed:
    """Bytes that a run takes, by what takes them; `peak` is the most at once.

    Args:
        data: inputs and targets, of all splits.
        weights: the module and its copy as a start.
        state: the engine's numbers of each weight.
        gradients: weight draws, gradients and masks.
        activations: of a step, and its other passing tensors.
        checkpoint: what is added while one is written.
        draws: what is added while draws predict the test examples.
        reading: raw pixels, beside all data, while these are read.
        peak: most at once, with reserves.
    """

    data: int
    weights: int
    state: int
    gradients: int
    activations: int
    checkpoint: int
    draws: int
    reading: int
    peak: int

    def __str__(self) -> str:
        parts = [(name, n) for name, n in asdict(self).items() if name != "peak"]
        return ", ".join(f"{name} {as_bytes(n)}" for name, n in parts if n > self.peak / 50)

    def per_weight(self, n_weights: int) -> float:
        """Bytes for each weight of the network: all but the data, a checkpoint included."""
        return (self._at_once - self.data) / n_weights

    def largest(self, n_weights: int, free: int) -> int:
        """Weights of the largest network of this kind, layers scaled alike, that fits.

        Example:
            >>> need = MemoryNeed(0, 8_000, 12_000, 8_000, 0, 4_000, 0, 0, 20_034_560)
            >>> round(need.per_weight(1000)), need.largest(1000, free=10**9)
            (32, 28356481)
        """
        room = (free - _LIBRARIES) / _RESERVE - self.data
        return max(0, int(room / self.per_weight(n_weights)))

    @property
    def _at_once(self) -> float:
        return (self.peak - _LIBRARIES) / _RESERVE

    def fits(self, device: torch.device | str = "cpu") -> bool:
        """Return whether the peak is not more than what is free on the device."""
        return self.peak <= free_bytes(device)

    def check(self, who: str, device: torch.device | str = "cpu") -> None:
        """Raise unless it fits."""
        free = free_bytes(device)
        if self.peak > free:
            raise ShortOfMemoryError(
                f"{who}: the run takes about {as_bytes(self.peak)} of memory at once ({self}), but "
                f"{as_bytes(free)} are free on {device}. {shortage()}"
            )


def memory_need(
    problem: Problem,
    engine: Engine[Any],
    *,
    batch_size: int,
    micro_batch: int | None = None,
    n_models: int = 1,
    masks: bool = False,
    checkpoints: bool = True,
    test: tuple[Tensor, Tensor] | None = None,
    more_data: int = 0,
    reading: int = 0,
    afterwards: int = 0,
    device: torch.device | str | None = None,
) -> MemoryNeed:
    """Estimate what a run takes; nothing is allocated.

    Raises:
        UnsupportedModelError: the module needs the numbers of its inputs (it turns them into NumPy
            arrays, say), so that it cannot be rehearsed.

    Args:
        problem: on any device; on the meta device if it is too large to build.
        engine: the algorithm.
        batch_size: examples per step.
        micro_batch: most of them in the network at once; None for all.
        n_models: networks trained as one.
        masks: whether weights are pruned while training.
        checkpoints: whether checkpoints are written.
        test: examples that 32 draws (all of a sampler) predict after the run.
        more_data: bytes of further data in memory.
        reading: bytes that are added while the data are read, before the run.
        afterwards: bytes that are added by other work after the run.
        device: where the run will be, if not where the problem is. On a GPU all draws predict a
            batch at once.

    Example:
        >>> from bayesieve.core.likelihoods import Gaussian
        >>> from bayesieve.engines.map import MAP
        >>> problem = Problem(nn.Linear(99, 1), Gaussian(), (torch.zeros(50, 99), torch.zeros(50)))
        >>> need = memory_need(problem, MAP(lr=0.1), batch_size=10)
        >>> need.data, need.weights, need.state  # of each weight its value and two moments
        (20000, 800, 1212)
    """
    kept = sum(t.nbytes for t in (*problem._model.parameters(), *problem._model.buffers()))
    weights = kept + problem.initial.nbytes
    data = more_data + _held_bytes(problem, batch_size)
    data += sum(part.nbytes for part in test or ())
    dry = _meta_copy(problem)
    dry.execution = replace(dry.execution, bounds=Bounds(micro_batch=micro_batch))
    kind = torch.device(device or problem.device).type
    dry.network = replace(dry.network, stands_for="cpu" if kind == "meta" else kind)
    examples = None if test is None else tuple(part.to("meta") for part in test)
    held = (*tensors_of(dry.x), dry.y) if dry.data.stream is None else ()
    known = (*held, dry.initial, *(examples or ()))
    with _rehearsal(), LiveBytes(known, meta=True) as live:
        state = engine.init(dry, Generator(), n_models)
        population = Population(dry, engine, state, n_models)
        started = live.now
        if masks:
            population.allow_masks_()
        batch = _meta_batch(dry, batch_size)
        for _ in range(_STEPS):
            engine.step(dry, state, batch)
        trained, step = live.now, live.most
        live.most = live.now
        copied = snapshot(state)
        checkpoint = _COPIES * (live.now - trained) if checkpoints else 0
        del copied, batch
        before = live.now
        live.most = live.now
        if examples is not None:
            _predict(population, examples)
        draws = live.most - before
    later = before + max(draws, afterwards)
    at_once = data + max(weights + max(step, trained + checkpoint, later), reading)
    return MemoryNeed(
        data,
        weights,
        started,
        trained - started,
        step - trained,
        checkpoint,
        draws,
        reading,
        round(_RESERVE * at_once) + _LIBRARIES,
    )


def _meta_copy(problem: Problem) -> Problem:
    """The same problem without numbers."""
    dry = problem.to("meta")
    if problem.device.type != "meta":
        tensors = (*problem._model.parameters(), *problem._model.buffers())
        memo: dict[int, object] = {id(t): t.detach().to("meta") for t in tensors}
        for p in problem._model.parameters():
            memo[id(p)] = nn.Parameter(p.detach().to("meta"), p.requires_grad)
        dry._model = copy.deepcopy(problem._model, memo)
    return dry


def _held_bytes(problem: Problem, batch_size: int) -> int:
    """Bytes of the data in memory; of a stream the batches that are read ahead."""
    if problem.data.stream is None:
        return 0 if is_mapped(problem.x) else int(problem.x.nbytes + problem.y.nbytes)
    each = sum(values.nbytes for values in problem.data.sample[:2]) / len(problem.data.sample.y)
    return round(each * batch_size * (2 * problem.data.stream.workers + 2))


def _meta_batch(problem: Problem, n: int) -> Batch:
    n = min(n, problem.n_data)
    if problem.data.stream is not None:

        def empty(values: Tensor) -> Tensor:
            return values.new_empty((n, *values.shape[1:]), device="meta")

        return Batch(mapped(empty, problem.data.sample.x), empty(problem.data.sample.y))
    shape = (n,) if problem.data.rows is None else (problem.data.rows.n_models, n)
    return problem.data.batch(torch.empty(shape, dtype=torch.int64, device="meta"))


def _predict(population: Population, test: tuple[Tensor, ...]) -> None:
    x, y = test
    posterior = population.posterior()
    try:
        evaluate(posterior, (x, y), n_samples=draws_of(posterior, FEWEST_DRAWS))
    except NotImplementedError:  # a metric after the draws asks for numbers: it is small
        return


@contextmanager
def _rehearsal() -> Iterator[None]:
    """Say of a module which torch cannot run without numbers that it is so."""
    try:
        yield
    except (RuntimeError, TypeError) as error:
        raise UnsupportedModelError(
            "memory_need: the run cannot be rehearsed without the numbers of its inputs, so its "
            f"memory is not known ({str(error).partition(chr(10))[0][:200]})."
        ) from error
