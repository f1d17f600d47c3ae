"""The moving parts of one call of `fit`: steps, dials, masks, validation, records."""

import math
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Generator, Tensor

from bayesieve.engines import Renewing, Settling
from bayesieve.errors import DivergedError
from bayesieve.training.interrupts import Flag, interruptible
from bayesieve.training.models import Models, Start
from bayesieve.training.options import (
    Callback,
    Progress,
    Pruning,
    Row,
    Validation,
    renewal_steps,
)
from bayesieve.training.plan import Plan
from bayesieve.training.population import epoch_order
from bayesieve.training.progress import Bar, progress_bar
from bayesieve.training.records import (
    Record,
    Settings,
    plain,
    printed,
    resume_run,
    save_run,
    write_metrics,
)
from bayesieve.training.schedule import Schedule, minibatch_weight
from bayesieve.training.stepper import make_stepper


class Run:
    """One run: `begin`, then `loop`; what happened is in `record`."""

    def __init__(
        self,
        models: Models,
        plan: Plan,
        schedule: Schedule,
        pruning: Pruning | None,
        validation: Validation | None,
        folder: Path | None,
        seed: int,
    ) -> None:
        self.models, self.plan, self.schedule, self.pruning = models, plan, schedule, pruning
        self.validation, self.folder, self.seed = validation, folder, seed
        self.renewals = range(0) if pruning is None else renewal_steps(pruning, plan.n_steps)
        self.renewing = models.engine if isinstance(models.engine, Renewing) else None
        self.order = Generator().manual_seed(seed + 1)
        device = models.problem.device
        log_lik_sum = torch.zeros(models.n, dtype=torch.float64, device=device)
        self.record = Record(self.order.get_state(), log_lik_sum)

    def begin(self, start_from: Start | None, *, resume: bool) -> None:
        """Take up earlier work: a posterior, a mask or a checkpoint."""
        models = self.models
        if start_from is not None:
            models.start_from_(start_from)
        if self.pruning is not None:
            models.allow_masks_()
            self.pruning.check(models.posterior())
        self.stepper = make_stepper(models.problem, models.engine, models.state)
        if self.folder is not None and resume:
            resume_run(self.folder, self.record, models, self._settings())

    def loop(self, callbacks: Sequence[Callback]) -> None:
        """Run the remaining steps; an interrupt writes a checkpoint before it propagates."""
        record, plan, stop = self.record, self.plan, False
        with progress_bar(plan.n_steps, record.step) as bar, interruptible(self.folder) as flag:
            while record.step < plan.n_steps and not stop and not self._out_of_patience():
                epoch = record.step // plan.per_epoch
                began = time.perf_counter()
                if self._epoch(epoch, bar, flag):
                    row = self._close_epoch(epoch, time.perf_counter() - began)
                    bar.describe(row, plan.n_epochs, self.models.problem.n_data)
                    stop = self._tell(callbacks, row)
                if flag.raised:
                    self._save()
                    flag.leave()
        if record.best:
            self.models.restore_(record.best)
        for member in range(self.models.n):  # the last step's result, which no row has seen
            self._check_finite("the posterior mean", self.models.posterior(member).mean)

    def _tell(self, callbacks: Sequence[Callback], row: Row) -> bool:
        """Call every callback; whether one of them ends the run."""
        step, n_steps = self.record.step, self.plan.n_steps
        progress = Progress(row["epoch"], step, n_steps, row, self.models.posterior)
        return any([callback(progress) for callback in callbacks])

    def _epoch(self, epoch: int, bar: Bar, flag: Flag) -> bool:
        """The remaining steps of one epoch; False when interrupted before its end."""
        record, plan, problem = self.record, self.plan, self.models.problem
        self.order.set_state(record.order)
        permutation = epoch_order(problem, self.order)
        controls, every = self.models.state.controls, self.schedule.checkpoint_every
        end = min((epoch + 1) * plan.per_epoch, plan.n_steps)
        for step in range(record.step, end):
            position = step - epoch * plan.per_epoch
            self._renew(step)
            lr, kl = self._dials(step, position)
            controls.lr_scale.fill_(lr)
            controls.kl_scale.fill_(kl)
            index = permutation[..., position * plan.batch_size : (position + 1) * plan.batch_size]
            record.log_lik_sum += self.stepper(index)["log_lik"]
            record.step = step + 1
            self._prune(record.step)
            bar.advance()
            if record.step == end:
                break  # the epoch is closed before anything is saved
            if flag.raised:
                return False
            if every and record.step % every == 0:
                self._save()
        return True

    @property
    def _prune_end(self) -> float | None:
        """Fraction of the run after which masks are final; None where they never change."""
        own = None if self.renewing is None else self.renewing.settled
        if isinstance(self.models.engine, Settling):
            own = min(self.models.engine.settled_after / self.plan.n_epochs, 1.0)
        return own if self.pruning is None else max(self.pruning.end, own or 0.0)

    def _renew(self, step: int) -> None:
        """Let the engine do between steps what no captured step can."""
        if self.renewing is None or step == 0:
            return
        n_steps = self.plan.n_steps
        every = self.renewing.renew_every(n_steps)
        if every and step % every == 0:
            self.renewing.renew_(self.models.problem, self.models.state, step, n_steps)

    def _dials(self, step: int, position: int) -> tuple[float, float]:
        progress, per_epoch = step / self.plan.n_steps, self.plan.per_epoch
        prune_end = self._prune_end
        lr = self.schedule.lr_scale(progress, prune_end or 0.0)
        kl = self.schedule.kl_scale(step / per_epoch, progress, prune_end)
        return lr, kl * minibatch_weight(position, per_epoch, self.schedule.minibatch)

    def _close_epoch(self, epoch: int, seconds: float) -> Row:
        """Read the metrics once, validate, write the row and a checkpoint."""
        record, models = self.record, self.models
        n_steps = record.step - epoch * self.plan.per_epoch
        log_lik, kl = record.log_lik_sum / n_steps, models.engine.kl(models.state)
        self._check_finite("log_lik or kl", log_lik, kl)
        row: Row = {"epoch": epoch + 1, "step": record.step, "seconds": round(seconds, 3)}
        row |= {"log_lik": plain(log_lik), "kl": plain(kl), "elbo": plain(log_lik - kl)}
        row["lr_scale"] = round(self._dials(record.step - 1, 0)[0], 6)
        keep = models.state.controls.keep
        if keep is not None:
            row["zeros"] = plain(1 - keep.double().mean(1))
        if self.validation is not None and self._is_due(self.validation, epoch):
            row |= self._validate(self.validation, epoch)
        record.log_lik_sum.zero_()
        record.order = self.order.get_state()
        record.history.append(row)
        if self.folder is not None:
            write_metrics(self.folder, record.history)
            every = self.schedule.checkpoint_every
            if every is None or record.step % every == 0:
                self._save()
        return row

    def _check_finite(self, what: str, *values: Tensor) -> None:
        if all(bool(torch.isfinite(value).all()) for value in values):
            return
        step, history, engine = self.record.step, self.record.history, self.models.engine
        raise DivergedError(
            f"{type(engine).__name__}: {what} is not finite at step {step}, epoch "
            f"{math.ceil(step / self.plan.per_epoch)}; last finite log_lik "
            f"{history[-1]['log_lik'] if history else 'none'}. {_advice(engine)}"
        )

    def _prune(self, step: int) -> None:
        """Renew the masks if they are due after so many steps; the last ones are final."""
        if self.pruning is not None and step in self.renewals:
            self.models.prune_(self.pruning, step / self.plan.n_steps)

    def _validate(self, validation: Validation, epoch: int) -> Row:
        """Score held-out data; while masks still change, no epoch counts as the best."""
        record, models = self.record, self.models
        nll, error = models.scores(validation)
        self._check_finite("the validation score", torch.tensor(nll))
        progress = record.step / self.plan.n_steps
        if progress >= (self._prune_end or 0.0):
            better = record.note_best(validation.by_group(nll), epoch, validation.min_delta)
            if better and validation.patience is not None:
                groups = validation.group_of(models.n)
                models.copy_into_(record.best, [group in better for group in groups])
        regression = models.problem.likelihood.task == "regression"
        return {"val_nll": plain(nll), "val_rmse" if regression else "val_error": plain(error)}

    def _is_due(self, validation: Validation, epoch: int) -> bool:
        return (epoch + 1) % validation.every == 0 or self.record.step >= self.plan.n_steps

    def _out_of_patience(self) -> bool:
        patience = None if self.validation is None else self.validation.patience
        return patience is not None and self.record.epochs_without_gain() >= patience

    def _save(self) -> None:
        if self.folder is not None:
            save_run(self.folder, self.record, self.models, self._settings())

    def _settings(self) -> Settings:
        problem, watch = self.models.problem, self.validation
        return {
            "engine": printed(self.models.engine),
            "n_models": self.models.n,
            "n_data": problem.n_data,
            "n_steps": self.plan.n_steps,
            "batch_size": self.plan.batch_size,
            "seed": self.seed,
            "schedule": self.schedule.text(),
            "pruning": printed(self.pruning),
            "patience": None if watch is None else watch.patience,
            "min_delta": None if watch is None else watch.min_delta,
            "clip_norm": self.schedule.clip_norm,
            "augment": printed(problem.augment),
        }


def _advice(engine: object) -> str:
    """What helps a run that diverged: engines without a rate know neither warm-up nor clipping."""
    scale = "bring inputs and real targets to a standard deviation near 1"
    for name in ("lr", "step_size"):
        if hasattr(engine, name):
            return (
                f"Lower {name} ({getattr(engine, name)}; --lr), add warm-up (Schedule.warmup, "
                f"--warmup) or clip_norm (--clip-norm), or {scale}."
            )
    return f"{scale.capitalize()}."
