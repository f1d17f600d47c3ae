"""One training step on a batch: run eagerly, or captured once as a CUDA graph."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from bayesieve.core.batch import Batch, Metrics
from bayesieve.core.inputs import one_input
from bayesieve.core.noise import space_of
from bayesieve.core.problem import Problem
from bayesieve.core.state import restore_, snapshot
from bayesieve.core.workspace import Workspace
from bayesieve.engines import Engine

# One step on a batch on the problem's device: the places of its examples, (n,) or (k, n), or, of a
# stream, the examples. The metrics, of shape (k,) each, are valid until the next call.
Stepper = Callable[[Tensor | Batch], Metrics]


def make_stepper(problem: Problem, engine: Engine[Any], state: Any, n_models: int = 1) -> Stepper:
    """A captured step on a CUDA device, a plain one elsewhere and where processes share a step.

    Args:
        problem: with its data on the device.
        engine: whose step is taken.
        state: changed in place; its generator also feeds the random changes of images.
        n_models: k.
    """
    sharing = problem.execution.sharing
    source = problem.execution.source(state.generator)

    def step(taken: Tensor | Batch) -> Metrics:
        if sharing is None:
            batch = problem.data.batch(taken) if isinstance(taken, Tensor) else taken
        elif isinstance(taken, Tensor):
            batch = problem.data.batch(sharing.part(taken))._replace(n_shared=taken.shape[-1])
        else:  # of a stream each process reads its share
            batch = taken
        if problem.data.augment is not None:
            batch = batch._replace(x=problem.data.augment(one_input("Augment", batch.x), source))
        return engine.step(problem, state, batch)

    if problem.device.type != "cuda" or sharing is not None:
        return step
    return GraphStepper(step, state, lambda: space_of(problem, engine, n_models))


class GraphStepper:
    """Replays a captured step; one graph per shape of the batch.

    Everything the step reads lives in tensors that keep their address: state, data, controls.
    Capturing needs a few real steps first; state, buffers and generators are put back afterwards,
    so the sequence of results is that of plain steps.
    """

    WARMUP_STEPS = 3

    def __init__(self, step: Stepper, state: Any, workspace: Callable[[], Workspace]) -> None:
        self._step = step
        self._state = state
        self._workspace = workspace
        self._captured: dict[Any, tuple[torch.cuda.CUDAGraph, list[Tensor], Metrics]] = {}

    def __call__(self, taken: Tensor | Batch) -> Metrics:
        """Copy the batch into place and replay."""
        inputs = _tensors(taken)
        shapes = tuple(values.shape for values in inputs)
        if shapes not in self._captured:
            self._captured[shapes] = self._capture(taken)
        graph, static_inputs, metrics = self._captured[shapes]
        torch._foreach_copy_(static_inputs, inputs)
        graph.replay()
        return metrics

    def _capture(self, taken: Tensor | Batch) -> tuple[torch.cuda.CUDAGraph, list[Tensor], Metrics]:
        static = tree_map_only(Tensor, Tensor.clone, taken)
        with self._undone():
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(self.WARMUP_STEPS):
                    self._step(static)
            torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(self._state.generator)
        with torch.cuda.graph(graph):
            metrics = self._step(static)
        return graph, _tensors(static), metrics

    @contextmanager
    def _undone(self) -> Iterator[None]:
        saved = snapshot(self._state)
        buffers = {n: v.clone() for n, v in self._workspace().all_buffers().items()}
        default_rng = torch.cuda.get_rng_state()
        yield
        restore_(self._state, saved)
        for name, value in self._workspace().all_buffers().items():
            value.copy_(buffers[name])
        torch.cuda.set_rng_state(default_rng)


def _tensors(taken: Tensor | Batch) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(taken) if isinstance(leaf, Tensor)]


@contextmanager
def fast_kernels(device: torch.device) -> Iterator[None]:
    """Allow TF32 products and timed convolutions on a CUDA device, and restore the settings.

    Steps of one shape repeat thousands of times, so trying cuDNN's algorithms once pays at once.
    """
    if device.type != "cuda":
        yield
        return
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.benchmark
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.benchmark = before[1]
