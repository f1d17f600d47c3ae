"""The only training loop: it feeds batches, turns dials, prunes on schedule and keeps records.

It adds no mathematics: a hand-written loop over `engine.step` gives the same posterior.
"""

import json
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor, nn

from bayesieve.checks import check_positive
from bayesieve.core.posterior import Posterior, SparseModel
from bayesieve.core.problem import Problem
from bayesieve.core.state import generators, named_tensors, restore_
from bayesieve.core.storage import atomic_write
from bayesieve.engines import Engine
from bayesieve.errors import DivergedError
from bayesieve.training.checkpoint import (
    Checkpoint,
    read_checkpoint,
    rng_states,
    set_rng_states,
    write_checkpoint,
)
from bayesieve.training.compiling import CompileMode, should_compile
from bayesieve.training.interrupts import interruptible
from bayesieve.training.options import Callback, Progress, Pruning, Row, Saving, Validation
from bayesieve.training.population import one_engine
from bayesieve.training.progress import progress_bar
from bayesieve.training.schedule import Schedule, minibatch_weight
from bayesieve.training.scoring import mean_scores
from bayesieve.training.stepper import fast_matmul, make_stepper


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
    start_from: Posterior | SparseModel | None = None,
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
        n_models: k models with different random numbers, trained as one.
        schedule: learning-rate and KL factors over the run.
        pruning: gradual sparsity, applied once per epoch (`GradualPruning`).
        validation: held-out data to watch, with optional early stopping.
        saving: folder for metrics and checkpoints.
        start_from: a posterior to continue from; of a sparse model the zeros stay zero.
        clip_norm: bound on the norm of the log-likelihood gradient per example.
        device: where to train; None stays where the model is.
        compile: whether to compile the elementwise part of a step.
        callbacks: called after each epoch; one that returns True ends the run.

    Example:
        >>> from bayesieve.core.likelihoods import Gaussian
        >>> from bayesieve.engines.map import MAP
        >>> x = torch.linspace(-1, 1, 64)[:, None]
        >>> problem = Problem(nn.Linear(1, 1), Gaussian(), (x, 3 * x[:, 0]))
        >>> run = fit(problem, MAP(lr=0.1), epochs=200, seed=0)
        >>> round(run.posterior.mean[0].item(), 2)
        3.0
    """
    engine, n_models = one_engine(engine, n_models)
    if device is not None and torch.device(device) != problem.device:
        problem = problem.to(device)
    run = _Run(problem, engine, n_models, schedule or Schedule(), pruning, validation, saving, seed)
    run.plan(epochs, steps, batch_size)
    if clip_norm is not None:
        check_positive("fit", clip_norm=clip_norm)
    n_updates = run.n_steps * n_models * problem.layout.size
    problem.compiled = should_compile(compile, problem.device, n_updates)
    problem.clip_norm = clip_norm
    started = time.perf_counter()
    devices = [problem.device] if problem.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices), fast_matmul(problem.device):
        torch.manual_seed(seed)  # what a module's own dropout draws from
        run.begin(start_from)
        run.loop(callbacks)
    seconds = time.perf_counter() - started
    return Fit(problem, engine, run.state, run.history, n_models, seconds)


class _Run:
    """The moving parts of one call of `fit`."""

    def __init__(
        self,
        problem: Problem,
        engine: Engine[Any],
        n_models: int,
        schedule: Schedule,
        pruning: Pruning | None,
        validation: Validation | None,
        saving: Saving | None,
        seed: int,
    ) -> None:
        self.problem, self.engine, self.n_models = problem, engine, n_models
        self.schedule, self.pruning = schedule, pruning
        self.validation, self.saving, self.seed = validation, saving, seed
        self.history: list[Row] = []
        self.step = 0  # steps taken
        self.best_nll, self.best_epoch = math.inf, -1
        self.best: dict[str, Tensor] = {}

    def plan(self, epochs: int | None, steps: int | None, batch_size: int) -> None:
        """Work out the number of steps; every complaint about arguments comes here."""
        if (epochs is None) == (steps is None):
            raise ValueError(f"fit: give either epochs or steps, got {epochs=} and {steps=}.")
        check_positive("fit", batch_size=batch_size, epochs=epochs or 1, steps=steps or 1)
        n_data = self.problem.n_data
        self.batch_size = min(batch_size, n_data)
        self.per_epoch = math.ceil(n_data / self.batch_size)
        self.n_steps = steps or (epochs or 1) * self.per_epoch
        self.n_epochs = math.ceil(self.n_steps / self.per_epoch)
        norms = nn.modules.batchnorm._BatchNorm
        has_norm = any(isinstance(m, norms) for m in self.problem.network.skeleton.modules())
        if has_norm and n_data % self.batch_size == 1:
            raise ValueError(
                f"fit: {n_data} examples in batches of {self.batch_size} leave a last batch of 1, "
                "which BatchNorm cannot train on. Choose another batch_size."
            )

    def begin(self, start_from: Posterior | SparseModel | None) -> None:
        """Make the state, or restore it from a checkpoint."""
        generator = Generator(self.problem.device).manual_seed(self.seed)
        self.state = self.engine.init(self.problem, generator, self.n_models)
        if start_from is not None:
            self._start_from(start_from.to(self.problem.device))
        self.order = Generator().manual_seed(self.seed + 1)
        self.order_at_epoch = self.order.get_state()
        if self.pruning is not None:
            self._allow_masks()
        self.log_lik_sum = torch.zeros(
            self.n_models, dtype=torch.float64, device=self.problem.device
        )
        self.stepper = make_stepper(self.problem, self.engine, self.state)
        if self.saving is not None and self.saving.resume:
            self._restore(read_checkpoint(self.saving.folder / "checkpoints"))

    def _allow_masks(self) -> None:
        like = torch.empty(self.n_models, self.problem.layout.size, device=self.problem.device)
        self.state.controls.allow_masks_(like)

    def _start_from(self, given: Posterior | SparseModel) -> None:
        posterior = given.posterior if isinstance(given, SparseModel) else given
        if posterior.layout != self.problem.layout:
            raise ValueError("fit: start_from belongs to a network with other tensors.")
        self.engine.warm_start_(self.state, posterior)
        if isinstance(given, SparseModel):
            self._allow_masks()
            self.state.controls.keep.copy_(given.keep)
            self.state.controls.trained.copy_(given.keep)

    def loop(self, callbacks: Sequence[Callback]) -> None:
        """Run the remaining steps; an interrupt writes a checkpoint before it propagates."""
        first_step = self.step
        with progress_bar(self.n_steps, first_step) as bar, interruptible(self.saving) as flag:
            self._bar = bar
            while self.step < self.n_steps:
                epoch = self.step // self.per_epoch
                began = time.perf_counter()
                if not self._epoch(epoch, flag):
                    self._save()
                    flag.leave()
                row = self._close_epoch(epoch, time.perf_counter() - began)
                if self._should_stop(callbacks, row):
                    break
        if self.best:
            restore_(self.state, self.best)

    def _epoch(self, epoch: int, flag: Any) -> bool:
        """The remaining steps of one epoch; False when interrupted."""
        self.order.set_state(self.order_at_epoch)
        permutation = torch.randperm(self.problem.n_data, generator=self.order)
        permutation = permutation.to(self.problem.device)
        controls, every = self.state.controls, self.saving.every if self.saving else None
        end = min((epoch + 1) * self.per_epoch, self.n_steps)
        for step in range(self.step, end):
            position = step - epoch * self.per_epoch
            lr, kl = self._dials(step, position)
            controls.lr_scale.fill_(lr)
            controls.kl_scale.fill_(kl)
            index = permutation[position * self.batch_size : (position + 1) * self.batch_size]
            metrics = self.stepper(index)
            self.log_lik_sum += metrics["log_lik"]
            self.step = step + 1
            self._bar.advance()
            if flag.raised:
                return False
            if every and self.step % every == 0 and self.step < end:
                self._save()
        return True

    def _dials(self, step: int, position: int) -> tuple[float, float]:
        progress = step / self.n_steps
        prune_end = None if self.pruning is None else self.pruning.end
        lr = self.schedule.lr_scale(progress, prune_end or 0.0)
        kl = self.schedule.kl_scale(step / self.per_epoch, progress, prune_end)
        return lr, kl * minibatch_weight(position, self.per_epoch, self.schedule.minibatch)

    def _close_epoch(self, epoch: int, seconds: float) -> Row:
        """Read the metrics once, prune, validate, write the row and a checkpoint."""
        n_steps = self.step - epoch * self.per_epoch
        log_lik = self.log_lik_sum / n_steps
        kl = self.engine.kl(self.state)
        self._check_finite(log_lik, kl)
        row: Row = {"epoch": epoch + 1, "step": self.step, "seconds": round(seconds, 3)}
        row |= {"log_lik": _plain(log_lik), "kl": _plain(kl), "elbo": _plain(log_lik - kl)}
        row["lr_scale"] = round(self._dials(self.step - 1, 0)[0], 6)
        progress = self.step / self.n_steps
        if self.pruning is not None and self.pruning.is_active(progress):
            before = (self.step - n_steps) / self.n_steps
            if before < self.pruning.end:  # the mask of the first epoch past the end is final
                self._prune(progress)
        keep = self.state.controls.keep
        if keep is not None:
            row["zeros"] = _plain(1 - keep.double().mean(1))
        if self.validation is not None:
            row |= self._validate(epoch)
        self.log_lik_sum.zero_()
        self.order_at_epoch = self.order.get_state()
        self.history.append(row)
        self._bar.describe(row, self.n_epochs, self.problem.n_data)
        if self.saving is not None:
            self._write_metrics()
            if self.saving.every is None or self.step % self.saving.every == 0:
                self._save()
        return row

    def _check_finite(self, log_lik: Tensor, kl: Tensor) -> None:
        if bool(torch.isfinite(log_lik).all() and torch.isfinite(kl).all()):
            return
        last = self.history[-1]["log_lik"] if self.history else "none"
        name = type(self.engine).__name__
        raise DivergedError(
            f"{name}: log_lik or kl is not finite at step {self.step}, epoch "
            f"{math.ceil(self.step / self.per_epoch)}; last finite log_lik {last}. Lower lr "
            f"({getattr(self.engine, 'lr', '?')}), add warm-up (Schedule.warmup) or clip_norm."
        )

    def _prune(self, progress: float) -> None:
        assert self.pruning is not None
        controls = self.state.controls
        current, controls.keep = controls.keep, None  # scores are taken before masking
        ended = progress >= self.pruning.end
        for i in range(self.n_models):
            posterior = self.engine.posterior(self.problem, self.state, i)
            current[i].copy_(self.pruning.keep(posterior, progress, current[i]))
        controls.keep = current
        if ended or not self.pruning.soft:
            controls.trained.copy_(current)

    def _validate(self, epoch: int) -> Row:
        assert self.validation is not None
        problem, data = self.problem, self.validation.data
        nll, error = [], []
        for i in range(self.n_models):
            posterior = self.engine.posterior(problem, self.state, i)
            values = mean_scores(problem, posterior, data.x, data.y)
            nll.append(values[0])
            error.append(values[1])
        mean_nll = sum(nll) / len(nll)
        if mean_nll < self.best_nll - self.validation.min_delta:
            self.best_nll, self.best_epoch = mean_nll, epoch
            if self.validation.patience is not None:
                self.best = {n: v.detach().clone() for n, v in named_tensors(self.state)}
                rng = {f"{n}.rng": g.get_state() for n, g in generators(self.state).items()}
                self.best |= rng
        row: Row = {"val_nll": _short(nll)}
        name = "val_error" if problem.likelihood.task == "classification" else "val_rmse"
        row[name] = _short(error)
        return row

    def _should_stop(self, callbacks: Sequence[Callback], row: Row) -> bool:
        patience = None if self.validation is None else self.validation.patience
        if patience is not None and row["epoch"] - 1 - self.best_epoch >= patience:
            return True
        progress = Progress(
            row["epoch"],
            self.step,
            self.n_steps,
            row,
            lambda: self.engine.posterior(self.problem, self.state, 0),
        )
        return any([callback(progress) for callback in callbacks])

    def _save(self) -> None:
        if self.saving is None:
            return
        tensors = {f"state.{n}": v for n, v in named_tensors(self.state)}
        tensors |= {f"state.{n}.rng": g.get_state() for n, g in generators(self.state).items()}
        tensors |= {f"best.{n}": v for n, v in self.best.items()}
        tensors |= {"order": self.order_at_epoch, "log_lik_sum": self.log_lik_sum}
        tensors |= rng_states(self.problem.device)
        space = self.problem._workspace
        if space is not None:
            tensors |= {f"buffers.{n}": v for n, v in space.all_buffers().items()}
        meta = {
            "step": self.step,
            "n_steps": self.n_steps,
            "per_epoch": self.per_epoch,
            "engine": repr(self.engine),
            "best_nll": self.best_nll if math.isfinite(self.best_nll) else None,
            "best_epoch": self.best_epoch,
            "history": self.history,
        }
        write_checkpoint(self.saving.folder / "checkpoints", self.step, Checkpoint(tensors, meta))

    def _restore(self, checkpoint: Checkpoint) -> None:
        meta, tensors = checkpoint.meta, checkpoint.tensors
        here = {
            "engine": repr(self.engine), "n_steps": self.n_steps, "per_epoch": self.per_epoch
        }  # fmt: skip
        for name, own in here.items():
            if meta[name] != own:
                raise ValueError(
                    f"resume: the checkpoint was made with {name} {meta[name]}, this run has "
                    f"{own}. Use the settings of the first run, or start without --resume."
                )
        state = {n.removeprefix("state."): v for n, v in tensors.items() if n.startswith("state.")}
        self.best = {n.removeprefix("best."): v for n, v in tensors.items() if n[:5] == "best."}
        restore_(self.state, state)
        local = bool(getattr(self.engine, "local", False))
        space = self.problem.workspace(self.n_models, local=local)
        for name, value in space.all_buffers().items():
            value.copy_(tensors[f"buffers.{name}"])
        self.order_at_epoch = tensors["order"]
        self.log_lik_sum.copy_(tensors["log_lik_sum"])
        set_rng_states(tensors, self.problem.device)
        self.step, self.history = meta["step"], meta["history"]
        self.best_nll = math.inf if meta["best_nll"] is None else meta["best_nll"]
        self.best_epoch = meta["best_epoch"]

    def _write_metrics(self) -> None:
        assert self.saving is not None
        self.saving.folder.mkdir(parents=True, exist_ok=True)
        lines = "".join(json.dumps(row) + "\n" for row in self.history)
        atomic_write(self.saving.folder / "metrics.jsonl", lines.encode())


def _plain(values: Tensor) -> float | list[float]:
    return _short(values.tolist())


def _short(values: list[float]) -> float | list[float]:
    """A number for one model, a list for a population."""
    return values[0] if len(values) == 1 else values
