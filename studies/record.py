"""The one format of the records in `results/`: what a study writes and what everything else reads.

A record is one JSON object:

    schema       version of this format, 1
    study        name of the module that wrote it
    command      the command line that made it
    date         day of the run (UTC); null where it was not noted
    machine      "device" and versions
    data         name of the data set; null for simulated data or where each row names its own
    scored_on    "test" or "held-out" (training examples that were not trained on)
    test_reads   how often the test examples were read, in words; null where it was not noted
    kind         "single" or "ensemble": one posterior predicts or several; null if not known
    settings     what holds for all rows
    seconds      of the whole run; null where it was not noted
    skipped      names of rows that were left out for lack of time
    rows         what was measured
    notes        anything else, by name
    parts        only of a joined record: command, machine and date of every part

A row has a name, and the first seven of

    setting      what decides its numbers
    seeds        seeds or splits by number, or how many there were where only that is known
    metrics      its numbers; those that `each` has too are means over seeds
    each         the numbers of every seed, in order
    seconds      it took; null where it was not noted
    detail       curves, histories and whatever else is no plain number
    derived      true where the numbers are computed from other rows of the record
    data, machine, command, date, scored_on, kind     where they differ from the record's

Two records of the same name and setting never stand in one file, and no record mixes the two copies
of CIFAR-10: the JPEG copy is lossy, so its numbers cannot be compared with those of the original.
"""

import json
import math
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bayesieve.checks import check_choice
from bayesieve.files import write_atomically

Record = dict[str, Any]
Row = dict[str, Any]

SCHEMA = 1
SCORED_ON = ("test", "held-out")
KINDS = ("single", "ensemble")
_HEAD = ("schema", "study", "command", "date", "machine", "data", "scored_on", "test_reads", "kind",
         "settings", "seconds", "skipped", "rows", "notes")  # fmt: skip
_ROW = ("name", "setting", "seeds", "metrics", "each", "seconds", "detail")
_SHARED = ("data", "machine", "command", "date", "scored_on", "kind")  # a row may differ
_COPIES = {"CIFAR-10", "CIFAR-10 (JPEG copy)"}


def read(path: Path, study: str | None = None) -> Record:
    """The checked record of a file; with `study` it must be one of that study's."""
    if not path.is_file():
        raise ValueError(f"record: there is no file {path}.")
    content = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(content, dict) or "schema" not in content:
        raise ValueError(f"record: {path} is not the record of a study.")
    check(content, str(path))
    if study is not None and content["study"] != study:
        raise ValueError(f"record: {path} is a record of {content['study']}, not of {study}.")
    return content


def read_folder(folder: Path) -> list[tuple[Path, Record]]:
    """Every record in a folder, in order of file name; other JSON files are passed over."""
    numbers = []
    for path in sorted(folder.glob("*.json")):
        content = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(content, dict) and "schema" in content:
            numbers.append((path, read(path)))
    return numbers


def write(path: Path | None, record: Record) -> None:
    """Check a record and put it on disk, all or nothing; None writes none."""
    check(record, record["study"])
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, record)


def check(record: Mapping[str, Any], who: str) -> None:
    """Raise ValueError where a record is not of this format."""
    if record.get("schema") != SCHEMA:
        raise ValueError(f"{who}: schema must be {SCHEMA}, got {record.get('schema')}.")
    _check_keys(record, (*_HEAD, "parts"), set(_HEAD), who)
    check_choice(who, "scored_on", record["scored_on"], SCORED_ON)
    if record["kind"] is not None:
        check_choice(who, "kind", record["kind"], KINDS)
    seen: set[str] = set()
    for row in record["rows"]:
        place = f"{who}, row {row.get('name')}"
        _check_keys(row, (*_ROW, *_SHARED, "derived"), set(_ROW), place)
        check_choice(place, "scored_on", field(record, row, "scored_on"), SCORED_ON)
        for name, value in row["metrics"].items():
            if value is not None and not _is_number(value):
                raise ValueError(f"{place}: {name} must be a finite number or null, got {value!r}.")
        count = n_seeds(row)
        if row["each"] and count is not None and len(row["each"]) != count:
            raise ValueError(f"{place}: {count} seeds, but numbers of {len(row['each'])}.")
        key = identity(record, row)
        if key in seen:
            raise ValueError(f"{place}: the same name and setting stand in it twice.")
        seen.add(key)
    check_one_copy([record], who)


def check_one_copy(records: Iterable[Mapping[str, Any]], who: str) -> None:
    """Raise ValueError where the JPEG copy of CIFAR-10 and the original meet.

    Example:
        >>> rows = [{"data": "CIFAR-10"}, {"data": "CIFAR-10 (JPEG copy)"}]
        >>> check_one_copy([{"data": None, "rows": rows}], "record")
        Traceback (most recent call last):
        ValueError: record: the JPEG copy of CIFAR-10 and the original cannot be in one file.
    """
    names = {field(record, row, "data") for record in records for row in record["rows"]}
    names |= {record.get("data") for record in records}
    if names >= _COPIES:
        raise ValueError(
            f"{who}: the JPEG copy of CIFAR-10 and the original cannot be in one file."
        )


def field(record: Mapping[str, Any], row: Mapping[str, Any], name: str) -> Any:
    """The value of a field that a row may share with its record.

    Example:
        >>> field({"data": "MNIST"}, {"name": "a"}, "data")
        'MNIST'
    """
    return row[name] if name in row else record.get(name)


def identity(record: Mapping[str, Any], row: Mapping[str, Any]) -> str:
    """A key that no other row has: name, setting, data and the images it was scored on."""
    pieces = [row["name"], row["setting"], field(record, row, "data"),
             field(record, row, "scored_on"), row["seeds"] if row["setting"] else None]  # fmt: skip
    return json.dumps(pieces, sort_keys=True, default=str)


def n_seeds(row: Mapping[str, Any]) -> int | None:
    """Number of seeds or splits behind a row; None where it is not known.

    Example:
        >>> n_seeds({"seeds": [0, 1, 2], "each": []}), n_seeds({"seeds": 4, "each": []})
        (3, 4)
    """
    seeds = row["seeds"]
    if seeds is None:
        return len(row["each"]) or None
    return seeds if isinstance(seeds, int) else len(seeds)


def make_row(
    name: str, setting: Mapping[str, Any], each: Sequence[Mapping[str, Any]], *,
    seeds: Sequence[int] | int | None, seconds: float | None = None,
    metrics: Mapping[str, float | None] | None = None, spread: Sequence[str] = (), **detail: Any,
) -> Row:  # fmt: skip
    """A row whose metrics are the means of `each`, and `metrics` besides.

    Args:
        name: of the row.
        setting: what decides its numbers.
        each: the numbers of every seed.
        seeds: their seeds, or how many there are.
        seconds: that the row took.
        metrics: further numbers.
        spread: the numbers of `each` whose standard errors are wanted.
        detail: what is no plain number, by name.

    Example:
        >>> row = make_row("a", {}, [{"error": 1.0}, {"error": 2.0}], seeds=2, spread=["error"])
        >>> row["metrics"]
        {'error': 1.5, 'error_standard_error': 0.5}
    """
    errors: dict[str, float | None] = {}
    for number in spread:
        values = [one[number] for one in each]
        known = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else None
        errors[f"{number}_standard_error"] = known
    return {
        "name": name, "setting": dict(setting), "seeds": seeds,
        "metrics": {**means(each), **errors, **(metrics or {})},
        "each": [dict(one) for one in each], "seconds": seconds, "detail": detail,
    }  # fmt: skip


def means(each: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The mean of every number that all of `each` have."""
    if not each:
        return {}
    names = [name for name in each[0] if all(_is_number(one.get(name)) for one in each)]
    return {name: math.fsum(one[name] for one in each) / len(each) for name in names}


def by_seed(rows: Sequence[Row]) -> tuple[list[int], list[dict[str, Any]]]:
    """Seeds of some rows in order, and the numbers of each; a seed in two of them is an error.

    Example:
        >>> by_seed([{"seeds": [0, 2], "each": ["a", "c"]}, {"seeds": [1], "each": ["b"]}])
        ([0, 1, 2], ['a', 'b', 'c'])
    """
    numbers = [one for row in rows for one in zip(row["seeds"], row["each"], strict=True)]
    seeds = sorted(seed for seed, _ in numbers)
    if len(set(seeds)) < len(seeds):
        raise ValueError(f"join: row {rows[0]['name']} has a seed in two of the parts.")
    return seeds, [one for _, one in sorted(numbers, key=lambda pair: pair[0])]


def over_seeds(rows: Sequence[Row], spread: Sequence[str] = ()) -> Row:
    """One row of rows with the same name and setting and other seeds; plain numbers are means.

    Args:
        rows: each with a list of seeds of its own.
        spread: the numbers of `each` whose standard errors are wanted.

    Example:
        >>> rows = [make_row("a", {}, [{"error": e}], seeds=[e], seconds=1.0) for e in (1, 3)]
        >>> row = over_seeds(rows)
        >>> row["seeds"], row["metrics"], row["seconds"]
        ([1, 3], {'error': 2.0}, 2.0)
    """
    first = rows[0]
    if any(row["setting"] != first["setting"] for row in rows):
        raise ValueError(f"join: the rows of {first['name']} differ in settings.")
    seeds, each = by_seed(rows)
    others = means([row["metrics"] for row in rows])
    metrics = {name: value for name, value in others.items() if name not in each[0]}
    known = [row["seconds"] for row in rows if row["seconds"] is not None]
    joint = make_row(first["name"], first["setting"], each, seeds=seeds, metrics=metrics,
                     seconds=round(sum(known), 2) if known else None, spread=spread,
                     **first["detail"])  # fmt: skip
    about = {name: first[name] for name in _SHARED if name in first}
    if "command" in about:
        about["command"] = "; ".join(dict.fromkeys(row["command"] for row in rows))
    return {**joint, **about}


def flat(nested: Mapping[str, Any]) -> dict[str, Any]:
    """Nested objects as one object whose names are joined by "/".

    Example:
        >>> flat({"best": {"accuracy": 0.9}, "d": 100})
        {'best/accuracy': 0.9, 'd': 100}
    """
    numbers: dict[str, Any] = {}
    for name, value in nested.items():
        if isinstance(value, Mapping):
            numbers |= {f"{name}/{inner}": one for inner, one in flat(value).items()}
        else:
            numbers[name] = value
    return numbers


def join(records: Sequence[Record], dropped_flags: Sequence[str] = ()) -> Record:
    """One record out of several of one study, computed on one machine or more.

    Each row keeps its command, machine and date. The command of the whole is that of the first
    part without the flags that made parts. The same row measured twice is an error, since nothing
    says which of the two to keep.

    Args:
        records: at least one.
        dropped_flags: names of flags with one value.
    """
    first = records[0]
    for name in ("study", "data", "scored_on", "kind", "settings"):
        values = [record[name] for record in records]
        if any(value != values[0] for value in values):
            raise ValueError(f"{first['study']}: the parts differ in {name}: {values}.")
    rows, seen = [], set()
    for record in records:
        for row in record["rows"]:
            if row.get("derived"):
                continue
            key = identity(record, row)
            if key in seen:
                raise ValueError(f"join: row {row['name']} is in two of the parts; leave one out.")
            seen.add(key)
            rows.append({**row, **{name: field(record, row, name) for name in
                                   ("command", "machine", "date")}})  # fmt: skip
    about = [part for record in records for part in record.get("parts") or [
        {name: record[name] for name in ("command", "machine", "date")}]]  # fmt: skip
    machines = [part["machine"] for part in about]
    names = dict.fromkeys(name for machine in machines for name in machine)
    machine = {name: " and ".join(sorted({str(one[name]) for one in machines if name in one}))
               for name in names}  # fmt: skip
    flags = "|".join(dropped_flags)
    command = (
        re.sub(rf" --({flags}) ('[^']*'|\S+)", "", first["command"]) if flags else first["command"]
    )
    known = [record["seconds"] for record in records if record["seconds"] is not None]
    notes: dict[str, Any] = {}
    for record in records:
        for name, value in record["notes"].items():
            if name in notes and not isinstance(value, list):
                raise ValueError(f"join: note {name} is in two of the parts; leave one out.")
            notes[name] = [*notes.get(name, []), *value] if isinstance(value, list) else value
    joint = {**first, "machine": machine, "command": command, "rows": rows, "notes": notes,
             "seconds": round(sum(known), 1) if known else None,
             "skipped": [], "parts": about}  # fmt: skip
    check(joint, f"{first['study']}, joined")
    return joint


def _check_keys(
    numbers: Mapping[str, Any], allowed: Sequence[str], needed: set[str], who: str
) -> None:
    missing, unknown = needed - numbers.keys(), numbers.keys() - set(allowed)
    if missing or unknown:
        raise ValueError(f"{who}: missing {sorted(missing)}, unknown {sorted(unknown)}.")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
