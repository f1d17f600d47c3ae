"""Run a study again, and compare what comes out with the paper and with the committed record."""

import csv
import importlib
import inspect
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from bayesieve.core.storage import atomic_write
from bayesieve.reproduce.catalogue import ROWS, STUDIES, Study
from bayesieve.reproduce.findings import Finding, read_findings
from bayesieve.reproduce.table import listing, markdown_rows

Findings = Mapping[tuple[str, str, str], Finding]
RECORD = "record.json"


@dataclass(frozen=True)
class Checked:
    """A number computed again beside the one in the record."""

    study: str
    key: str
    field: str
    recorded: float
    again: float
    tolerance: float

    @property
    def agrees(self) -> bool:
        """Whether they are as close as two runs of this study should be."""
        return abs(self.recorded - self.again) <= self.tolerance


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
        >>> arguments_of(STUDIES["uci"], "quick", Path("a.json"))
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
    module = importlib.import_module(f"bayesieve.studies.{STUDIES[name].module}")
    assert inspect.isfunction(module.main)
    module.main(list(arguments))
    findings = read_findings(out)
    rows = [own for own in listing(findings) if own["study"] == name]
    atomic_write(out / "findings.csv", _csv(findings).encode())
    atomic_write(out / "rows.md", markdown_rows(rows).encode())
    _picture(rows, out / "rows.png")
    return rows


def verify(recorded: Findings, scratch: Path) -> list[Checked]:
    """Compute again what is cheap; `scratch` is a folder for the new records."""
    checked = []
    for name, study in STUDIES.items():
        if study.check is None:
            continue
        folder = scratch / name
        folder.mkdir(parents=True, exist_ok=True)
        module = importlib.import_module(f"bayesieve.studies.{study.module}")
        module.main([*study.check.arguments, "--out", str(folder / RECORD)])
        again = read_findings(folder)
        for key, field in study.check.numbers:
            place = (name, key, field)
            if place not in recorded:
                raise ValueError(f"verify: the records hold no {'/'.join(place)}.")
            pair = (recorded[place].value, again[place].value)
            checked.append(Checked(*place, *pair, study.check.tolerance))
    return checked


def _csv(findings: Findings) -> str:
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(("study", "key", "field", "value", "seeds", "device", "seconds", "command"))
    for own in findings.values():
        writer.writerow((own.study, own.key, own.field, own.value, own.seeds, own.device,
                         own.seconds, own.command))  # fmt: skip
    return text.getvalue()


def _picture(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """The paper's numbers and ours, as a ratio so that all fit one axis."""
    both = [own for own in rows if own["ours"] is not None and own["paper"]]
    if not both:
        return
    from bayesieve.assess.figures.style import BLUE, RULE, dress, new_figure, save

    figure = new_figure(6.4, 1.2 + 0.3 * len(both))
    axes = figure.add_subplot()
    dress(axes, title="Ours / the paper's", xlabel="ratio", ylabel="", grid="x")
    axes.barh(range(len(both)), [own["ours"] / own["paper"] for own in both], color=BLUE)
    axes.axvline(1.0, color=RULE)
    axes.set_yticks(range(len(both)), [f"{own['what']}, {own['metric']}" for own in both])
    axes.invert_yaxis()
    save(figure, path)
