"""The page docs/results.md: every number of the papers beside ours, and what falls short."""

from collections.abc import Sequence
from itertools import groupby

from studies.reproduce import scorecard
from studies.reproduce.table import (
    SHORT,
    Findings,
    Shown,
    compared_with,
    counts,
    listing,
    markdown_rows,
    missing,
)


def results_page(findings: Findings) -> str:
    """The tables of docs/results.md: a summary, what falls short, one part per paper, commands."""
    rows = listing(findings)
    pieces = [_scorecard(findings), _summary(rows), _short_of(rows)]
    pieces += [_paper(source, list(members)) for source, members in groupby(rows, _source)]
    return "\n\n".join([*pieces, _commands(rows)]) + "\n"


def _source(row: Shown) -> str:
    return str(row["source"])


def _item(row: Shown) -> str:
    return str(row["item"])


def _scorecard(findings: Findings) -> str:
    """Write the count of published numbers, each once, with its rule."""
    rule = (scorecard.__doc__ or "").partition("\n\n")[2].strip()
    return f"## Published numbers\n\n{rule}\n\n{scorecard.table(findings)}"


def _summary(rows: Sequence[Shown]) -> str:
    kinds = list(counts(rows))
    lines = [f"| | rows | {' | '.join(kinds)} |", f"|---|---:|{'---:|' * len(kinds)}"]
    for source, group in groupby(rows, _source):
        members = list(group)
        numbers = counts(members)
        cells = [source, str(len(members)), *(str(numbers.get(kind, "")) for kind in kinds)]
        lines.append(f"| {' | '.join(cells)} |")
    said = (
        "A row is one measurement beside a number; a number has a row for each setting that was "
        "measured."
    )
    return "\n".join(["## All rows", "", said, "", *lines])


def _short_of(rows: Sequence[Shown]) -> str:
    """Every row that is worse than its paper or misses our target, by table, with the reasons."""
    lines = ["## Where we fall short", ""]
    for (source, item), members in groupby(rows, lambda row: (_source(row), _item(row))):
        every = list(members)
        short = [row for row in every if row["status"] in SHORT]
        if short:
            lines.append(f"- {source}, {item}, {len(short)} of {len(every)} rows:")
        for row in short:
            lines.append(f"  - {row['what']}: {row['metric']} {row['ours']:.4g}, "
                         f"{'the paper' if row['paper'] is not None else 'our'} "
                         f"{compared_with(row)}")  # fmt: skip
        for reason in dict.fromkeys(row["reason"] for row in short if row["reason"]):
            n = sum(row["reason"] == reason for row in short)
            which = "all of them" if n == len(short) else f"{n} of them"
            lines.append(f"  - why ({which}): {reason}")
    return "\n".join(lines if len(lines) > 2 else [*lines, "Nowhere that was measured."])


def _paper(source: str, rows: Sequence[Shown]) -> str:
    """The tables of one paper, then what has no number."""
    pieces, gaps = (
        [f"## {source[0].upper()}{source[1:]}" if source[0] == "b" else f"## {source}"],
        [],
    )
    for item, group in groupby(rows, _item):
        members = list(group)
        measured = [row for row in members if row["ours"] is not None]
        if measured:
            pieces += [f"### {item[0].upper()}{item[1:]}", markdown_rows(measured).rstrip("\n")]
        studies = ", ".join(dict.fromkeys(f"`{row['study']}`" for row in members))
        gaps += [f"- {item} ({studies}): {line}" for line in missing(members)]
    if gaps:
        pieces.append("\n".join(["Without a number:", "", *gaps]))
    return "\n\n".join(pieces)


def _commands(rows: Sequence[Shown]) -> str:
    numbers = {
        (row["study"], row["command"], row["date"]) for row in rows if row["ours"] is not None
    }
    lines = [
        f"- {study}: `{command}`" + (f" ({date})" if date else "")
        for study, command, date in sorted(numbers, key=lambda row: row[:2])
    ]
    return "\n".join(["## Commands", "", *(lines or ["None yet."])])
