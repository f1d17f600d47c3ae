"""`bayesieve prune`: from a run folder to one with a smaller model."""

from pathlib import Path
from typing import Any

from bayesieve.cli.console import note, print_quality
from bayesieve.cli.flags import command
from bayesieve.runs.folder import RunFolder
from bayesieve.runs.options import Prune

EXAMPLE = "Example: bayesieve prune runs/a --zeros 0.95 --finetune 10 --out runs/b"


@command(Prune)
def prune(asked: Prune, result: dict[str, Any]) -> None:
    """Print the numbers before and after."""
    before = "dense" if result["dense"]["zeros"] == 0 else "before"
    show_pruned({before: result["dense"], "sparse": result}, RunFolder(Path(asked.out)))


def show_pruned(rows: dict[str, dict[str, Any]], folder: RunFolder) -> None:
    """Print the numbers before and after pruning, and where the files are."""
    print_quality("Test set, mean weights", rows)
    note(f"error against sparsity: {folder.path / 'curve.json'}")
    print(folder.to_read)
    print(f"next: bayesieve report {folder.path} (a page to try it), bayesieve compact --help")
