"""`bayesieve fit-table`: from a table to a fitted bundle and a report, with one command."""

from pathlib import Path
from typing import Annotated, Any

import typer

from bayesieve.cli.console import (
    FiguresFlag,
    JsonFlag,
    note,
    print_json,
    print_quality,
    print_table,
)
from bayesieve.errors import UsageError
from bayesieve.runs.text import with_draws

EXAMPLE = "Example: bayesieve fit-table house.csv --target price --report runs/price"
TableArgument = Annotated[
    Path, typer.Argument(help="CSV, parquet or NPZ file.", metavar="DATA", show_default=False)
]
TargetFlag = Annotated[str, typer.Option(help="The column to predict.", metavar="COLUMN")]
TaskFlag = Annotated[
    str | None,
    typer.Option(help="Guessed from the target unless given.", metavar="regression|classification"),
]
MissingFlag = Annotated[
    str, typer.Option(help="What to do with missing values.", metavar="refuse|impute")
]
Out = Annotated[
    Path | None, typer.Option(help="Bundle folder to write; DATA's name and -model unless given.")
]
Report = Annotated[
    Path | None, typer.Option(help="Report folder; DATA's name and -report unless given.")
]
Force = Annotated[bool, typer.Option("--force", help="Replace what an earlier call wrote.")]


def fit_table(
    data: TableArgument,
    target: TargetFlag,
    task: TaskFlag = None,
    missing: MissingFlag = "refuse",
    engine: Annotated[str, typer.Option(help="sbnn or flat-vi.", metavar="NAME")] = "sbnn",
    hidden: Annotated[
        str | None, typer.Option(help="Hidden layers; 50,50 (from 10,000 rows 100,100).")
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(help="Passes over the rows; about 3,000 steps unless given.")
    ] = None,
    zeros: Annotated[
        float | None, typer.Option(help="Fraction of the parameters to remove while training.")
    ] = None,
    test_fraction: Annotated[float, typer.Option(help="Part set aside for testing.")] = 0.2,
    seed: Annotated[int, typer.Option(help="Of splits, starts, noise and batches.")] = 0,
    out: Out = None,
    report: Report = None,
    force: Force = False,
    figures: FiguresFlag = True,
    json: JsonFlag = False,
) -> None:
    """Fit a Bayesian network to a table; write a bundle for `predict` and a report."""
    check_table(data, task, missing)
    if engine not in ("sbnn", "flat-vi"):
        raise UsageError(f"--engine must be sbnn or flat-vi, got {engine!r}.")
    if hidden is not None and not all(part.isdigit() for part in hidden.split(",")):
        raise UsageError(f"--hidden must be widths with commas between, as 50,50; got {hidden!r}.")
    if epochs is not None and epochs < 1:
        raise UsageError(f"--epochs must be at least 1, got {epochs}.")
    for name, value in (("--zeros", zeros), ("--test-fraction", test_fraction)):
        if value is not None and not 0 < value < 1:
            raise UsageError(f"{name} must be between 0 and 1, got {value}.")
    bundle = out or Path(f"{data.stem}-model")
    folder = report or Path(f"{data.stem}-report")
    if bundle.resolve() == folder.resolve():
        raise UsageError("--out and --report must be different folders.")
    from bayesieve.cli.fitting_table import TableFit, fit_and_report

    own = TableFit(data, target, task, missing, engine, hidden, epochs, zeros, test_fraction, seed)
    result = fit_and_report(own, bundle, folder, force=force, figures=figures)
    if json:
        print_json(result)
        return
    _show(result)


def check_table(data: Path, task: str | None, missing: str) -> None:
    """Raise unless the file is there and the options have values they may have."""
    if not data.is_file():
        raise UsageError(f"there is no file {data}.")
    if data.suffix.lower() not in (".csv", ".parquet", ".npz"):
        raise UsageError(f"{data} must be a .csv, .parquet or .npz file.")
    if task not in (None, "regression", "classification"):
        raise UsageError(f"--task must be regression or classification, got {task!r}.")
    if missing not in ("refuse", "impute"):
        raise UsageError(f"--missing must be refuse or impute, got {missing!r}.")


def _show(result: dict[str, Any]) -> None:
    print_quality("Test rows", with_draws(result["metrics"]))
    best = sorted(result["importance"].items(), key=lambda item: -item[1])[:8]
    print_table("Importance φ", ("", ""), [(name, f"{value:.2f}") for name, value in best])
    note(f"report: {Path(result['report']) / 'report.md'}")
    print(f"predict new rows: bayesieve predict {result['bundle']} NEW.csv --out predictions.csv "
          "--samples 50")  # fmt: skip
