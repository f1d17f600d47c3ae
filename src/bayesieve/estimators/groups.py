"""The networks of an estimator: members on all rows of a table, and networks of its inner folds.

A group has one or more networks that learn from all rows of a table (the members of an ensemble),
and one or two per inner fold that learn from the other folds, so that no row is lost to validation.
Where the weight κ of the prior or the form of the inputs is open, short runs on the first folds
choose before: the candidate that best predicts their held-out rows. Counting every row 1/κ times is
the same as weighing the prior by κ. With patience, the folds' score also decides when each group
stops.
"""

import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from bayesieve.assess.predict import RealPrediction
from bayesieve.core.batch import Rows
from bayesieve.core.likelihoods import Likelihood
from bayesieve.core.posterior import Factorised, SparseModel
from bayesieve.data.examples import Examples
from bayesieve.estimators.defaults import Start, TableSettings
from bayesieve.estimators.mixture import log_density, predict_members
from bayesieve.estimators.population import (
    REHEARSED,
    AnyEngine,
    Candidate,
    Pace,
    Table,
    Training,
    nothing_left,
    stacked,
    train_networks,
)
from bayesieve.estimators.tails import likeliest_tails
from bayesieve.nets.embedding import PiecewiseLinear, has_more_than_two
from bayesieve.sieve.prune import prune
from bayesieve.training.fit import Fit
from bayesieve.training.progress import Callback, Row
from bayesieve.training.validation import Validation

_CHECKS = 40  # how often a run scores the rows its folds hold out
_SCORE_DRAWS = 16  # posterior draws by which candidates are compared
_CHOICE_TIME, _FINAL_TIME = 0.5, 0.85  # of a time limit: to compare, and of what is left to train
_CHOICE_ROWS = 200  # held-out rows that choose
_CHOICE_LENGTH, _CHOICE_STEPS = 0.25, 200  # part of a whole run that they choose after, at least


@dataclass(frozen=True, eq=False)
class Group:
    """Networks of one table after training.

    Networks that diverged are left out.

    Args:
        members: sparse models of the networks on all rows.
        folds: those of the networks of each inner fold, one or two, pruned in the same way.
        history: one row of metrics per epoch, of the first member; what is measured on held-out
            rows is the mean over the folds.
        n_epochs: the epoch that was kept, from 1.
        kl: the KL weight that was kept.
        form: the form of the inputs that was kept.
        scores: log density per held-out row of every candidate that was tried, standardised units.
    """

    members: list[SparseModel]
    folds: list[list[SparseModel]]
    history: list[Row]
    n_epochs: int
    kl: float
    form: int
    scores: dict[Candidate, float]


@dataclass(frozen=True, eq=False)
class Form:
    """Tables in one form, such as with embedded columns, and the networks that read it.

    Args:
        tables: in this form.
        model: the architecture.
        engines: one for each table, with the starting means of this form.
    """

    tables: Sequence[Table]
    model: nn.Module
    engines: Sequence[AnyEngine]


def train_tables(
    tables: Sequence[Table],
    settings: Sequence[TableSettings],
    network: Callable[[int, tuple[int, ...]], nn.Module],
    likelihood: Likelihood,
    *,
    seed: int,
    device: str | None,
    pace: Pace,
) -> list[tuple[Group, TableSettings]]:
    """Train the networks of several tables as one population, embedded or not as folds decide.

    Args:
        tables: with their inner folds.
        settings: one for each; they differ in the numbers of their engines only.
        network: makes a network of a number of inputs and the widths of its hidden layers.
        likelihood: how outputs become densities.
        seed: of starts, noise and batches.
        device: where to train; None is the CPU.
        pace: the time there is.

    Returns:
        For each table its networks, as functions of the columns, and the settings that were kept.
    """
    first = settings[0]
    embedded_widths, plain_widths = first.widths
    plain = tables, network(tables[0].x.shape[1], plain_widths)
    shapes, embeddings = list[tuple[Sequence[Table], nn.Module]](), list[PiecewiseLinear]()
    if first.bins:
        rows = [table.x[table.counts() > 0] for table in tables]
        binned = torch.stack([has_more_than_two(x) for x in rows]).any(0)  # one width for all
        embeddings = [PiecewiseLinear.of(x, first.bins, binned) for x in rows]
        pairs = zip(tables, embeddings, strict=True)
        embedded = [replace(table, x=embed(table.x)) for table, embed in pairs]
        shapes = [(embedded, network(embedded[0].x.shape[1], embedded_widths))]
    shapes += [plain] * (len(first.starts) - len(shapes))
    forms = [
        Form(*shape, [_started(each.engine, start) for each in settings])
        for shape, start in zip(shapes, first.starts, strict=True)
    ]
    training = replace(first, seed=seed, device=device, pace=pace)
    found = []
    for i, group in enumerate(_grouped(forms, likelihood, training)):
        bins = settings[i].bins if embeddings and group.form == 0 else 0
        if bins:
            members = [_behind(model, embeddings[i]) for model in group.members]
            folds = [[_behind(model, embeddings[i]) for model in fold] for fold in group.folds]
            group = replace(group, members=members, folds=folds)
        engine = forms[group.form].engines[i]
        found.append((group, replace(settings[i], engine=engine, bins=bins)))
    return found


def _started(engine: AnyEngine, start: Start | None) -> AnyEngine:
    return engine if start is None else replace(engine, start=start)  # type: ignore[type-var]


def _behind(model: SparseModel, embedding: nn.Module) -> SparseModel:
    network, posterior = model.network, cast(Factorised, model.posterior)
    layers = OrderedDict([("embedding", embedding), *network.skeleton.named_children()])
    network = replace(network, skeleton=nn.Sequential(layers), _batched=[])
    buffers = {f"embedding.{name}": value for name, value in embedding.named_buffers()}
    return replace(model, posterior=replace(posterior, network=network, buffers=buffers))


def _grouped(forms: Sequence[Form], likelihood: Likelihood, training: Training) -> list[Group]:
    """Choose among the candidates where there are several, then train every table."""
    n_tables = len(forms[0].tables)
    tried: list[dict[Candidate, float]] = [{} for _ in range(n_tables)]
    chosen = [training.candidates[0]] * n_tables
    if len(training.candidates) > 1 and all(table.held_out for table in forms[0].tables):
        for number, form in enumerate(forms):
            population = _Population(form, likelihood, training)
            for scores, new in zip(tried, population.compare(number, len(forms)), strict=True):
                scores |= new
        chosen = [max(scores, key=scores.__getitem__) for scores in tried]
    groups: dict[int, Group] = {}
    n_left = len({candidate.form for candidate in chosen})
    for number, form in enumerate(forms):
        these = [i for i in range(n_tables) if chosen[i].form == number]
        if these:
            some = [form.tables[i] for i in these], form.model, [form.engines[i] for i in these]
            population = _Population(Form(*some), likelihood, training)
            found = population.finish([chosen[i] for i in these], _FINAL_TIME / n_left)
            groups |= dict(zip(these, found, strict=True))
            n_left -= 1
    return [replace(groups[i], scores=tried[i]) for i in range(n_tables)]


def fold_members(n_members: int) -> int:
    """Networks of each inner fold: a second one shows what averaging does to the density.

    Example:
        >>> [fold_members(n) for n in (1, 2, 5)]
        [1, 2, 2]
    """
    return min(n_members, 2)


class _Net(NamedTuple):
    """One network of the population: its rows and held-out rows in the stacked tables."""

    table: int
    kl: float
    rows: Tensor
    held_out: Tensor


class _Population:
    """The networks of some tables in one form, whose rows are stacked."""

    def __init__(self, form: Form, likelihood: Likelihood, training: Training) -> None:
        self.form, self.likelihood, self.training = form, likelihood, training
        x, y, _ = stacked([(table.x, table.y) for table in form.tables])
        weighted = any(table.weight is not None for table in form.tables)
        counts = torch.cat([table.counts() for table in form.tables]) if weighted else None
        self.stack = Table(x, y, counts)
        self.places = torch.arange(len(x)).split([len(table) for table in form.tables])
        self.nets: list[_Net] = []

    def add(self, table: int, kl: float, held_out: Tensor | None = None) -> None:
        """A network on all rows of a table, or on all but some."""
        rows = self.places[table]
        if held_out is None:
            self.nets.append(_Net(table, kl, rows, rows[:0]))
        else:
            mask = torch.ones(len(rows), dtype=torch.bool)
            mask[held_out] = False
            self.nets.append(_Net(table, kl, rows[mask], rows[held_out]))

    def compare(self, number: int, n_forms: int) -> list[dict[Candidate, float]]:
        """Held-out log density of every candidate of form `number`, by short runs on first folds.

        Of real targets it is the density with the noise and the tails that suit these rows, since
        the delivered density is corrected in the same way.
        """
        training, owners = self.training, list[tuple[int, Candidate]]()
        for i, table in enumerate(self.form.tables):
            n_folds = max(1, round(_CHOICE_ROWS / len(table.held_out[0])))
            for candidate in training.candidates:
                if candidate.form == number:
                    for held_out in table.held_out[:n_folds]:
                        self.add(i, candidate.kl, held_out)
                        owners.append((i, candidate))
        per_epoch = math.ceil(min(len(net.rows) for net in self.nets) / training.batch_size)
        least = math.ceil(_CHOICE_STEPS / per_epoch)
        epochs = min(training.epochs, max(least, round(_CHOICE_LENGTH * training.epochs)))
        shorter = replace(training, epochs=epochs, steps=None, pruning=None, rule=None)
        what, share = f"compare ({number + 1} of {n_forms})", _CHOICE_TIME / (n_forms - number)
        run = self.train(shorter, None, what, share)
        scores: list[dict[Candidate, float]] = [{} for _ in self.form.tables]
        for i, candidate in dict.fromkeys(owners):
            pairs = [
                ([run.sparse(j).to("cpu")], self.nets[j].held_out)
                for j in run.sound if owners[j] == (i, candidate)
            ]  # fmt: skip
            scores[i][candidate] = _score(self.stack, pairs) if pairs else -math.inf
        return scores

    def finish(self, chosen: Sequence[Candidate], share: float) -> list[Group]:
        """Train members and folds of every table with what was chosen for it."""
        training, tables = self.training, self.form.tables
        for i, (table, candidate) in enumerate(zip(tables, chosen, strict=True)):
            for _ in range(training.n_members):
                self.add(i, candidate.kl)
            for held_out in table.held_out:
                for _ in range(fold_members(training.n_members)):
                    self.add(i, candidate.kl, held_out)
        watched = None
        if training.patience is not None and all(table.held_out for table in tables):
            watched = Validation(
                Examples(self.stack.x, self.stack.y),
                patience=training.patience,
                every=max(1, training.epochs // _CHECKS),
                rows=_watched_rows([net.held_out for net in self.nets], self.stack.counts()),
                groups=tuple(net.table for net in self.nets),
            )
        run = self.train(training, watched, "train", share)
        groups = [self._group(run, i, watched, one) for i, one in enumerate(chosen)]
        if not all(group.members for group in groups):
            raise nothing_left(run)
        return groups

    def train(self, training: Training, watched: Validation | None, what: str, share: float) -> Fit:
        """Train all in a share of the time left; each row of a network counts 1/κ times."""
        nets, pace, rows = self.nets, training.pace, None
        if len(nets) > 1:
            rows = Rows.of([net.rows for net in nets])
            if any(net.kl != 1 for net in nets):
                kls = torch.tensor([net.kl for net in nets])[:, None]
                rows = Rows(rows.index, _real(rows) / kls)
        elif nets[0].kl != 1:
            schedule = training.schedule
            training = replace(training, schedule=replace(schedule, kl=nets[0].kl * schedule.kl))
        each = [self.form.engines[net.table] for net in nets]
        run = partial(train_networks, self.form.model, self.likelihood, self.stack, rows, each)
        callbacks: Sequence[Callback] = ()
        if pace is not None:
            callbacks = pace.callbacks(f"{what}: {len(nets)} networks")
            if pace.deadline is not None:
                began = pace.clock()
                run(replace(training, steps=REHEARSED, pruning=None))
                seconds = (pace.clock() - began) / REHEARSED
                n_rows = len(self.stack) if rows is None else rows.n
                training = _cut(training, n_rows, pace.affordable(seconds, share))
        return run(training, validation=watched, callbacks=callbacks)

    def _group(
        self, run: Fit, number: int, watched: Validation | None, candidate: Candidate
    ) -> Group:
        """Models and history of the networks of one table."""
        training, n = self.training, self.training.n_members
        indices = [i for i, net in enumerate(self.nets) if net.table == number]
        sound, per_fold = set(run.sound), fold_members(n)

        def models(some: Sequence[int]) -> list[SparseModel]:
            found = [run.sparse(i).to("cpu") for i in some if i in sound]
            return found if training.rule is None else [prune(one, training.rule) for one in found]

        folds = [models(indices[i : i + per_fold]) for i in range(n, len(indices), per_fold)]

        def entry(name: str, value: Any) -> Any:
            if not isinstance(value, list):
                return value
            if watched is not None and name.startswith("val_"):
                return watched.by_group(value)[number]
            return value[indices[0]]

        history = [{name: entry(name, value) for name, value in row.items()} for row in run.history]
        n_epochs = len(history)
        if watched is not None:  # the epoch the group returned to
            end = 0.0 if training.pruning is None else training.pruning.end
            late = [row for row in history if row["epoch"] / training.epochs >= end]
            n_epochs = min((row["val_nll"], row["epoch"]) for row in late if "val_nll" in row)[1]
        kl = candidate.kl * training.schedule.kl
        return Group(models(indices[:n]), folds, history, n_epochs, kl, candidate.form, {})


def _cut(training: Training, n_rows: int, most: int | None) -> Training:
    """The training with at most so many steps, its whole course of rates in them."""
    per_epoch = math.ceil(n_rows / min(training.batch_size, n_rows))
    steps = training.steps or training.epochs * per_epoch
    if most is None or most >= steps:
        return training
    schedule = training.schedule
    warmup = schedule.kl_warmup_epochs * most / steps
    schedule = replace(schedule, kl_warmup_epochs=warmup)
    epochs = math.ceil(most / per_epoch)
    return replace(training, steps=most, epochs=epochs, schedule=schedule)


def _real(rows: Rows) -> Tensor:
    """1 for the rows of each network, 0 for those that fill up."""
    return torch.ones(rows.index.shape) if rows.weight is None else rows.weight


def _watched_rows(held_out: Sequence[Tensor], counts: Tensor) -> Rows:
    """Held-out rows of every network with what they count; those of weight 0 fill up."""
    nothing = torch.zeros(1, dtype=torch.int64)
    filled = Rows.of([rows if len(rows) else nothing for rows in held_out])
    empty = torch.tensor([len(rows) == 0 for rows in held_out])
    return Rows(filled.index, _real(filled) * counts[filled.index] * ~empty[:, None])


def _score(table: Table, pairs: Sequence[tuple[list[SparseModel], Tensor]]) -> float:
    """Mean log predictive density of the rows that the networks of folds have not seen."""
    x, y, counts, rows = table.x, table.y, table.counts(), [index for _, index in pairs]
    if y.is_floating_point():
        found = [
            cast(RealPrediction, predict_members(models, x[index], _SCORE_DRAWS))
            for models, index in pairs
        ]
        likelihood = found[0].likelihood
        if likelihood.standardised:
            return likeliest_tails(found, [y[i] for i in rows], [counts[i] for i in rows])[1]
    targets = y.double() if y.is_floating_point() else y
    densities = [
        log_density(models, x[index], targets[index], _SCORE_DRAWS) for models, index in pairs
    ]
    weight = torch.cat([counts[index] for index in rows]).double()
    return float((torch.cat(densities) * weight).sum() / weight.sum())
