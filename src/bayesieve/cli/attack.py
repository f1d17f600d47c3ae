"""`bayesieve attack`: how a run's predictions hold up under attacks and shifts of its images."""

from pathlib import Path
from typing import Any

from bayesieve.cli.console import note, print_table
from bayesieve.cli.flags import command
from bayesieve.runs.options import Attack
from bayesieve.text import as_percent

EXAMPLE = "Example: bayesieve attack runs/a --fgsm 0.1,0.2 --shift rotation:15 --json"


@command(Attack)
def attack(asked: Attack, result: dict[str, Any]) -> None:
    """Print every point of every curve."""
    rows = [
        (name, f"{point['strength']:g}", as_percent(point["accuracy"]), f"{point['entropy']:.4f}",
         as_percent(point["ece"]), f"{point['nll']:.4f}")
        for name, points in result["curves"].items() for point in points
    ]  # fmt: skip
    title = f"{asked.run}: {result['n_examples']} test images, {result['samples'] or 'no'} draws"
    print_table(title, ("", "strength", "accuracy", "entropy", "ECE", "NLL"), rows)
    folder = Path(asked.out or asked.run)
    picture = f", {folder / 'figures' / 'attack.png'}" if asked.figures else ""
    note(f"written: {folder / 'attack.json'}{picture}")
