"""`bayesieve predict`: run a bundle or an ONNX file on new data."""

import csv
from itertools import islice
from pathlib import Path
from typing import Any

from bayesieve.cli.console import note, print_table
from bayesieve.cli.flags import command
from bayesieve.runs.options import Predict

EXAMPLE = "Example: bayesieve predict runs/c data.npz --out predictions.csv"
_SHOWN = 5


@command(Predict)
def predict(asked: Predict, result: dict[str, Any]) -> None:
    """Print the first predictions."""
    with Path(asked.out).open(newline="", encoding="utf-8") as stream:
        rows = list(islice(csv.reader(stream), 1, 1 + _SHOWN))
    print_table("", tuple(result["columns"]), [tuple(map(_short, row)) for row in rows])
    if result["n"] > _SHOWN:
        note(f"and {result['n'] - _SHOWN} more")
    print(f"predictions: {asked.out}")


def _short(text: str) -> str:
    """A number with four figures; whole numbers and words as they are."""
    try:
        return text if text.isdecimal() else f"{float(text):.4g}"
    except ValueError:
        return text
