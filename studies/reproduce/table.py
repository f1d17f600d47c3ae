"""The papers' numbers and ours side by side, as plain data and as a page."""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from studies.reproduce.catalogue import ROWS, Row
from studies.reproduce.findings import Finding, Place, is_quick

Findings = Mapping[Place, Finding]
Shown = Mapping[str, Any]  # one object of `listing`
SHORT = ("worse", "missed")  # of the paper, of our own target
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
    return [_object(row, findings) for row in rows]


def counts(rows: Sequence[Shown]) -> dict[str, int]:
    """How many rows have which status; reasons why there is no number count as "no data"."""
    found = Counter(_kind(own) for own in rows)
    order = ("reached", "met", *SHORT, "measured", QUICK, OPEN, "no data")
    return {kind: found[kind] for kind in order if found[kind]}


def missing(rows: Sequence[Shown]) -> list[str]:
    """What has no number of ours, in words: one line per reason.

    Example:
        >>> missing([{"ours": None, "status": "to be measured"}] * 3)
        ['3 rows: to be measured']
    """
    found = Counter(own["status"] for own in rows if own["ours"] is None)
    return [f"{n} row{'s' if n > 1 else ''}: {status}" for status, n in found.items()]


def results_page(findings: Findings) -> str:
    """The tables of docs/results.md: a summary, what falls short, one part per paper, commands."""
    rows = listing(findings)
    parts = [_summary(rows), _short_of(rows)]
    parts += [_paper(source, list(own)) for source, own in groupby(rows, _source)]
    return "\n\n".join([*parts, _commands(rows)]) + "\n"


def markdown_rows(rows: Sequence[Shown]) -> str:
    """A Markdown table of objects of `listing`."""
    lines = [
        "| what | metric | paper | ours | | seeds | seconds | device |",
        "|---|---|---:|---:|---|---:|---:|---|",
        *(_line(row) for row in rows),
    ]
    return "\n".join(lines) + "\n"


def compared_with(own: Shown) -> str:
    """The number that ours is compared with, in words.

    Example:
        >>> compared_with({"paper": None, "target": 0.9}), compared_with({"paper": 1.06})
        ('target 0.9', '1.06')
    """
    if own["paper"] is not None:
        decimals = own.get("decimals")
        return f"{own['paper']:g}" if decimals is None else f"{own['paper']:.{decimals}f}"
    return "" if own["target"] is None else f"target {own['target']:g}"


def _object(row: Row, findings: Findings) -> dict[str, Any]:
    found = findings.get((row.study, row.key, row.field))
    full = f"bayesieve reproduce {row.study} --full --out runs/{row.study}"
    return {
        "name": row.name,
        "source": row.source,
        "item": row.item,
        "what": row.what,
        "metric": row.metric,
        "paper": row.paper,
        "target": row.target,
        "decimals": row.decimals,
        "ours": None if found is None else found.value,
        "seeds": None if found is None else found.seeds,
        "device": None if found is None else found.device,
        "seconds": None if found is None else found.seconds,
        "date": None if found is None else found.date,
        "study": row.study,
        "command": full if found is None else found.command,
        "status": _status(row, found),
    }


def _status(row: Row, found: Finding | None) -> str:
    if found is None:
        return row.unavailable or OPEN
    if is_quick({"command": found.command}):
        return QUICK
    aim = row.target if row.paper is None else row.paper
    if aim is None or row.better == "neither":
        return "measured"
    value = found.value if row.decimals is None else round(found.value, row.decimals)
    margin = aim - value if row.better == "lower" else value - aim
    worse = margin < -_ROUNDING * max(1.0, abs(aim))  # a mean of equal numbers is not quite equal
    return (SHORT if worse else ("reached", "met"))[row.paper is None]


def _kind(own: Shown) -> str:
    if own["ours"] is None and own["status"] != OPEN:
        return "no data"
    return str(own["status"])


def _source(own: Shown) -> str:
    return str(own["source"])


def _item(own: Shown) -> str:
    return str(own["item"])


def _summary(rows: Sequence[Shown]) -> str:
    kinds = list(counts(rows))
    lines = [f"| | rows | {' | '.join(kinds)} |", f"|---|---:|{'---:|' * len(kinds)}"]
    for source, own in groupby(rows, _source):
        members = list(own)
        found = counts(members)
        cells = [source, str(len(members)), *(str(found.get(kind, "")) for kind in kinds)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(["## Summary", "", *lines])


def _short_of(rows: Sequence[Shown]) -> str:
    """Every row that is worse than its paper or misses our target, by table."""
    lines = ["## Where we fall short", ""]
    for (source, item), members in groupby(rows, lambda own: (_source(own), _item(own))):
        every = list(members)
        short = [own for own in every if own["status"] in SHORT]
        if short:
            lines.append(f"- {source}, {item}, {len(short)} of {len(every)} rows:")
        for own in short:
            lines.append(f"  - {own['what']}: {own['metric']} {own['ours']:.4g}, "
                         f"{'the paper' if own['paper'] is not None else 'our'} "
                         f"{compared_with(own)}")  # fmt: skip
    return "\n".join(lines if len(lines) > 2 else [*lines, "Nowhere that was measured."])


def _paper(source: str, rows: Sequence[Shown]) -> str:
    """The tables of one paper, then what has no number."""
    parts, gaps = (
        [f"## {source[0].upper()}{source[1:]}" if source[0] == "b" else f"## {source}"],
        [],
    )
    for item, group in groupby(rows, _item):
        members = list(group)
        measured = [own for own in members if own["ours"] is not None]
        if measured:
            parts += [f"### {item[0].upper()}{item[1:]}", markdown_rows(measured).rstrip("\n")]
        studies = ", ".join(dict.fromkeys(f"`{own['study']}`" for own in members))
        gaps += [f"- {item} ({studies}): {line}" for line in missing(members)]
    if gaps:
        parts.append("\n".join(["Without a number:", "", *gaps]))
    return "\n\n".join(parts)


def _commands(rows: Sequence[Shown]) -> str:
    found = {(own["study"], own["command"], own["date"]) for own in rows if own["ours"] is not None}
    lines = [
        f"- {study}: `{command}`" + (f" ({date})" if date else "")
        for study, command, date in sorted(found, key=lambda own: own[:2])
    ]
    return "\n".join(["## Commands", "", *(lines or ["None yet."])])


def _line(own: Shown) -> str:
    status = f"**{own['status']}**" if own["status"] in SHORT else own["status"]
    cells = (
        str(own["what"]).replace("|", "\\|"),
        own["metric"],
        compared_with(own),
        f"{own['ours']:.4g}" if own["ours"] is not None else "",
        status,
        "" if own["seeds"] is None else str(own["seeds"]),
        "" if own["seconds"] is None else f"{own['seconds']:.0f}",
        own["device"] or "",
    )
    return f"| {' | '.join(cells)} |"
