"""Our numbers beside the papers', read from the records.

A number that two records hold is an error, not a choice. Quick runs are no evidence: they are read
only when asked for, and compared with nothing.

A number is compared with its 95 % interval (Student's t over seeds): "reached" if its worse end is
as good as the paper's. Otherwise it is "reached within error" if it is as good itself, or if two
standard errors make it so: Student's t would forgive three seeds that differ by any amount. One
seed reaches nothing. A number that was read off a figure may be off by the `reading` of its row,
and need only come within that.
"""

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scipy.special import stdtrit

from bayesieve.text import markdown_table
from studies.record import Record, field, n_seeds, read_folder
from studies.reproduce.catalogue import PAPER, ROWS, Row

Place = tuple[str, str, str]  # study, row, metric


@dataclass(frozen=True)
class Finding:
    """One number of ours with where it comes from."""

    value: float
    seeds: int | None
    device: str
    seconds: float | None
    date: str | None
    command: str
    quick: bool = False
    data: str | None = None
    error: float | None = None  # standard error over seeds; None where it is not known
    kind: str | None = None  # single or ensemble


Findings = Mapping[Place, Finding]


def read_findings(folder: Path, *, quick: bool = False) -> dict[Place, Finding]:
    """Read every number of the records in a folder that was scored on test data.

    Records in its folder `paper_settings` count under their study with PAPER behind it.

    Args:
        folder: of JSON files.
        quick: whether records of quick runs count.
    """
    numbers: dict[Place, Finding] = {}
    theirs = folder / "paper_settings"
    for place, suffix in ((folder, ""), (theirs, PAPER)):
        for path, record in read_folder(place) if place.is_dir() else ():
            if is_quick(record) and not quick:
                continue
            for (study, key, metric), finding in findings_of(record).items():
                if (study + suffix, key, metric) in numbers:
                    name = "/".join((study, key, metric))
                    raise ValueError(f"{path}: {name} is in the records twice; keep one.")
                numbers[study + suffix, key, metric] = finding
    return numbers


def findings_of(record: Record) -> dict[Place, Finding]:
    """The numbers of one record that were scored on test data."""
    study = record["study"].replace("_", "-")
    numbers: dict[Place, Finding] = {}
    for row in record["rows"]:
        if field(record, row, "scored_on") != "test":
            continue
        seconds = record["seconds"] if row["seconds"] is None else row["seconds"]
        # the command of a joined record makes the whole of it, so its machines are all named
        machine = record["machine"] if "parts" in record else field(record, row, "machine")
        device, kind = str(machine.get("device", "unknown")), field(record, row, "kind")
        about = (n_seeds(row), device, seconds, field(record, row, "date"),
                 field(record, row, "command"), is_quick(record),
                 field(record, row, "data"))  # fmt: skip
        numbers |= {(study, row["name"], name):
                    Finding(float(value), *about, _standard_error(row, name, value), kind)
                    for name, value in row["metrics"].items() if value is not None}  # fmt: skip
    return numbers


def _standard_error(row: Mapping[str, Any], name: str, value: float) -> float | None:
    """Of a mean over seeds; None for one seed, and for what is no mean, such as pooled chains."""
    each = [one[name] for one in row["each"] if isinstance(one.get(name), int | float)]
    if len(each) < 2:
        known = row["metrics"].get(f"{name}_standard_error")
        return known if (n_seeds(row) or 1) > 1 else None
    is_mean = abs(statistics.fmean(each) - value) <= 1e-3 * max(abs(value), 1e-9)
    return statistics.stdev(each) / len(each) ** 0.5 if is_mean else None


def is_quick(record: Record) -> bool:
    """Whether a record comes from a quick run.

    Example:
        >>> is_quick({"settings": {"quick": True}, "command": ""})
        True
    """
    return bool(record["settings"].get("quick")) or "--quick" in record["command"].split()


Shown = Mapping[str, Any]  # one object of `listing`
SHORT = ("worse", "missed")  # of the paper, of our own target
UNKNOWN = "error unknown"  # better, but by one seed or by a number without a spread
OPEN = "to be measured"
QUICK = "quick run"  # shows that a study works; its numbers are compared with nothing
_ROUNDING = 1e-9


def listing(findings: Findings, rows: Sequence[Row] = ROWS) -> list[dict[str, Any]]:
    """One object per row: name, source, metric, paper, ours, seeds, device, seconds, command...

    Example:
        >>> first = listing({})[0]
        >>> first["name"], first["ours"], first["status"]
        ('sbnn-figure-1', None, 'to be measured')
    """
    listed = []
    for row in rows:
        finding = findings.get((row.study + row.records, row.key, row.field))
        names = ("name", "source", "item", "what", "metric", "paper", "target", "decimals",
                 "settings", "bound")  # fmt: skip
        numbers = {name: getattr(row, name) for name in names} | {"ours": None}
        about = ("seeds", "device", "seconds", "date", "kind")
        numbers |= {name: getattr(finding, name, None) for name in about} | {"study": row.study}
        numbers["command"] = f"bayesieve reproduce {row.study} --full --out runs/{row.study}"
        if finding is not None:
            numbers |= {
                "what": with_copy(row.what, finding.data),
                "command": finding.command,
                "ours": row.factor * finding.value,
                "spread": f" ± {row.factor * finding.error:.2g}" if finding.error else "",
            }
        status = _status(row, finding, numbers["ours"])
        listed.append(numbers | {"status": status, "reason": row.reason if status in SHORT else ""})
    return listed


def counts(rows: Sequence[Shown]) -> dict[str, int]:
    """Number of rows by status; reasons why there is no number count as "no data"."""
    numbers = Counter("no data" if row["ours"] is None and row["status"] != OPEN else row["status"]
                      for row in rows)  # fmt: skip
    order = ("reached", "reached within error", "met", "met within error", UNKNOWN, *SHORT,
             "measured", QUICK, OPEN, "no data")  # fmt: skip
    return {kind: numbers[kind] for kind in order if numbers[kind]}


def missing(rows: Sequence[Shown]) -> list[str]:
    """One line for every reason why rows have no number of ours.

    Example:
        >>> missing([{"ours": None, "status": "to be measured"}] * 3)
        ['3 rows: to be measured']
    """
    numbers = Counter(row["status"] for row in rows if row["ours"] is None)
    return [f"{n} row{'s' if n > 1 else ''}: {status}" for status, n in numbers.items()]


# "single" in a record is one posterior, whose samples may be averaged
_MODELS = {"single": "one posterior", "ensemble": "ensemble"}


def markdown_rows(rows: Sequence[Shown]) -> str:
    """A Markdown table of objects of `listing`."""
    lines = []
    for row in rows:
        status = row["status"]
        lines.append((
            str(row["what"]).replace("|", "\\|"),
            row["metric"],
            compared_with(row),
            f"{row['ours']:.4g}{row['spread']}" if row["ours"] is not None else "",
            f"**{status}**" if status in SHORT else status,
            row["settings"],
            _MODELS.get(row["kind"], row["kind"] or ""),
            "" if row["seeds"] is None else str(row["seeds"]),
            "" if row["seconds"] is None else f"{row['seconds']:.0f}",
            row["device"] or "",
        ))  # fmt: skip
    header = ("what", "metric", "paper", "ours", "", "settings", "model", "seeds", "seconds",
              "device")  # fmt: skip
    return markdown_table(header, lines, left=2) + "\n"


def compared_with(row: Shown) -> str:
    """The number that ours is compared with, in words.

    Example:
        >>> compared_with({"paper": None, "target": 0.9}), compared_with({"paper": 1.06})
        ('aim 0.9', '1.06')
    """
    if row["paper"] is not None:
        decimals, sign = row.get("decimals"), row.get("bound", "")
        number = f"{row['paper']:g}" if decimals is None else f"{row['paper']:.{decimals}f}"
        return f"{sign}{number}"
    return "" if row["target"] is None else f"aim {row['target']:g}"


def with_copy(what: str, data: str | None) -> str:
    """Words about CIFAR-10 that name the copy that was measured.

    Example:
        >>> with_copy("CIFAR-10, lenet", "CIFAR-10 (JPEG copy)")
        'CIFAR-10 (JPEG copy), lenet'
    """
    return what.replace("CIFAR-10", data) if data == "CIFAR-10 (JPEG copy)" else what


_FORGIVEN = 2.0  # standard errors by which a worse number may miss the paper's


def _status(row: Row, finding: Finding | None, ours: float | None) -> str:
    if finding is None or ours is None:
        return row.unavailable or OPEN
    if finding.quick:
        return QUICK
    aim = row.target if row.paper is None else row.paper
    if aim is None or row.better == "neither":
        return "measured"
    sign, own = 1 if row.better == "lower" else -1, row.paper is None
    error = row.factor * (finding.error or 0.0)
    width = error * stdtrit(max(1, (finding.seeds or 0) - 1), 0.975)
    ends = [ours - sign * _FORGIVEN * error, ours + sign * width]  # the better one, the worse one
    ends = ends if row.decimals is None else [round(end, row.decimals) for end in ends]
    room = _ROUNDING * max(1.0, abs(aim))  # a mean of equal numbers is not quite equal
    better, worse = sign * (ends[0] - aim) <= room + row.reading, sign * (ends[1] - aim) <= room
    if not better or finding.error is None:
        return UNKNOWN if better else SHORT[own]
    return ("reached", "met")[own] + ("" if worse else " within error")
