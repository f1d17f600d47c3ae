"""One record out of several: a study that was computed in parts, on one machine or more.

Every part keeps its command and machine in the joint record, under "parts"; the command of the
whole is the one that makes all of it again. The same thing measured twice is an error, since
nothing says which of the two to keep.
"""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Record = Mapping[str, Any]


def read_parts(paths: Sequence[Path], study: str) -> list[dict[str, Any]]:
    """The records of these files, all of one study."""
    found = []
    for path in paths:
        if not path.is_file():
            raise ValueError(f"{study}: no record at {path}. Give files this study has written.")
        own = json.loads(path.read_text(encoding="utf-8"))
        if own.get("study") != study:
            raise ValueError(f"{study}: {path} is a record of {own.get('study')}, not of {study}.")
        found.append(own)
    return found


def join_uci(parts: Sequence[Record]) -> dict[str, Any]:
    """All rows of all sets; each row says on what machine it was computed.

    Example:
        >>> head = {"study": "uci", "quick": False, "splits": None, "effort": 1.0, "command": "c"}
        >>> head["machine"] = {"device": "cpu"}
        >>> parts = [{**head, "sets": {name: {"sbnn": {}}}} for name in ("yacht", "wine")]
        >>> sorted(join_uci(parts)["sets"])
        ['wine', 'yacht']
    """
    head = _same(parts, ("study", "quick", "splits", "effort"))
    sets: dict[str, dict[str, Any]] = {}
    for part in parts:
        _refuse_unfinished(part)
        for name, rows in part["sets"].items():
            for row, own in rows.items():
                place = sets.setdefault(name, {})
                _refuse_second(row in place, f"row {row} of {name}")
                place[row] = {**own, "machine": own.get("machine", part["machine"])}
    joint = {**head, **_origin(parts, ("sets", "rows", "device", "out", "jobs", "stop-after")),
             "sets": sets}  # fmt: skip
    calls = [own for part in parts for own in part.get("calls", ())]
    if calls:
        joint["calls"] = calls
    for name in ("timing", "estimate"):
        found = [part[name] for part in parts if name in part]
        _refuse_second(len(found) > 1, name)
        if found:
            joint[name] = found[0]
    return joint


def join_tables(parts: Sequence[Record]) -> dict[str, Any]:
    """All experiments; those that have lines of several kinds in their order."""
    _check_scales(parts)
    found: dict[str, Any] = {}
    seconds: dict[str, float] = {}
    for part in parts:
        for name, own in part["experiments"].items():
            _refuse_second(name in found and name not in _BY_LINE, f"experiment {name}")
            found[name] = own if name not in found else [*found[name], *own]
            seconds[name] = round(seconds.get(name, 0.0) + part["seconds"][name], 1)
    for name, keys in _BY_LINE.items():
        lines = [tuple(row[key] for key in keys) for row in found.get(name, ())]
        _refuse_second(len(set(lines)) < len(lines), f"a line of {name}")
        if lines:
            found[name] = [row for _, row in sorted(zip(lines, found[name], strict=True),
                                                    key=lambda pair: pair[0])]  # fmt: skip
    head = _same(parts, ("study",))
    return {
        **head,
        **_origin(parts, ("only", "shares", "dims", "nets", "at-once", "device", "out")),
        "scale": parts[0]["scale"],
        "experiments": found,
        "seconds": seconds,
    }


_MAY_DIFFER = ("shares", "dims", "nets", "device", "at_once")
_OF_FOLDS = ("n_folds", "fold_epochs")  # what only experiment 3 with cross-validation depends on
# Experiments whose lines may come from several parts, and what tells their lines apart.
_BY_LINE = {"e2": ("net", "d", "nonlinear", "alpha"), "e3": ("net", "d", "alpha"),
            "e3-cv": ("share",)}  # fmt: skip


def _check_scales(parts: Sequence[Record]) -> None:
    """Raise where parts differ in a number that both of them depend on."""
    seen: dict[str, Any] = {}
    for part in parts:
        unused = _MAY_DIFFER if "e3-cv" in part["experiments"] else (*_MAY_DIFFER, *_OF_FOLDS)
        for name, value in part["scale"].items():
            if name not in unused and seen.setdefault(name, value) != value:
                raise ValueError(
                    f"sbnn_tables: the parts differ in scale: {name} is {seen[name]} and {value}."
                )


def _same(parts: Sequence[Record], names: Sequence[str]) -> dict[str, Any]:
    for name in names:
        values = [part.get(name) for part in parts]
        if any(value != values[0] for value in values):
            raise ValueError(f"{parts[0]['study']}: the parts differ in {name}: {values}.")
    return {name: parts[0].get(name) for name in names}


def _refuse_unfinished(part: Record) -> None:
    for name, rows in part.get("blocks", {}).items():
        for row in rows:
            raise ValueError(
                f"join: some splits of row {row} of {name} are missing; repeat "
                f"`{part['command']}` until it has nothing left to do."
            )


def _refuse_second(twice: bool, what: str) -> None:
    if twice:
        raise ValueError(f"join: {what} is in two of the parts; leave one of them out.")


def _origin(parts: Sequence[Record], flags: Sequence[str]) -> dict[str, Any]:
    """Machines and command of the whole, without the flags that made parts, and of every part."""
    about = [own for part in parts for own in part.get("parts", [_about(part)])]
    machines = [own["machine"] for own in about]
    names = dict.fromkeys(name for machine in machines for name in machine)
    machine = {
        name: " and ".join(sorted({str(own[name]) for own in machines if name in own}))
        for name in names
    }
    command = re.sub(rf" --({'|'.join(flags)}) \S+", "", parts[0]["command"])
    return {"machine": machine, "command": command, "parts": about}


def _about(part: Record) -> dict[str, Any]:
    own = {name: part[name] for name in ("command", "machine", "scale") if name in part}
    return {**own, "experiments": list(part["experiments"])} if "experiments" in part else own
