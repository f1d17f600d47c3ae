"""The work of `bayesieve sweep`: trials by Optuna, each trained and scored on held-out data.

A trial is scored by the error (or RMSE) of the posterior mean on a validation split and by the
weights it keeps. Test data are not touched. The search lives in a storage that several processes
may share; a process that dies leaves the finished trials behind.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Generator

from bayesieve.assess.evaluate import evaluate
from bayesieve.cli.building import Plan, make_plan
from bayesieve.cli.config import RunConfig
from bayesieve.cli.config_files import UsageError, from_dict, to_dict
from bayesieve.cli.console import note
from bayesieve.cli.registry import ENGINES, resolve_engine
from bayesieve.core.storage import atomic_write
from bayesieve.errors import DivergedError
from bayesieve.sieve.rules import keep_fraction
from bayesieve.training.fit import fit

if TYPE_CHECKING:
    import optuna

_NAME = "bayesieve"
_VALIDATION = 0.1  # part of the training data unless --val-fraction says otherwise


@dataclass(frozen=True)
class Dimension:
    """One setting that varies: a range, perhaps on a log scale, or a list of choices."""

    name: str  # section.setting
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    choices: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> "Dimension":
        """Read `section.name=LOW:HIGH[:log]` or `section.name=A|B`.

        Example:
            >>> Dimension.parse("engine.lr=1e-4:1e-2:log").high
            0.01
            >>> Dimension.parse("engine.start=he|module").choices
            ('he', 'module')
        """
        name, equals, rest = text.partition("=")
        if not equals or "." not in name:
            raise UsageError(f"--search must read section.name=LOW:HIGH or A|B, got {text!r}.")
        if "|" in rest:
            return cls(name, choices=tuple(part.strip() for part in rest.split("|")))
        parts = rest.split(":")
        try:
            low, high = float(parts[0]), float(parts[1])
        except (IndexError, ValueError) as error:
            raise UsageError(f"--search {name}: give LOW:HIGH, got {rest!r}.") from error
        log = parts[2:] == ["log"]
        if low >= high or (log and low <= 0) or (len(parts) > 2 and not log):
            raise UsageError(f"--search {name}: LOW:HIGH[:log] with LOW < HIGH, got {rest!r}.")
        return cls(name, low, high, log)

    def suggest(self, trial: "optuna.Trial") -> Any:
        """A value for a trial."""
        if self.choices:
            return trial.suggest_categorical(self.name, self.choices)
        return trial.suggest_float(self.name, self.low, self.high, log=self.log)


def run_sweep(
    config: RunConfig,
    search: Sequence[str],
    n_trials: int,
    out: Path,
    storage: str | None,
    *,
    figures: bool,
) -> dict[str, Any]:
    """Try settings, then write sweep.json, the front's configuration files and a picture."""
    optuna = _optuna()
    if config.training.val_fraction is None:
        config = replace(config, training=replace(config.training, val_fraction=_VALIDATION))
    space = [Dimension.parse(text) for text in search] or _space(config, make_plan(config))
    plan = make_plan(_with(config, {own.name: _middle(own) for own in space}))  # checks everything
    metric = "validation error" if plan.data.task == "classification" else "validation RMSE"
    out.mkdir(parents=True, exist_ok=True)
    study = optuna.create_study(
        study_name=_NAME,
        storage=storage or _journal(optuna, out),
        directions=["minimize", "minimize"],
        sampler=optuna.samplers.TPESampler(seed=config.training.seed, multivariate=True),
        load_if_exists=True,
    )
    _check_same(study, config, space)
    done = sum(trial.state.is_finished() for trial in study.trials)
    if done:
        note(f"continuing a search with {done} finished trials")
    # Trials of one process must differ from those of another that shares the storage.
    study.sampler.reseed_rng()
    study.optimize(_objective(config, space), n_trials=n_trials, catch=(DivergedError,))
    result = _summary(study, metric)
    _write(result, config, out, figures=figures)
    return result


def _optuna() -> Any:
    try:
        import optuna
    except ImportError as error:
        raise ImportError(
            "sweep needs optuna: install it with `pip install bayesieve[sweep]`."
        ) from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def _journal(optuna: Any, out: Path) -> Any:
    from optuna.storages.journal import JournalFileBackend

    return optuna.storages.JournalStorage(JournalFileBackend(str(out / "journal.log")))


def _space(config: RunConfig, plan: Plan) -> list[Dimension]:
    """What varies unless told: learning rate by a factor of 5 each way, KL weight, zeros."""
    own = ENGINES[config.engine.name]
    resolved = resolve_engine(config.engine, own_start=False)
    dimensions = []
    if isinstance(resolved.lr, float) and config.engine.lr is None:
        dimensions.append(Dimension("engine.lr", resolved.lr / 5, resolved.lr * 5, log=True))
    if own.course == "variational" and config.schedule.kl is None:
        dimensions.append(Dimension("schedule.kl", 0.03, 1.0, log=True))
    if own.prunes == "units" and config.pruning.keep_units is None:
        dimensions.append(Dimension("pruning.keep_units", 0.1, 1.0))
    elif config.pruning.zeros is None and config.pruning.keep_units is None:
        dimensions.append(Dimension("pruning.zeros", 0.5, min(0.995, _most_zeros(plan))))
    if not dimensions:
        raise UsageError("nothing is left to search: leave some settings out, or give --search.")
    return dimensions


def _most_zeros(plan: Plan) -> float:
    """The largest fraction of zeros this network can reach: biases and a path through it stay."""
    state = plan.engine.init(plan.problem, Generator().manual_seed(0), 1)
    posterior = plan.engine.posterior(plan.problem, state, 0)
    priorities = keep_fraction(1.0, "magnitude").priorities(posterior)
    always = int((priorities > posterior.layout.n_sparse).sum())
    return 1 - (always + 1) / posterior.layout.size


def _middle(own: Dimension) -> Any:
    if own.choices:
        return own.choices[0]
    return math.sqrt(own.low * own.high) if own.log else (own.low + own.high) / 2


def _with(config: RunConfig, values: Mapping[str, Any]) -> RunConfig:
    """The settings with some of them changed."""
    nested: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        section, _, key = name.partition(".")
        nested.setdefault(section, {})[key] = value
    return from_dict(nested, "--search", config)


def _objective(
    config: RunConfig, space: Sequence[Dimension]
) -> Callable[["optuna.Trial"], tuple[float, float]]:
    def objective(trial: "optuna.Trial") -> tuple[float, float]:
        plan = make_plan(_with(config, {own.name: own.suggest(trial) for own in space}))
        training, validation = plan.config.training, plan.validation
        assert training.batch_size is not None
        assert validation is not None
        run = fit(
            plan.problem.to(plan.device),
            plan.engine,
            epochs=training.epochs,
            steps=training.steps,
            batch_size=training.batch_size,
            seed=training.seed,
            schedule=plan.schedule,
            pruning=plan.pruning,
            augment=plan.augment,
            clip_norm=training.clip_norm,
            compile=training.compile,
        )
        found = evaluate(run.sparse(), validation.data).to_dict()
        score = float(found["error"] if "error" in found else found["rmse"])
        trial.set_user_attr("nll", found.get("nll", -found.get("log_lik", 0.0)))
        trial.set_user_attr("seconds", run.seconds)
        trial.set_user_attr("parameters", found["parameters"])
        note(f"trial {trial.number}: {score:.4g} with {found['weights']:,} weights")
        return score, float(found["weights"])

    return objective


def _check_same(study: Any, config: RunConfig, space: Sequence[Dimension]) -> None:
    """A search is continued with what it was begun with."""
    about = {"config": to_dict(config), "space": [repr(own) for own in space]}
    before = study.user_attrs.get("about")
    if before is None:
        study.set_user_attr("about", about)
    elif json.loads(json.dumps(about)) != before:
        raise UsageError(
            "the search in this storage was begun with other settings; give those, or another "
            "--out (or --storage)."
        )


def _summary(study: Any, metric: str) -> dict[str, Any]:
    import optuna

    complete = study.get_trials(states=(optuna.trial.TrialState.COMPLETE,))
    if not complete:
        raise DivergedError("sweep: every trial diverged; search smaller learning rates.")
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


def _write(result: dict[str, Any], config: RunConfig, out: Path, *, figures: bool) -> None:
    atomic_write(out / "sweep.json", (json.dumps(result, indent=1) + "\n").encode())
    (out / "front").mkdir(exist_ok=True)
    for row in result["front"]:
        own = to_dict(_with(config, row["settings"]))
        text = json.dumps(own, indent=1) + "\n"
        atomic_write(out / "front" / f"{row['number']}.json", text.encode())
    if figures:
        from bayesieve.assess.figures.style import BLUE, MUTED, dress, new_figure, save

        figure = new_figure(6.4, 4.2)
        axes = figure.add_subplot()
        dress(axes, title="Every trial", xlabel="weights kept", ylabel=result["metric"])
        for rows, color in ((result["trials"], MUTED), (result["front"], BLUE)):
            axes.scatter([r["weights"] for r in rows], [r["score"] for r in rows], color=color)
        front = result["front"]
        axes.step([r["weights"] for r in front], [r["score"] for r in front], where="post")
        axes.set_xscale("log")
        save(figure, out / "sweep.png")
