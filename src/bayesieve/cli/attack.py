"""`bayesieve attack`: how a run's predictions hold up under attacks and shifts of its images."""

from pathlib import Path
from typing import Annotated

import typer

from bayesieve.cli.console import FiguresFlag, JsonFlag, note, print_json, print_table
from bayesieve.cli.evaluate import DeviceFlag, RunArgument
from bayesieve.errors import UsageError
from bayesieve.runs.folder import RunFolder
from bayesieve.runs.text import as_percent

EXAMPLE = "Example: bayesieve attack runs/a --fgsm 0.1,0.2 --shift rotation:15 --json"
_FGSM = "0.1,0.2,0.3,0.4,0.5"  # the strengths of [Deng], figure 2
_SHIFTS = {"rotation": "15,30,45,60", "noise": "0.1,0.2,0.3"}
Strengths = tuple[float, ...]


def attack(
    run: RunArgument,
    fgsm: Annotated[
        str | None,
        typer.Option(
            help="Fast gradient sign attacks of these strengths, in pixels from 0 to 1 "
            f"({_FGSM} if nothing is chosen).",
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
    wanted = _wanted(fgsm, pgd, shift or [])
    if pgd_steps < 1:
        raise UsageError(f"--pgd-steps must be > 0, got {pgd_steps}.")
    if samples is not None and samples < 0:
        raise UsageError(f"--samples must be >= 0, got {samples}.")
    if examples is not None and examples < 1:
        raise UsageError(f"--examples must be > 0, got {examples}.")
    if out is not None and out.exists() and not out.is_dir():
        raise UsageError(f"--out {out} is a file; give a folder.")
    from bayesieve.runs.robustness import Attack, attack_run

    own = Attack(wanted, pgd_steps, samples, examples, seed)
    result, picture = attack_run(
        RunFolder(run), own, member=member, device=device, out=out or run, figures=figures
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
    note(f"written: {(out or run) / 'attack.json'}" + ("" if picture is None else f", {picture}"))


def _wanted(fgsm: str | None, pgd: str | None, shifts: list[str]) -> dict[str, Strengths]:
    """Strengths by the name of each attack or shift; the paper's attack if none is named."""
    if fgsm is None and pgd is None and not shifts:
        fgsm = _FGSM
    given = {"fgsm": fgsm, "pgd": pgd}
    wanted = {name: _pixels(f"--{name}", text) for name, text in given.items() if text is not None}
    for text in shifts:
        name, _, strengths = text.partition(":")
        if name not in _SHIFTS:
            raise UsageError(
                f"--shift must be rotation or noise, with strengths after a colon if wanted; "
                f"got {text!r}."
            )
        if name in wanted:
            raise UsageError(f"--shift {name} is given twice; list its strengths after one colon.")
        wanted[name] = _numbers(f"--shift {name}", strengths or _SHIFTS[name])
    return wanted


def _pixels(flag: str, text: str) -> Strengths:
    """Strengths of an attack; beyond 1 they are taken for the 0 to 255 of a file's pixels."""
    values = _numbers(flag, text)
    if max(values) > 1:
        raise UsageError(
            f"{flag}: pixels run from 0 to 1, so no strength is above 1, got {text!r}. Write "
            f"{max(values):g} of 255 as {max(values) / 255:.4f}."
        )
    return values


def _numbers(flag: str, text: str) -> Strengths:
    try:
        values = tuple(float(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"{flag} must be numbers with commas between, got {text!r}.") from None
    if not all(0 <= value < float("inf") for value in values):
        raise UsageError(f"{flag}: strengths must be >= 0, got {text!r}.")
    return values
