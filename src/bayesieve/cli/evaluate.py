"""`bayesieve evaluate`: how good a run is on a split of its data."""

from typing import Any

from bayesieve.cli.console import print_table
from bayesieve.cli.flags import command
from bayesieve.runs.options import Evaluate

EXAMPLE = "Example: bayesieve evaluate runs/b --samples 100 --json"


@command(Evaluate)
def evaluate(asked: Evaluate, result: dict[str, Any]) -> None:
    """Print every number."""
    rows = [(name, f"{value:.5g}" if isinstance(value, float) else str(value))
            for name, value in result.items()]  # fmt: skip
    print_table(f"{asked.run} on the {asked.split} split", ("", ""), rows)
