"""Settings of a fit to one table: the recipe of its engine, and the estimator's inner folds.

The numbers of engine, schedule and length are those of `engines.recipes` for tables. Chosen here:
widths, folds, candidates for the weight of the prior, patience and pruning. docs/tables.md says how
they were measured.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from bayesieve.checks import check_choice, check_fraction, check_positive
from bayesieve.core.priors import GaussianLaplace
from bayesieve.engines import Engine, recipes
from bayesieve.engines.recipes import EngineConfig, EngineName, RunSize
from bayesieve.sieve.schedule import GradualPruning
from bayesieve.sieve.scores import ScoreName
from bayesieve.training.schedule import Schedule

Task = Literal["regression", "classification"]

_LARGE = 10_000  # rows from which the network has two layers of 100
_FOLDED_ROWS = 3000  # tables of at most so many rows have five folds, others one
_KLS = (1.0, 0.3, 0.1)  # the folds choose from these: see docs/tables.md


@dataclass(frozen=True)
class TableEngine:
    """An engine for tables, by name or as an object.

    Args:
        name: short name.
        build: makes it for a run of some size.
        learned_noise: whether the likelihood may learn its noise (else the engine does).
        takes_weights: whether rows may count differently, which folds need too.
    """

    name: EngineName
    build: Callable[[RunSize], Engine[Any]]
    learned_noise: bool = True
    takes_weights: bool = True

    @property
    def variational(self) -> bool:
        """Whether the prior has a weight, which the folds choose; such engines never stop early."""
        return recipes.ENGINES[self.name].course == "variational"

    @property
    def folded(self) -> bool:
        """Whether folds are used unless asked for; a chain needs all its steps."""
        return recipes.ENGINES[self.name].course != "steady"

    @property
    def gradual(self) -> bool:
        """Whether weights can go during training, else they go after it."""
        return self.folded and recipes.ENGINES[self.name].prunes == "schedule"

    @property
    def score(self) -> ScoreName:
        """The score by which weights are ranked."""
        entry = recipes.ENGINES[self.name]
        return "magnitude" if entry.course == "point" else "snr"


def table_engine(
    who: str, engine: str | Engine[Any], task: Task, lr: float | None = None
) -> TableEngine:
    """The engine given by name, or as an object whose open numbers the recipe fills in."""
    if isinstance(engine, str):
        check_choice(who, "engine", engine, recipes.ENGINES)
        name: Any = engine
        takes_weights = not recipes.ENGINES[name].passes

        def build(size: RunSize) -> Engine[Any]:
            config = recipes.resolve_engine(
                _plain(name, lr), own_start=False, task=task, n_data=size.n_data, table=True
            )
            return recipes.build_engine(config, size)

        return TableEngine(name, build, takes_weights=takes_weights)
    known = recipes.name_of(engine)
    if known is None:
        raise TypeError(
            f"{who}: engine must be one of {', '.join(recipes.ENGINES)} or an engine such as "
            f"SBNN(), got {engine!r}."
        )
    if lr is not None:
        raise ValueError(f"{who}: lr is for engines given by name; set it in the engine.")
    learns_prior = isinstance(getattr(engine, "prior", None), GaussianLaplace)
    return TableEngine(
        known,
        lambda size: recipes.complete(engine, size),
        learned_noise=not learns_prior,
        takes_weights=not (recipes.ENGINES[known].passes or learns_prior),
    )


def _plain(name: EngineName, lr: float | None) -> EngineConfig:
    """Settings of a named engine; chains have a fixed normal prior, whatever the task."""
    chain = recipes.ENGINES[name].kind in ("SGLD", "SGHMC")
    return EngineConfig(name, prior="normal" if chain else None, lr=lr)


@dataclass(frozen=True)
class TableSettings:
    """Every setting of a fit to one table.

    Args:
        engine: the engine.
        learned_noise: whether the likelihood may learn its noise (else the engine does).
        takes_weights: whether rows may count differently.
        widths: units of each hidden layer.
        epochs: passes over the rows.
        batch_size: rows per step.
        schedule: of learning rate and prior weight.
        kls: candidates for the weight of the prior, times that of the schedule.
        folds: inner folds.
        patience: epochs without a better score of the folds before stopping; None never stops.
        pruning: which weights go during training; None keeps all.
        score: which weights go first.
    """

    engine: Engine[Any]
    learned_noise: bool
    takes_weights: bool
    widths: tuple[int, ...]
    epochs: int
    batch_size: int
    schedule: Schedule
    kls: tuple[float, ...]
    folds: int
    patience: int | None
    pruning: GradualPruning | None
    score: ScoreName


def table_settings(
    engine: str | Engine[Any],
    task: Task,
    n_rows: int,
    *,
    hidden: object = None,
    epochs: int | None = None,
    batch_size: int | None = None,
    lr: float | None = None,
    schedule: Schedule | None = None,
    kl: float | None = None,
    folds: int | None = None,
    patience: int | None = None,
    zeros: float | None = None,
    who: str = "table_settings",
) -> TableSettings:
    """Recommended settings for a table; an argument that is not None replaces a recommendation.

    Args:
        engine: short name, or an engine such as `SBNN(...)`.
        task: "regression" or "classification".
        n_rows: rows to learn from.
        hidden: widths; else one layer of 50, or two of 100 from 10,000 rows on.
        epochs: else about 2,500 steps, within 20 to 400 epochs.
        batch_size: else 32 for small tables, up to 256 for large ones.
        lr: of an engine given by name.
        schedule: else the engine's.
        kl: weight of the prior; else chosen by the folds.
        folds: else 5, one that holds out a tenth for large tables, 0 for less than 20 rows.
        patience: else half of the run for engines that overfit, never for variational ones.
        zeros: fraction of the parameters to remove; else none.
        who: named in errors.

    Example:
        >>> recommended = table_settings("sbnn", "regression", 1000)
        >>> recommended.widths, recommended.epochs, recommended.batch_size, recommended.kls
        ((50,), 156, 64, (1.0, 0.3, 0.1))
    """
    entry = table_engine(who, engine, task, lr)
    if schedule is not None and kl is not None:
        raise ValueError(f"{who}: kl stands in the schedule too; give one of them.")
    if zeros is not None:
        check_fraction(who, zeros=zeros)
        if zeros == 1:
            raise ValueError(f"{who}: zeros must be below 1, got 1.")
    batch_size = _batch_size(who, batch_size, entry.name, n_rows)
    per_epoch = math.ceil(n_rows / batch_size)
    epochs = _epochs(who, epochs, entry.name, n_rows, batch_size)
    folds = _folds(who, folds, n_rows, entry)
    kls = (1.0,) if schedule is not None else _kls(who, kl, entry, folds)
    if patience is not None:
        check_positive(who, patience=patience)
    elif not entry.variational:
        patience = max(1, epochs // 2)
    if schedule is None:
        course = recipes.recommended_schedule(
            entry.name, task=task, n_epochs=epochs, n_data=n_rows, table=True
        )
        schedule = Schedule(**course | {"kl": kls[0] if len(kls) == 1 else 1.0})
    return TableSettings(
        engine=entry.build(RunSize(n_rows, epochs * per_epoch, per_epoch, task=task, table=True)),
        learned_noise=entry.learned_noise,
        takes_weights=entry.takes_weights,
        widths=_widths(who, hidden, n_rows),
        epochs=epochs,
        batch_size=batch_size,
        schedule=schedule,
        kls=kls if len(kls) > 1 else (1.0,),
        folds=folds,
        patience=patience,
        pruning=GradualPruning(zeros, 0.2, 0.6, entry.score) if zeros and entry.gradual else None,
        score=entry.score,
    )


def _widths(who: str, hidden: object, n_rows: int) -> tuple[int, ...]:
    if hidden is None:
        return (50,) if n_rows < _LARGE else (100, 100)
    widths = tuple(hidden) if isinstance(hidden, tuple | list) else (hidden,)
    if not all(isinstance(width, int) and width > 0 for width in widths):
        raise ValueError(
            f"{who}: hidden must be a tuple of widths > 0, such as (50, 50), got {hidden!r}."
        )
    return widths


def _batch_size(who: str, batch_size: int | None, name: EngineName, n_rows: int) -> int:
    if batch_size is None:
        return min(n_rows, recipes.recommended_batch_size(name, n_rows, table=True))
    check_positive(who, batch_size=batch_size)
    return min(batch_size, n_rows)


def _epochs(who: str, epochs: int | None, name: EngineName, n_rows: int, batch_size: int) -> int:
    if epochs is None:
        return recipes.recommended_epochs(name, n_rows, batch_size, table=True)
    check_positive(who, epochs=epochs)
    if epochs != int(epochs):
        raise TypeError(f"{who}: epochs must be a whole number, got {epochs}.")
    return int(epochs)


def _folds(who: str, folds: int | None, n_rows: int, entry: TableEngine) -> int:
    if folds is None:
        if n_rows < 20 or not (entry.takes_weights and entry.folded):
            return 0
        return 5 if n_rows <= _FOLDED_ROWS else 1
    if not isinstance(folds, int) or folds < 0 or folds > n_rows:
        raise ValueError(f"{who}: folds must be 0 to {n_rows} (the rows), got {folds!r}.")
    if folds and not entry.takes_weights:
        raise ValueError(
            f"{who}: this engine counts every row once and cannot be watched by folds; set folds=0."
        )
    return folds


def _kls(who: str, kl: float | None, entry: TableEngine, folds: int) -> tuple[float, ...]:
    if kl is not None:
        check_positive(who, kl=kl)
        return (kl,)
    if not entry.variational:
        return (1.0,)
    return _KLS if folds else (recipes.TABLE_KL,)
