"""The only training loop: it feeds batches, turns dials, prunes on schedule and keeps records.

It adds no mathematics: a hand-written loop over `engine.step`, and `renew_` where an engine has it,
gives the same posterior. The loop itself is in training/run.py.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator

from bayesieve.checks import check_positive, check_seed
from bayesieve.core.posterior import Posterior, SparseModel
from bayesieve.core.problem import Problem
from bayesieve.data.augment import Augment
from bayesieve.engines import Engine
from bayesieve.training.arguments import check_kinds, device_of
from bayesieve.training.checkpoint import seed_rng
from bayesieve.training.compiling import CompileMode, should_compile
from bayesieve.training.draws import DrawsTo
from bayesieve.training.models import Models, Start
from bayesieve.training.options import Callback, Pruning, Row, Saving, Validation
from bayesieve.training.plan import Plan
from bayesieve.training.population import one_engine
from bayesieve.training.run import Run
from bayesieve.training.schedule import Schedule
from bayesieve.training.stepper import fast_kernels


@dataclass(frozen=True, eq=False)
class Fit:
    """A finished run: what was learned and how it went."""

    problem: Problem
    engine: Engine[Any]
    state: Any
    history: list[Row]
    n_models: int
    seconds: float

    @property
    def posterior(self) -> Posterior:
        """The posterior of the only model (of the first of a population)."""
        return self.engine.posterior(self.problem, self.state, 0)

    def sparse(self, member: int = 0) -> SparseModel:
        """One member with the mask its pruning schedule left; everything is kept without one."""
        posterior = self.engine.posterior(self.problem, self.state, member)
        keep = self.state.controls.keep
        if keep is None:
            return SparseModel(posterior, torch.ones_like(posterior.mean, dtype=torch.bool))
        return SparseModel(posterior, keep[member].clone())

    @property
    def posteriors(self) -> list[Posterior]:
        """The posterior of every model of the population."""
        return [self.engine.posterior(self.problem, self.state, i) for i in range(self.n_models)]


def fit(
    problem: Problem,
    engine: Engine[Any] | Sequence[Engine[Any]],
    *,
    epochs: int | None = None,
    steps: int | None = None,
    batch_size: int = 128,
    seed: int = 0,
    n_models: int = 1,
    schedule: Schedule | None = None,
    pruning: Pruning | None = None,
    validation: Validation | None = None,
    saving: Saving | None = None,
    start_from: Start | None = None,
    augment: Augment | None = None,
    draws: DrawsTo | None = None,
    clip_norm: float | None = None,
    device: torch.device | str | None = None,
    compile: CompileMode = "auto",
    callbacks: Sequence[Callback] = (),
) -> Fit:
    """Learn the posterior of a problem with an engine.

    Args:
        problem: network, likelihood and data.
        engine: an engine, or one per model of a population (same class, numbers may differ).
        epochs: passes over the data; give this or `steps`.
        steps: gradient steps.
        batch_size: examples per step.
        seed: fixes initial draws, noise and batch order.
        n_models: k models with different random numbers, trained as one; a problem with `rows`
            has as many as those.
        schedule: learning-rate and KL factors over the run.
        pruning: gradual sparsity, applied once per epoch (`GradualPruning`).
        validation: held-out data to watch, with optional early stopping.
        saving: folder for metrics and checkpoints.
        start_from: a posterior to continue from, or one for each of `n_models`; of a sparse model
            the zeros stay zero.
        augment: random changes of each batch of images, drawn from the run's own generator.
        draws: file that takes the draws of a sampler's chains while it runs.
        clip_norm: bound on the norm of the log-likelihood gradient per example.
        device: where to train; None stays where the model is.
        compile: whether to compile the elementwise part of a step.
        callbacks: called after each epoch; one that returns True ends the run.

    Example:
        >>> from torch import nn
        >>> from bayesieve.core.likelihoods import Gaussian
        >>> from bayesieve.engines.map import MAP
        >>> x = torch.linspace(-1, 1, 64)[:, None]
        >>> problem = Problem(nn.Linear(1, 1), Gaussian(), (x, 3 * x[:, 0]))
        >>> run = fit(problem, MAP(lr=0.1), epochs=200, seed=0)
        >>> round(run.posterior.mean[0].item(), 2)
        3.0
    """
    check_kinds(problem, schedule, pruning, start_from, callbacks)
    check_seed("fit", seed=seed)
    engine, n_models = one_engine(engine, n_models, problem.rows)
    if validation is not None:
        validation.check(problem, n_models)
    plan = Plan.of(problem.n_data, epochs, steps, batch_size)
    plan.check(problem, schedule, pruning, saving)
    if clip_norm is not None:
        check_positive("fit", clip_norm=clip_norm)
    if augment is not None:
        augment.check(problem.x)
    # The run's own copy: a later run on this problem must not change this one's module buffers.
    problem = problem.to(problem.device if device is None else device_of(device))
    n_updates = plan.n_steps * n_models * problem.layout.size
    problem.compiled = should_compile(compile, problem.device, n_updates)
    problem.clip_norm = clip_norm
    started = time.perf_counter()
    devices = [problem.device] if problem.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices), fast_kernels(problem.device):
        seed_rng(seed, problem.device)  # what a module's own dropout draws from
        generator = Generator(problem.device).manual_seed(seed)
        models = Models(problem, engine, engine.init(problem, generator, n_models), n_models)
        run = Run(models, plan, schedule or Schedule(), pruning, validation, saving, seed, augment)
        run.begin(start_from, draws)
        run.loop(callbacks)
    seconds = time.perf_counter() - started
    return Fit(problem, engine, models.state, run.record.history, n_models, seconds)
