"""`bayesieve select`: which columns of a table matter, with control of false discoveries."""

from pathlib import Path
from typing import Any

from bayesieve.cli.console import note, print_table
from bayesieve.cli.flags import command
from bayesieve.runs.options import Select

EXAMPLE = "Example: bayesieve select data.csv --target y --fdr 0.1 --report runs/which"
_SHOWN = 20


@command(Select)
def select(asked: Select, result: dict[str, Any]) -> None:
    """Print the inputs by probability, and the test error with and without those dropped."""
    rows = sorted(result["inputs"], key=lambda row: -row["probability"])
    shown = [
        (row["name"], f"{row['probability']:.3f}", f"{row['phi']:.2f}",
         "" if row["frequency"] is None else f"{row['frequency']:.2f}",
         "kept" if row["kept"] else "")
        for row in rows[:_SHOWN]
    ]  # fmt: skip
    header = ("input", "probability", "φ", "in samples", "")
    print_table(f"{len(result['kept'])} of {len(rows)} inputs kept", header, shown)
    if len(rows) > _SHOWN:
        note(f"and {len(rows) - _SHOWN} more")
    print(
        f"expected share of false discoveries {result['expected_fdr']:.3f}; test "
        f"{result['error_name']} with all inputs {result['error_all']:.4g}, with those kept "
        f"{result['error_kept']:.4g}"
    )
    print(f"report: {Path(result['report']) / 'report.md'}")
