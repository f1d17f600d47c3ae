"""`bayesieve train`: from data and settings to a run folder."""

import json as jsonlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bayesieve.cli.console import (
    FiguresFlag,
    ForceFlag,
    JsonFlag,
    given_arguments,
    note,
    print_json,
    print_quality,
    print_table,
)
from bayesieve.cli.flags import Settings, with_settings
from bayesieve.errors import UsageError
from bayesieve.runs.config import COMMAND_LINE, RunConfig, flag_of, from_dict, read_config, to_dict
from bayesieve.runs.folder import RunFolder
from bayesieve.runs.text import as_bytes

if TYPE_CHECKING:
    from bayesieve.runs.build import Plan

EXAMPLE = "Example: bayesieve train --data digits --epochs 60 --zeros 0.9 --out runs/a"
_MAY_CHANGE = {"device", "compile", "checkpoint_every", "threads"}  # of the section training
Out = Annotated[Path | None, typer.Option(help="Run folder to write (needed unless --dry-run).")]
ConfigFile = Annotated[
    Path | None,
    typer.Option(help="YAML, TOML or JSON file with these settings; flags override it."),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Print parameters, memory and steps; write nothing.")
]
TensorBoard = Annotated[
    bool, typer.Option("--tensorboard", help="Also write scalars to RUN/tensorboard.")
]
Resume = Annotated[bool, typer.Option("--resume", help="Continue the run in --out.")]


@with_settings
def train(
    given: Settings,
    out: Out = None,
    config: ConfigFile = None,
    dry_run: DryRun = False,
    force: ForceFlag = False,
    resume: Resume = False,
    figures: FiguresFlag = True,
    tensorboard: TensorBoard = False,
    json: JsonFlag = False,
) -> None:
    """Learn a posterior over the weights of a network and write a run folder."""
    if out is None and (resume or not dry_run):
        raise UsageError("give a folder for the run: --out runs/a.")
    folder = RunFolder(out or Path())
    settings = _settings(given, config, folder if resume else None)
    if not (resume or dry_run):
        folder.check_free(force=force)
    if resume and folder.finished:
        note(f"{folder.path} is finished already.")
        result = folder.read("metrics.json")
    else:
        from bayesieve.runs.build import make_plan

        plan = make_plan(settings)
        if dry_run:
            _describe(plan, json=json)
            return
        if resume:
            _check_same(plan.config, folder.read_config())
        result = _run(plan, folder, resume=resume, figures=figures, scalars=tensorboard)
    if json:
        print_json(result)
    else:
        _show(result, folder)


def _settings(given: Settings, file: Path | None, stored: RunFolder | None) -> RunConfig:
    base = None if stored is None else stored.read_config()
    if file is not None:
        base = read_config(file)
    return from_dict(given, COMMAND_LINE, base)


def _check_same(config: RunConfig, stored: RunConfig) -> None:
    before = to_dict(stored)
    for section, values in to_dict(config).items():
        for name, value in values.items():
            if value != before[section][name] and name not in _MAY_CHANGE:
                raise UsageError(
                    f"--resume: the run was begun with {flag_of(section, name)} "
                    f"{before[section][name]}, this command has {value}. Leave it out, or start "
                    "anew in another --out."
                )


def _run(
    plan: "Plan", folder: RunFolder, *, resume: bool, figures: bool, scalars: bool
) -> dict[str, Any]:
    from bayesieve.runs.learn import complete, learn
    from bayesieve.training.tensorboard import ScalarLog, check_installed

    if scalars:
        check_installed()

    if not resume:
        folder.clear()
        folder.create(plan.config, {"command": "train", "arguments": given_arguments()})
    note(f"training on {plan.device}: {plan.length.n_steps:,} steps, {plan.problem.layout.size:,} "
         f"parameters; stop with Ctrl-C, continue with --resume")  # fmt: skip
    log = ScalarLog(folder.path / "tensorboard") if scalars else None
    return complete(plan, learn(plan, folder, resume=resume, log=log), folder, figures=figures)


def _describe(plan: "Plan", *, json: bool) -> None:
    from bayesieve.runs.build import what_it_takes

    facts = what_it_takes(plan)
    if json:
        print_json({**facts, "config": to_dict(plan.config)})
        return
    print_table("This run would take", ("", ""), _rows(facts))
    print(jsonlib.dumps(to_dict(plan.config), indent=2))


def _rows(facts: dict[str, Any]) -> list[tuple[str, str]]:
    """The facts as lines of a table."""
    return [
        ("parameters", f"{facts['parameters']:,}"),
        ("of them prunable", f"{facts['prunable']:,}"),
        ("training examples", f"{facts['examples']:,}"),
        ("steps", f"{facts['steps']:,} ({facts['steps_per_epoch']:,} per epoch)"),
        ("device", facts["device"]),
        ("memory for data", as_bytes(facts["data_bytes"])),
        ("memory for models", f"{as_bytes(facts['model_bytes'])} and activations"),
        ("disk per checkpoint", as_bytes(facts["checkpoint_bytes"])),
    ]


def _show(result: dict[str, Any], folder: RunFolder) -> None:
    from bayesieve.runs.results import with_draws

    print_quality("Test set", with_draws(result))
    print(folder.to_read)
    print(f"next: bayesieve report {folder.path} (a page to try it), bayesieve prune --help")
