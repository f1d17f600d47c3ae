"""`bayesieve export`: from a bundle to a file that other software runs."""

from typing import Any

from bayesieve.cli.flags import command
from bayesieve.runs.options import Export
from bayesieve.text import as_bytes

EXAMPLE = "Example: bayesieve export runs/c --to onnx --out model.onnx"


@command(Export)
def export(asked: Export, result: dict[str, Any]) -> None:
    """Print the file and its size."""
    print(f"{asked.to}: {asked.out} ({as_bytes(result['bytes'])})")
