"""Settings of a fit to one table: the recipe of its engine, its network, and the inner folds.

The numbers of engine, schedule and length are those of `engines.recipes` for tables. Chosen here:
widths, embedding and starting means of the network, folds, what they compare, patience and pruning.
docs/tables.md says how they were measured.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, cast

from bayesieve.checks import (
    AUTO,
    check_choice,
    check_fraction,
    check_not_negative,
    check_positive,
)
from bayesieve.core.priors_laplace import GaussianLaplace
from bayesieve.data.examples import Task
from bayesieve.engines import recipes
from bayesieve.engines.recipes import EngineName, RunSize
from bayesieve.estimators.population import AnyEngine, Candidate, Training
from bayesieve.sieve.ranking import ScoreName
from bayesieve.sieve.rules import keep_zeros
from bayesieve.sieve.schedule import GradualPruning
from bayesieve.training.schedule import Schedule

Start = Literal["module", "he"]
_FOLDS, _HELD_OUT = 5, 400  # folds of a table, and rows that they should hold out together
# The weights of the prior that folds choose from. Averaging holds an ensemble back too, but short
# runs on large tables prefer light priors that whole runs do not need.
_KLS, _ENSEMBLE_KLS = (1.0, 0.3, 0.1), (0.3, 0.1, 0.03, 0.01)
_EMBEDDED = 400  # inputs of a network that embeddings may make of the columns


@dataclass(kw_only=True, eq=False, repr=False)
class Choices:
    """Training parameters of an estimator; None leaves a choice to `table_settings`.

    Args:
        engine: how the posterior is found: "sbnn", "flat-vi", "map", "bmr", "horseshoe", "sghmc",
            "tdamp", or an engine such as `SBNN(...)`.
        hidden: units of each hidden layer; else two layers of 50, for one network on embedded
            columns one of 50, from 3,000 rows on two layers of 100.
        bins: of the piecewise linear embedding of every column (`nets.PiecewiseLinear`), which lets
            a network learn steps; 0 feeds the columns as they are. None lets the inner folds
            choose between none and the recommended number.
        epochs: passes over the rows, at most; else about 1,100 steps, within 20 to 400 epochs; an
            ensemble, which is asked for where accuracy is worth more than time, has two or three
            times as many.
        batch_size: rows per step; else 32 for small tables, up to 256 for large ones.
        lr: learning rate of an engine given by name.
        schedule: learning rate and KL weight over the run; else that of the engine.
        kl: KL weight; 1 is Bayes' rule, less trusts the rows more.
            None lets the inner folds choose.
        folds: inner folds, equal parts of the rows that are held out in turn, whose predictions
            choose the KL weight and, with patience, the epoch; 0 does without. None holds
            out as many of five parts as have 400 rows, a tenth of the rows of large tables, and
            none of less than 20 rows.
        patience: epochs without a better score of the folds before stopping; None is half of the
            run for engines that overfit ("map", "bmr"), and never for variational engines, which
            their prior holds back.
        zeros: fraction of the parameters to remove while training; else none.
        n_members: networks that are averaged, or chains; None is 2 for samplers, which are then
            compared, and 1 for others.
    """

    engine: str | AnyEngine = "sbnn"
    hidden: Sequence[int] | None = None
    bins: int | None = None
    epochs: int | None = None
    batch_size: int | None = None
    lr: float | None = None
    schedule: Schedule | None = None
    kl: float | None = None
    folds: int | None = None
    patience: int | None = None
    zeros: float | None = None
    n_members: int | None = None


@dataclass(frozen=True, kw_only=True)
class TableSettings(Training):
    """Every setting of a fit to one table: those of `Training`, and its engine and network.

    Args:
        engine: the engine.
        learned_noise: whether the likelihood may learn its noise (else the engine does).
        takes_weights: whether rows may count differently, which folds need too.
        widths: units of each hidden layer, where columns are embedded and where they are not.
        bins: of the piecewise linear embedding of each column; 0 without one.
        starts: starting means of each form of network, the one on embedded columns first if there
            is one; None leaves it to the engine.
        folds: inner folds that are held out in turn.
        parts: of the rows that each of them is one of.
    """

    engine: AnyEngine
    learned_noise: bool
    takes_weights: bool
    widths: tuple[tuple[int, ...], tuple[int, ...]]
    bins: int
    starts: tuple[Start | None, ...]
    folds: int
    parts: int


def table_settings(
    choices: Choices, task: Task, n_rows: int, n_columns: int, who: str = "table_settings"
) -> TableSettings:
    """Settings for a table: the choices that were made, and recommendations for the others.

    Args:
        choices: an estimator, or its training parameters.
        task: "regression" or "classification".
        n_rows: rows to learn from.
        n_columns: inputs.
        who: named in errors.

    Example:
        >>> recommended = table_settings(Choices(), "regression", 1000, 10)
        >>> recommended.widths, recommended.bins, recommended.batch_size
        (((50,), (50, 50)), 8, 64)
        >>> sorted({candidate.kl for candidate in recommended.candidates})
        [0.1, 0.3, 1.0]
    """
    engine, zeros = choices.engine, choices.zeros
    name = _checked(choices, who)
    entry = recipes.ENGINES[name]
    learns_prior = isinstance(getattr(engine, "prior", None), GaussianLaplace)
    takes_weights = not (entry.passes or learns_prior)
    n_members = choices.n_members or entry.n_chains or 1
    ensemble = n_members > 1 and entry.course in ("variational", "point")
    size = RunSize.of(
        name, n_rows, choices.epochs and int(choices.epochs), None, choices.batch_size,
        task=task, table=True, ensemble=ensemble,
    )  # fmt: skip
    folds = choices.folds
    if folds is None:  # a chain needs all its steps
        alone = n_rows < 20 or not takes_weights or entry.course == "steady"
        folds = 0 if alone else 1 if n_rows > recipes.MANY_ROWS else _enough_folds(n_rows)
    if not isinstance(folds, int) or folds < 0 or folds > n_rows:
        raise ValueError(f"{who}: folds must be 0 to {n_rows} (the rows), got {folds!r}.")
    if folds and not takes_weights:
        raise ValueError(
            f"{who}: this engine counts every row once and cannot be watched by folds; set folds=0."
        )
    parts = 10 if folds == 1 else choices.folds or _FOLDS
    patience = choices.patience
    if patience is None and entry.course != "variational":
        patience = max(1, size.n_epochs // 2)
    bins = choices.bins
    if bins is None:
        plain = entry.passes or choices.hidden in ((), [])
        bins = 0 if plain else table_bins(n_rows, n_columns)
    starts: tuple[Start | None, ...] = (None, None)
    if isinstance(engine, str) and "start" in entry.table:
        starts = table_starts(n_rows, task)
    starts = starts[0 if bins else 1 :]
    starts = starts[:1] if not folds or (choices.bins and bins) else starts
    kls: tuple[float, ...] = (1.0,)
    schedule = choices.schedule
    if schedule is None:
        course = recipes.recommended_schedule(name, size)
        if choices.kl is not None:
            course["kl"] = choices.kl
        elif entry.course == "variational" and folds:
            course["kl"] = 1.0
            light = ensemble and task == "regression" and n_rows <= recipes.MANY_ROWS
            kls = _ENSEMBLE_KLS if light else _KLS
        schedule = Schedule(**course)
    score: ScoreName = "magnitude" if entry.course == "point" else "snr"
    gradual = entry.course != "steady" and entry.prunes == "schedule"
    return TableSettings(
        engine=_built(engine, name, choices.lr, size),
        learned_noise=not learns_prior,
        takes_weights=takes_weights,
        widths=_widths(who, choices.hidden, n_rows, ensemble=ensemble),
        bins=bins,
        epochs=size.n_epochs,
        batch_size=size.batch_size,
        schedule=schedule,
        starts=starts,
        candidates=tuple(
            Candidate(kl, form)
            for form in range(len(starts))
            for kl in (kls if form < 2 else kls[-1:])  # a third form costs time
        ),
        n_members=n_members,
        folds=folds,
        parts=parts,
        patience=patience,
        pruning=GradualPruning(zeros, 0.2, 0.6, score) if zeros and gradual else None,
        rule=keep_zeros(zeros, score=score) if zeros and not gradual else None,
    )


def _checked(choices: Choices, who: str) -> EngineName:
    """The name of the engine, after a look at every choice that was made."""
    name = _name(who, choices.engine, choices.lr)
    for number in ("batch_size", "epochs", "n_members", "patience", "kl"):
        if (value := getattr(choices, number)) is not None:
            check_positive(who, **{number: value})
    if choices.epochs is not None and choices.epochs != int(choices.epochs):
        raise TypeError(f"{who}: epochs must be a whole number, got {choices.epochs}.")
    check_not_negative(who, bins=choices.bins or 0)
    check_fraction(who, zeros=choices.zeros or 0.0)
    if choices.zeros == 1:
        raise ValueError(f"{who}: zeros must be below 1, got 1.")
    if choices.schedule is not None and choices.kl is not None:
        raise ValueError(f"{who}: kl is in the schedule too; give one of them.")
    return name


def table_starts(n_rows: int, task: Task) -> tuple[Start, ...]:
    """Starting means on embedded columns, then those that folds compare on plain ones.

    Torch's own ("module") are less than half as wide as He's, so functions start smoother. Large
    tables with little noise and steep functions need the wider ones, others do not.

    Example:
        >>> table_starts(500, "regression"), table_starts(9000, "regression")
        (('module', 'module'), ('he', 'module', 'he'))
    """
    large = task == "regression" and n_rows > recipes.MANY_ROWS
    return ("he", "module", "he") if large else ("module", "module")


def table_bins(n_rows: int, n_columns: int) -> int:
    """Bins of the piecewise linear embedding of each column (`nets.embedding`); 0 for none.

    Each has 12 rows or more; many columns have fewer bins, since each is an input.

    Example:
        >>> [table_bins(*size) for size in ((40, 5), (1000, 10), (1000, 60), (1000, 500))]
        [3, 8, 5, 0]
    """
    bins = min(8, n_rows // 12, _EMBEDDED // max(n_columns, 1) - 1)
    return bins if bins >= 2 else 0


def _enough_folds(n_rows: int) -> int:
    """Return how many fifths of the rows to hold out in turn.

    Example:
        >>> [_enough_folds(n) for n in (100, 500, 1000, 3000)]
        [5, 4, 2, 1]
    """
    return max(1, min(_FOLDS, round(_FOLDS * _HELD_OUT / n_rows)))


def _name(who: str, engine: str | AnyEngine, lr: float | None) -> EngineName:
    """The name of an engine that is one of those in the recipes."""
    if isinstance(engine, str):
        check_choice(who, "engine", engine, recipes.ENGINES)
        return cast(EngineName, engine)
    name = recipes.name_of(engine)
    if name is None:
        raise TypeError(
            f"{who}: engine must be one of {', '.join(recipes.ENGINES)} or an engine such as "
            f"SBNN(), got {engine!r}."
        )
    if lr is not None:
        raise ValueError(f"{who}: lr is for engines given by name; set it in the engine.")
    return name


def _built(engine: str | AnyEngine, name: EngineName, lr: float | None, size: RunSize) -> AnyEngine:
    """The engine of a name, or the object with its open numbers filled in, as recommended."""
    if not isinstance(engine, str):
        return recipes.complete(engine, size)
    chain = recipes.ENGINES[name].n_chains > 0  # of a fixed normal prior
    return recipes.build(name, size, {"prior": "normal" if chain else AUTO, "lr": lr})


def _widths(
    who: str, hidden: object, n_rows: int, *, ensemble: bool
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Widths on embedded and on plain columns."""
    if hidden is None:
        plain = (100, 100) if n_rows >= recipes.MANY_ROWS else (50, 50)
        # A first layer on embedded columns bends wherever it needs to. One network for a small
        # table has no second one, for the sake of time.
        return plain if ensemble or plain[0] > 50 else plain[:1], plain
    widths = tuple(hidden) if isinstance(hidden, tuple | list) else (hidden,)
    if not all(isinstance(width, int) and width > 0 for width in widths):
        raise ValueError(
            f"{who}: hidden must be a tuple of widths > 0, such as (50, 50), got {hidden!r}."
        )
    return widths, widths
