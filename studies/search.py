"""`sweep`: search settings by Optuna, each trial trained and scored on held-out data.

A trial is scored by the error (or RMSE) of the posterior mean on a validation split and by the
weights it keeps. Test data are not touched. The search lives in a storage that several processes
may share; a process that dies leaves the finished trials behind.
"""

import json
import logging
import math
import os
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bayesieve.assess.evaluate import evaluate
from bayesieve.engines.recipes import ENGINES
from bayesieve.errors import DivergedError, UsageError
from bayesieve.files import write_atomically
from bayesieve.lock import Lock
from bayesieve.runs.arguments import Config, Place
from bayesieve.runs.build import Plan, make_plan
from bayesieve.runs.config import (
    RunConfig,
    from_dict,
    from_keywords,
    hints_of,
    kinds_of,
    plain_value,
    to_dict,
)
from bayesieve.runs.consent import check_named
from bayesieve.runs.learn import as_config, fit_plan
from bayesieve.runs.owned import OwnedFolder
from bayesieve.runs.text import note
from bayesieve.sieve.rules import fewest_kept
from bayesieve.text import as_percent

if TYPE_CHECKING:
    import optuna
    from matplotlib.figure import Figure

_VALIDATION = 0.1  # part of the training data unless --val-fraction says otherwise
_ATTEMPTS, _PAUSE = 6, 0.25  # to open a database, and the least time between two, in seconds
_WAIT = 60.0  # seconds for other workers, which hold a lock for milliseconds
_RESULT, _PICTURE, _JOURNAL = "sweep.json", "sweep.png", "journal.log"
_STRIDE = 100_003  # trials of one seed and those of the next share no seed below this number
_PER_MACHINE = ("device", "threads")  # settings of training that each machine may choose


class SearchFolder(OwnedFolder):
    """Where a search is kept, by one worker or several at a time."""

    kind = "search"
    layout = (_RESULT, _PICTURE, _JOURNAL, "front/[0-9]*.json")

    def is_old(self) -> bool:
        """Whether a version without markers wrote this search."""
        return self.listed() is None and (self.path / _JOURNAL).is_file()


def sweep(
    place: Place,
    settings: Mapping[str, Any],
    *,
    config: Config | None,
    trials: int,
    search: Sequence[str],
    storage: str | None,
    name: str,
    figures: bool,
    trust: bool,
) -> dict[str, Any]:
    """Try settings; writes sweep.json, the front's configuration files and a picture.

    Returns:
        The metric, every trial, and the front.
    """
    out = SearchFolder(Path(place))
    out.check_open()
    fixed = from_keywords(settings, None if config is None else as_config(config))
    by_caller = settings.get("net") == fixed.net.name or isinstance(config, RunConfig | Mapping)
    check_named(fixed, config, named=by_caller or trust)
    if fixed.training.val_fraction is None:
        fixed = replace(fixed, training=replace(fixed.training, val_fraction=_VALIDATION))
    space = [Dimension.parse(text) for text in search] or _space(fixed, make_plan(fixed))
    middle = {dimension.name: dimension.middle for dimension in space}
    plan = make_plan(_with(fixed, middle))  # checks everything
    metric = "validation error" if plan.data.task == "classification" else "validation RMSE"
    with out.locked(_WAIT):
        out.adopt()
        if storage is None:
            _mend(out.place(_JOURNAL))
    study = _open_study(out.path, storage, name, fixed.training.seed)
    plain = to_dict(fixed)
    plain["training"] = {k: v for k, v in plain["training"].items() if k not in _PER_MACHINE}
    about = {"config": plain, "space": [repr(dimension) for dimension in space]}
    if "about" not in study.user_attrs:
        study.set_user_attr("about", about)
    elif json.loads(json.dumps(about)) != study.user_attrs["about"]:
        raise UsageError(
            "the search in this storage was begun with other settings; give those, or another "
            "--out (with --storage: another --name)."
        )
    done = sum(trial.state.is_finished() for trial in study.trials)
    if done:
        note(f"continuing a search with {done} finished trials")
    for _ in range(trials):
        try:
            study.optimize(partial(_try, fixed, space), n_trials=1, catch=(DivergedError,))
        except (AssertionError, UnboundLocalError) as error:  # Optuna cannot store how it ended
            raise error if error.__context__ is None else error.__context__ from None
        _write(_summary(study, metric), fixed, out, figures=False)  # in case the next is the last
    result = _summary(study, metric)
    if not result["trials"]:
        if any(trial.state.is_finished() for trial in study.trials):
            raise DivergedError("sweep: every trial diverged; search smaller learning rates.")
        raise UsageError("the search has no finished trial yet; give --trials 1 or more.")
    _write(result, fixed, out, figures=figures)
    return result


def _space(config: RunConfig, plan: Plan) -> "list[Dimension]":
    """Vary the learning rate by a factor of 5 each way, the KL weight and the zeros."""
    entry = ENGINES[config.engine.name]
    lr = plan.config.engine.lr  # what this engine recommends for these data
    dimensions = []
    if isinstance(lr, float) and config.engine.lr is None:
        dimensions.append(Dimension("engine.lr", lr / 5, lr * 5, log=True))
    if entry.course == "variational" and config.schedule.kl is None:
        dimensions.append(Dimension("schedule.kl", 0.03, 1.0, log=True))
    if entry.prunes == "units" and config.pruning.keep_units is None:
        dimensions.append(Dimension("pruning.keep_units", 0.1, 1.0))
    elif config.pruning.zeros is None and config.pruning.keep_units is None:
        most = 1 - (fewest_kept(plan.problem.network) + 1) / plan.problem.layout.size
        dimensions.append(Dimension("pruning.zeros", min(0.5, most / 2), min(0.995, most)))
    if not dimensions:
        raise UsageError("nothing is left to search: leave some settings out, or give --search.")
    return dimensions


def _with(config: RunConfig, values: Mapping[str, Any]) -> RunConfig:
    """The settings with some of them changed."""
    nested: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        section, _, key = name.partition(".")
        nested.setdefault(section, {})[key] = value
    return from_dict(nested, "--search", config)


def _try(
    config: RunConfig, space: "Sequence[Dimension]", trial: "optuna.Trial"
) -> tuple[float, float]:
    """Train with the settings of a trial; returns its validation score and the weights it keeps."""
    chosen = {dimension.name: dimension.suggest(trial) for dimension in space}
    plan = make_plan(_with(config, chosen))
    assert plan.validation is not None
    run = fit_plan(plan, plan.problem.to(plan.device))
    scores = evaluate(run.sparse(), plan.validation.data).to_dict()
    score = float(scores["error"] if "error" in scores else scores["rmse"])
    trial.set_user_attr("nll", scores.get("nll", -scores.get("log_lik", 0.0)))
    trial.set_user_attr("seconds", run.seconds)
    trial.set_user_attr("parameters", scores["parameters"])
    shown = f"RMSE {score:.4g}" if plan.data.task == "regression" else f"error {as_percent(score)}"
    note(f"trial {trial.number}: {shown} with {scores['weights']:,} weights")
    return score, float(scores["weights"])


def _summary(study: Any, metric: str) -> dict[str, Any]:
    import optuna

    complete = study.get_trials(states=(optuna.trial.TrialState.COMPLETE,))
    best = {trial.number for trial in study.best_trials}
    rows = [
        {
            "number": trial.number,
            "score": trial.values[0],
            "weights": int(trial.values[1]),
            "settings": trial.params,
            **trial.user_attrs,
        }
        for trial in complete
    ]
    front = sorted((row for row in rows if row["number"] in best), key=lambda row: row["weights"])
    return {"metric": metric, "trials": rows, "front": front}


def _write(result: dict[str, Any], config: RunConfig, out: OwnedFolder, *, figures: bool) -> None:
    """Write the files of a search; workers that share its folder do so one after another."""
    front = {f"front/{row['number']}.json": row["settings"] for row in result["front"]}
    with out.locked(_WAIT):
        write_atomically(out.place(_RESULT, *front), result)
        for name, settings in front.items():
            write_atomically(out.path / name, to_dict(_with(config, settings)))
        out.remove([name for name in out.listed() or () if _is_front(name) and name not in front])
        if figures:
            from bayesieve.assess.figures.style import save

            save(_figure(result), out.place(_PICTURE))
        out.seal()


def _is_front(name: str) -> bool:
    return name.startswith("front/")


def _figure(result: Mapping[str, Any]) -> "Figure":
    """Every trial by size and error; those of the front are joined and named by their number."""
    from bayesieve.assess.figures import style

    trials, front = result["trials"], result["front"]
    figure = style.new_figure(6.4, 4.2)
    axes = figure.add_subplot()
    title = f"{len(trials)} trials, {len(front)} of them on the front"
    style.dress(axes, title=title, xlabel="weights kept", ylabel=result["metric"])
    sizes = [row["weights"] for row in trials]
    axes.scatter(sizes, [row["score"] for row in trials], color=style.MUTED, s=22)
    x, y = ([row[name] for row in front] for name in ("weights", "score"))
    axes.step(x, y, where="post", color=style.BLUE, linewidth=1.5)
    axes.scatter(x, y, color=style.BLUE, s=40, zorder=3)
    for row in front:
        axes.annotate(
            str(row["number"]),
            (row["weights"], row["score"]),
            xytext=(4, 5),
            textcoords="offset points",
            fontsize=style.NOTE_SIZE,
            color=style.BLUE,
        )
    axes.set_xscale("log")
    style.log_ticks(axes.xaxis, 0.9 * min(sizes), 1.1 * max(sizes))
    style.plain_ticks(axes.xaxis)
    if result["metric"].endswith("error"):
        style.percent_ticks(axes.yaxis)
    return figure


@dataclass(frozen=True)
class Dimension:
    """One setting that varies: a range, perhaps on a log scale, or a list of choices."""

    name: str  # section.setting
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    choices: tuple[bool | int | float | str, ...] = ()
    whole: bool = False

    @classmethod
    def parse(cls, text: str) -> "Dimension":
        """Read `section.name=LOW:HIGH[:log]` or `section.name=A|B`.

        Example:
            >>> Dimension.parse("engine.lr=1e-4:1e-2:log").high
            0.01
            >>> Dimension.parse("engine.start=he|module").choices
            ('he', 'module')
            >>> Dimension.parse("training.batch_size=32:256:log").middle
            91
        """
        name, equals, rest = text.partition("=")
        if not equals or "." not in name:
            raise UsageError(f"--search must read section.name=LOW:HIGH or A|B, got {text!r}.")
        if "|" in rest:
            return cls(
                name, choices=tuple(plain_value(choice.strip()) for choice in rest.split("|"))
            )
        bounds = rest.split(":")
        try:
            low, high = float(bounds[0]), float(bounds[1])
        except (IndexError, ValueError) as error:
            raise UsageError(f"--search {name}: give LOW:HIGH, got {rest!r}.") from error
        log = bounds[2:] == ["log"]
        if low >= high or (log and low <= 0) or (len(bounds) > 2 and not log):
            raise UsageError(f"--search {name}: LOW:HIGH[:log] with LOW < HIGH, got {rest!r}.")
        section, _, key = name.partition(".")
        whole = kinds_of(hints_of(section).get(key)) == [int]
        if whole and not (low.is_integer() and high.is_integer()):
            raise UsageError(f"--search {name}: give whole numbers, got {rest!r}.")
        return cls(name, low, high, log, whole=whole)

    def suggest(self, trial: "optuna.Trial") -> Any:
        """A value for a trial."""
        if self.choices:
            return trial.suggest_categorical(self.name, self.choices)
        if self.whole:
            return trial.suggest_int(self.name, int(self.low), int(self.high), log=self.log)
        return trial.suggest_float(self.name, self.low, self.high, log=self.log)

    @property
    def middle(self) -> Any:
        """A value that may be tried: half way, or the first choice."""
        if self.choices:
            return self.choices[0]
        value = math.sqrt(self.low * self.high) if self.log else (self.low + self.high) / 2
        return round(value) if self.whole else value


def _mend(journal: Path) -> None:
    """Cut off a last line that a killed worker left half-written."""
    if journal.is_file():
        content = journal.read_bytes()
        if not content.endswith(b"\n"):
            os.truncate(journal, content.rfind(b"\n") + 1)


def _one_line(record: logging.LogRecord) -> bool:
    """Let Optuna log a trial that failed in one line, and no error that ends the search anyway."""
    if not record.exc_info or record.exc_info[0] is None:
        return "failed with value" not in record.getMessage()  # the same again
    kind, record.exc_info = record.exc_info[0], None
    return issubclass(kind, DivergedError)


def _open_study(out: Path, storage: str | None, name: str, seed: int) -> "optuna.Study":
    """The search of that name, in a database or in a journal, begun now or earlier."""
    try:
        import optuna
        from optuna.storages import JournalStorage, RDBStorage
        from optuna.storages.journal import JournalFileBackend
        from sqlalchemy.exc import ArgumentError, DatabaseError
        from sqlalchemy.pool import NullPool
    except ImportError as error:
        raise ImportError(
            "sweep needs optuna: install it with `pip install 'bayesieve[sweep]'`."
        ) from error

    class Journal(JournalFileBackend):
        """Optuna's journal; an error of its file names it."""

        def append_logs(self, logs: list[dict[str, Any]]) -> None:
            try:
                super().append_logs(logs)
            except OSError as error:
                if error.errno is not None and error.filename is None:
                    error.filename = str(journal)
                raise

    class TrialSampler(optuna.samplers.TPESampler):
        """Optuna's estimator of Pareto fronts, seeded by the number of the trial.

        Trials have their numbers from the storage, so workers that share one never try the same
        settings for want of different seeds, and a search that was stopped and continued tries
        what the unbroken one would have tried.
        """

        def before_trial(self, study: "optuna.Study", trial: "optuna.trial.FrozenTrial") -> None:
            trial_seed = (seed * _STRIDE + trial.number) % 2**32
            self.__init__(seed=trial_seed, multivariate=True, constant_liar=True)  # type: ignore[misc]
            super().before_trial(study, trial)

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    for handler in logging.getLogger("optuna").handlers:
        handler.addFilter(_one_line)
    journal = out / _JOURNAL
    lock: Any = Lock(out / f".{_JOURNAL}.lock", str(journal), _WAIT)  # Optuna's would hang for ever
    for attempt in range(_ATTEMPTS):
        try:
            kept: Any = (
                JournalStorage(Journal(str(journal), lock))
                if storage is None
                else RDBStorage(storage, {"poolclass": NullPool})  # leaves no connection open
            )
            return optuna.create_study(
                study_name=name,
                storage=kept,
                directions=["minimize", "minimize"],
                sampler=TrialSampler(),
                load_if_exists=True,
            )
        except ImportError as error:
            raise ImportError(
                f"--storage {storage}: the driver of this database is not installed; that of "
                "PostgreSQL is `pip install 'psycopg[binary]'`."
            ) from error
        except (ArgumentError, DatabaseError) as error:
            # Workers that start together all make the tables of a new database; one succeeds.
            if isinstance(error, DatabaseError) and attempt < _ATTEMPTS - 1:
                time.sleep(_PAUSE * (1 + random.random()))
                continue
            reason = " ".join(str(error).split())
            raise UsageError(
                f"--storage {storage}: this database cannot be used ({reason}). A URL looks like "
                "sqlite:////shared/sweep.db or postgresql://user@host/sweeps."
            ) from error
    raise AssertionError("the last attempt returns or raises")
