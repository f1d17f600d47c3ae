"""One training step on a batch: run eagerly, or captured once as a CUDA graph.

Also whether the elementwise part of a step is worth compiling, and can be compiled here.
"""

import importlib.util
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from bayesieve.checks import check_choice
from bayesieve.core import native
from bayesieve.core.batch import Batch, Metrics
from bayesieve.core.inputs import one_input
from bayesieve.core.problem import Problem
from bayesieve.core.state import restore_, snapshot
from bayesieve.core.workspace import Workspace
from bayesieve.engines import Engine

CompileMode = Literal["auto", "on", "off", "network"]
COMPILE_MODES = ("auto", "on", "off", "network")
# On a CPU one weight update costs about 2e-8 s more eagerly; compiling costs some 15 s once. On a
# GPU it saves at most the time its bytes take, some 5e-11 s, and compiling takes up to 100 s.
_WORTH_A_LIBRARY = 1e8  # updates: half a second, as long as loading or building it takes
_WORTHWHILE_UPDATES = {"cpu": 3e9, "cuda": 1e12}


# One step on a batch on the problem's device: the places of its examples, (n,) or (k, n), or, of a
# stream, the examples. The metrics, of shape (k,) each, are valid until the next call.
Stepper = Callable[[Tensor | Batch], Metrics]


def make_stepper(problem: Problem, engine: Engine[Any], state: Any) -> Stepper:
    """A captured step on a CUDA device, a plain one elsewhere and where processes share a step.

    Args:
        problem: with its data on the device.
        engine: whose step is taken.
        state: changed in place; its generator also feeds the random changes of images.
    """
    sharing = problem.execution.sharing
    source = problem.execution.source(state.generator)

    def step(taken: Tensor | Batch) -> Metrics:
        if sharing is None:
            batch = problem.batch(taken) if isinstance(taken, Tensor) else taken
        elif isinstance(taken, Tensor):
            batch = problem.batch(sharing.part(taken))._replace(n_shared=taken.shape[-1])
        else:  # of a stream each process reads its share
            batch = taken
        if problem.augment is not None:
            batch = batch._replace(x=problem.augment(one_input("Augment", batch.x), source))
        return engine.step(problem, state, batch)

    if problem.device.type != "cuda" or sharing is not None:
        return step
    return GraphStepper(step, state, lambda: problem.workspace_in_use)


class GraphStepper:
    """Replays a captured step; one graph per shape of the batch.

    Everything the step reads lives in tensors that keep their address: state, data, controls.
    Capturing needs a few real steps first; state, buffers and generators are put back afterwards,
    so the sequence of results is that of plain steps.
    """

    WARMUP_STEPS = 3

    def __init__(
        self, step: Stepper, state: Any, workspace: Callable[[], Workspace | None]
    ) -> None:
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
        space = self._workspace()
        buffers = {} if space is None else {n: v.clone() for n, v in space.all_buffers().items()}
        default_rng = torch.cuda.get_rng_state()
        yield
        restore_(self._state, saved)
        space = self._workspace()
        if space is not None:
            initial = space.network.buffers()
            for name, value in space.all_buffers().items():
                value.copy_(buffers.get(name, initial[name]))
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


def compiler_missing(device: torch.device) -> str | None:
    """Why `torch.compile` cannot work for this device, or None when it can."""
    if device.type == "cuda":
        installed = importlib.util.find_spec("triton") is not None
        return None if installed else "the package 'triton' is not installed"
    names = [os.environ["CXX"]] if "CXX" in os.environ else ["g++", "c++", "clang++"]
    if any(shutil.which(name) for name in names):
        return None
    return f"no C++ compiler found (looked for {', '.join(names)})"


def should_compile(mode: CompileMode, device: torch.device, n_updates: float) -> bool:
    """Decide for a run that will update weights `n_updates` times in all (steps · k · d).

    "auto" compiles when the run is long enough to repay it and a compiler is found. Results are
    the same up to rounding, except that on a CPU weight noise is drawn in another way (core.noise).
    """
    check_choice("fit", "compile", mode, COMPILE_MODES)
    if mode == "off":
        return False
    reason = compiler_missing(device)
    if mode in ("on", "network"):
        if reason is not None:
            raise ValueError(
                f"fit: compile={mode!r} but {reason}. Install it or use compile='off'."
            )
        return True
    return reason is None and n_updates >= _WORTHWHILE_UPDATES.get(device.type, 3e9)


def should_run_natively(mode: CompileMode, like: Tensor, n_updates: float) -> bool:
    """Return whether steps run in C: in float32 on a CPU with a C compiler.

    "auto" leaves out runs that are over before it counts. Results differ by rounding, and weight
    noise is drawn in another way (core.noise).
    """
    fits = like.device.type == "cpu" and like.dtype == torch.float32
    wanted = mode == "on" or (mode == "auto" and n_updates >= _WORTH_A_LIBRARY)
    return fits and wanted and native.steps() is not None
