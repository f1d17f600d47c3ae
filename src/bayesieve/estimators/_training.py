"""Many fits as one problem: every fit is one or more groups of networks.

A group has one or more networks that learn from all rows of its table (the members of an
ensemble), and one network per inner fold that learns from the others, so that no row is lost to
validation. Where the weight κ of the prior is open, a fit has one group for each candidate and
keeps the one whose folds best predict what they have not seen; counting every row 1/κ times is the
same as weighing the prior by κ. With patience, the folds' score also tells each group when to stop.
All groups train as one population, each network on its own rows.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bayesieve.core.likelihoods import Likelihood
from bayesieve.core.posterior import Posterior, SparseModel
from bayesieve.core.problem import Problem
from bayesieve.core.rows import Rows
from bayesieve.data.examples import Examples
from bayesieve.engines import Engine
from bayesieve.estimators._predicting import log_density
from bayesieve.estimators._tables import Table
from bayesieve.sieve.schedule import GradualPruning
from bayesieve.training.fit import Fit, fit
from bayesieve.training.options import Row, Validation
from bayesieve.training.population import stacked
from bayesieve.training.schedule import Schedule

_CHECKS = 40  # times a run looks at what its folds hold out
_SCORE_DRAWS = 16  # posterior draws by which candidates are compared


@dataclass(frozen=True)
class Recipe:
    """How every group is trained.

    Args:
        epochs: passes over the rows.
        batch_size: rows per step.
        schedule: of learning rate and prior weight.
        patience: epochs without a better score before stopping, at the best epoch; None trains to
            the end.
        n_members: networks on all rows.
        kls: candidates for the weight of the prior, times that of the schedule.
        pruning: what becomes of the weights during training; None keeps all.
        seed: of starts, noise and batches.
        device: where to train; None is the CPU.
    """

    epochs: int
    batch_size: int
    schedule: Schedule
    patience: int | None
    n_members: int = 1
    kls: tuple[float, ...] = (1.0,)
    pruning: GradualPruning | None = None
    seed: int = 0
    device: str | None = None


@dataclass(frozen=True, eq=False)
class Group:
    """What one fit has learned.

    Args:
        members: sparse models of the networks on all rows.
        folds: posteriors of the inner folds.
        history: one row of metrics per epoch, of the whole population.
        n_epochs: the epoch that was kept, from 1.
        kl: the weight of the prior that was kept.
        score: log predictive density per held-out row, in standardised units; None without folds.
    """

    members: list[SparseModel]
    folds: list[Posterior]
    history: list[Row]
    n_epochs: int
    kl: float
    score: float | None


def train(
    tables: Sequence[Table],
    engines: Sequence[Engine[Any]],
    model: nn.Module,
    likelihood: Likelihood,
    recipe: Recipe,
    start_from: SparseModel | None = None,
) -> list[Group]:
    """Fit every table with its engine; the engines may differ in numbers only."""
    x, y, _ = stacked([(table.x, table.y) for table in tables])
    nets = _networks(tables, recipe)
    counts = torch.cat([table.counts() for table in tables])
    weighted = any(table.weight is not None for table in tables)
    watched = None
    if recipe.patience is not None and all(table.held_out for table in tables):
        watched = Validation(
            Examples(x, y),
            patience=recipe.patience,
            every=max(1, recipe.epochs // _CHECKS),
            rows=_watched_rows([net.held_out for net in nets], counts),
            groups=tuple(net.group for net in nets),
        )
    problem = Problem(
        model,
        likelihood,
        (x, y),
        rows=_own_rows(nets, recipe.kls) if len(nets) > 1 else None,
        weight=counts if weighted else None,
    )
    run = fit(
        problem if recipe.device is None else problem.to(recipe.device),
        [engines[net.table] for net in nets],
        epochs=recipe.epochs,
        batch_size=recipe.batch_size,
        seed=recipe.seed,
        schedule=recipe.schedule,
        pruning=recipe.pruning,
        validation=watched,
        start_from=start_from,
    )
    return [_best_group(run, nets, table, watched, recipe) for table in range(len(tables))]


@dataclass(frozen=True, eq=False)
class _Net:
    """One network of the population: its rows and held-out rows in the stacked table."""

    table: int
    group: int
    kl: float
    rows: Tensor
    held_out: Tensor


def _networks(tables: Sequence[Table], recipe: Recipe) -> list[_Net]:
    """Of each table and candidate the members, then the folds."""
    nets: list[_Net] = []
    start, group = 0, 0
    for number, table in enumerate(tables):
        everything = torch.arange(start, start + len(table))
        for kl in recipe.kls:
            whole = _Net(number, group, kl, everything, everything[:0])
            nets += [whole] * recipe.n_members
            for part in table.held_out:
                mask = torch.ones(len(table), dtype=torch.bool)
                mask[part] = False
                nets.append(_Net(number, group, kl, everything[mask], everything[part]))
            group += 1
        start += len(table)
    return nets


def _own_rows(nets: Sequence[_Net], kls: Sequence[float]) -> Rows:
    """Training rows of every network; each counts 1/κ times."""
    rows = Rows.of([net.rows for net in nets])
    if len(kls) == 1:
        return rows
    real = torch.ones(rows.index.shape) if rows.weight is None else rows.weight
    return Rows(rows.index, real / torch.tensor([net.kl for net in nets])[:, None])


def _watched_rows(held_out: Sequence[Tensor], counts: Tensor) -> Rows:
    """Held-out rows of every network with what they count; those of weight 0 fill up."""
    nothing = torch.zeros(1, dtype=torch.int64)
    filled = Rows.of([part if len(part) else nothing for part in held_out])
    real = torch.ones(filled.index.shape) if filled.weight is None else filled.weight
    empty = torch.tensor([len(part) == 0 for part in held_out])
    return Rows(filled.index, real * counts[filled.index] * ~empty[:, None])


def _best_group(
    run: Fit, nets: Sequence[_Net], table: int, watched: Validation | None, recipe: Recipe
) -> Group:
    """What a fit keeps: of its table's groups the one that predicts best."""
    numbers = sorted({net.group for net in nets if net.table == table})
    found = [_group(run, nets, number, watched, recipe) for number in numbers]
    return max(found, key=lambda group: -math.inf if group.score is None else group.score)


def _group(
    run: Fit, nets: Sequence[_Net], number: int, watched: Validation | None, recipe: Recipe
) -> Group:
    own = [i for i, net in enumerate(nets) if net.group == number]
    kept, folded = own[: recipe.n_members], own[recipe.n_members :]
    folds = [run.engine.posterior(run.problem, run.state, i).to("cpu") for i in folded]
    return Group(
        [run.sparse(i).to("cpu") for i in kept],
        folds,
        run.history,
        _best_epoch(run.history, watched, number, recipe),
        nets[own[0]].kl * recipe.schedule.kl,
        _score(run.problem, folds, [nets[i].held_out for i in folded]),
    )


def _best_epoch(
    history: Sequence[Row], watched: Validation | None, group: int, recipe: Recipe
) -> int:
    """The epoch a group returned to, from 1."""
    if watched is None:
        return len(history)
    end = 0.0 if recipe.pruning is None else recipe.pruning.end
    scores = [
        (watched.by_group(row["val_nll"])[group], row["epoch"])
        for row in history
        if "val_nll" in row and row["epoch"] / recipe.epochs >= end
    ]
    return int(min(scores)[1])


def _score(
    problem: Problem, folds: Sequence[Posterior], held_out: Sequence[Tensor]
) -> float | None:
    """Mean log predictive density of the rows that the folds have not seen."""
    if not folds:
        return None
    x, y = problem.x.cpu(), problem.y.cpu()
    found, counts = [], []
    for posterior, rows in zip(folds, held_out, strict=True):
        target = y[rows].double() if y.is_floating_point() else y[rows]
        found.append(log_density([posterior], x[rows], target, _SCORE_DRAWS))
        counts.append(
            torch.ones(len(rows)) if problem.weight is None else problem.weight.cpu()[rows]
        )
    weight = torch.cat(counts).double()
    return float((torch.cat(found) * weight).sum() / weight.sum())
