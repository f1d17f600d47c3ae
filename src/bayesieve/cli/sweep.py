"""`bayesieve sweep`: search settings for the best error at every size."""

from pathlib import Path
from typing import Annotated, Any

import typer

from bayesieve import runs
from bayesieve.cli.console import FiguresFlag, JsonFlag, print_json, print_table
from bayesieve.cli.flags import Settings, with_settings

EXAMPLE = "Example: bayesieve sweep --data digits --epochs 20 --trials 9 --out runs/s"


@with_settings
def sweep(
    settings: Settings,
    out: Annotated[Path, typer.Option(help="Folder of the search; an old one is continued.")],
    trials: Annotated[
        int, typer.Option(help="Settings to try in this call; 0 only gathers what workers found.")
    ] = 20,
    config: Annotated[
        Path | None, typer.Option(help="YAML, TOML or JSON file with what stays fixed.")
    ] = None,
    search: Annotated[
        list[str] | None,
        typer.Option(
            help="What varies: section.name=LOW:HIGH[:log] or section.name=A|B|C, repeated. "
            "Learning rate, KL weight and zeros unless given."
        ),
    ] = None,
    storage: Annotated[
        str | None,
        typer.Option(
            help="Database URL shared by workers on several machines; a journal file in --out "
            "unless given, which workers on one machine share.",
            metavar="URL",
        ),
    ] = None,
    name: Annotated[
        str, typer.Option(help="Name of the search in the database, which may hold several.")
    ] = "bayesieve",
    figures: FiguresFlag = True,
    json: JsonFlag = False,
) -> None:
    """Search for settings: validation error against size, as a Pareto front."""
    result = runs.sweep(
        config,
        out=out,
        trials=trials,
        search=search,
        storage=storage,
        name=name,
        figures=figures,
        **settings,
    )
    if json:
        print_json(result)
        return
    _show(result, out)


def _show(result: dict[str, Any], out: Path) -> None:
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
    print(f"train one of them: bayesieve train --config {out / 'front'}/NUMBER.json --out runs/a")


def _text(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
