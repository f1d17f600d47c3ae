"""Many networks on the rows of a table, trained as one population.

This is the one harness for folds, bootstrap samples, published splits, members of an ensemble,
seeds and settings: networks of one architecture, each with a set of rows. `train_networks` trains
one network per set of rows; estimators (`estimators.groups`), selection (`PopulationFits` of
`estimators.importance`) and studies call it. `estimators.mixture` averages the draws of several
networks.

A run that is cut in the middle stops at a high learning rate. So a fit with a time limit first
times a few steps, then plans as many as it can afford, with the whole course of the learning rate
in them. The clock is looked at after each epoch too, for machines that become slower.
"""

import dataclasses
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from bayesieve.checks import check_positive
from bayesieve.core.batch import Rows
from bayesieve.core.likelihoods import Likelihood
from bayesieve.core.posterior import SparseModel
from bayesieve.core.problem import Problem
from bayesieve.engines import Engine
from bayesieve.errors import DivergedError
from bayesieve.sieve.rules import Rule
from bayesieve.sieve.schedule import GradualPruning
from bayesieve.training.launch import Fit, fit
from bayesieve.training.progress import Callback, Progress
from bayesieve.training.schedule import Schedule
from bayesieve.training.validation import Validation

DTYPE = torch.float32
_LINES = 10  # of a report on one run
REHEARSED = 5  # steps that are timed

AnyEngine: TypeAlias = Engine[Any]  # whatever its state


@dataclass(frozen=True, eq=False)
class Table:
    """Rows that networks learn from.

    Args:
        x: (n, p), standardised.
        y: class numbers (n,), int64, or 0 and 1 (n, m), or standardised targets (n,) or (n, m).
        weight: (n,), what each row counts; None counts all once.
        held_out: rows that each inner fold leaves out; empty without folds.
    """

    x: Tensor
    y: Tensor
    weight: Tensor | None = None
    held_out: list[Tensor] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.x)

    def counts(self) -> Tensor:
        """Return how much each row counts, (n,)."""
        return torch.ones(len(self), dtype=DTYPE) if self.weight is None else self.weight

    def with_folds(self, n_folds: int, parts: int, seed: int) -> "Table":
        """The table with inner folds: so many of `parts` equal parts of the rows.

        Each has about as many of every class. A fold of which one side counts for nothing is left
        out.

        Example:
            >>> table = Table(torch.zeros(10, 1), torch.zeros(10, 1)).with_folds(3, 3, seed=0)
            >>> [len(rows) for rows in table.held_out]
            [4, 3, 3]
        """
        order = torch.randperm(len(self), generator=torch.Generator().manual_seed(seed))
        if not self.y.is_floating_point() and self.y.dim() == 1:
            order = order[self.y[order].sort(stable=True).indices]
        folds = [order[i::parts].sort().values for i in range(n_folds)]
        counts, total = self.counts(), float(self.counts().sum())
        usable = [rows for rows in folds if 0 < float(counts[rows].sum()) < total]
        return dataclasses.replace(self, held_out=usable)


@dataclass(frozen=True)
class Candidate:
    """One of the settings that the folds choose among.

    Args:
        kl: KL weight, times that of the schedule.
        form: number of the form of the inputs, each with a network for it.
    """

    kl: float = 1.0
    form: int = 0


@dataclass(frozen=True)
class Pace:
    """When a fit must have ended, and whether it reports.

    Args:
        who: named in reports.
        verbose: whether to print how far it is and how long it will take.
        deadline: time on the clock by which training must have ended; None has no limit.
        clock: seconds since some moment.

    Example:
        >>> pace = Pace("fit", deadline=10.0, clock=lambda: 4.0)
        >>> pace.affordable(seconds_a_step=0.01, share=0.5)
        300
        >>> Pace("fit").affordable(0.01, 0.5) is None
        True
    """

    who: str
    verbose: bool = False
    deadline: float | None = None
    clock: Callable[[], float] = time.perf_counter

    def affordable(self, seconds_a_step: float, share: float) -> int | None:
        """Steps that fit into a share of the time left, at least 1; None without a limit."""
        if self.deadline is None:
            return None
        left = max(0.0, self.deadline - self.clock())
        return max(1, int(share * left / max(seconds_a_step, 1e-9)))

    def callbacks(self, what: str) -> list[Callback]:
        """Callbacks of `fit` for a run: report on it, and end it when the time is over."""
        began, printed = self.clock(), 0

        def report(progress: Progress) -> bool:
            nonlocal printed
            part = progress.step / progress.n_steps
            if int(part * _LINES) > printed:
                printed = int(part * _LINES)
                left = (self.clock() - began) * (1 / part - 1)
                step = f"step {progress.step:,} of {progress.n_steps:,}, {left:.0f} s left"
                print(f"{self.who}: {what}: {step}", flush=True)
            return False

        def is_over(progress: Progress) -> bool:
            return self.deadline is not None and self.clock() >= self.deadline

        asked: dict[Callback, bool] = {report: self.verbose, is_over: self.deadline is not None}
        return [callback for callback in asked if asked[callback]]


@dataclass(frozen=True)
class Training:
    """Settings that train every network of a population.

    Args:
        epochs: passes over its rows.
        batch_size: examples per step.
        schedule: of learning rate and KL weight.
        patience: epochs without a better score of the folds before a group stops, at its best
            epoch; None trains to the end.
        n_members: networks on all rows, which differ in their random numbers and are averaged.
        candidates: what the folds choose among.
        pruning: which weights go during training; None keeps all.
        rule: which weights go once training has ended, of engines that do not prune by schedule.
        seed: of starts, noise and batches.
        at_once: networks trained as one population at most; memory grows with it.
        device: where to train; None stays where the model is.
        steps: gradient steps, in place of epochs.
        pace: the time the run may take, and what it says; None has neither.
    """

    epochs: int = 100
    batch_size: int = 100
    schedule: Schedule = field(default_factory=lambda: Schedule(lr="cosine"))
    patience: int | None = None
    n_members: int = 1
    candidates: tuple[Candidate, ...] = (Candidate(),)
    pruning: GradualPruning | None = None
    rule: Rule | None = None
    seed: int = 0
    at_once: int = 256
    device: str | None = None
    steps: int | None = None
    pace: Pace | None = None

    def __post_init__(self) -> None:
        check_positive(
            "Training",
            epochs=self.epochs,
            batch_size=self.batch_size,
            n_members=self.n_members,
            at_once=self.at_once,
        )


def train_networks(
    model: nn.Module,
    likelihood: Likelihood,
    table: Table,
    rows: Rows | None,
    engine: AnyEngine | Sequence[AnyEngine],
    training: Training,
    *,
    validation: Validation | None = None,
    start_from: SparseModel | None = None,
    callbacks: Sequence[Callback] = (),
) -> Fit:
    """Train one network per set of rows as one population.

    Args:
        model: the architecture; its weights serve the first network.
        likelihood: how outputs become densities.
        table: the rows of all networks; tables of one width go one below the other (`stacked`).
        rows: training rows of each network, as `Rows.of` makes them from index vectors; None
            trains one network on all rows.
        engine: one for all networks, or one for each; these may differ in numbers only.
        training: how long, in which batches, with which seed; `n_members`, `candidates` and
            `at_once` are the caller's to spread over `rows`.
        validation: held-out rows to score while training.
        start_from: a model to continue from.
        callbacks: of `fit`, called after each epoch.

    Returns:
        The run; its `posteriors` are in the order of `rows`.

    Example:
        >>> from bayesieve import MAP
        >>> from bayesieve.core.likelihoods import Gaussian
        >>> x = torch.linspace(-1, 1, 40)[:, None]
        >>> rows = Rows.of([torch.arange(20), torch.arange(20, 40)])  # y = |x|, one side each
        >>> table, training = Table(x, x[:, 0].abs()), Training(epochs=200, batch_size=20)
        >>> run = train_networks(nn.Linear(1, 1), Gaussian(), table, rows, MAP(lr=0.1), training)
        >>> [round(q.mean[0].item()) for q in run.posteriors]
        [-1, 1]
    """
    problem = Problem(model, likelihood, (table.x, table.y), rows=rows, weight=table.weight)
    return fit(
        problem if training.device is None else problem.to(training.device),
        engine,
        epochs=training.epochs if training.steps is None else None,
        steps=training.steps,
        batch_size=min(training.batch_size, len(table) if rows is None else rows.n),
        seed=training.seed,
        schedule=training.schedule,
        pruning=training.pruning,
        validation=validation,
        start_from=start_from,
        callbacks=callbacks,
    )


def nothing_left(run: Fit) -> DivergedError:
    """The error of a run of which no network is left."""
    return DivergedError(
        f"{type(run.engine).__name__}: every network on a table diverged. Lower lr, or bring wild "
        "rows to the scale of the others."
    )


def stacked(tables: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor, Rows]:
    """Several tables, one per model, as one table and the rows of each model.

    Args:
        tables: inputs (n, p) and targets (n,) or (n, m) of each model; n may differ.

    Returns:
        Inputs and targets one below the other, and `rows` for `Problem`.

    Example:
        >>> x, y, rows = stacked([(torch.zeros(2, 3), torch.zeros(2))] * 2)
        >>> x.shape, rows.index.tolist()
        (torch.Size([4, 3]), [[0, 1], [2, 3]])
    """
    if not tables:
        raise ValueError("stacked: give at least one table.")
    first = tuple(tuple(tensor.shape[1:]) for tensor in tables[0])
    for i, table in enumerate(tables):
        shapes = tuple(tuple(tensor.shape[1:]) for tensor in table)
        if shapes != first:
            raise ValueError(
                f"stacked: table {i} has inputs and targets of shape {shapes[0]} and {shapes[1]}, "
                f"table 0 {first[0]} and {first[1]}; all must agree."
            )
    ends = torch.tensor([0, *(len(x) for x, _ in tables)]).cumsum(0).tolist()
    rows = [torch.arange(start, end) for start, end in pairwise(ends)]
    return torch.cat([x for x, _ in tables]), torch.cat([y for _, y in tables]), Rows.of(rows)
