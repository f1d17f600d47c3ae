"""Learn a posterior: the call `fit`, checks of its arguments, and its result."""

import time
import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Generator
from torch.nn.modules.batchnorm import _BatchNorm

from bayesieve.checks import check_counts, check_seed
from bayesieve.core.execution import Bounds, Execution, KeptMoments
from bayesieve.core.inputs import tensors_of
from bayesieve.core.posterior import Factorised, Model, Posterior, SparseModel, present_entries
from bayesieve.core.problem import Problem
from bayesieve.core.random import own_stream
from bayesieve.core.workspace import has_statistics
from bayesieve.engines import Engine, recipes
from bayesieve.engines.optimisers import Moments
from bayesieve.engines.recipes import RunSize
from bayesieve.errors import DivergedError, ShortOfMemoryError, out_of_memory, shortage
from bayesieve.fast.backend import chosen_backend
from bayesieve.fast.stepper import fast_kernels
from bayesieve.training.loop import Loop
from bayesieve.training.population import Population, Start, one_engine
from bayesieve.training.progress import Callback, Row
from bayesieve.training.schedule import Pruning, Schedule

if TYPE_CHECKING:
    from bayesieve.training.checkpoint import Checkpoints
    from bayesieve.training.distributed import Ranks
    from bayesieve.training.validation import Validation


@dataclass(frozen=True, eq=False, repr=False)
class Fit:
    """A finished run: what was learned and how it went.

    Args:
        problem: with the data.
        engine: with every setting that was used.
        state: of all models at the end.
        history: a row of numbers per epoch.
        n_models: models trained.
        seconds: the run took.
        diverged: models that met a number that is not finite.
        kl: KL weight at the end (temperature of a sampler). The posterior behaves as if there were
            1 / kl times as much data; 1 is Bayes' rule.

    Example:
        >>> from torch import nn
        >>> from bayesieve.core.likelihoods import Gaussian
        >>> from bayesieve.engines.map import MAP
        >>> x = torch.linspace(-1, 1, 64)[:, None]
        >>> fit(Problem(nn.Linear(1, 1), Gaussian(), (x, 3 * x[:, 0])), MAP(), epochs=2)
        Fit(MAP, 2 weights, 2 epochs, 4 steps, on cpu)
    """

    problem: Problem
    engine: Engine[Any]
    state: Any
    history: list[Row]
    n_models: int
    seconds: float
    diverged: tuple[int, ...] = ()
    kl: float = 1.0

    @property
    def sound(self) -> list[int]:
        """The numbers of the models that did not diverge."""
        return [i for i in range(self.n_models) if i not in self.diverged]

    def complete(self) -> "Fit":
        """The same run; raises where a model has diverged, for results that belong to each."""
        if self.diverged:
            names = ", ".join(str(i) for i in self.diverged)
            raise DivergedError(
                f"{type(self.engine).__name__}: model {names} of {self.n_models} diverged, and "
                "none may be missing here. Lower the learning rate."
            )
        return self

    @property
    def posterior(self) -> Posterior:
        """The posterior of the only model (of the first of a population)."""
        return self.engine.posterior(self.problem, self.state, self.sound[0])

    @property
    def posteriors(self) -> list[Posterior]:
        """The posterior of every model of the population, without those that diverged."""
        return [self.engine.posterior(self.problem, self.state, i) for i in self.sound]

    @property
    def inclusion(self) -> torch.Tensor | None:
        """Mean over the population of the probability that each weight matters, (d,), or None.

        One start settles on one explanation where inputs are correlated. Train a population of
        starts, `fit(problem, [SBNN(start="he")] * 16)`, and take this mean; docs/calibration.md
        says how far it is from exact.
        """
        known = [q.inclusion for q in self.posteriors if q.inclusion is not None]
        return torch.stack(known).mean(0) if known else None

    def sparse(self, member: int = 0) -> SparseModel:
        """One model with its zeros: those of its pruning schedule, or of an engine that prunes.

        Without either, all weights are kept.
        """
        posterior = self.engine.posterior(self.problem, self.state, member)
        if self.state.controls.keep is not None:
            return SparseModel(posterior, self.state.controls.keep[member].clone())
        keep = torch.ones_like(posterior.mean, dtype=torch.bool)
        if isinstance(posterior, Factorised):  # the engine's zeros have neither mean nor std
            bayesian = posterior.layout.bayesian
            keep[bayesian] = present_entries(posterior)[bayesian]
        return SparseModel(posterior, keep)

    @property
    def models(self) -> list[Model]:
        """Every model: sparse where a schedule or the engine removed weights, a posterior else.

        Those that diverged are left out.
        """
        pruned = self.state.controls.keep is not None
        models = [self.sparse(i) for i in self.sound]
        return [m if pruned or not bool(m.keep.all()) else m.posterior for m in models]

    def __repr__(self) -> str:
        count = f"{self.n_models} x " if self.n_models > 1 else ""
        steps = self.history[-1]["step"] if self.history else 0
        tempered = "" if self.kl == 1 else f"kl {self.kl:g}, "
        return (
            f"Fit({type(self.engine).__name__}, {count}{self.problem.layout.size:,} weights, "
            f"{tempered}{len(self.history)} epochs, {steps:,} steps, on {self.problem.device})"
        )


def fit(
    problem: Problem,
    engine: Engine[Any] | Sequence[Engine[Any]],
    *,
    epochs: int | None = None,
    steps: int | None = None,
    batch_size: int | None = None,
    micro_batch: int | None = None,
    seed: int = 0,
    schedule: Schedule | None = None,
    pruning: Pruning | None = None,
    validation: "Validation | None" = None,
    start_from: Start | None = None,
    callbacks: Sequence[Callback] = (),
    keeper: "Checkpoints | None" = None,
    ranks: "Ranks | None" = None,
) -> Fit:
    """Learn the posterior of a problem with an engine, in memory and with the processes given.

    `bayesieve.fit` calls this and explains the arguments. It makes the `keeper`, which locks the
    folder of the run, writes into it and resumes from it, and joins the `ranks`, the processes that
    share the run.
    """
    check_kinds(problem, schedule, pruning, start_from, callbacks)
    check_seed("fit", seed=seed)
    engine, n_models = one_engine(engine, problem.data.rows)
    if validation is not None:
        validation.check(problem, n_models)
    size, engine, schedule = _recommended(problem, engine, schedule, epochs, steps, batch_size)
    check_run(problem, size, schedule, pruning, micro_batch, 1 if ranks is None else ranks.size)
    # A copy: a later run on this problem must not change the module buffers of this one.
    problem = problem.to(problem.device if ranks is None else ranks.device)
    n_updates = size.n_steps * n_models * problem.layout.size
    problem.execution = Execution(
        chosen_backend(schedule.compile, problem.initial, n_updates),
        replace(problem.execution.formats, moments=schedule.moments),
        Bounds(schedule.clip_norm, micro_batch),
        ranks,
    )
    started = time.perf_counter()
    # A module's dropout draws from the global generator: fits in threads take turns.
    with (
        keeper or nullcontext(),
        own_stream("fit", seed, problem.device),
        fast_kernels(problem.device),
    ):
        generator = Generator(problem.device).manual_seed(seed)
        state = engine.init(problem, generator, n_models)
        check_moments(engine, state, schedule.moments)
        population = Population(problem, engine, state, n_models)
        loop = Loop(population, size, schedule, pruning, validation, seed, keeper, ranks)
        try:
            loop.start(start_from)
            loop.run(callbacks)
        except Exception as error:
            if out_of_memory(error):
                raise ShortOfMemoryError(_without_memory(loop, error)) from error
            raise
    problem.execution = replace(problem.execution, sharing=None)  # the result is used alone
    seconds = time.perf_counter() - started
    diverged = tuple(loop.record.diverged)
    temperature = getattr(engine, "temperature", 1.0)  # numbers of a population may differ
    kl = schedule.last_kl * (temperature if isinstance(temperature, float | int) else 1.0)
    return Fit(problem, engine, state, loop.record.history, n_models, seconds, diverged, kl)


def _without_memory(loop: Loop, error: Exception) -> str:
    """Say that memory ran out in a run, and what to do."""
    reason = (str(error) or type(error).__name__).partition("\n")[0].rstrip(".")
    saved = "" if loop.keeper is None else f" Checkpoints are in {loop.keeper.folder}."
    return f"fit: memory ran out at step {loop.record.step}: {reason}.{saved} {shortage()}"


def _recommended(
    problem: Problem,
    engine: Engine[Any],
    schedule: Schedule | None,
    epochs: int | None,
    steps: int | None,
    batch_size: int | None,
) -> tuple[RunSize, Engine[Any], Schedule]:
    """Fill in what was left out by the recipe of the engine; an engine of your own has none."""
    name, inputs = recipes.name_of(engine), tensors_of(problem.data.sample.x)
    if problem.data.stream is not None:
        batch_size = batch_size or problem.data.stream.batch_size
    table = all(tensor.dim() == 2 and tensor.is_floating_point() for tensor in inputs)
    facts = {"task": problem.likelihood.task, "table": table,
             "normalised": has_statistics(problem.network.skeleton)}  # fmt: skip
    size = RunSize.of(name, problem.n_data, epochs, steps, batch_size, **facts)
    if name is None:
        return size, engine, schedule or Schedule()
    if schedule is None:
        schedule = Schedule(**recipes.recommended_schedule(name, size))
    return size, recipes.complete(engine, size), schedule


def check_kinds(
    problem: object,
    schedule: object = None,
    pruning: object = None,
    start_from: object = None,
    callbacks: object = (),
) -> None:
    """Raise where an argument of `fit` is something else than it must be.

    Example:
        >>> from torch import nn
        >>> check_kinds(nn.ReLU())
        Traceback (most recent call last):
        TypeError: fit: problem must be a Problem(model, likelihood, data), got ReLU.
    """
    if not isinstance(problem, Problem):
        kind = type(problem).__name__
        raise TypeError(f"fit: problem must be a Problem(model, likelihood, data), got {kind}.")
    if not isinstance(schedule, Schedule | None):
        raise TypeError(f"fit: schedule must be a Schedule, got {schedule!r}.")
    if pruning is not None and not hasattr(pruning, "check"):
        raise TypeError(
            f"fit: pruning must be a schedule such as GradualPruning(zeros=0.9), got {pruning!r}."
        )
    for start in start_from if isinstance(start_from, Sequence) else [start_from]:
        if not isinstance(start, Posterior | SparseModel | None):
            raise TypeError(
                f"fit: start_from must be a posterior or a sparse model, got "
                f"{type(start).__name__}. The weights of a model are the start of Problem(model, "
                "...) anyway."
            )
    if not isinstance(callbacks, Sequence) or not all(map(callable, callbacks)):
        raise TypeError(f"fit: callbacks must be a list of functions, got {callbacks!r}.")


def check_run(
    problem: Problem,
    size: RunSize,
    schedule: Schedule | None,
    pruning: Pruning | None,
    micro_batch: int | None = None,
    n_processes: int = 1,
) -> None:
    """Raise now for settings that would fail, or silently do nothing, later."""
    n_data = problem.n_data
    if micro_batch is not None:
        check_counts("fit", micro_batch=micro_batch)
    has_norm = any(isinstance(m, _BatchNorm) for m in problem.network.skeleton.modules())
    last = (n_data - 1) % size.batch_size + 1
    if last < n_processes:
        raise ValueError(
            f"fit: {n_data} examples in batches of {size.batch_size} leave a last batch of {last}, "
            f"less than one example for each of {n_processes} processes. Choose another batch_size."
        )
    if has_norm and last // n_processes == 1:
        part = "" if n_processes == 1 else f" for one of {n_processes} processes"
        raise ValueError(
            f"fit: {n_data} examples in batches of {size.batch_size} leave a last batch of 1"
            f"{part}, which BatchNorm cannot train on. Choose another batch_size."
        )
    if has_norm and micro_batch is not None and micro_batch < size.batch_size:
        if micro_batch == 1:
            raise ValueError("fit: BatchNorm cannot train on micro-batches of 1. Take more.")
        warnings.warn(
            f"fit: BatchNorm normalises each micro-batch of {micro_batch} examples by itself, so "
            f"the gradient is not that of the batch of {size.batch_size}.",
            stacklevel=4,
        )
    if schedule is not None and schedule.kl_after is not None and pruning is None:
        raise ValueError(
            "fit: kl_after holds once pruning has ended, but there is no pruning. Set kl."
        )
    if pruning is not None and problem.layout.n_sparse < problem.layout.size / 2:
        warnings.warn(
            f"fit: of {problem.layout.describe()}. Name others with "
            "Problem(..., roles=Roles(prune=...)).",
            stacklevel=4,
        )


def check_moments(engine: Engine[Any], state: Any, kind: KeptMoments) -> None:
    """Raise where the state of an engine, a dataclass, has no moments of this kind."""
    kept = [value for value in vars(state).values() if isinstance(value, Moments)]
    if kind != "float32" and not any(one.first.dtype == torch.bfloat16 for one in kept):
        raise ValueError(
            f'fit: moments="{kind}" of Schedule is for Adam of MAP, FlatVI and SBNN, not '
            f"{type(engine).__name__}."
        )
