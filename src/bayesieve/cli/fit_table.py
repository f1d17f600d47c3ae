"""`bayesieve fit-table`: from a table to a fitted bundle and a report, with one command."""

from pathlib import Path
from typing import Any

from bayesieve.cli.console import note, print_quality, print_table
from bayesieve.cli.flags import command
from bayesieve.runs.options import FitTable
from bayesieve.runs.text import with_draws

EXAMPLE = "Example: bayesieve fit-table house.csv --target price --report runs/price"


@command(FitTable)
def fit_table(asked: FitTable, result: dict[str, Any]) -> None:
    """Print the quality on the test rows and the most important inputs."""
    print_quality("Test rows", with_draws(result["metrics"]))
    best = sorted(result["importance"].items(), key=lambda item: -item[1])[:8]
    print_table("Importance φ", ("", ""), [(name, f"{value:.2f}") for name, value in best])
    note(f"report: {Path(result['report']) / 'report.md'}")
    print(f"predict new rows: bayesieve predict {result['bundle']} NEW.csv --out predictions.csv "
          "--samples 50")  # fmt: skip
