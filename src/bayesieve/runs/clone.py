"""Commands whose work is in the package `studies`: it is in a clone, not in the wheel."""

import sys
from pathlib import Path
from typing import Any

from bayesieve.errors import UsageError
from bayesieve.runs.options import Compare, Sweep


def compare(asked: Compare) -> dict[str, Any]:
    """Train, score and rank every method under one budget."""
    require_studies("compare")
    from studies.comparison.compare import compare

    return compare(asked)


def sweep(asked: Sweep) -> dict[str, Any]:
    """Search for settings with Optuna."""
    require_studies("sweep")
    from studies.search import sweep

    return sweep(asked)


def require_studies(command: str) -> None:
    """Make the package `studies` importable: it is in a clone of the repository, not in the wheel.

    The clone is the one this package runs from, else the one around the working directory.
    """
    here = Path.cwd()
    for folder in (Path(__file__).parents[3], here, *here.parents):
        if (folder / "studies" / "__init__.py").is_file() and (
            folder / "src" / "bayesieve"
        ).is_dir():
            if str(folder) not in sys.path:
                sys.path.append(str(folder))
            return
    raise UsageError(
        f"{command}: the studies are not part of the installed package; clone the repository and "
        "run the command inside the clone."
    )
