"""`bayesieve predict`: run a bundle or an ONNX file on new data."""

from pathlib import Path
from typing import Annotated

import typer

from bayesieve import runs
from bayesieve.cli.console import JsonFlag, note, print_json, print_table

EXAMPLE = "Example: bayesieve predict runs/c data.npz --out predictions.csv"
ModelArgument = Annotated[Path, typer.Argument(help="Bundle folder or ONNX file.", metavar="MODEL")]
DataArgument = Annotated[
    Path,
    typer.Argument(
        help="NPZ with an array x, CSV or parquet with named columns, or folder of images.",
        metavar="DATA",
    ),
]
Out = Annotated[Path, typer.Option("--out", help="CSV file to write.")]
Samples = Annotated[int, typer.Option(help="Posterior draws to average over; 0 uses the mean.")]
Seed = Annotated[int, typer.Option(help="Seed of the draws.")]
Prepared = Annotated[
    bool, typer.Option("--prepared", help="x is network input already; do not standardise it.")
]
Force = Annotated[bool, typer.Option("--force", help="Replace the file at --out.")]
_SHOWN = 5


def predict(
    model: ModelArgument,
    data: DataArgument,
    out: Out,
    samples: Samples = 0,
    seed: Seed = 0,
    prepared: Prepared = False,
    force: Force = False,
    json: JsonFlag = False,
) -> None:
    """Predict new data, with uncertainties, as a CSV file.

    Raw integers (pixels) and tables are prepared as the model's training data were; images of
    floating-point numbers are taken as prepared.
    """
    result, rows = runs.predict(
        model, data, out, samples=samples, seed=seed, prepared=prepared, force=force
    )
    if json:
        print_json(result)
        return
    shown = [tuple(_short(value) for value in row) for row in rows[:_SHOWN]]
    print_table("", tuple(result["columns"]), shown)
    if len(rows) > _SHOWN:
        note(f"and {len(rows) - _SHOWN} more")
    print(f"predictions: {out}")


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
