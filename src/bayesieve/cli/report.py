"""`bayesieve report`: one page with the pictures, the numbers and the network of a run."""

from pathlib import Path
from typing import Annotated, Any

import typer

from bayesieve.cli.console import JsonFlag, note, print_json
from bayesieve.cli.evaluate import DeviceFlag
from bayesieve.errors import UsageError
from bayesieve.runs.folder import RunFolder
from bayesieve.runs.text import as_bytes

EXAMPLE = "Example: bayesieve report runs/a runs/b -o report.html"

Runs = Annotated[
    list[Path],
    typer.Argument(help="Run folders of `train`, `prune`, `sieve` or `demo`.", metavar="RUN..."),
]
Out = Annotated[
    Path | None,
    typer.Option("--out", "-o", help="Page to write; report.html in the only run unless given."),
]
Points = Annotated[int, typer.Option(help="Positions of the slider.", min=2, max=250)]
TestExamples = Annotated[
    int | None,
    typer.Option(help="Test on the first so many examples: for large networks on a CPU.", min=1),
]
Card = Annotated[Path | None, typer.Option(help="Write a Markdown model card here too.")]
Data = Annotated[Path | None, typer.Option(help="Write the data behind the page as JSON too.")]
Before = Annotated[
    Path | None,
    typer.Option(
        help="Run to compare with, such as a dense one; the run it was pruned from unless given.",
        metavar="RUN",
    ),
]


def report(
    runs: Runs,
    out: Out = None,
    before: Before = None,
    points: Points = 21,
    test_examples: TestExamples = None,
    card: Card = None,
    data: Data = None,
    device: DeviceFlag = "auto",
    json: JsonFlag = False,
) -> None:
    """Write a self-contained HTML page: curves, calibration, examples, and the network to try."""
    if out is None and len(runs) > 1:
        raise UsageError("give the page of several runs a place: -o report.html.")
    target = out or runs[0] / "report.html"
    if target.is_dir():
        raise UsageError(f"--out {target} is a folder; give a file such as {target}/report.html.")
    result = _write(runs, target, before, points, test_examples, card, data, device)
    if json:
        print_json(result)
        return
    for run in result["runs"]:
        if not run["embedded"]:
            why = run["not_embedded"].rstrip(".")
            note(f"{run['name']}: the network is not inside the page: {why}.")
    for path in (card, data):
        if path is not None:
            print(path)
    print(f"{target} ({as_bytes(result['bytes'])}): open it in a browser, it needs no network")


def _write(
    runs: list[Path],
    out: Path,
    before: Path | None,
    points: int,
    n_test: int | None,
    card: Path | None,
    data: Path | None,
    device: str,
) -> dict[str, Any]:
    from bayesieve.report.source import Limits
    from bayesieve.runs.page import write_page

    folders = [RunFolder(run) for run in runs]
    dense = None if before is None else RunFolder(before)
    for folder in (*folders, *([dense] if dense else [])):
        folder.read_config()  # names a folder that is no run before anything is loaded
    limits = Limits(points=points)
    return write_page(
        folders, out, limits=limits, device=device, n_test=n_test, card=card, data=data,
        before=dense,
    )  # fmt: skip
