"""Comparisons made in parts, by methods or by seeds, put together as one."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bayesieve.errors import UsageError
from bayesieve.runs.comparison.methods import METHODS
from bayesieve.runs.comparison.page import PARTIAL, RECORD, Record, finish

# What parts are made by, and where.
_MAY_DIFFER = ("methods", "changes", "seed", "seeds", "device", "compile")
# Of one method in two parts.
_ALIKE = ("name", "engine", "kind", "score", "members", "epochs", "device")


def join(parts: Sequence[Path], out: Path, *, figures: bool) -> Record:
    """Join comparisons of the same network and data under the same budget.

    Methods of the parts stand side by side; a method that several parts measured with different
    seeds gets all of them.

    Args:
        parts: folders of comparisons, finished or not, or their JSON files.
        out: folder to write.
        figures: whether to draw the picture.
    """
    records = [_read(part) for part in parts]
    first = records[0]
    for part, record in zip(parts, records, strict=True):
        _check_same(first, record, parts[0], part)
    joined: Record = {
        key: first[key] for key in ("study", "format", "wanted", "budget", "data", "machine")
    } | {
        "commands": list(dict.fromkeys(line for own in records for line in own["commands"])),
        "methods": _methods(records, parts),
    }
    names = {own["name"] for own in joined["methods"]}
    left = {own["name"]: own for record in records for own in record["left_out"]}
    joined["left_out"] = [own for name, own in left.items() if name not in names]
    if not names:
        raise UsageError("no part has measured a method.")
    out.mkdir(parents=True, exist_ok=True)
    return finish(joined, out, figures=figures)


def _read(part: Path) -> Record:
    places = (part / RECORD, part / PARTIAL) if part.is_dir() else (part,)
    file = next((place for place in places if place.is_file()), None)
    if file is None:
        raise UsageError(
            f"{part} holds no comparison: there is no {' or '.join(p.name for p in places)}."
        )
    try:
        record: Record = json.loads(file.read_text())
    except ValueError as error:
        raise UsageError(f"{file} is not JSON: {error}.") from error
    if (
        not isinstance(record, dict)
        or record.get("study") != "compare"
        or record.get("format") != 1
    ):
        raise UsageError(f"{file} was not written by `bayesieve compare`.")
    return record


def _check_same(first: Record, other: Record, a: Path, b: Path) -> None:
    """Raise unless two parts are about the same thing; names the first difference."""
    for section in ("wanted", "budget", "data"):
        for name, value in first[section].items():
            theirs = other[section].get(name)
            if value != theirs and name not in _MAY_DIFFER:
                raise UsageError(f"{a} and {b} differ in {name}: {value!r} and {theirs!r}.")


def _methods(records: Sequence[Record], parts: Sequence[Path]) -> list[dict[str, Any]]:
    joined: dict[str, dict[str, Any]] = {}
    for part, record in zip(parts, records, strict=True):
        for own in record["methods"]:
            name = own["name"]
            joined[name] = own if name not in joined else _together(joined[name], own, part)
    return [joined[name] for name in METHODS if name in joined]


def _together(a: Mapping[str, Any], b: Mapping[str, Any], part: Path) -> dict[str, Any]:
    """One method with the seeds of two parts."""
    for name in _ALIKE:
        if a.get(name) != b.get(name):
            raise UsageError(f"{part}: {a['name']} has another {name} than in an earlier part.")
    twice = [own for own in b["repetitions"] if own in a["repetitions"]]
    if twice:
        raise UsageError(
            f"{part}: {a['name']} with seed {twice[0][0]} is in an earlier part already."
        )
    lists = ("repetitions", "zeros_reached", "seeds")
    peaks = [own["peak_bytes"] for own in (a, b) if own["peak_bytes"] is not None]
    return {
        **a,
        **{name: [*a[name], *b[name]] for name in lists},
        "seconds": a["seconds"] + b["seconds"],
        "peak_bytes": max(peaks, default=None),
    }
