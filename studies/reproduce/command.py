"""The work of `bayesieve reproduce`: list, verify or run studies, and print tables of them."""

import tempfile
import textwrap
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Any

import typer

from bayesieve.checks import did_you_mean
from bayesieve.cli.console import note, print_json, print_table
from bayesieve.errors import UsageError
from bayesieve.runs.owned import OwnedFolder
from studies.reproduce import running
from studies.reproduce.catalogue import STUDIES
from studies.reproduce.running import RECORD, arguments_of, run_study, study_of
from studies.reproduce.table import compared_with, counts, listing, missing, read_findings

FILES = ("record.json", "record.md", "findings.csv", "rows.md", "rows.png")


class StudyFolder(OwnedFolder):
    """Where a study that is run again is kept; a second run there goes on with its record."""

    kind = "study"
    layout = FILES


def reproduce(
    name: str,
    *,
    quick: bool,
    full: bool,
    seeds: int | None,
    device: str | None,
    out: Path | None,
    results: Path,
    json: bool,
) -> None:
    """List every row of the papers, verify the records, or run the study of a name."""
    options = {"--quick": quick, "--full": full, "--seeds": seeds, "--device": device, "--out": out}
    if name in ("list", "verify") and any(options.values()):
        unused = ", ".join(flag for flag, value in options.items() if value)
        raise UsageError(f"reproduce {name} runs no study: leave out {unused}, or name one.")
    if name == "list":
        _list(results, json=json)
        return
    if name == "verify":
        _verify(results, json=json)
        return
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
    folder = StudyFolder(out)
    folder.check_open(*FILES)
    note(f"python -m studies.{STUDIES[study].module} {' '.join(arguments)}")
    with folder.locked():
        folder.open_to_add()
        folder.place(*FILES)
        rows = run_study(study, arguments, out)
        folder.seal()
    if json:
        print_json(rows)
        return
    shown = [row for row in rows if row["ours"] is not None]
    title = f"{study}, quick: shows that it runs, no evidence" if quick else study
    print_table(title, ("", "paper", "ours", "status"), [
        (_folded(f"{row['item']}, {row['what']}: {row['metric']}"), compared_with(row),
         _number(row["ours"]), _status(row)) for row in shown
    ])  # fmt: skip
    files = ", ".join(name for name in FILES if (out / name).exists())
    print(f"written to {out}: {files}")


def _list(results: Path, *, json: bool) -> None:
    if not results.is_dir():
        note(f"there is no folder {results}: only the papers' numbers are shown (--results).")
    rows = listing(read_findings(results))
    if json:
        print_json(rows)
        return
    papers = {source: list(own) for source, own in groupby(rows, key=lambda row: row["source"])}
    _print_counts(papers)
    for source, members in papers.items():
        _print_source(source, members)
    done = sum(row["ours"] is not None for row in rows)
    told = (
        f"{done} of {len(rows)} rows have a number of ours. --json shows every row by name, with "
        "seeds, device, seconds, date and command. `bayesieve reproduce STUDY --quick` runs one."
    )
    print(textwrap.fill(told, 80))


_COUNTED = {  # columns of the first screen, and the states of rows that each counts
    "reached": ("reached", "met"),
    "within ±": ("reached within error", "met within error"),
    "better?": ("error unknown",),
    "worse": ("worse", "missed"),
    "no aim": ("measured",),
    "none": ("to be measured", "no data"),
}


def _print_counts(papers: Mapping[str, list[dict[str, Any]]]) -> None:
    """One screen: how many rows of each paper are reached, missed or without a number."""
    cells = []
    for source, rows in {**papers, "all": [row for own in papers.values() for row in own]}.items():
        known = counts(rows)
        numbers = [sum(known.get(kind, 0) for kind in kinds) for kinds in _COUNTED.values()]
        cells.append((_folded(source, width=16), str(len(rows)), *(str(n or "") for n in numbers)))
    print_table("Our numbers beside each paper's", ("", "rows", *_COUNTED), cells)
    told = (
        "reached: as good, its 95 % interval too. within ±: its interval holds the paper's. "
        "better?: better, but by one seed. no aim: the paper has no number for it. none: not "
        "measured."
    )
    print(textwrap.fill(told, 80))


def _print_source(source: str, rows: list[dict[str, Any]]) -> None:
    """One paper: its items with the study behind each, what was measured, and what was not."""
    cells: list[tuple[str, ...]] = []
    for (item, study), members in groupby(rows, key=lambda row: (row["item"], row["study"])):
        answers = list(members)
        measured = [one for one in answers if one["ours"] is not None]
        head = f"{item} (reproduce {study})"
        if not measured:
            cells.append((_folded(f"{head}: {'; '.join(missing(answers))}"), "", "", ""))
            continue
        cells.append((_folded(head), "", "", ""))
        for one in measured:
            what = _folded(f"{one['what']}: {one['metric']}", indent="  ")
            cells.append((what, compared_with(one), _number(one["ours"]), _status(one)))
        cells += [(_folded(line, indent="  "), "", "", "") for line in missing(answers)]
    summary = ", ".join(f"{n} {kind}" for kind, n in counts(rows).items())
    print_table(f"{source}: {summary}", ("", "paper", "ours", "status"), cells)


def _folded(text: str, indent: str = "", width: int = 39) -> str:
    """Text broken into lines that leave room for columns of numbers in 80 characters."""
    unbroken = text.replace(" %", "\xa0%")
    return textwrap.fill(
        unbroken, width, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False
    )


def _verify(results: Path, *, json: bool) -> None:
    if not results.is_dir():
        raise UsageError(f"there is no folder {results} to compare with; give --results.")
    with tempfile.TemporaryDirectory() as folder:
        checked = running.verify(results, Path(folder), note)
    rows = [{**asdict(row), "agrees": row.agrees} for row in checked]
    if json:
        print_json(rows)
    else:  # every number that was run, solved or counted, and every mean that disagrees
        shown = [row for row in rows if row["how"] != "averaged" or not row["agrees"]]
        print_table("Computed again", ("what", "record", "again", "within", "agrees"), [
            (_folded(f"{row['study']} {row['key']}: {row['field']} ({row['how']})", width=32),
             _number(row["recorded"]), _number(row["again"]), f"{row['tolerance']:.1g}",
             "yes" if row["agrees"] else "NO") for row in shown
        ])  # fmt: skip
        means = [row for row in rows if row["how"] == "averaged" and row["agrees"]]
        told = ", ".join(f"{name} {n}" for name, n in Counter(r["study"] for r in means).items())
        print(textwrap.fill(f"means over seeds or splits that agree: {told}", 80))
    wrong = sum(not row.agrees for row in checked)
    if wrong:
        note(f"{wrong} of {len(checked)} numbers do not agree with the records.")
        raise typer.Exit(1)


def _status(row: Mapping[str, Any]) -> str:
    """The status in nine columns: "reached ±" is within error, "unknown ±" has no error."""
    text: str = row["status"]
    return text.replace("error unknown", "unknown ±").replace("within error", "±")


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 1000 and value == int(value) else f"{value:.4g}"
