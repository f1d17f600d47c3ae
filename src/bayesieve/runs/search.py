"""The work of `bayesieve sweep`: trials by Optuna, each trained and scored on held-out data.

A trial is scored by the error (or RMSE) of the posterior mean on a validation split and by the
weights it keeps. Test data are not touched. The search lives in a storage that several processes
may share; a process that dies leaves the finished trials behind.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Generator

from bayesieve.assess.evaluate import evaluate
from bayesieve.engines.recipes import ENGINES
from bayesieve.errors import DivergedError, UsageError
from bayesieve.files import write_atomically
from bayesieve.runs.build import Plan, make_plan
from bayesieve.runs.config import RunConfig, from_dict, to_dict
from bayesieve.runs.dimensions import Dimension, check_same, open_study
from bayesieve.runs.text import note
from bayesieve.sieve.rules import keep_zeros
from bayesieve.training.fit import fit

if TYPE_CHECKING:
    import optuna
    from matplotlib.figure import Figure

_VALIDATION = 0.1  # part of the training data unless --val-fraction says otherwise


def run_sweep(
    config: RunConfig,
    search: Sequence[str],
    n_trials: int,
    out: Path,
    storage: str | None,
    name: str,
    *,
    figures: bool,
) -> dict[str, Any]:
    """Try settings, then write sweep.json, the front's configuration files and a picture.

    Args:
        config: what stays fixed.
        search: what varies, as `Dimension.parse` reads it; chosen from the engine if empty.
        n_trials: settings to try in this call; 0 only gathers what the storage has.
        out: folder to write.
        storage: database URL that workers share; a journal file in `out` if None.
        name: of the search in that database.
        figures: whether to draw the picture.
    """
    if config.training.val_fraction is None:
        config = replace(config, training=replace(config.training, val_fraction=_VALIDATION))
    space = [Dimension.parse(text) for text in search] or _space(config, make_plan(config))
    plan = make_plan(_with(config, {own.name: own.middle for own in space}))  # checks everything
    metric = "validation error" if plan.data.task == "classification" else "validation RMSE"
    out.mkdir(parents=True, exist_ok=True)
    study = open_study(out, storage, name, config.training.seed)
    check_same(study, config, space)
    done = sum(trial.state.is_finished() for trial in study.trials)
    if done:
        note(f"continuing a search with {done} finished trials")
    for _ in range(n_trials):
        study.optimize(_objective(config, space), n_trials=1, catch=(DivergedError,))
        _write(_summary(study, metric), config, out, figures=False)  # in case the next is the last
    result = _summary(study, metric)
    if not result["trials"]:
        _complain(study)
    _write(result, config, out, figures=figures)
    return result


def _space(config: RunConfig, plan: Plan) -> list[Dimension]:
    """What varies unless told: learning rate by a factor of 5 each way, KL weight, zeros."""
    own = ENGINES[config.engine.name]
    lr = plan.config.engine.lr  # what this engine recommends for these data
    dimensions = []
    if isinstance(lr, float) and config.engine.lr is None:
        dimensions.append(Dimension("engine.lr", lr / 5, lr * 5, log=True))
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
    priorities = keep_zeros(0.0, "magnitude").priorities(posterior)
    always = int((priorities > posterior.layout.n_sparse).sum())
    return 1 - (always + 1) / posterior.layout.size


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
        )
        found = evaluate(run.sparse(), validation.data).to_dict()
        score = float(found["error"] if "error" in found else found["rmse"])
        trial.set_user_attr("nll", found.get("nll", -found.get("log_lik", 0.0)))
        trial.set_user_attr("seconds", run.seconds)
        trial.set_user_attr("parameters", found["parameters"])
        note(f"trial {trial.number}: {score:.4g} with {found['weights']:,} weights")
        return score, float(found["weights"])

    return objective


def _complain(study: Any) -> None:
    """Say why a search has no finished trial."""
    if any(trial.state.is_finished() for trial in study.trials):
        raise DivergedError("sweep: every trial diverged; search smaller learning rates.")
    raise UsageError("the search has no finished trial yet; give --trials 1 or more.")


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


def _write(result: dict[str, Any], config: RunConfig, out: Path, *, figures: bool) -> None:
    write_atomically(out / "sweep.json", result)
    front = out / "front"
    front.mkdir(exist_ok=True)
    for row in result["front"]:
        own = to_dict(_with(config, row["settings"]))
        write_atomically(front / f"{row['number']}.json", own)
    current = {f"{row['number']}.json" for row in result["front"]}
    for file in front.glob("*.json"):
        if file.name not in current and file.stem.isdigit():  # beaten since it was written
            file.unlink(missing_ok=True)
    if figures:
        from bayesieve.assess.figures.style import save

        save(_figure(result), out / "sweep.png")


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
