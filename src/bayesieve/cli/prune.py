"""`bayesieve prune`: from a run folder to one with a smaller model."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

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
from bayesieve.errors import UsageError
from bayesieve.runs.folder import RunFolder

if TYPE_CHECKING:
    from bayesieve.runs.sparse import Choice

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
    source, target = RunFolder(run), RunFolder(out)
    if out.resolve() == run.resolve():
        raise UsageError("--out must differ from the run that is pruned.")
    target.check_free(force=force)
    from bayesieve.runs.sparse import Choice

    choice = Choice(
        zeros, threshold, _pair(n_of_m), keep_units, target_macs, target_latency, score, scope,
        allow_empty_layers, finetune, reestimate_batchnorm,
    )  # fmt: skip
    result = _run(source, target, choice, device, figures=figures)
    if json:
        print_json(result)
    else:
        _show(result, target)


def _run(
    source: RunFolder, target: RunFolder, choice: "Choice", device: str, *, figures: bool
) -> dict[str, Any]:
    from bayesieve.runs.run import load_run
    from bayesieve.runs.sparse import sieve, write_pruned

    run = load_run(source, device=device)
    pruned = sieve(run, choice)
    record = {
        "command": "prune",
        "arguments": given_arguments(),
        "source": str(source.path.absolute()),
        "rule": choice.to_dict(),
    }
    return write_pruned(run, pruned, target, record, figures=figures)


def _pair(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    n, colon, m = text.partition(":")
    if not (colon and n.isdecimal() and m.isdecimal()):
        raise UsageError(f"--n-of-m must read N:M, such as 2:4, got {text!r}.")
    return int(n), int(m)


def _show(result: dict[str, Any], folder: RunFolder) -> None:
    before = "dense" if result["dense"]["zeros"] == 0 else "before"
    show_pruned({before: result["dense"], "sparse": result}, folder)


def show_pruned(rows: dict[str, dict[str, Any]], folder: RunFolder) -> None:
    """Print what pruning did, and where its files are."""
    print_quality("Test set, mean weights", rows)
    note(f"error against sparsity: {folder.path / 'curve.json'}")
    print(folder.to_read)
    print(f"next: bayesieve report {folder.path} (a page to try it), bayesieve compact --help")
