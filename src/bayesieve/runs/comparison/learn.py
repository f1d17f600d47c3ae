"""The training of one method: every repetition, and every network of an ensemble.

Models train together as a population, but with convolutions on a CPU, or many of them on a GPU, one
after another: a convolution for many models at once is a grouped one, which is slow.
"""

import gc
import math
import time
from dataclasses import dataclass, replace

import torch
from torch import Generator, nn

from bayesieve.core.posterior import Posterior
from bayesieve.core.problem import Problem
from bayesieve.core.state import named_tensors
from bayesieve.runs.comparison.budget import Budget, Method
from bayesieve.training.compiling import CompileMode
from bayesieve.training.fit import Fit, fit

_WEIGHTS_AT_ONCE = 32_000_000  # of models that train together
_FEW_CONVOLUTIONS = 4  # layers that a GPU runs for many models at once
_SEED_STRIDE = 1_000_003  # between runs of one comparison, so that seeds 0, 1, 2 share none


@dataclass(frozen=True, eq=False)
class Learned:
    """What a method has learned and what that took.

    Args:
        posteriors: of all members of all repetitions, repetition by repetition.
        epochs: passes that each of them was given.
        seconds: of all of them.
        state_bytes: what must survive a step, of all of them.
        peak_bytes: the most that a device allocated besides what was there; None on a CPU.
    """

    posteriors: list[Posterior]
    epochs: int
    seconds: float
    state_bytes: int
    peak_bytes: int | None


def learn(
    method: Method,
    problem: Problem,
    budget: Budget,
    members: int,
    seed: int,
    compile: CompileMode,
) -> Learned:
    """Train all models of a method; a run that ends in weights that are not finite raises.

    Args:
        method: what to train.
        problem: on the device to train on.
        budget: passes and repetitions.
        members: networks that share the passes.
        seed: of everything.
        compile: whether to compile the elementwise part of a step.
    """
    epochs = max(1, math.ceil(budget.epochs / members))
    n_models, at_once = budget.seeds * members, models_at_once(problem)
    before, start = _allocated(problem.device), time.perf_counter()
    starts = None
    if at_once < n_models:  # runs of their own would all begin at the module's weights
        generator = Generator(problem.device).manual_seed(seed)
        starts = problem.starting_points(n_models, generator, "module")
    posteriors, state_bytes = [], 0
    for first in range(0, n_models, at_once):
        own = problem
        if starts is not None:
            own = problem.to(problem.device)
            own.initial = starts[first]
        run = fit(
            own,
            [method.engine] * min(at_once, n_models - first),
            epochs=epochs,
            batch_size=budget.batch_size,
            seed=seed + first * _SEED_STRIDE,
            schedule=replace(method.schedule, compile=compile),
        )
        posteriors += run.posteriors
        state_bytes += _state_bytes(run)
    seconds = time.perf_counter() - start
    on_cuda = problem.device.type == "cuda"
    peak = torch.cuda.max_memory_allocated(problem.device) - before if on_cuda else None
    return Learned(posteriors, epochs, seconds, state_bytes, peak)


def models_at_once(problem: Problem) -> int:
    """How many models of a network train together: see the file's first lines."""
    modules = problem.network.skeleton.modules()
    n_convolutions = sum(isinstance(own, nn.Conv1d | nn.Conv2d) for own in modules)
    if n_convolutions > (_FEW_CONVOLUTIONS if problem.device.type == "cuda" else 0):
        return 1
    return max(1, _WEIGHTS_AT_ONCE // problem.layout.size)


def _allocated(device: torch.device) -> int:
    """Bytes in use on a CUDA device, from where its peak is counted anew; 0 elsewhere."""
    if device.type != "cuda":
        return 0
    gc.collect()  # graphs of earlier methods hold memory until their cycles are found
    torch.cuda.reset_peak_memory_stats(device)
    return torch.cuda.memory_allocated(device)


def _state_bytes(run: Fit) -> int:
    return sum(value.numel() * value.element_size() for _, value in named_tensors(run.state))
