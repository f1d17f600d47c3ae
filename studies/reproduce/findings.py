"""Our numbers, read from the JSON records that the studies wrote.

A record of an unknown study is passed over; a number that two records hold is an error, not a
choice. Quick runs are no evidence: they are read only when asked for.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Record = Mapping[str, Any]
Place = tuple[str, str, str]  # study, key, field


@dataclass(frozen=True)
class Finding:
    """One number of ours with where it comes from."""

    study: str
    key: str
    field: str
    value: float
    seeds: int | None
    device: str
    seconds: float | None
    date: str | None
    command: str


def read_records(folder: Path) -> list[tuple[Path, Record]]:
    """Every JSON file of a folder that holds one object, in order of name."""
    paths = sorted(folder.glob("*.json"))
    files = [(path, json.loads(path.read_text(encoding="utf-8"))) for path in paths]
    return [(path, content) for path, content in files if isinstance(content, dict)]


def read_findings(folder: Path, *, quick: bool = False) -> dict[Place, Finding]:
    """Every finding of the records in a folder; two records with the same finding are an error.

    Args:
        folder: of JSON files.
        quick: whether records of quick runs count.
    """
    from studies.reproduce.readers import READERS

    found: dict[Place, Finding] = {}
    for path, record in read_records(folder):
        if record.get("study") not in READERS or (is_quick(record) and not quick):
            continue
        for finding in READERS[record["study"]](record):
            place = (finding.study, finding.key, finding.field)
            if place in found:
                raise ValueError(f"{path}: {'/'.join(place)} is in the records twice; keep one.")
            found[place] = finding
    return found


def is_quick(record: Record) -> bool:
    """Whether a record comes from a quick run.

    Example:
        >>> is_quick({"command": "python -m studies.uci --quick"})
        True
    """
    return "--quick" in str(record.get("command", "")).split()
