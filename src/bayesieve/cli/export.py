"""`bayesieve export`: from a bundle to a file that other software runs."""

from pathlib import Path
from typing import Annotated

import typer

from bayesieve import runs
from bayesieve.cli.console import JsonFlag, note, print_json
from bayesieve.text import as_bytes

EXAMPLE = "Example: bayesieve export runs/c --to onnx --out model.onnx"
Source = Annotated[Path, typer.Argument(help="Bundle of `compact`, or a run.", metavar="BUNDLE")]
To = Annotated[str, typer.Option("--to", help="What to write.", metavar="onnx|pt2|c|bundle")]
Out = Annotated[Path, typer.Option("--out", help="File to write; a folder for a bundle.")]
Samples = Annotated[
    int, typer.Option(help="onnx: bake in so many posterior draws, for uncertainties.")
]
Seed = Annotated[int, typer.Option(help="onnx: seed of the draws.")]
Int8 = Annotated[bool, typer.Option("--int8", help="c: weights of 8 bits.")]
MaskedOk = Annotated[
    bool,
    typer.Option("--masked-ok", help="Export a run as it is: zeros stay, size and speed too."),
]
Force = Annotated[bool, typer.Option("--force", help="Replace what lies at --out.")]


def export(
    source: Source,
    to: To,
    out: Out,
    samples: Samples = 0,
    seed: Seed = 0,
    int8: Int8 = False,
    masked_ok: MaskedOk = False,
    force: Force = False,
    json: JsonFlag = False,
) -> None:
    """Write a model as ONNX, torch.export, a C header or a bundle, checked against torch."""
    result = runs.export(
        source,
        to,
        out,
        samples=samples,
        seed=seed,
        int8=int8,
        masked_ok=masked_ok,
        force=force,
    )
    if result["masked"]:
        note(
            "exported as it is: weights that were removed are zeros in full-size tensors, so the "
            "file is as large and as slow as before pruning. `bayesieve compact` removes them."
        )
    if json:
        print_json(result)
    else:
        print(f"{to}: {out} ({as_bytes(result['bytes'])})")
