"""`bayesieve verify`: is a bundle intact, and the same function as what it was made from?"""

from pathlib import Path
from typing import Annotated

import typer

from bayesieve import runs
from bayesieve.cli.console import JsonFlag, print_json, print_table

EXAMPLE = "Example: bayesieve verify runs/c --against runs/b"
BundleArgument = Annotated[Path, typer.Argument(help="Bundle folder.", metavar="BUNDLE")]
Against = Annotated[
    Path | None, typer.Option("--against", help="Run or bundle that must give the same outputs.")
]
_WORDS = {
    "files": "files, checksums right",
    "recorded_outputs": "difference to recorded outputs",
    "max_difference": "difference of outputs",
    "n_inputs": "inputs compared",
    "changed_predictions": "changed predictions",
}


def verify(bundle: BundleArgument, against: Against = None, json: JsonFlag = False) -> None:
    """Check a bundle's files, and its outputs against another model; exit code 1 if they differ."""
    result = runs.verify(bundle, against)
    if json:
        print_json(result)
        return
    shown = {name: v for name, v in result.items() if v is not None}
    rows = [(_WORDS.get(name, name), f"{v:.3g}" if isinstance(v, float) else str(v))
            for name, v in shown.items()]  # fmt: skip
    print_table(f"{bundle} is intact", ("", ""), rows)
