"""Run a study again, and compare what comes out with the paper and with the committed record."""

import contextlib
import csv
import importlib
import inspect
import io
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from bayesieve.files import write_atomically
from studies.reproduce.catalogue import ROWS, STUDIES, Study
from studies.reproduce.findings import read_findings, read_records
from studies.reproduce.recounts import Checked, recounted
from studies.reproduce.table import Findings, listing, markdown_rows

RECORD = "record.json"


def study_of(name: str) -> str | None:
    """The study of that name, or that covers the row of that name.

    Example:
        >>> study_of("uci"), study_of("sbnn-table-7-l5"), study_of("nothing")
        ('uci', 'sbnn-mnist', None)
    """
    if name in STUDIES:
        return name
    return next((row.study for row in ROWS if row.name == name), None)


def arguments_of(
    study: Study,
    mode: Literal["quick", "full"],
    out: Path,
    seeds: int | None = None,
    device: str | None = None,
) -> list[str]:
    """What the study's command is called with.

    Example:
        >>> arguments_of(STUDIES["sbnn-vgg"], "quick", Path("a.json"))
        ['--quick', '--out', 'a.json']
    """
    arguments = [*(study.quick if mode == "quick" else study.full), "--out", str(out)]
    if seeds is not None:
        if not study.seeds:
            raise ValueError(f"reproduce: {study.module} takes no number of seeds.")
        arguments += ["--seeds", str(seeds)]
    if device is not None:
        if not study.device:
            raise ValueError(f"reproduce: {study.module} runs on the CPU only.")
        arguments += ["--device", device]
    return arguments


def run_study(name: str, arguments: Sequence[str], out: Path) -> list[dict[str, Any]]:
    """Run a study and write its record, findings.csv, rows.md and a picture; return its rows."""
    _call(STUDIES[name], arguments)
    findings = read_findings(out, quick=True)
    rows = [own for own in listing(findings) if own["study"] == name]
    measured = [own for own in rows if own["ours"] is not None]
    write_atomically(out / "findings.csv", _csv(findings))
    write_atomically(out / "rows.md", markdown_rows(measured))
    if measured:
        # Drawing needs matplotlib; the other commands do not.
        from studies.reproduce.picture import draw_rows

        draw_rows(measured, out / "rows.png")
    return rows


def verify(results: Path, scratch: Path, tell: Callable[[str], None]) -> list[Checked]:
    """Compute again what is cheap: counts and means of every record, then short runs.

    Args:
        results: folder of the committed records.
        scratch: folder for the new records.
        tell: called with a line for each part.
    """
    checked = []
    for path, record in read_records(results):
        found = list(recounted(record))
        checked += found
        if found:
            tell(f"{path.name}: {len(found)} numbers counted, averaged or solved again")
    recorded = read_findings(results)
    for name, study in STUDIES.items():
        if study.check is not None:
            tell(f"{name}: running {' '.join(study.check.arguments)}")
            checked += _again(name, study, recorded, scratch / name)
    return checked


def _again(name: str, study: Study, recorded: Findings, folder: Path) -> list[Checked]:
    """The cheap run of one study beside its record."""
    assert study.check is not None
    folder.mkdir(parents=True, exist_ok=True)
    _call(study, [*study.check.arguments, "--out", str(folder / RECORD)])
    again = read_findings(folder)
    found = []
    for key, field in study.check.numbers:
        place = (name, key, field)
        if place not in recorded:
            raise ValueError(f"verify: the records hold no {'/'.join(place)}.")
        pair = (recorded[place].value, again[place].value)
        found.append(Checked(*place, *pair, study.check.tolerance))
    return found


def _call(study: Study, arguments: Sequence[str]) -> None:
    """Run a study's command in this process; what it says goes to standard error."""
    module = importlib.import_module(f"studies.{study.module}")
    assert inspect.isfunction(module.main)
    with contextlib.redirect_stdout(sys.stderr):
        module.main(list(arguments))


def _csv(findings: Findings) -> str:
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(("study", "key", "field", "value", "seeds", "device", "seconds", "command"))
    for own in findings.values():
        writer.writerow((own.study, own.key, own.field, own.value, own.seeds, own.device,
                         own.seconds, own.command))  # fmt: skip
    return text.getvalue()
