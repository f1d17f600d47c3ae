"""`bayesieve attack`: how a run's predictions hold up under attacks and shifts of its images."""

from pathlib import Path
from typing import Annotated

import typer

from bayesieve import runs
from bayesieve.cli.console import FiguresFlag, JsonFlag, note, print_json, print_table
from bayesieve.cli.evaluate import DeviceFlag, RunArgument
from bayesieve.text import as_percent

EXAMPLE = "Example: bayesieve attack runs/a --fgsm 0.1,0.2 --shift rotation:15 --json"


def attack(
    run: RunArgument,
    fgsm: Annotated[
        str | None,
        typer.Option(
            help="Fast gradient sign attacks of these strengths, in pixels from 0 to 1 "
            "(0.1,0.2,0.3,0.4,0.5 if nothing is chosen).",
            metavar="LIST",
        ),
    ] = None,
    pgd: Annotated[
        str | None,
        typer.Option(help="Projected gradient attacks on the true labels.", metavar="LIST"),
    ] = None,
    pgd_steps: Annotated[int, typer.Option("--pgd-steps", help="Steps of --pgd.")] = 10,
    shift: Annotated[
        list[str] | None,
        typer.Option(
            help="rotation[:DEGREES,...] or noise[:STD,...]; may be given twice.", metavar="SHIFT"
        ),
    ] = None,
    samples: Annotated[
        int | None,
        typer.Option(
            help="Posterior draws averaged: all that are kept (32 of a variational run); 0 uses "
            "the mean weights, of several chains the first one's."
        ),
    ] = None,
    examples: Annotated[
        int | None, typer.Option(help="Only the first so many test images.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of draws and noise.")] = 0,
    member: Annotated[
        int | None,
        typer.Option(help="Which model of a run with --n-models, from 0; chains go together."),
    ] = None,
    device: DeviceFlag = "auto",
    out: Annotated[
        Path | None, typer.Option(help="Folder for attack.json and the picture: the run's own.")
    ] = None,
    figures: FiguresFlag = True,
    json: JsonFlag = False,
) -> None:
    """Attack a run: accuracy, entropy and calibration against strength on its test images."""
    result = runs.attack(
        run,
        fgsm=fgsm,
        pgd=pgd,
        pgd_steps=pgd_steps,
        shift=shift,
        samples=samples,
        examples=examples,
        seed=seed,
        member=member,
        device=device,
        out=out,
        figures=figures,
    )
    if json:
        print_json(result)
        return
    rows = [
        (name, f"{point['strength']:g}", as_percent(point["accuracy"]), f"{point['entropy']:.4f}",
         as_percent(point["ece"]), f"{point['nll']:.4f}")
        for name, points in result["curves"].items() for point in points
    ]  # fmt: skip
    title = f"{run}: {result['n_examples']} test images, {result['samples'] or 'no'} draws"
    print_table(title, ("", "strength", "accuracy", "entropy", "ECE", "NLL"), rows)
    folder = out or run
    picture = f", {folder / 'figures' / 'attack.png'}" if figures else ""
    note(f"written: {folder / 'attack.json'}{picture}")
