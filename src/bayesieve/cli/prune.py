"""`bayesieve prune`: from a run folder to one with a smaller model."""

from pathlib import Path
from typing import Annotated, Any

import typer

from bayesieve import runs
from bayesieve.cli.console import (
    FiguresFlag,
    ForceFlag,
    JsonFlag,
    given_arguments,
    note,
    print_json,
    print_quality,
)
from bayesieve.cli.evaluate import DeviceFlag, RunArgument
from bayesieve.runs.folder import RunFolder

EXAMPLE = "Example: bayesieve prune runs/a --zeros 0.95 --finetune 10 --out runs/b"

OutOption = Annotated[Path, typer.Option("--out", help="Run folder to write.")]
Zeros = Annotated[float | None, typer.Option(help="Fraction of all parameters to set to 0.")]
Threshold = Annotated[
    float | None, typer.Option(help="Keep weights whose inclusion probability is this high.")
]
NOfM = Annotated[
    str | None, typer.Option(help="Keep N of every M weights, such as 2:4.", metavar="N:M")
]
KeepUnits = Annotated[
    float | None,
    typer.Option("--keep-units", help="Keep this fraction of units, channels and heads, whole."),
]
TargetMacs = Annotated[
    float | None,
    typer.Option(help="Remove whole units until this fraction of multiply-adds is left."),
]
TargetLatency = Annotated[
    float | None,
    typer.Option(
        help="Remove whole units until one example takes this long here, compacted, in torch.",
        metavar="MS",
    ),
]
ScoreOption = Annotated[
    str | None,
    typer.Option(
        help="What stays; unless given, snr for weights and evidence for units, or magnitude for "
        "map. Units take inclusion, evidence or magnitude.",
        metavar="inclusion|snr|evidence|magnitude|second-moment",
    ),
]
Scope = Annotated[
    str | None,
    typer.Option(
        help="Compare all, or within layers; global for weights, layer for units, unless given.",
        metavar="global|layer",
    ),
]
AllowEmpty = Annotated[
    bool, typer.Option("--allow-empty-layers", help="A layer may lose its last weight.")
]
Finetune = Annotated[int, typer.Option(help="Epochs of further training with the mask fixed.")]
Reestimate = Annotated[
    bool, typer.Option("--reestimate-batchnorm", help="Renew BatchNorm statistics afterwards.")
]


def prune(
    run: RunArgument,
    out: OutOption,
    zeros: Zeros = None,
    threshold: Threshold = None,
    n_of_m: NOfM = None,
    keep_units: KeepUnits = None,
    target_macs: TargetMacs = None,
    target_latency: TargetLatency = None,
    score: ScoreOption = None,
    scope: Scope = None,
    allow_empty_layers: AllowEmpty = False,
    finetune: Finetune = 0,
    reestimate_batchnorm: Reestimate = False,
    force: ForceFlag = False,
    device: DeviceFlag = "auto",
    figures: FiguresFlag = True,
    json: JsonFlag = False,
) -> None:
    """Remove weights or whole units from a run, and show what every sparsity would cost."""
    result = runs.prune(
        run,
        out,
        zeros=zeros,
        threshold=threshold,
        n_of_m=n_of_m,
        keep_units=keep_units,
        target_macs=target_macs,
        target_latency=target_latency,
        score=score,
        scope=scope,
        allow_empty_layers=allow_empty_layers,
        finetune=finetune,
        reestimate_batchnorm=reestimate_batchnorm,
        force=force,
        device=device,
        figures=figures,
        arguments=given_arguments(),
    )
    if json:
        print_json(result)
    else:
        before = "dense" if result["dense"]["zeros"] == 0 else "before"
        show_pruned({before: result["dense"], "sparse": result}, RunFolder(out))


def show_pruned(rows: dict[str, dict[str, Any]], folder: RunFolder) -> None:
    """Print the numbers before and after pruning, and where the files are."""
    print_quality("Test set, mean weights", rows)
    note(f"error against sparsity: {folder.path / 'curve.json'}")
    print(folder.to_read)
    print(f"next: bayesieve report {folder.path} (a page to try it), bayesieve compact --help")
