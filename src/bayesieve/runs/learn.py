"""`train`: from data and settings to a run folder.

Fit as the settings say, save what was learned, test it, draw it and write the report.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from itertools import combinations, product
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import torch

from bayesieve.assess.diagnostics import ChainReport, differing_buffers
from bayesieve.assess.evaluate import evaluate
from bayesieve.assess.predict import has_spread
from bayesieve.contrib.distill import soften
from bayesieve.contrib.logs import Log, log_classes, scalars
from bayesieve.core.inputs import one_input
from bayesieve.core.posterior import Model, Posterior, Samples, posterior_of
from bayesieve.core.problem import Problem
from bayesieve.core.reading import with_data
from bayesieve.core.storage import load_posterior, save
from bayesieve.data import DataSet
from bayesieve.environment import is_shared, rank_of_process
from bayesieve.errors import UnsupportedModelError, UsageError
from bayesieve.nets.importing import is_factory
from bayesieve.runs.arguments import COMMAND_LINE, Arg, Config, Json, Place, command
from bayesieve.runs.build import Plan, is_large, make_plan, needed_memory, what_it_takes
from bayesieve.runs.config import (
    RunConfig,
    argument_of,
    from_dict,
    from_keywords,
    read_config,
    to_dict,
)
from bayesieve.runs.consent import check_named, factory_record, keep_network
from bayesieve.runs.folder import RunFolder, inputs_of
from bayesieve.runs.memory import MemoryNeed
from bayesieve.runs.owned import CHECKPOINTS, GROUPS
from bayesieve.runs.run import (
    Run,
    check_names,
    curve_of,
    load,
    mixing,
    names_of,
    numbers,
    pool,
    save_model,
    usual_score,
)
from bayesieve.runs.summary import write_summary
from bayesieve.runs.text import note, with_draws
from bayesieve.text import as_bytes, tempering_words
from bayesieve.training.checkpoint import OTHER_DATA, has_checkpoint, write_metrics
from bayesieve.training.launch import Fit, fit
from bayesieve.training.progress import Row

# Of the section training.
_MAY_CHANGE = {"device", "compile", "checkpoint_every", "threads", "micro_batch"}
_MAY_DIFFER = {*_MAY_CHANGE, "seed", "n_models"}  # between runs whose chains are pooled
_TEACHER_SEEDS = 1_000_003  # teachers draw other random numbers than the run
_GROUP_SEEDS = 2_000_003  # and so does each group of models
_GROUPS = "groups.json"


@command
def train(
    config: Config | None = None,
    *,
    out: Place | None = None,
    dry_run: bool = False,
    force: bool = False,
    resume: bool = False,
    resume_with_other_data: bool = False,
    figures: bool = True,
    log: Annotated[str | Sequence[str] | None, Arg(metavar="NAMES")] = None,
    tensorboard: bool = False,
    trust: bool = False,
    **settings: Any,
) -> Json:
    """Learn a posterior over the weights of a network and write a run folder.

    Args:
        config: YAML, TOML or JSON file with these settings; flags override it.
        out: Run folder to write (needed unless `dry_run`).
        dry_run: Print parameters, memory and steps; write nothing.
        force: Replace the run in `out`.
        resume: Continue the run in `out`.
        resume_with_other_data: Continue it although the data are not those it was begun with.
        figures: Whether to draw pictures.
        log: Also write the numbers of every epoch to csv, tensorboard, wandb or mlflow; several
            with commas.
        tensorboard: The same as `log=tensorboard`.
        trust: Import the factory of a network module:... that a run or file names, if it is
            unchanged; a run's stored graph is used unless given.
        settings: Settings of the run by name, such as data='digits', engine='sbnn', zeros=0.9.
    """
    resumed: bool | str = OTHER_DATA if resume_with_other_data else resume
    if out is None and (resumed or not dry_run):
        raise UsageError("give a folder for the run: `out=runs/a`.")
    folder = RunFolder(Path(out or ""))
    base = folder.read_config() if resumed else None
    wanted = from_keywords(settings, base if config is None else as_config(config))
    by_caller = settings.get("net") == wanted.net.name or isinstance(config, RunConfig | Mapping)
    check_named(wanted, config, named=by_caller or trust, folder=folder if resumed else None)
    if wanted.training.distill is not None and is_shared():
        raise UsageError("`distill` trains teachers first; start it without torchrun.")
    if resumed and folder.finished:
        note(f"{folder.path} is finished already.")
        return folder.read("metrics.json")
    if rank_of_process() > 0 and not dry_run:  # the first process reads and writes for all
        plan = make_plan(wanted)
        n_models, problem = plan.config.training.n_models or 1, plan.problem.to(plan.device)
        fit_plan(plan, problem, n_models, validation=plan.validation)
        return {}
    if not (resumed or dry_run):
        folder.check_free(inputs_of(wanted), force=force)
    names = log.split(",") if isinstance(log, str) else [*(log or ())]
    logged = log_classes([*names, *(["tensorboard"] if tensorboard else [])])
    plan = make_plan(wanted)
    need, at_once = _memory_of(plan) if dry_run or is_large(plan) else (None, None)
    if dry_run:
        return {**what_it_takes(plan, need), "config": to_dict(plan.config)}
    if resumed:
        _check_same(plan.config, folder.read_config())
        if not resume_with_other_data:
            check_names(folder, plan.data)
    with folder.locked(), ExitStack() as opened:
        if resumed:
            folder.adopt()
        else:
            folder.begin(force=force)
            net, problem = plan.config.net.name, plan.problem
            record = {**factory_record(net), **names_of(plan.data)}
            folder.create(plan.config, "train", COMMAND_LINE.get(), **record)
            if is_factory(net):
                keep_network(
                    folder, problem.network, problem.initial, one_input("train", problem.x)[:8]
                )
        agreed = " and `trust`" if is_factory(plan.config.net.name) else ""
        note(f"training on {plan.device}: {plan.size.n_steps:,} steps, "
             f"{plan.problem.layout.size:,} parameters; stop with Ctrl-C, continue with "
             f"`resume`{agreed}")  # fmt: skip
        plain = to_dict(plan.config)
        logs = [opened.enter_context(kind(folder.path, plain)) for kind in logged]
        run = learn(plan, folder, resume=resumed, logs=logs, at_once=at_once)
        result = write_results(
            folder, plan.config, plan.data, run.models, run.history, run.seconds,
            figures=figures,
        )  # fmt: skip
        if figures:
            from bayesieve.runs.page import add_page  # here: it loads all that a page needs

            add_page(folder, str(plan.device), trust=trust)
        return result


def as_config(config: Config) -> RunConfig:
    """Settings as an object, whatever form they come in."""
    if isinstance(config, RunConfig):
        return config
    if isinstance(config, Mapping):
        return from_dict(config, "config")
    return read_config(Path(config))


def _memory_of(plan: Plan) -> tuple[MemoryNeed | None, int | None]:
    """State the memory of a run, and how many of its models are trained at once.

    Raises where memory for one is not free. None where it cannot be known.
    """
    training = plan.config.training
    alike = not any(isinstance(value, tuple) for value in vars(plan.config.engine).values())
    at_once = training.n_models or 1

    def needed() -> MemoryNeed:
        config = replace(plan.config, training=replace(training, n_models=at_once))
        return needed_memory(config, plan.data, plan.problem, plan.engine, plan.size, plan.device)

    try:
        need = whole = needed()
        while at_once > 1 and alike and not is_shared() and not need.fits(plan.device):
            at_once = -(-at_once // 2)
            need = needed()
    except UnsupportedModelError as error:
        note(str(error))
        return None, None
    need.check("train", plan.device)
    note(f"memory: about {as_bytes(need.peak)} at once ({need})")
    if need is not whole:
        note(f"all {training.n_models} models would take {as_bytes(whole.peak)}: they are trained "
             f"{at_once} at a time, from seeds of their own")  # fmt: skip
    return need, at_once


def _check_same(config: RunConfig, stored: RunConfig) -> None:
    before = to_dict(stored)
    for section, values in to_dict(config).items():
        for name, value in values.items():
            if value != before[section][name] and name not in _MAY_CHANGE:
                raise UsageError(
                    f"`resume`: the run was begun with {argument_of(section, name)} "
                    f"{before[section][name]}, this command has {value}. Leave it out, or start "
                    "anew in another `out`."
                )


def fit_plan(plan: Plan, problem: Problem, n_models: int = 1, **options: Any) -> Fit:
    """Train as planned; arguments of `fit` in `options` take the place of the plan's."""
    training = plan.config.training
    planned = {
        "epochs": training.epochs,
        "steps": training.steps,
        "batch_size": training.batch_size,
        "micro_batch": training.micro_batch,
        "seed": training.seed,
        "schedule": plan.schedule,
        "pruning": plan.pruning,
    }
    return fit(problem, [plan.engine] * n_models, **(planned | options))


class Learned(NamedTuple):
    """Result of a run: its models, a row of numbers per epoch, and its seconds."""

    models: list[Model]
    history: list[Row]
    seconds: float


def learn(
    plan: Plan,
    folder: RunFolder,
    *,
    resume: bool | str,
    logs: Sequence[Log] = (),
    at_once: int | None = None,
) -> Learned:
    """Train as planned, with checkpoints in the folder.

    A population is trained `at_once` models at a time; a resumed run as it was begun.
    """
    config = plan.config.training
    problem = plan.problem.to(plan.device)
    folder.place("metrics.jsonl", CHECKPOINTS)
    if config.distill is not None:
        problem = soften(problem, _teachers(plan, problem, folder), config.distill_weight)
    n_models = config.n_models or 1
    sizes = [
        min(at_once or n_models, n_models - i) for i in range(0, n_models, at_once or n_models)
    ]
    if resume and (folder.path / _GROUPS).is_file():
        sizes = folder.read(_GROUPS)["sizes"]
    if len(sizes) > 1 and not (resume and has_checkpoint(folder.path)):
        learned = _learn_groups(plan, problem, folder, sizes, resume=resume)
        for row, log in product(learned.history, logs):
            log.write(row["step"], scalars(row))
        return learned
    if resume and not has_checkpoint(folder.path):
        note("no checkpoint yet: the run begins anew.")
        resume = False
    run = fit_plan(
        plan,
        problem,
        n_models,
        validation=plan.validation,
        folder=folder.path,
        resume=resume,
        callbacks=logs,
    )
    return Learned(run.models, run.history, run.seconds)


def _learn_groups(
    plan: Plan, problem: Problem, folder: RunFolder, sizes: list[int], *, resume: bool | str
) -> Learned:
    """Train groups of models one after another, each with checkpoints in a folder of its own."""
    if len(sizes) > len(GROUPS):
        raise UsageError(f"`n_models`: memory is enough for {sizes[0]} of them at a time only.")
    folder.write(_GROUPS, {"sizes": sizes})
    learned = Learned([], [], 0.0)
    for i, (size, name) in enumerate(zip(sizes, GROUPS, strict=False)):
        folder.place(f"{name}/metrics.jsonl", f"{name}/{CHECKPOINTS}")
        home = folder.path / name
        run = fit_plan(
            plan,
            problem,
            size,
            seed=plan.config.training.seed + i * _GROUP_SEEDS,
            validation=plan.validation,
            folder=home,
            resume=resume if resume and has_checkpoint(home) else False,
        )
        rows = run.history if i == 0 else _side_by_side(learned.history, run.history)
        learned = Learned([*learned.models, *run.models], rows, learned.seconds + run.seconds)
    write_metrics(folder.path, learned.history)
    return learned


def _side_by_side(rows: list[Row], others: list[Row]) -> list[Row]:
    """The rows of two groups of models as those of one population.

    Example:
        >>> rows = [{"epoch": 1, "step": 9, "seconds": 2.0, "log_lik": [-3.0, -4.0]}]
        >>> _side_by_side(rows, [{"epoch": 1, "step": 9, "seconds": 1.0, "log_lik": -5.0}])
        [{'epoch': 1, 'step': 9, 'seconds': 3.0, 'log_lik': [-3.0, -4.0, -5.0]}]
    """
    shared = ("epoch", "step", "lr_scale")

    def joined(name: str, a: Any, b: Any) -> Any:
        if name in shared:
            return a
        if name == "seconds":
            return round(a + b, 3)
        return [*(a if isinstance(a, list) else [a]), *(b if isinstance(b, list) else [b])]

    pairs = zip(rows, others, strict=False)  # one group may stop earlier than another
    return [{key: joined(key, a[key], b[key]) for key in a if key in b} for a, b in pairs]


def _teachers(plan: Plan, problem: Problem, folder: RunFolder) -> list[Posterior]:
    """Dense models of the same network and engine, kept in `teachers/` for a resumed run."""
    config = plan.config.training
    assert config.distill is not None
    home = folder.path / "teachers"
    files = [home / f"posterior-{i}.safetensors" for i in range(config.distill)]
    if not all(file.exists() for file in files):
        names = ("metrics.jsonl", CHECKPOINTS, *(file.name for file in files))
        folder.place(*(f"{home.name}/{name}" for name in names))
        run = fit_plan(
            plan,
            with_data(problem, replace(problem.data, augment=None)),
            config.distill,
            epochs=config.distill_epochs,
            steps=None if config.distill_epochs else config.steps,
            seed=config.seed + _TEACHER_SEEDS,
            schedule=replace(plan.schedule, kl_after=None, checkpoint_every=None),
            pruning=None,
            folder=home,
            resume=has_checkpoint(home),
        )
        for file, posterior in zip(files, run.complete().posteriors, strict=True):
            save(posterior, file)
    return [load_posterior(file, problem) for file in files]


def write_results(
    folder: RunFolder,
    config: RunConfig,
    data: DataSet,
    models: Sequence[Model],
    history: list[Row],
    seconds: float,
    *,
    figures: bool,
) -> Json:
    """Write the files of a finished run: posteriors, curve, pictures, report, then metrics.json.

    Args:
        folder: the run folder.
        config: resolved settings.
        data: with the test examples.
        models: the trained model, or those of a population.
        history: one row of metrics per epoch.
        seconds: time of training.
        figures: whether to draw pictures.

    Returns:
        The content of metrics.json.
    """
    first = models[0]
    files = {folder.posterior: first}
    if len(models) > 1:
        files |= {folder.member(index): model for index, model in enumerate(models)}
    folder.place(*(file.name for file in files))
    for file, model in files.items():
        save_model(model, file)
    result = numbers(evaluate(first, data.test), first)
    if has_spread(first):
        whole = pool(models)
        sampled = numbers(evaluate(whole, data.test, n_samples=None), first)
        result["sampled"] = {**sampled, "chains": 1 if whole is first else len(models)}
    rows = with_draws(dict(result))
    remarks = []
    if (chains := mixing(models, data.test)) is not None:
        result["chains"] = asdict(chains)
        folder.write("chains.json", result["chains"])
        remarks = [" ".join([f"Chains: {chains}.", *(f"Beware: {p}." for p in chains.problems)])]
    if len(models) > 1:
        result["models"] = [numbers(evaluate(m, data.test), m) for m in models]
        rows |= {f"model {i}": row for i, row in enumerate(result["models"])}
    score = config.pruning.score or usual_score(first)
    remarks = _remarks(config, len(history), seconds, result) + remarks
    result |= {"seconds": round(seconds, 3), "epochs": len(history)}
    write_summary(
        folder,
        config,
        data,
        first,
        rows,
        result,
        title=f"{config.engine.name} on {data.name}",
        score=score,
        curve=curve_of(first, data.test, score),
        history=history,
        figures=figures,
        remarks=remarks,
    )
    return result


@command
def pool_runs(
    runs: Annotated[Sequence[Place], Arg(positional=True, metavar="RUN")],
    *,
    out: Place | None = None,
    force: bool = False,
    device: str = "auto",
    figures: bool = True,
    trust: bool = False,
) -> Json:
    """Join the chains of several runs: how well all of them agree, and what all draws predict.

    Args:
        runs: Runs of a sampler that differ in `seed`.
        out: Run folder to write, with the chains of all runs.
        force: Replace the run in `out`.
        device: auto, cpu, cuda or cuda:N.
        figures: Whether to draw pictures.
        trust: Import the factory of a network module:... that a run or file names, if it is
            unchanged; a run's stored graph is used unless given.

    Returns:
        The runs, the report on their chains, and the numbers of all draws.
    """
    if len(runs) < 2:
        raise UsageError(f"pool: give two runs or more, got {len(runs)}.")
    target = None if out is None else RunFolder(Path(out))
    if target is not None:
        target.check_free([Path(run) for run in runs], force=force)
    opened = [load(run, device=device, trust=trust) for run in runs]
    models = [model for run in opened for model in run.models()]
    for name, run in zip(runs, opened, strict=True):
        _check_poolable(str(runs[0]), opened[0], str(name), run)
    chains = [posterior_of(model) for model in models]
    for (i, a), (j, b) in combinations(enumerate(chains), 2):
        if isinstance(a, Samples) and isinstance(b, Samples) and torch.equal(a.draws, b.draws):
            raise UsageError(
                f"pool: chains {i} and {j} of all have the same draws. Give each run a `seed` of "
                "its own."
            )
    if any(chain.n_kept is not None and chain.n_kept < 4 for chain in chains):
        raise UsageError("pool: chains of 4 draws or more can be compared; keep more (`draws`).")
    data, config = opened[0].data, opened[0].config
    if target is None:
        report = mixing(models, data.test)
        sampled = numbers(evaluate(pool(models), data.test, n_samples=None), models[0])
    else:
        config = replace(config, training=replace(config.training, n_models=len(models)))
        seconds = sum(run.folder.read("metrics.json")["seconds"] for run in opened if run.folder)
        with target.locked():
            target.begin(force=force)
            sources = [str(Path(run).absolute()) for run in runs]
            target.create(config, "pool", COMMAND_LINE.get(), sources=sources, **names_of(data))
            written = write_results(target, config, data, models, [], seconds, figures=figures)
        report, sampled = ChainReport(**written["chains"]), written["sampled"]
    assert report is not None
    names = [str(run) for run in runs]
    chain_words = {"summary": str(report), "problems": list(report.problems)}
    return {"runs": names, "chains": {**asdict(report), **chain_words}, "sampled": sampled}


def _check_poolable(first_name: str, first: Run, name: str, run: Run) -> None:
    """Raise unless a run has chains of the same posterior as the first."""
    if run.posterior.n_kept is None or not has_spread(run.model):
        raise UsageError(
            f"pool: {name} has no chains, its engine is {run.config.engine.name}; sgld and sghmc "
            "have some."
        )
    before, now = to_dict(first.config), to_dict(run.config)
    for section, values in now.items():
        for key, value in values.items():
            if value != before[section][key] and key not in _MAY_DIFFER:
                raise UsageError(
                    f"pool: {name} was trained with {argument_of(section, key)} {value}, "
                    f"{first_name} with {before[section][key]}; chains of one posterior differ in "
                    "`seed` alone."
                )
    mine, theirs = run.data.test, first.data.test
    if mine.y.shape != theirs.y.shape or not torch.equal(mine.y, theirs.y):
        raise UsageError(f"pool: {name} has other test examples than {first_name}.")
    if names := differing_buffers(
        [q for q in map(posterior_of, (first.model, run.model)) if isinstance(q, Samples)]
    ):
        raise UsageError(
            f"pool: the module buffer {names[0]!r} differs between {name} and {first_name}, and "
            "all draws of a posterior share it."
        )


def _remarks(config: RunConfig, n_epochs: int, seconds: float, result: Json) -> list[str]:
    remarks = [f"Training took {seconds:.1f} s on {config.training.device}."]
    if "sampled" in result and config.tempering != 1:
        remarks.append(tempering_words(config.tempering))
    if result.get("stuck_in_slab", 0.0) > 0.05:
        remarks.append(
            f"{100 * result['stuck_in_slab']:.0f} % of the weights are counted as included only "
            "because they started in the slab: use a smaller `init_std`, or rank by snr."
        )
    if n_epochs < (config.training.epochs or 0):
        remarks.append(
            f"Stopped early after {n_epochs} epochs: validation did not improve any more."
        )
    return remarks
