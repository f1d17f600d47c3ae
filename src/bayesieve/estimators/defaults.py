"""Recommended settings for tables: `table_settings` (engine, task, rows -> every setting).

The numbers were chosen on tables of 300 to 10,000 rows; docs/tables.md says how and what they give.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

from bayesieve.checks import check_choice, check_fraction, check_positive
from bayesieve.core.priors import GaussianLaplace, Normal, SpikeSlab
from bayesieve.engines import Engine
from bayesieve.engines.bmr import BMR, Reduction
from bayesieve.engines.flat_vi import FlatVI
from bayesieve.engines.horseshoe import HorseshoeVI
from bayesieve.engines.map import MAP
from bayesieve.engines.sampling import Chain
from bayesieve.engines.sbnn import SBNN
from bayesieve.engines.sgmcmc import SGHMC, SGLD
from bayesieve.engines.tdamp import TDAMP
from bayesieve.sieve.schedule import GradualPruning
from bayesieve.sieve.scores import ScoreName
from bayesieve.training.schedule import Schedule

Task = Literal["regression", "classification"]

# Close together, so that weights start on the spike's side of the threshold and inclusion speaks
# of the data, not of the start.
TABLE_PRIOR = SpikeSlab(slab_std=1.0, spike_std=math.exp(-2), slab_prob=0.5)
_STEPS, _LEAST_EPOCHS, _MOST_EPOCHS = 2500, 20, 400
_LARGE = 10_000  # rows from which the network has two layers of 100
_FOLDED_ROWS = 3000  # tables of at most so many rows have five folds, others one
_KLS = (1.0, 0.3, 0.1)  # what the folds choose from: see docs/tables.md
_KL_WITHOUT_FOLDS = 0.3


@dataclass(frozen=True)
class Length:
    """Length of a run, from which an engine's defaults follow.

    Args:
        n_steps: in all.
        lr: learning rate, where the user gave one.
        task: "regression" or "classification".
    """

    n_steps: int
    lr: float | None
    task: Task

    def rate(self, recommended: float) -> float:
        """The learning rate of the user, else the recommended one."""
        return recommended if self.lr is None else self.lr

    @property
    def vi_rate(self) -> float:
        """Learning rate of the mean-field engines."""
        return self.rate(1e-2 if self.task == "classification" else 3e-2)


@dataclass(frozen=True)
class EngineEntry:
    """An engine by short name.

    Args:
        build: makes it for a run of some length.
        learned_noise: whether the likelihood may learn its noise (else the engine does).
        takes_weights: whether rows may count differently, which folds need too.
        folded: whether folds are used unless asked for; a chain needs all its steps.
        gradual: whether weights can go during training, else they go after it.
        score: which weights go first.
        variational: whether the prior has a weight, which the folds choose and which rises over
            the first tenth of the run; such engines never stop early.
        lr: course of the learning rate.
    """

    build: Callable[[Length], Engine[Any]]
    learned_noise: bool = True
    takes_weights: bool = True
    folded: bool = True
    gradual: bool = True
    score: ScoreName = "snr"
    variational: bool = False
    lr: Literal["cosine", "constant"] = "cosine"


def _bmr(length: Length) -> Engine[Any]:
    every = max(1, length.n_steps // 50)
    return BMR(reduction=Reduction(steps_per_epoch=every), lr=length.rate(2e-2), start="he")


def _sghmc(length: Length) -> Engine[Any]:
    half = length.n_steps // 2
    chain = Chain(burn_in=half, thin=max(1, (length.n_steps - half) // 20), n_kept=20)
    return SGHMC(Normal(1.0), length.rate(1e-5), chain=chain, start="he")


ENGINES = {
    "sbnn": EngineEntry(
        lambda length: SBNN(TABLE_PRIOR, length.vi_rate, init_std=0.02, start="he"),
        variational=True,
    ),
    "flat-vi": EngineEntry(
        lambda length: FlatVI(Normal(1.0), length.vi_rate, init_std=0.02, start="he"),
        variational=True,
    ),
    "map": EngineEntry(
        lambda length: MAP(lr=length.rate(5e-3), weight_decay=0.3, start="he"), score="magnitude"
    ),
    "bmr": EngineEntry(_bmr, gradual=False),
    "horseshoe": EngineEntry(
        lambda length: HorseshoeVI(lr=length.rate(2e-2), start="he"), variational=True
    ),
    "sghmc": EngineEntry(_sghmc, folded=False, gradual=False, lr="constant"),
    "tdamp": EngineEntry(
        lambda _: TDAMP(), takes_weights=False, folded=False, gradual=False, lr="constant"
    ),
}
_NAMES: dict[type, str] = {
    SBNN: "sbnn", FlatVI: "flat-vi", MAP: "map", BMR: "bmr", HorseshoeVI: "horseshoe",
    SGHMC: "sghmc", SGLD: "sghmc", TDAMP: "tdamp",
}  # fmt: skip


def entry_of(who: str, engine: str | Engine[Any]) -> EngineEntry:
    """The entry of an engine, given by name or as an object."""
    if isinstance(engine, str):
        check_choice(who, "engine", engine, ENGINES)
        return ENGINES[engine]
    if type(engine) not in _NAMES:
        raise TypeError(
            f"{who}: engine must be one of {', '.join(ENGINES)} or an engine such as SBNN(), got "
            f"{engine!r}."
        )
    known = ENGINES[_NAMES[type(engine)]]
    shared = isinstance(getattr(engine, "prior", None), GaussianLaplace)
    return replace(
        known,
        build=lambda _: engine,
        learned_noise=not shared,
        takes_weights=known.takes_weights and not shared,
    )


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
    entry = entry_of(who, engine)
    if lr is not None and not isinstance(engine, str):
        raise ValueError(f"{who}: lr is for engines given by name; set it in the engine.")
    if schedule is not None and kl is not None:
        raise ValueError(f"{who}: kl stands in the schedule too; give one of them.")
    if zeros is not None:
        check_fraction(who, zeros=zeros)
        if zeros == 1:
            raise ValueError(f"{who}: zeros must be below 1, got 1.")
    batch_size = _batch_size(who, batch_size, n_rows)
    per_epoch = math.ceil(n_rows / batch_size)
    epochs = _epochs(who, epochs, per_epoch)
    folds = _folds(who, folds, n_rows, entry)
    kls = (1.0,) if schedule is not None else _kls(who, kl, entry, folds)
    if patience is not None:
        check_positive(who, patience=patience)
    elif not entry.variational:
        patience = max(1, epochs // 2)
    if schedule is None:
        schedule = Schedule(
            lr=entry.lr,
            warmup=0.02 if entry.lr == "cosine" else 0.0,
            kl=kls[0] if len(kls) == 1 else 1.0,
            kl_warmup_epochs=0.1 * epochs if entry.variational else 0.0,
        )
    return TableSettings(
        engine=entry.build(Length(epochs * per_epoch, lr, task)),
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


def _batch_size(who: str, batch_size: int | None, n_rows: int) -> int:
    if batch_size is None:
        return min(n_rows, max(32, min(256, 2 ** round(math.log2(max(n_rows, 1) / 16)))))
    check_positive(who, batch_size=batch_size)
    return min(batch_size, n_rows)


def _epochs(who: str, epochs: int | None, per_epoch: int) -> int:
    if epochs is None:
        return max(_LEAST_EPOCHS, min(_MOST_EPOCHS, round(_STEPS / per_epoch)))
    check_positive(who, epochs=epochs)
    if epochs != int(epochs):
        raise TypeError(f"{who}: epochs must be a whole number, got {epochs}.")
    return int(epochs)


def _folds(who: str, folds: int | None, n_rows: int, entry: EngineEntry) -> int:
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


def _kls(who: str, kl: float | None, entry: EngineEntry, folds: int) -> tuple[float, ...]:
    if kl is not None:
        check_positive(who, kl=kl)
        return (kl,)
    if not entry.variational:
        return (1.0,)
    return _KLS if folds else (_KL_WITHOUT_FOLDS,)
