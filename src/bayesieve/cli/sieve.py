"""`bayesieve sieve`: from weights somebody trained to a run folder with a sparse network."""

from pathlib import Path
from typing import Any

from bayesieve.cli.flags import command
from bayesieve.cli.prune import show_pruned
from bayesieve.runs.folder import RunFolder
from bayesieve.runs.options import Sieve

EXAMPLE = "Example: bayesieve sieve own.safetensors --net mlp:24 --data digits --out s"


@command(Sieve)
def sieve(asked: Sieve, result: dict[str, Any]) -> None:
    """Print the numbers of the trained network and of the sparse one."""
    show_pruned({"trained": result["dense"], "sieved": result}, RunFolder(Path(asked.out)))
