"""The papers' numbers and ours side by side, as plain data and as a page."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from bayesieve.reproduce.catalogue import ROWS, STUDIES, Row
from bayesieve.reproduce.findings import Finding


def listing(
    findings: Mapping[tuple[str, str, str], Finding], rows: Sequence[Row] = ROWS
) -> list[dict[str, Any]]:
    """One object per row: name, source, metric, paper, ours, seeds, device, seconds, command...

    Example:
        >>> first = listing({})[0]
        >>> first["name"], first["ours"]
        ('sbnn-figure-1', None)
    """
    return [_object(row, findings) for row in rows]


def results_page(findings: Mapping[tuple[str, str, str], Finding]) -> str:
    """The tables of docs/results.md, one per paper, and the commands behind them."""
    parts = []
    for source, rows in groupby(listing(findings), key=lambda own: own["source"]):
        own = list(rows)
        done = sum(row["ours"] is not None for row in own)
        head = f"## {source}\n\n{done} of {len(own)} rows have a number of ours.\n"
        parts.append(f"{head}\n{markdown_rows(own)}")
    commands = sorted(
        {(own["study"], own["command"]) for own in listing(findings) if own["ours"] is not None}
    )
    lines = [f"- {study}: `{command}`" for study, command in commands]
    parts.append("## Commands\n\n" + ("\n".join(lines) or "None yet.") + "\n")
    return "\n".join(parts)


def markdown_rows(rows: Sequence[Mapping[str, Any]]) -> str:
    """A Markdown table of objects of `listing`."""
    lines = [
        "| | what | metric | paper | ours | seeds | device | |",
        "|---|---|---|---:|---:|---:|---|---|",
        *(_line(row) for row in rows),
    ]
    return "\n".join(lines) + "\n"


def _object(row: Row, findings: Mapping[tuple[str, str, str], Finding]) -> dict[str, Any]:
    found = findings.get((row.study or "", row.key, row.field))
    command = found.command if found else None
    if command is None and row.study in STUDIES:
        command = f"bayesieve reproduce {row.study} --full --out runs/{row.study}"
    return {
        "name": row.name,
        "source": row.source,
        "item": row.item,
        "what": row.what,
        "metric": row.metric,
        "paper": row.paper,
        "ours": None if found is None else found.value,
        "seeds": None if found is None else found.seeds,
        "device": None if found is None else found.device,
        "seconds": None if found is None else found.seconds,
        "date": None if found is None else found.date,
        "study": row.study,
        "command": command,
        "status": _status(row, found),
    }


def _status(row: Row, found: Finding | None) -> str:
    if found is None:
        return row.unavailable or "to be measured"
    if row.paper is None or row.better == "neither":
        return "measured"
    worse = found.value > row.paper if row.better == "lower" else found.value < row.paper
    return "worse" if worse else "reached"


def _line(own: Mapping[str, Any]) -> str:
    ours = "" if own["ours"] is None else f"{own['ours']:.4g}"
    status = f"**{own['status']}**" if own["status"] == "worse" else own["status"]
    cells = (
        own["item"],
        own["what"],
        own["metric"],
        "" if own["paper"] is None else f"{own['paper']:g}",
        ours,
        "" if own["seeds"] is None else str(own["seeds"]),
        own["device"] or "",
        status,
    )
    return f"| {' | '.join(cells)} |"
