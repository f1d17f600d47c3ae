"""`bayesieve reproduce`: the tables of the papers, theirs and ours, and how to make ours again."""

import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from bayesieve.checks import did_you_mean
from bayesieve.cli.config_files import UsageError
from bayesieve.cli.console import JsonFlag, note, print_json, print_table

EXAMPLE = "Example: bayesieve reproduce sbnn-mnist --quick --out runs/again"
Results = Annotated[Path, typer.Option(help="Folder of the committed records.")]


def reproduce(
    name: Annotated[
        str,
        typer.Argument(help="`list`, `verify`, or the name of a study or of a row of the list."),
    ] = "list",
    quick: Annotated[bool, typer.Option("--quick", help="Minutes on two CPU cores.")] = False,
    full: Annotated[bool, typer.Option("--full", help="As the committed record.")] = False,
    seeds: Annotated[int | None, typer.Option(help="Repetitions.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda or cuda:N.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder to write.")] = None,
    results: Results = Path("results"),
    json: JsonFlag = False,
) -> None:
    """List every table and figure of the papers with our numbers, run a study again, or verify."""
    if name == "list":
        _list(results, json=json)
    elif name == "verify":
        _verify(results, json=json)
    else:
        _run(name, quick=quick, full=full, seeds=seeds, device=device, out=out, json=json)


def _list(results: Path, *, json: bool) -> None:
    from bayesieve.reproduce import listing, read_findings

    if not results.is_dir():
        note(f"there is no folder {results}: only the papers' numbers are shown (--results).")
    rows = listing(read_findings(results))
    if json:
        print_json(rows)
        return
    print_table("Tables and figures of the papers", ("name", "paper", "ours", "status"), [
        (own["name"], _number(own["paper"]), _number(own["ours"]), _short(own["status"]))
        for own in rows
    ])  # fmt: skip
    done = sum(own["ours"] is not None for own in rows)
    print(f"{done} of {len(rows)} rows have a number of ours; --json shows all that is known.")


def _run(
    name: str,
    *,
    quick: bool,
    full: bool,
    seeds: int | None,
    device: str | None,
    out: Path | None,
    json: bool,
) -> None:
    from bayesieve.reproduce.catalogue import STUDIES
    from bayesieve.reproduce.running import RECORD, arguments_of, run_study, study_of

    study = study_of(name)
    if study is None or study not in STUDIES:
        names = ("list", "verify", *STUDIES)
        hint = did_you_mean(name, names)
        raise UsageError(f"reproduce: NAME is one of {', '.join(names)}; got {name!r}.{hint}")
    if quick == full:
        raise UsageError("say how long it may take: --quick or --full.")
    if out is None:
        raise UsageError("give a folder for the record: --out runs/again.")
    mode: Any = "quick" if quick else "full"
    arguments = arguments_of(STUDIES[study], mode, out / RECORD, seeds, device)
    out.mkdir(parents=True, exist_ok=True)
    note(f"python -m bayesieve.studies.{STUDIES[study].module} {' '.join(arguments)}")
    rows = run_study(study, arguments, out)
    if json:
        print_json(rows)
        return
    shown = [own for own in rows if own["ours"] is not None]
    print_table(study, ("name", "paper", "ours", "status"), [
        (own["name"], _number(own["paper"]), _number(own["ours"]), own["status"]) for own in shown
    ])  # fmt: skip
    print(f"record, table and picture: {out}")


def _verify(results: Path, *, json: bool) -> None:
    from bayesieve.reproduce import read_findings
    from bayesieve.reproduce.running import verify

    if not results.is_dir():
        raise UsageError(f"there is no folder {results} to compare with; give --results.")
    with tempfile.TemporaryDirectory() as folder:
        checked = verify(read_findings(results), Path(folder))
    rows = [{**asdict(own), "agrees": own.agrees} for own in checked]
    if json:
        print_json(rows)
    else:
        print_table("Computed again", ("what", "record", "again", "tolerance", "agrees"), [
            (f"{own.study} {own.key} {own.field}", _number(own.recorded), _number(own.again),
             _number(own.tolerance), "yes" if own.agrees else "NO") for own in checked
        ])  # fmt: skip
    if not all(own.agrees for own in checked):
        raise typer.Exit(1)


def _short(status: str) -> str:
    return "no data here" if status.endswith("not available here") else status


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"
