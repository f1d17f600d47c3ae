"""`bayesieve train`: from data and settings to a run folder."""

import json
from pathlib import Path
from typing import Any

from bayesieve.cli.console import print_quality, print_table
from bayesieve.cli.flags import command
from bayesieve.runs.folder import RunFolder
from bayesieve.runs.options import Train
from bayesieve.runs.text import with_draws
from bayesieve.text import as_bytes

EXAMPLE = "Example: bayesieve train --data digits --epochs 60 --zeros 0.9 --out runs/a"


@command(Train)
def train(asked: Train, result: dict[str, Any]) -> None:
    """Print the numbers, or what the run would take."""
    if asked.dry_run:
        print_table("This run would take", ("", ""), _rows(result))
        print(json.dumps(result["config"], indent=2))
    else:
        print_quality("Test set", with_draws(result))
        folder = RunFolder(Path(asked.out or ""))
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
