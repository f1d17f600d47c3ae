"""`bayesieve report`: one page with the pictures, the numbers and the network of a run."""

from typing import Any

from bayesieve.cli.console import note
from bayesieve.cli.flags import command
from bayesieve.runs.options import Report
from bayesieve.text import as_bytes

EXAMPLE = "Example: bayesieve report runs/a runs/b -o report.html"


@command(Report)
def report(asked: Report, result: dict[str, Any]) -> None:
    """Print the files, and which networks are not inside the page."""
    for run in result["runs"]:
        if not run["embedded"]:
            why = run["not_embedded"].rstrip(".")
            note(f"{run['name']}: the network is not inside the page: {why}.")
    for path in (asked.card, asked.data):
        if path is not None:
            print(path)
    size = as_bytes(result["bytes"])
    print(f"{result['report']} ({size}): open it in a browser, it needs no network")
