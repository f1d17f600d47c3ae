"""Many networks on the rows of a table, trained as one population and read as one mixture.

This is the one harness for folds, bootstrap samples, published splits, members of an ensemble,
seeds and settings: networks of one architecture, each with a set of rows.

- `train_networks` trains one network per set of rows. Estimators, selection and studies call it.
- `train_groups` is what an estimator's `fit` does. A group has one or more networks that learn from
  all rows of a table (the members of an ensemble), and as many per inner fold that learn from the
  other folds, so that no row is lost to validation. Where the weight κ of the prior is open, a
  table has one group for each candidate and keeps the one whose folds best predict their held-out
  rows; counting every row 1/κ times is the same as weighing the prior by κ. With patience, the
  folds' score also decides when each group stops.
- `PopulationFits` are the `TableFits` that selection by networks asks for.
- `predict_members` and `log_density` average the draws of several networks. They compute in double
  precision, because a prediction must not depend on which other rows are asked for at the same
  time; single-precision matrix products do, in the last digits.
"""

import dataclasses
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from scipy.optimize import minimize_scalar
from torch import Tensor, nn

from bayesieve.assess.predict import (
    FEWEST_DRAWS,
    MOST_DRAWS,
    ClassPrediction,
    Prediction,
    RealPrediction,
    how_drawn,
    predict,
    relative_error,
    weight_vectors,
)
from bayesieve.checks import check_positive
from bayesieve.core.batch import Rows, stacked
from bayesieve.core.likelihoods import Likelihood, RealLikelihood, pooled
from bayesieve.core.network import NUMBERS_PREFIX
from bayesieve.core.posterior import Posterior, Samples, SparseModel, draws_of, posterior_of
from bayesieve.core.problem import Problem
from bayesieve.data.examples import Examples
from bayesieve.engines import Engine
from bayesieve.errors import DivergedError
from bayesieve.select import Source, feature_importance
from bayesieve.sieve.prune import prune
from bayesieve.sieve.rules import Rule
from bayesieve.sieve.schedule import GradualPruning
from bayesieve.training.fit import Fit, fit
from bayesieve.training.options import Row, Validation
from bayesieve.training.schedule import Schedule

DTYPE = torch.float32
_CHECKS = 40  # how often a run scores the rows its folds hold out
_SCORE_DRAWS = 16  # posterior draws by which candidates are compared
_ROWS_AT_ONCE = 300  # up to so many, one batched product of all draws beats one product a draw
_NETWORKS_FOR_DRAWS = 3  # that decide how many draws a prediction takes, by so many rows each
_LOG_NOISES = (math.log(1e-4), math.log(10.0))  # of standardised targets


@dataclass(frozen=True, eq=False)
class Table:
    """Rows that networks learn from.

    Args:
        x: (n, p), standardised.
        y: class numbers (n,), int64, or standardised targets (n,) or (n, m).
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
        """How much each row counts, (n,)."""
        return torch.ones(len(self), dtype=DTYPE) if self.weight is None else self.weight

    def with_folds(self, n_folds: int, seed: int) -> "Table":
        """The table with inner folds, each with about as many of every class.

        One fold holds out a tenth, more folds share out all rows. A fold of which one side counts
        for nothing is left out.

        Example:
            >>> table = Table(torch.zeros(10, 1), torch.zeros(10, 1)).with_folds(3, seed=0)
            >>> [len(rows) for rows in table.held_out]
            [4, 3, 3]
        """
        order = torch.randperm(len(self), generator=torch.Generator().manual_seed(seed))
        if not self.y.is_floating_point():
            order = order[self.y[order].sort(stable=True).indices]
        stride = 10 if n_folds == 1 else n_folds
        folds = [order[i::stride].sort().values for i in range(n_folds)]
        counts, total = self.counts(), float(self.counts().sum())
        usable = [rows for rows in folds if 0 < float(counts[rows].sum()) < total]
        return dataclasses.replace(self, held_out=usable)


@dataclass(frozen=True)
class Training:
    """How every network of a population is trained.

    Args:
        epochs: passes over its rows.
        batch_size: examples per step.
        schedule: of learning rate and prior weight.
        patience: epochs without a better score of the folds before a group stops, at its best
            epoch; None trains to the end.
        n_members: networks per set of rows, which differ in their random numbers and are averaged.
        kls: candidates for the weight of the prior, times that of the schedule.
        pruning: which weights go during training; None keeps all.
        rule: which weights go once training has ended, of engines that do not prune by schedule.
        seed: of starts, noise and batches.
        at_once: networks trained as one population at most; memory grows with it.
        device: where to train; None stays where the model is.
        steps: gradient steps, in place of epochs.
    """

    epochs: int = 100
    batch_size: int = 100
    schedule: Schedule = field(default_factory=lambda: Schedule(lr="cosine"))
    patience: int | None = None
    n_members: int = 1
    kls: tuple[float, ...] = (1.0,)
    pruning: GradualPruning | None = None
    rule: Rule | None = None
    seed: int = 0
    at_once: int = 256
    device: str | None = None
    steps: int | None = None

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
    engine: Engine[Any] | Sequence[Engine[Any]],
    training: Training,
    *,
    validation: Validation | None = None,
    start_from: SparseModel | None = None,
) -> Fit:
    """Train one network per set of rows as one population.

    Args:
        model: the architecture; its weights serve the first network.
        likelihood: how outputs become densities.
        table: the rows of all networks; tables of one width go one below the other (`stacked`).
        rows: training rows of each network, as `Rows.of` makes them from index vectors; None
            trains one network on all rows.
        engine: one for all networks, or one for each; these may differ in numbers only.
        training: how long, in which batches, with which seed; `n_members`, `kls` and `at_once` are
            the caller's to spread over `rows`.
        validation: held-out rows to score while training.
        start_from: a model to continue from.

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
    )


@dataclass(frozen=True, eq=False)
class Group:
    """Networks of one table after training.

    Networks that diverged are left out.

    Args:
        members: sparse models of the networks on all rows.
        folds: those of the networks of each inner fold, as many and pruned in the same way.
        history: one row of metrics per epoch, of the first member; what is measured on held-out
            rows is the mean over the folds.
        n_epochs: the epoch that was kept, from 1.
        kl: the weight of the prior that was kept.
        score: log predictive density per held-out row, in standardised units; -inf without folds.
    """

    members: list[SparseModel]
    folds: list[list[SparseModel]]
    history: list[Row]
    n_epochs: int
    kl: float
    score: float


@dataclass(frozen=True, eq=False)
class _Net:
    """One network of the population: its rows and held-out rows in the stacked table."""

    table: int
    group: int
    kl: float
    rows: Tensor
    held_out: Tensor


def train_groups(
    tables: Sequence[Table],
    engines: Sequence[Engine[Any]],
    model: nn.Module,
    likelihood: Likelihood,
    training: Training,
) -> list[Group]:
    """Fit every table with its engine; the engines may differ in numbers only."""
    x, y, _ = stacked([(table.x, table.y) for table in tables])
    counts = torch.cat([table.counts() for table in tables])
    weighted = any(table.weight is not None for table in tables)
    nets = _networks(tables, training)
    rows = None
    if len(nets) > 1:
        rows = Rows.of([net.rows for net in nets])
        if len(training.kls) > 1:  # each row counts 1/κ times
            kls = torch.tensor([net.kl for net in nets])[:, None]
            rows = Rows(rows.index, _real(rows) / kls)
    watched = None
    if training.patience is not None and all(table.held_out for table in tables):
        watched = Validation(
            Examples(x, y),
            patience=training.patience,
            every=max(1, training.epochs // _CHECKS),
            rows=_watched_rows([net.held_out for net in nets], counts),
            groups=tuple(net.group for net in nets),
        )
    run = train_networks(
        model,
        likelihood,
        Table(x, y, counts if weighted else None),
        rows,
        [engines[net.table] for net in nets],
        training,
        validation=watched,
    )
    groups = [_group(run, nets, i, watched, training) for i in range(nets[-1].group + 1)]
    n = len(training.kls)
    candidates = [groups[start : start + n] for start in range(0, len(groups), n)]
    best = [
        max(same_table, key=lambda group: (bool(group.members), group.score))
        for same_table in candidates
    ]
    if not all(group.members for group in best):
        raise _nothing_left(run)
    return best


def _nothing_left(run: Fit) -> DivergedError:
    return DivergedError(
        f"{type(run.engine).__name__}: every network on a table diverged. Lower lr, or bring wild "
        "rows to the scale of the others."
    )


def _networks(tables: Sequence[Table], training: Training) -> list[_Net]:
    """Of each table and candidate, which make a group, the members, then the folds."""
    nets: list[_Net] = []
    start, group = 0, 0
    for number, table in enumerate(tables):
        everything = torch.arange(start, start + len(table))
        for kl in training.kls:
            whole = _Net(number, group, kl, everything, everything[:0])
            nets += [whole] * training.n_members
            for held_out in table.held_out:
                mask = torch.ones(len(table), dtype=torch.bool)
                mask[held_out] = False
                fold = _Net(number, group, kl, everything[mask], everything[held_out])
                nets += [fold] * training.n_members
            group += 1
        start += len(table)
    return nets


def _real(rows: Rows) -> Tensor:
    """1 for the rows of each network, 0 for those that fill up."""
    return torch.ones(rows.index.shape) if rows.weight is None else rows.weight


def _watched_rows(held_out: Sequence[Tensor], counts: Tensor) -> Rows:
    """Held-out rows of every network with what they count; those of weight 0 fill up."""
    nothing = torch.zeros(1, dtype=torch.int64)
    filled = Rows.of([rows if len(rows) else nothing for rows in held_out])
    empty = torch.tensor([len(rows) == 0 for rows in held_out])
    return Rows(filled.index, _real(filled) * counts[filled.index] * ~empty[:, None])


def _group(
    run: Fit, nets: Sequence[_Net], number: int, watched: Validation | None, training: Training
) -> Group:
    """Models, history and score of the networks of one group."""
    indices, n = [i for i, net in enumerate(nets) if net.group == number], training.n_members
    sound = set(run.sound)

    def models(some: Sequence[int]) -> list[SparseModel]:
        found = [run.sparse(i).to("cpu") for i in some if i in sound]
        return found if training.rule is None else [prune(one, training.rule) for one in found]

    folds = [models(indices[i : i + n]) for i in range(n, len(indices), n)]

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
    return Group(
        models(indices[:n]),
        folds,
        history,
        n_epochs,
        nets[indices[0]].kl * training.schedule.kl,
        _score(run.problem, folds, [nets[i].held_out for i in indices[n::n]]),
    )


def _score(
    problem: Problem, folds: Sequence[Sequence[SparseModel]], held_out: Sequence[Tensor]
) -> float:
    """Mean log predictive density of the rows that the folds have not seen."""
    pairs = [(models, rows) for models, rows in zip(folds, held_out, strict=True) if models]
    if not pairs:
        return -math.inf
    x, y = problem.x.cpu(), problem.y.cpu()
    counts = torch.ones(len(x)) if problem.weight is None else problem.weight.cpu()
    targets = y.double() if y.is_floating_point() else y
    densities = [
        log_density(models, x[rows], targets[rows], _SCORE_DRAWS) for models, rows in pairs
    ]
    weight = torch.cat([counts[rows] for _, rows in pairs]).double()
    return float((torch.cat(densities) * weight).sum() / weight.sum())


@dataclass(frozen=True, eq=False)
class PopulationFits:
    """`TableFits` by one engine and network: all fits asked for at once train as one problem.

    Args:
        x: (N, D), standardised inputs.
        y: (N,) or (N, m), targets; int64 class numbers for a classification.
        model: network on D inputs; its weights serve the first network.
        likelihood: how its outputs become densities.
        engine: the algorithm.
        training: how long, and how many at once.
        source: where the probability of a weight comes from (see `feature_importance`).
        weight: (N,), what each row counts while training; None counts all once.

    Example:
        >>> from bayesieve import MAP
        >>> from bayesieve.core.likelihoods import Gaussian
        >>> x = torch.randn(64, 2, generator=torch.Generator().manual_seed(0))
        >>> training = Training(epochs=40, batch_size=16)
        >>> net = nn.Sequential(nn.Linear(2, 1))
        >>> fits = PopulationFits(x, x[:, 0], net, Gaussian(), MAP(lr=0.1), training, "magnitude")
        >>> fits.importance([torch.arange(32), torch.arange(32, 64)]).round().tolist()
        [[1.0, 0.0], [1.0, 0.0]]
    """

    x: Tensor
    y: Tensor
    model: nn.Module
    likelihood: Likelihood
    engine: Engine[Any]
    training: Training = field(default_factory=Training)
    source: Source | None = None
    weight: Tensor | None = None

    def importance(self, rows: Sequence[Tensor]) -> Tensor:
        """Normalised importance φ from fits on each set of rows, averaged over members, (k, D)."""
        phis = [
            torch.stack([feature_importance(q, source=self.source).phi for q in members]).mean(0)
            for members in self.posteriors(rows)
        ]
        return torch.stack(phis).cpu()

    def errors(self, rows: Sequence[Tensor], held_out: Sequence[Tensor], keep: Tensor) -> Tensor:
        """Squared error (negative log-likelihood of classes) per held-out example, (k,).

        Each fit sees only the inputs its line of `keep`, (k, D), has True.
        """
        errors = [
            self._error(members, self.x[test] * mask, self.y[test])
            for members, test, mask in zip(self.posteriors(rows, keep), held_out, keep, strict=True)
        ]
        return torch.stack(errors)

    def posteriors(
        self, rows: Sequence[Tensor], keep: Tensor | None = None
    ) -> list[list[Posterior]]:
        """Posteriors of `n_members` networks per set of rows that see the inputs `keep`, (k, D).

        Networks that diverged are left out; a set of rows on which all did raises.
        """
        n = self.training.n_members
        per_run = max(1, self.training.at_once // n)
        fitted: list[list[Posterior]] = []
        for start in range(0, len(rows), per_run):
            block = slice(start, start + per_run)
            run = self._train(rows[block], None if keep is None else keep[block])
            sound = set(run.sound)
            for first in range(0, run.n_models, n):
                numbers = [i for i in range(first, first + n) if i in sound]
                if not numbers:
                    raise _nothing_left(run)
                fitted.append([run.engine.posterior(run.problem, run.state, i) for i in numbers])
        return fitted

    def _train(self, rows: Sequence[Tensor], keep: Tensor | None) -> Fit:
        table, n = Table(self.x, self.y, self.weight), self.training.n_members
        if keep is not None:
            # A column of zeros teaches nothing: the fit is that of a network without the input.
            x = torch.cat([self.x[r] * mask for r, mask in zip(rows, keep, strict=True)])
            weight = None if self.weight is None else torch.cat([self.weight[r] for r in rows])
            table = Table(x, torch.cat([self.y[r] for r in rows]), weight)
            rows = torch.arange(len(x)).split([len(r) for r in rows])
        members = Rows.of([r for r in rows for _ in range(n)])
        return train_networks(
            self.model, self.likelihood, table, members, self.engine, self.training
        )

    def _error(self, posteriors: Sequence[Posterior], x: Tensor, y: Tensor) -> Tensor:
        prediction = pooled([predict(q, x) for q in posteriors])
        if isinstance(prediction, ClassPrediction):
            probs = prediction.probs
            return -probs[torch.arange(len(y)), y.to(probs.device)].log().mean().cpu()
        return (prediction.mean.cpu() - y.reshape(len(y), -1)).square().mean()


def predict_members(
    models: Sequence[Posterior | SparseModel], x: Tensor, n_samples: int
) -> Prediction:
    """The mixture of all networks' draws on standardised inputs, (n, p).

    Args:
        models: networks of one architecture.
        x: standardised inputs.
        n_samples: posterior draws of each; a set of samples is used whole, a point once.
    """
    predictions = []
    for i, model in enumerate(models):
        posterior = posterior_of(model).to("cpu", torch.float64)
        n = draws_of(posterior, n_samples)
        predictions.append(predict(posterior, x.double(), n_samples=n, seed=i))
    return pooled(predictions)


def needed_draws(
    models: Sequence[Posterior | SparseModel], table: "Table", rows: Sequence[Tensor]
) -> int:
    """The draws after which the likelihood of rows is known to 2 %: 32, 64, 128 or 256.

    32 draws tell their own error, which falls as 1 / √draws; so few are enough to know how many a
    prediction needs. Of the first networks the median decides, since single ones are noisy.

    Args:
        models: networks, each with its rows.
        table: standardised inputs and targets.
        rows: row numbers, best such as the network has not seen.
    """
    counts = []
    for model, index in list(zip(models, rows, strict=True))[:_NETWORKS_FOR_DRAWS]:
        posterior = posterior_of(model)
        if isinstance(posterior, Samples):  # all that were kept are used
            return len(posterior.draws)
        some = index[:_ROWS_AT_ONCE]
        prediction = _drawn(posterior.to("cpu", torch.float64), table.x[some], FEWEST_DRAWS)
        counts.append(FEWEST_DRAWS * relative_error(prediction, table.y[some]) ** 2)
    doublings = math.ceil(math.log2(max(statistics.median(counts) / FEWEST_DRAWS, 1.0)))
    return int(min(FEWEST_DRAWS * 2**doublings, MOST_DRAWS))


def _drawn(posterior: Posterior, x: Tensor, n_samples: int, seed: int = 0) -> Prediction:
    """The prediction of n draws for few rows, all draws in one batched product."""
    network, x = posterior.network, x.double()
    w = torch.cat([block for block, _ in weight_vectors(posterior, n_samples, seed)])
    buffers = {name: v.expand(len(w), *v.shape) for name, v in posterior.buffers.items()}
    output = network.member_outputs(w, x.expand(len(w), *x.shape), buffers)
    prediction = network.likelihood.predictive(output, network.numbers(w))
    return dataclasses.replace(prediction, drawn=how_drawn(posterior, n_samples))


def log_density(
    models: Sequence[Posterior | SparseModel], x: Tensor, targets: Tensor, n_samples: int
) -> Tensor:
    """Log of the mixture's density of standardised targets, (n, m), or of labels, (n,); (n,)."""
    densities = []
    for i, model in enumerate(models):
        posterior = posterior_of(model).to("cpu", torch.float64)
        n = draws_of(posterior, n_samples)
        parts = zip(x.split(_ROWS_AT_ONCE), targets.split(_ROWS_AT_ONCE), strict=True)
        drawn = [_drawn(posterior, part, n, i).log_densities(target) for part, target in parts]
        densities.append(torch.cat(drawn, 1))
    together = torch.cat(densities)
    return torch.logsumexp(together, 0) - math.log(len(together))


def held_out_noise(
    predictions: Sequence[RealPrediction], targets: Sequence[Tensor], counts: Sequence[Tensor]
) -> float:
    """Standard deviation of the noise under which targets not learned from are likeliest.

    Args:
        predictions: of the held-out rows of each fold.
        targets: theirs, (n, m) each.
        counts: how much each row counts, (n,) each.
    """

    def surprise(log_std: float) -> float:
        total = 0.0
        for prediction, target, count in zip(predictions, targets, counts, strict=True):
            means = prediction.sample_means.detach().double()
            std = torch.full_like(means, math.exp(log_std))
            densities = prediction.likelihood.log_density(target.double(), means, std).sum(-1)
            total -= float((torch.logsumexp(densities, 0) * count).sum())
        return total

    return math.exp(minimize_scalar(surprise, bounds=_LOG_NOISES, method="bounded").x)


def with_noise(model: SparseModel, noise_std: float) -> SparseModel:
    """A model of one weight vector with another level of noise, where its likelihood learned one.

    One weight vector leaves smaller residuals on the rows it was fitted to than on others, and the
    noise that is learned with it is that of the former.
    """
    posterior, network = cast(Samples, model.posterior), model.network
    draws = posterior.draws.clone()
    for name, value in cast(RealLikelihood, network.likelihood).numbers_for(noise_std).items():
        draws[:, network.layout.slices[NUMBERS_PREFIX + name]] = value
    return dataclasses.replace(model, posterior=dataclasses.replace(posterior, draws=draws))


def is_point(model: SparseModel) -> bool:
    """Whether a model is one weight vector, without doubt."""
    return isinstance(model.posterior, Samples) and len(model.posterior.draws) == 1
