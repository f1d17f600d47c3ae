"""The call `bayesieve.fit`: a fit in a folder, and over the processes that `torchrun` started."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from bayesieve.core.problem import Problem
from bayesieve.engines import Engine
from bayesieve.training.checkpoint import OTHER_DATA, Checkpoints
from bayesieve.training.distributed import join
from bayesieve.training.fit import Fit as Fit
from bayesieve.training.fit import check_kinds
from bayesieve.training.fit import fit as fit_alone
from bayesieve.training.population import Start
from bayesieve.training.progress import Callback
from bayesieve.training.schedule import Pruning, Schedule
from bayesieve.training.validation import Validation


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
    validation: Validation | None = None,
    start_from: Start | None = None,
    folder: Path | str | None = None,
    resume: bool | Literal["with other data"] = False,
    callbacks: Sequence[Callback] = (),
) -> Fit:
    """Learn the posterior of a problem with an engine.

    Settings left out, those of the engine too, are the recommended ones for the task and the size
    of the data (`engines.recipes`). Fits in several threads take turns (`core.random`). Processes
    that `torchrun` started share the batches of one fit (`training.distributed`).

    Args:
        problem: network, likelihood and data, on the device to train on (`problem.to`).
        engine: an engine, or a list with one for each model of a population, trained as one: of
            one class, numbers may differ. `[engine] * 5` trains five models that differ in their
            random numbers. All draw from one stream, so that the first is not the single run of
            the same seed. A problem with `rows` has as many models as rows. One that diverges is
            dropped with a warning, and named in `Fit.diverged`; the others go on.
        epochs: passes over the data; give this or `steps`, or leave both to the recipe.
        steps: gradient steps.
        batch_size: examples per step; None takes the recommended number.
        micro_batch: most examples that go through the network at once, to save memory. The
            gradient is that of the whole batch, except that BatchNorm normalises each micro-batch
            by itself, and that noise of dropout and activations is drawn in another order.
        seed: fixes initial draws, noise and batch order.
        schedule: learning-rate and KL factors over the run, gradient bound, checkpoint interval;
            None takes the recommended one, whose KL weight is mostly below 1 (`Fit.kl`);
            `Schedule(lr="cosine", kl=1)` is Bayes' rule, `Schedule()` keeps both constant.
        pruning: gradual sparsity (`GradualPruning`); the mask is renewed 50 to 100 times.
        validation: held-out data to watch, with optional early stopping.
        start_from: a posterior to continue from, or a list with one for each model; the zeros of
            a sparse model stay zero.
        folder: receives `metrics.jsonl` and `checkpoints/`, and is locked meanwhile: another fit
            into it is refused. None writes nothing.
        resume: continue from the newest checkpoint in the folder. The data must be those of the
            first run, unless it is "with other data".
        callbacks: called after each epoch, or by `training.progress.EverySteps` after steps; one
            that returns True ends the run. `contrib.logs` has those that write logs.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from bayesieve.core.likelihoods import Gaussian
        >>> from bayesieve.engines.map import MAP
        >>> x = torch.linspace(-1, 1, 64)[:, None]
        >>> problem = Problem(nn.Linear(1, 1), Gaussian(), (x, 3 * x[:, 0]))
        >>> run = fit(problem, MAP(lr=0.1), epochs=200, seed=0)
        >>> round(run.posterior.mean[0].item(), 2)
        3.0
    """
    check_kinds(problem)
    if resume not in (True, False, OTHER_DATA):
        raise ValueError(f'fit: resume must be True, False or "{OTHER_DATA}", got {resume!r}.')
    ranks = join(problem.device)
    keeper = None
    if ranks is None or ranks.rank == 0:  # the first process reads and writes for all
        if resume and folder is None:
            raise ValueError("fit: resume=True needs the folder of the first run, folder=....")
        keeper = None if folder is None else Checkpoints(Path(folder), resume)
    return fit_alone(
        problem,
        engine,
        epochs=epochs,
        steps=steps,
        batch_size=batch_size,
        micro_batch=micro_batch,
        seed=seed,
        schedule=schedule,
        pruning=pruning,
        validation=validation,
        start_from=start_from,
        callbacks=callbacks,
        keeper=keeper,
        ranks=ranks,
    )
