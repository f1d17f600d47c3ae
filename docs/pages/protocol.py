"""The table of docs/protocol.md: records scored on test examples, and how often these were read."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bayesieve.text import markdown_table
from studies.record import read_folder

_FOLDERS = ("", "paper_settings", "attacks", "earlier")


def protocol_table(results: Path) -> str:
    """One line per record: data, rows, seeds, single or ensemble, and readings of the test part."""
    lines = []
    for folder in _FOLDERS:
        for path, record in read_folder(results / folder):
            if record["scored_on"] == "test":
                lines.append((f"`{path.relative_to(results).as_posix()}`", *_cells(record)))
    header = ("record", "data", "rows", "seeds", "kind", "test examples read")
    return markdown_table(header, lines, left=len(header))


def _cells(record: Mapping[str, Any]) -> tuple[str, ...]:
    rows = record["rows"]
    names = {str(name) for name in (record["data"], *(row.get("data") for row in rows)) if name}
    counts = sorted({_n_seeds(row["seeds"]) for row in rows})
    seeds = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return (
        ", ".join(sorted(names)) or "see the study",
        str(len(rows)),
        seeds,
        record["kind"] or "each row says",
        record["test_reads"] or "not noted",
    )


def _n_seeds(seeds: Any) -> int:
    """Seeds of a row, which are a number or a list."""
    return len(seeds) if isinstance(seeds, list) else int(seeds or 1)
