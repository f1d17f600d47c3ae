"""`bayesieve sweep`: search settings for the best error at every size."""

from pathlib import Path
from typing import Any

from bayesieve.cli.console import print_table
from bayesieve.cli.flags import command
from bayesieve.runs.options import Sweep

EXAMPLE = "Example: bayesieve sweep --data digits --epochs 20 --trials 9 --out runs/s"


@command(Sweep)
def sweep(asked: Sweep, result: dict[str, Any]) -> None:
    """Print the front, and how to train one of it."""
    rows = [
        (
            str(trial["number"]),
            f"{trial['score']:.4g}",
            f"{trial['weights']:,}",
            " ".join(
                f"{name.partition('.')[2]}={_text(value)}"
                for name, value in trial["settings"].items()
            ),
        )
        for trial in result["front"]
    ]
    print_table("Pareto front", ("trial", result["metric"], "weights kept", "settings"), rows)
    front = Path(asked.out) / "front"
    print(f"train one of them: bayesieve train --config {front}/NUMBER.json --out runs/a")


def _text(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
