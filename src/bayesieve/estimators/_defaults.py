"""What an estimator does when it is not told otherwise: engine, widths, batches, epochs, folds.

The numbers were chosen on tables of 300 to 10,000 rows; docs/tables.md says how and what they give.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from bayesieve.checks import check_choice, check_fraction, check_positive
from bayesieve.core.likelihoods import (
    Categorical,
    Gaussian,
    Heteroscedastic,
    Likelihood,
    StudentT,
)
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
from bayesieve.sieve.scores import ScoreName
from bayesieve.training.schedule import Schedule

# Close together, so that weights start on the spike's side of the threshold and inclusion speaks
# of the data, not of the start.
TABLE_PRIOR = SpikeSlab(slab_std=1.0, spike_std=math.exp(-2), slab_prob=0.5)
_STEPS, _LEAST_EPOCHS, _MOST_EPOCHS = 2500, 20, 400
_FOLDED_ROWS = 3000  # tables of at most so many rows are watched by five folds, others by one


_POINT = Schedule(lr="cosine", warmup=0.02)
_SPREAD = Schedule(lr="cosine", warmup=0.02, kl_warmup_epochs=1.0)
_KLS = (1.0, 0.3, 0.1)  # what the folds choose from: see docs/tables.md
_PLAIN = Schedule()


@dataclass(frozen=True)
class Length:
    """What an engine's own default may depend on.

    Args:
        n_steps: in all.
        per_epoch: steps of one epoch.
        lr: learning rate, where the user gave one.
        classes: whether the targets are classes.
    """

    n_steps: int
    per_epoch: int
    lr: float | None
    classes: bool = False


@dataclass(frozen=True)
class EngineEntry:
    """An engine by short name.

    Args:
        build: makes it for a run of some length.
        learned_noise: whether the likelihood may learn its noise (else the engine does).
        takes_weights: whether rows may count differently, which watching by folds needs too.
        watched: whether stopping early makes sense; a chain is what all its steps make it.
        gradual: whether weights can go during training, else they go after it.
        score: which weights go first.
        schedule: of learning rate and prior weight.
    """

    build: Callable[[Length], Engine[Any]]
    learned_noise: bool = True
    takes_weights: bool = True
    watched: bool = True
    gradual: bool = True
    score: ScoreName = "snr"
    schedule: Schedule = _POINT


def _rate(length: Length, own: float) -> float:
    return own if length.lr is None else length.lr


def _vi_rate(length: Length) -> float:
    return _rate(length, 1e-2 if length.classes else 3e-2)


def _sbnn(length: Length) -> Engine[Any]:
    return SBNN(TABLE_PRIOR, _vi_rate(length), init_std=0.02, start="he")


def _flat_vi(length: Length) -> Engine[Any]:
    return FlatVI(Normal(1.0), _vi_rate(length), init_std=0.02, start="he")


def _map(length: Length) -> Engine[Any]:
    return MAP(lr=_rate(length, 5e-3), weight_decay=0.3, start="he")


def _bmr(length: Length) -> Engine[Any]:
    every = max(1, length.n_steps // 50)
    return BMR(reduction=Reduction(steps_per_epoch=every), lr=_rate(length, 2e-2), start="he")


def _horseshoe(length: Length) -> Engine[Any]:
    return HorseshoeVI(lr=_rate(length, 2e-2), start="he")


def _sghmc(length: Length) -> Engine[Any]:
    half = length.n_steps // 2
    chain = Chain(burn_in=half, thin=max(1, (length.n_steps - half) // 20), n_kept=20)
    step_size = 1e-5 if length.lr is None else length.lr
    return SGHMC(Normal(1.0), step_size, chain=chain, start="he")


def _tdamp(length: Length) -> Engine[Any]:
    return TDAMP()


ENGINES = {
    "sbnn": EngineEntry(_sbnn, schedule=_SPREAD),
    "flat-vi": EngineEntry(_flat_vi, schedule=_SPREAD),
    "map": EngineEntry(_map, score="magnitude"),
    "bmr": EngineEntry(_bmr, gradual=False),
    "horseshoe": EngineEntry(_horseshoe, schedule=_SPREAD),
    "sghmc": EngineEntry(_sghmc, watched=False, gradual=False, schedule=_PLAIN),
    "tdamp": EngineEntry(
        _tdamp, takes_weights=False, watched=False, gradual=False, schedule=_PLAIN
    ),
}
_NAMES: dict[type, str] = {
    SBNN: "sbnn", FlatVI: "flat-vi", MAP: "map", BMR: "bmr", HorseshoeVI: "horseshoe",
    SGHMC: "sghmc", SGLD: "sghmc", TDAMP: "tdamp",
}  # fmt: skip


def entry_of(who: str, engine: str | Engine[Any]) -> EngineEntry:
    """What is known of an engine, given by name or as an object."""
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


def kls_of(who: str, kl: float | None, entry: EngineEntry, n_folds: int) -> tuple[float, ...]:
    """Candidates for the weight of the prior: the one given, or those the folds choose from."""
    if kl is not None:
        check_positive(who, kl=kl)
        return (kl,)
    if entry.schedule is not _SPREAD:
        return (1.0,)
    return _KLS if n_folds else (0.3,)


def schedule_of(entry: EngineEntry, epochs: int, kls: tuple[float, ...]) -> Schedule:
    """The engine's schedule; the prior's weight rises over the first tenth of the run."""
    kl = kls[0] if len(kls) == 1 else 1.0
    warmup = 0.1 * epochs if entry.schedule is _SPREAD else 0.0
    return replace(entry.schedule, kl=kl, kl_warmup_epochs=warmup)


def widths_of(who: str, hidden: object, n_rows: int) -> tuple[int, ...]:
    """Units of each hidden layer: one of 50, or two of 100 from 10,000 rows on."""
    if hidden is None:
        return (50,) if n_rows < 10_000 else (100, 100)
    given = tuple(hidden) if isinstance(hidden, tuple | list) else (hidden,)
    if not all(isinstance(width, int) and width > 0 for width in given):
        raise ValueError(
            f"{who}: hidden must be a tuple of widths > 0, such as (50, 50), got {hidden!r}."
        )
    return given


def batch_size_of(who: str, batch_size: int | None, n_rows: int) -> int:
    """Examples per step: 32 for small tables, up to 256 for large ones."""
    if batch_size is None:
        return min(n_rows, max(32, min(256, 2 ** round(math.log2(max(n_rows, 1) / 16)))))
    check_positive(who, batch_size=batch_size)
    return min(batch_size, n_rows)


def epochs_of(who: str, epochs: int | None, n_rows: int, batch_size: int) -> int:
    """Passes over the rows: about 2,500 steps, within 20 to 400 epochs."""
    if epochs is None:
        per_epoch = math.ceil(n_rows / batch_size)
        return max(_LEAST_EPOCHS, min(_MOST_EPOCHS, round(_STEPS / per_epoch)))
    check_positive(who, epochs=epochs)
    if epochs != int(epochs):
        raise TypeError(f"{who}: epochs must be a whole number, got {epochs}.")
    return int(epochs)


def folds_of(who: str, folds: int | None, n_rows: int, entry: EngineEntry) -> int:
    """Inner folds: 5, one held-out tenth for large tables, 0 where there is too little to watch."""
    if folds is None:
        if n_rows < 20 or not (entry.takes_weights and entry.watched):
            return 0
        return 5 if n_rows <= _FOLDED_ROWS else 1
    if not isinstance(folds, int) or folds < 0 or folds > n_rows:
        raise ValueError(f"{who}: folds must be 0 to {n_rows} (the rows), got {folds!r}.")
    if folds and not entry.takes_weights:
        raise ValueError(
            f"{who}: this engine counts every row once and cannot be watched by folds; set folds=0."
        )
    return folds


def patience_of(who: str, patience: int | None, entry: EngineEntry, epochs: int) -> int | None:
    """Half of the run for engines that overfit; variational ones are held back by their prior."""
    if patience is not None:
        check_positive(who, patience=patience)
        return patience
    return None if entry.schedule is _SPREAD else max(1, epochs // 2)


NOISES = ("gaussian", "heteroscedastic", "student-t")


def noise_of(who: str, likelihood: str | Likelihood, *, learned: bool) -> Likelihood:
    """The likelihood of a regression, given by name or as an object."""
    if not isinstance(likelihood, str):
        if getattr(likelihood, "task", None) != "regression":
            raise TypeError(
                f"{who}: likelihood must be one of {', '.join(NOISES)} or an object such as "
                f"Gaussian(0.5), got {likelihood!r}."
            )
        return likelihood
    check_choice(who, "likelihood", likelihood, NOISES)
    if likelihood == "heteroscedastic":
        return Heteroscedastic()
    if likelihood == "student-t":
        return StudentT(scale=0.3, learned=learned)
    return Gaussian(noise_std=0.3, learned=learned)


def classes_likelihood() -> Likelihood:
    """The likelihood of a classification."""
    return Categorical()


def check_zeros(who: str, zeros: float | None) -> None:
    """Raise unless `zeros` is None or a fraction below 1."""
    if zeros is not None:
        check_fraction(who, zeros=zeros)
        if zeros == 1:
            raise ValueError(f"{who}: zeros must be below 1, got 1.")
