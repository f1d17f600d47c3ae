"""`bayesieve train`: from data and settings to a run folder."""

import json as jsonlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bayesieve import runs
from bayesieve.cli.console import (
    FiguresFlag,
    ForceFlag,
    JsonFlag,
    given_arguments,
    print_json,
    print_quality,
    print_table,
)
from bayesieve.cli.flags import Settings, with_settings
from bayesieve.runs.folder import RunFolder
from bayesieve.runs.text import with_draws
from bayesieve.text import as_bytes

if TYPE_CHECKING:
    pass

EXAMPLE = "Example: bayesieve train --data digits --epochs 60 --zeros 0.9 --out runs/a"
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
    settings: Settings,
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
    result = runs.train(
        config,
        out=out,
        dry_run=dry_run,
        force=force,
        resume=resume,
        figures=figures,
        tensorboard=tensorboard,
        arguments=given_arguments(),
        **settings,
    )
    if json:
        print_json(result)
    elif dry_run:
        print_table("This run would take", ("", ""), _rows(result))
        print(jsonlib.dumps(result["config"], indent=2))
    else:
        print_quality("Test set", with_draws(result))
        folder = RunFolder(out or Path())
        print(folder.to_read)
        print(f"next: bayesieve report {folder.path} (a page to try it), bayesieve prune --help")


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
