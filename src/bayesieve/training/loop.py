"""The training loop of `fit`: steps, factors, masks, validation, records.

It adds no mathematics: a hand-written loop over `engine.step`, and `renew_` where an engine has it,
gives the same posterior.
"""

import math
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Generator, Tensor

from bayesieve.core.batch import Batch
from bayesieve.core.posterior import Posterior, Samples
from bayesieve.core.reading import epoch_order, feed
from bayesieve.engines import Renewing, Settling
from bayesieve.engines.recipes import RunSize
from bayesieve.errors import DivergedError
from bayesieve.fast.stepper import make_stepper
from bayesieve.training.population import Population, Start
from bayesieve.training.progress import (
    Bar,
    Callback,
    EverySteps,
    Interrupted,
    Progress,
    Record,
    Row,
    interruptible,
    plain,
    progress_bar,
)
from bayesieve.training.schedule import Pruning, Schedule, minibatch_weight, renewal_steps

if TYPE_CHECKING:
    from bayesieve.training.checkpoint import Checkpoints
    from bayesieve.training.distributed import Ranks
    from bayesieve.training.validation import Validation


class Loop:
    """The loop of one run: `start`, then `run`; what happened is in `record`.

    Args:
        population: the models.
        size: steps, and examples in each.
        schedule: of the factors on learning rate and KL.
        pruning: of the masks.
        validation: held-out data to watch.
        seed: of the order of examples.
        keeper: writes rows and checkpoints, and reads the newest; None keeps nothing.
        ranks: the processes that share the run; None for one.
    """

    def __init__(
        self,
        population: Population,
        size: RunSize,
        schedule: Schedule,
        pruning: Pruning | None,
        validation: "Validation | None",
        seed: int,
        keeper: "Checkpoints | None" = None,
        ranks: "Ranks | None" = None,
    ) -> None:
        self.population, self.size = population, size
        self.schedule, self.pruning = schedule, pruning
        self.validation, self.seed = validation, seed
        self.keeper, self.ranks = keeper, ranks
        self.renewals = range(0) if pruning is None else renewal_steps(pruning, size.n_steps)
        engine = population.engine
        self.renewing = engine if isinstance(engine, Renewing) else None
        # Fraction of the run after which masks are final; None where they never change.
        settled = engine.settled(size.n_epochs) if isinstance(engine, Settling) else None
        self.prune_end = settled if pruning is None else max(pruning.end, settled or 0.0)
        self.order = Generator().manual_seed(seed + 1)
        device = population.problem.device
        log_lik_sum = torch.zeros(population.n, dtype=torch.float64, device=device)
        self.record = Record(self.order.get_state(), log_lik_sum)
        self.fed: Iterator[Batch] | None = None  # the batches of a stream, while the run reads it
        self.watchers: list[EverySteps] = []
        self.ended = False  # by a callback

    def start(self, start_from: Start | None) -> None:
        """Begin at a posterior, with a mask, or at a checkpoint."""
        population = self.population
        if start_from is not None:
            population.start_from_(start_from)
        if self.pruning is not None:
            population.allow_masks_()
            self.pruning.check(population.posterior())
        self.stepper = make_stepper(
            population.problem, population.engine, population.state, population.n
        )
        for one in (self.keeper, self.ranks):
            if one is not None:
                one.start(self)

    def run(self, callbacks: Sequence[Callback]) -> None:
        """Run the remaining steps; an interrupt writes a checkpoint before it propagates."""
        record, size, ranks = self.record, self.size, self.ranks
        self.watchers = [one for one in callbacks if isinstance(one, EverySteps)]
        after_epochs = [one for one in callbacks if not isinstance(one, EverySteps)]
        caught = self.keeper is not None or ranks is not None
        with (
            self._feeding(),
            progress_bar(size.n_steps, record.step, shown=self._first) as bar,
            interruptible(caught=caught) as signals,
        ):
            if ranks is not None:
                ranks.arrived = signals
            while record.step < size.n_steps and not self.ended and not self._out_of_patience():
                epoch = record.step // size.per_epoch
                began = time.perf_counter()
                if self._epoch(epoch, bar, signals):
                    row = self._close_epoch(epoch, time.perf_counter() - began)
                    bar.describe(row, size.n_epochs, self.population.problem.n_data)
                    self._call(after_epochs, row)
                if number := self._stopped_by(signals):
                    self._save()
                    if ranks is not None:
                        ranks.wait()  # a launcher ends all when one has ended
                    raise Interrupted(number)
        if record.best:
            self.population.restore_(record.best)
        self.population.space().warmth.zero_()
        # The last step's result, which no row has seen.
        finite, predicts = [], []
        for posterior in map(self.population.posterior, range(self.population.n)):
            finite.append(bool(posterior.mean.isfinite().all()))
            predicts.append(self._predicts(posterior))
        self._drop_diverged("the posterior mean", torch.tensor(finite))
        self._drop_diverged("a prediction of the kept draws", torch.tensor(predicts))

    def _call(self, callbacks: Sequence[Callback], row: Row) -> None:
        """Call back; the first process asks, and all end if any callback says so."""
        posterior = self.population.posterior
        seen = Progress(row["epoch"], row["step"], self.size.n_steps, row, posterior)
        ended = any([callback(seen) for callback in callbacks if self._first])
        self.ended |= ended if self.ranks is None else self.ranks.from_first(ended)

    @contextmanager
    def _feeding(self) -> Iterator[None]:
        """Read a stream, if the data are one, inside the block; processes that read end with it."""
        problem = self.population.problem
        if problem.data.stream is None:
            yield
            return
        with closing(feed(problem, self.size, self.seed, self.record.step)) as batches:
            self.fed = batches
            yield

    def _epoch(self, epoch: int, bar: Bar, signals: list[int]) -> bool:
        """The remaining steps of one epoch; False when interrupted before its end."""
        record, size, problem = self.record, self.size, self.population.problem
        self.order.set_state(record.order)
        permutation = epoch_order(problem, self.order) if self.fed is None else None
        controls, every = self.population.state.controls, self.schedule.checkpoint_every
        end = min((epoch + 1) * size.per_epoch, size.n_steps)
        warm_up = problem.likelihood.warm_up
        for step in range(record.step, end):
            position = step - epoch * size.per_epoch
            if self.renewing is not None and step > 0:  # what no captured step can do
                between = self.renewing.renew_every(size.n_steps)
                if between and step % between == 0:
                    self.renewing.renew_(problem, self.population.state, step, size.n_steps)
            if self.ranks is not None:
                self.ranks.begin(self.seed, step)
            lr, kl = self._factors(step, position)
            controls.lr_scale.fill_(lr)
            controls.kl_scale.fill_(kl)
            if warm_up:
                self.population.space().warmth.fill_(max(0.0, 1 - step / (warm_up * size.n_steps)))
            first = position * size.batch_size
            if permutation is not None:
                taken: Tensor | Batch = permutation[..., first : first + size.batch_size]
            else:
                assert self.fed is not None
                taken = next(self.fed)
            log_lik = self.stepper(taken)["log_lik"]
            record.log_lik_sum += log_lik
            record.step = step + 1
            if self.pruning is not None and record.step in self.renewals:
                self.population.prune_(self.pruning, record.step / size.n_steps)
            bar.advance()
            if due := [one for one in self.watchers if record.step % one.n == 0]:
                row = {"epoch": epoch + 1, "step": record.step, "log_lik": plain(log_lik)}
                self._call(due, row | {"lr_scale": round(lr, 6)} | self._zeros())
            if record.step == end:
                break  # the epoch is closed before anything is saved
            if self.ended:
                self._save()
                return False
            if self._stopped_by(signals):
                return False
            if every and record.step % every == 0:
                self._save()
        return True

    @property
    def _first(self) -> bool:
        """Return whether this process reports, validates and calls callbacks."""
        return self.ranks is None or self.ranks.rank == 0

    def _stopped_by(self, signals: list[int]) -> int:
        """The signal that ends the run after this step; 0 for none."""
        if self.ranks is not None:
            return self.ranks.stopped_by
        return signals[-1] if signals else 0

    def _factors(self, step: int, position: int) -> tuple[float, float]:
        progress, per_epoch = step / self.size.n_steps, self.size.per_epoch
        lr = self.schedule.lr_scale(progress, self.prune_end or 0.0)
        kl = self.schedule.kl_scale(step / per_epoch, progress, self.prune_end)
        return lr, kl * minibatch_weight(position, per_epoch, self.schedule.minibatch)

    def _close_epoch(self, epoch: int, seconds: float) -> Row:
        """Read the metrics once, validate, write the row and a checkpoint."""
        record, population = self.record, self.population
        n_steps = record.step - epoch * self.size.per_epoch
        log_lik, kl = record.log_lik_sum / n_steps, population.engine.kl(population.state)
        finite = log_lik.isfinite() & kl.isfinite()
        self._drop_diverged("log_lik or kl", finite)
        stands_in = finite.int().argmax()  # for each that was dropped: a model that is finite
        log_lik = torch.where(finite, log_lik, log_lik[stands_in])
        kl = torch.where(finite, kl, kl[stands_in])
        row: Row = {"epoch": epoch + 1, "step": record.step, "seconds": round(seconds, 3)}
        row |= {"log_lik": plain(log_lik), "kl": plain(kl), "elbo": plain(log_lik - kl)}
        row["lr_scale"] = round(self._factors(record.step - 1, 0)[0], 6)
        row |= self._zeros()
        watch, ended = self.validation, record.step >= self.size.n_steps
        if watch is not None and (ended or (epoch + 1) % watch.every == 0):
            row |= self._validate(watch, epoch)
        record.log_lik_sum.zero_()
        record.order = self.order.get_state()
        record.history.append(row)
        if self.keeper is not None:
            self.keeper.close_epoch(self)
        return row

    def _zeros(self) -> Row:
        keep = self.population.state.controls.keep
        return {} if keep is None else {"zeros": plain(1 - keep.double().mean(1))}

    def _drop_diverged(self, what: str, finite: Tensor) -> None:
        """Drop the models that are not finite, (k,) bool; raise if no other is left.

        A copy of a sound model takes the place of each, so that the rest of the run meets finite
        numbers only. It stays marked.
        """
        record, engine, n = self.record, self.population.engine, self.population.n
        gone = [i for i, sound in enumerate(finite.tolist()) if not sound]
        if not gone:
            return
        sound = sorted(set(range(n)) - {*gone, *record.diverged})
        step, history = record.step, record.history
        report = (
            f"{type(engine).__name__}: {what} is not finite at step {step}, epoch "
            f"{math.ceil(step / self.size.per_epoch)}; last finite log_lik "
            f"{history[-1]['log_lik'] if history else 'none'}. {_advice(engine)}"
        )
        if not sound:
            raise DivergedError(report)
        new = sorted(set(gone) - set(record.diverged))
        if new:
            names = ", ".join(str(i) for i in new)
            warnings.warn(f"dropped model {names} of {n}, which diverged. {report}", stacklevel=2)
        record.diverged = sorted({*record.diverged, *new})
        self.population.replace_(gone, sound[0])

    def _predicts(self, posterior: Posterior) -> bool:
        """Return whether what draws predict for some of the data is finite."""
        if not isinstance(posterior, Samples):
            return True
        network, x = posterior.network, self.population.problem.data.sample.x
        outputs = network.outputs(posterior.draws, x, posterior.buffers, posterior.draw_buffers)
        summary = network.likelihood.summary(outputs, network.numbers(posterior.draws))
        return all(bool(value.isfinite().all()) for value in summary)

    def _validate(self, validation: "Validation", epoch: int) -> Row:
        """Score held-out data; while masks still change, no epoch counts as the best."""
        record, population = self.record, self.population
        nll, error = self._scores(validation)
        finite = torch.tensor(nll).isfinite()
        if not finite.all():
            self._drop_diverged("the validation score", finite)
            nll, error = self._scores(validation)
        progress = record.step / self.size.n_steps
        if progress >= (self.prune_end or 0.0):
            scores = validation.by_group(nll, without=record.diverged)
            better = record.note_best(scores, epoch, validation.min_delta)
            if better and validation.patience is not None:
                groups = validation.group_of(population.n)
                population.copy_into_(record.best, [group in better for group in groups])
        regression = population.problem.likelihood.task == "regression"
        return {"val_nll": plain(nll), "val_rmse" if regression else "val_error": plain(error)}

    def _scores(self, validation: "Validation") -> tuple[list[float], list[float]]:
        scores: tuple[list[float], list[float]] = [], []
        if self._first:
            members = [self.population.posterior(i) for i in range(self.population.n)]
            scores = validation.scores(self.population.problem, members)
        return scores if self.ranks is None else self.ranks.from_first(scores)

    def _out_of_patience(self) -> bool:
        patience = None if self.validation is None else self.validation.patience
        return patience is not None and self.record.epochs_without_gain() >= patience

    def _save(self) -> None:
        if self.keeper is not None:
            self.keeper.save(self)


def _advice(engine: object) -> str:
    """Advice after a divergence; an engine without a rate has neither warm-up nor clipping."""
    scale = "bring inputs and real targets to a standard deviation near 1"
    for name in ("lr", "step_size"):
        if hasattr(engine, name):
            return (
                f"Lower {name} ({getattr(engine, name)}), add warm-up (Schedule.warmup) or "
                f"Schedule.clip_norm, or {scale}."
            )
    return f"{scale.capitalize()}."
