"""`bayesieve report`: one page with the pictures, the numbers and the network of a run."""

from pathlib import Path
from typing import Annotated

import typer

from bayesieve import runs as _runs
from bayesieve.cli.console import JsonFlag, note, print_json
from bayesieve.cli.evaluate import DeviceFlag
from bayesieve.text import as_bytes

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
    result = _runs.report(
        runs,
        out,
        before=before,
        points=points,
        test_examples=test_examples,
        card=card,
        data=data,
        device=device,
    )
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
    size = as_bytes(result["bytes"])
    print(f"{result['report']} ({size}): open it in a browser, it needs no network")
