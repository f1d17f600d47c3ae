"""`bayesieve select`: which columns of a table matter, with control of false discoveries."""

from pathlib import Path
from typing import Annotated, Any

import typer

from bayesieve.cli.console import FiguresFlag, JsonFlag, note, print_json, print_table
from bayesieve.cli.fit_table import MissingFlag, TableArgument, TargetFlag, TaskFlag, check_table
from bayesieve.errors import UsageError

EXAMPLE = "Example: bayesieve select data.csv --target y --fdr 0.1 --report runs/which"
Report = Annotated[
    Path | None, typer.Option(help="Report folder; DATA's name and -selection unless given.")
]
_SHOWN = 20


def select(
    data: TableArgument,
    target: TargetFlag,
    fdr: Annotated[
        float | None,
        typer.Option(help="Expected share of false discoveries among what is kept (0.1)."),
    ] = None,
    fraction: Annotated[
        float | None, typer.Option(help="Keep this share of the inputs instead.")
    ] = None,
    cross_validate: Annotated[
        bool, typer.Option("--cross-validate", help="Choose the share by 10 folds instead.")
    ] = False,
    bootstrap: Annotated[
        int, typer.Option(help="Samples of the rows on which the choice is repeated; 0 for none.")
    ] = 20,
    epochs: Annotated[
        int | None, typer.Option(help="Passes over the rows; about 1,500 steps unless given.")
    ] = None,
    task: TaskFlag = None,
    missing: MissingFlag = "refuse",
    seed: Annotated[int, typer.Option(help="Of splits, noise and batches.")] = 0,
    report: Report = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an earlier report.")] = False,
    figures: FiguresFlag = True,
    json: JsonFlag = False,
) -> None:
    """Say which inputs of a table matter, how sure that is, and what dropping the others costs."""
    check_table(data, task, missing)
    given = [name for name, value in (("--fdr", fdr), ("--fraction", fraction),
                                      ("--cross-validate", cross_validate or None))
             if value is not None]  # fmt: skip
    if len(given) > 1:
        raise UsageError(f"give one of --fdr, --fraction and --cross-validate, not {given}.")
    for name, value in (("--fdr", fdr), ("--fraction", fraction)):
        if value is not None and not 0 < value < 1:
            raise UsageError(f"{name} must be between 0 and 1, got {value}.")
    if epochs is not None and epochs < 1:
        raise UsageError(f"--epochs must be at least 1, got {epochs}.")
    if bootstrap < 0 or bootstrap == 1:
        raise UsageError(f"--bootstrap must be 0, or 2 or more, got {bootstrap}.")
    folder = report or Path(f"{data.stem}-selection")
    if (folder / "selection.json").exists() and not force:
        raise UsageError(f"{folder} holds a selection; use --force, or another --report.")
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"--report {folder} is a file; give a folder.")
    from bayesieve.cli.selecting import Selection, select_and_report

    own = Selection(
        data, target, task, missing, fdr, fraction, cross_validate, bootstrap, epochs, seed
    )  # fmt: skip
    result = select_and_report(own, folder, figures=figures)
    if json:
        print_json(result)
        return
    _show(result, folder)


def _show(result: dict[str, Any], folder: Path) -> None:
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
    print(f"report: {folder / 'report.md'}")
