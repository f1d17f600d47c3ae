"""`bayesieve verify`: is a bundle intact, and the same function as what it was made from?"""

from typing import Any

from bayesieve.cli.console import print_table
from bayesieve.cli.flags import command
from bayesieve.runs.options import Verify

EXAMPLE = "Example: bayesieve verify runs/c --against runs/b"
_WORDS = {
    "files": "files, checksums right",
    "recorded_outputs": "difference to recorded outputs",
    "max_difference": "difference of outputs",
    "n_inputs": "inputs compared",
    "changed_predictions": "changed predictions",
}


@command(Verify)
def verify(asked: Verify, result: dict[str, Any]) -> None:
    """Print what was checked."""
    shown = {name: v for name, v in result.items() if v is not None}
    rows = [(_WORDS.get(name, name), f"{v:.3g}" if isinstance(v, float) else str(v))
            for name, v in shown.items()]  # fmt: skip
    print_table(f"{asked.bundle} is intact", ("", ""), rows)
