"""Our numbers, read from the JSON records that the studies wrote.

Every study has its own record; one small reader each turns it into findings (study, key, field).
A record that is damaged or of an unknown study is an error, not a gap.
"""

import json
import statistics
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Record = Mapping[str, Any]


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


def read_findings(folder: Path) -> dict[tuple[str, str, str], Finding]:
    """Every finding of the records in a folder; two records with the same finding are an error."""
    found: dict[tuple[str, str, str], Finding] = {}
    for path in sorted(folder.glob("*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(record, dict) or record.get("study") not in READERS:
            continue  # a benchmark, or a record of something the papers do not report
        for finding in READERS[record["study"]](record):
            place = (finding.study, finding.key, finding.field)
            if place in found:
                raise ValueError(f"{path}: {'/'.join(place)} is in another record too; keep one.")
            found[place] = finding
    return found


def _about(record: Record) -> dict[str, Any]:
    machine = record.get("machine", {})
    device = str(machine.get("device") or machine.get("processor") or "unknown")
    return {"device": device, "date": record.get("date"), "command": str(record["command"])}


def _sbnn_mnist(record: Record) -> Iterator[Finding]:
    if "test images" not in record["scored_on"]:
        return
    for own in record["records"]:
        yield Finding("sbnn-mnist", own["name"], "error", 100 * own["error_mean"],
                      len(own["seeds"]), seconds=own["total_seconds"],
                      **_about(record))  # fmt: skip


def _sbnn_droprate(record: Record) -> Iterator[Finding]:
    if "held-out" in record["scored_on"]:
        return
    for own in record["records"]:
        numbers = {"error": 100 * own["error_mean"]}
        if own["below_a_quarter"] is not None:
            numbers["below_a_quarter"] = own["below_a_quarter"]
        for score, curve in own["curves"].items():
            for point in curve:
                numbers[f"{score}-{100 * point['droprate']:g}"] = 100 * point["error"]
        for field, value in numbers.items():
            yield Finding("sbnn-droprate", own["name"], field, value, len(own["seeds"]),
                          seconds=own["seconds"], **_about(record))  # fmt: skip


def _bmr_images(record: Record) -> Iterator[Finding]:
    if record["scored_on"] != "test images":
        return
    for own in record["records"]:
        key = f"{own['data']}/{own['net']}/{own['method']}/{own['preset']}"
        about = {**_about({**record, "machine": own["machine"]}), "date": own.get("date")}
        for field in ("accuracy", "ece", "nll", "pruned", "zeros"):
            if own.get(field) is not None:
                yield Finding("bmr-images", key, field, own[field], len(own["seeds"]),
                              seconds=sum(own["seconds"].values()), **about)  # fmt: skip


def _aeb_linear(record: Record) -> Iterator[Finding]:
    first = record["settings"]["seeds"][0]
    data = "" if first == 1 else f"/data-from-{first}"  # other data sets than the table's
    for own in record["summary"]:
        key = f"{own['method']}/{own['spike_scale']:g}/{own['init_scale']:g}{data}"
        for field in ("mse", "mae", "all_three_selected"):
            yield Finding("aeb-linear", key, field, own[field], own["data_sets"],
                          seconds=record["seconds"], **_about(record))  # fmt: skip


def _aeb_images(record: Record) -> Iterator[Finding]:
    if record["settings"]["scored_on"] != "test images":
        return
    for own in record["rows"]:
        key = f"{own['task']}/{own['setting']['method']}"
        yield Finding("aeb-images", key, "accuracy", own["pooled"], own["setting"]["chains"],
                      seconds=own["seconds"], **_about(record))  # fmt: skip


def _listed(study: str) -> Callable[[Record], Iterator[Finding]]:
    """Reader of records that list their findings themselves, as key -> field -> value."""

    def reader(record: Record) -> Iterator[Finding]:
        if record.get("quick"):
            return
        for key, numbers in record.get("findings", {}).items():
            for field, value in numbers.items():
                if isinstance(value, int | float):
                    yield Finding(study, key, field, value, None, seconds=None, **_about(record))

    return reader


def _tdamp_mnist(record: Record) -> Iterator[Finding]:
    if record["n_train"] != 10_000:
        return
    for own in record["records"]:
        for field, value in own["mean"].items():
            yield Finding("tdamp-mnist", own["name"], field, value, len(own["seeds"]),
                          seconds=10 * own["mean"]["seconds_per_pass"],
                          **_about(record))  # fmt: skip


def _scratch_mnist(record: Record) -> Iterator[Finding]:
    by_name: dict[str, list[Record]] = {}
    for own in record["records"]:
        if "test" in own:
            by_name.setdefault(own["name"], []).append(own)
    for name, runs in by_name.items():
        value = statistics.fmean(own["test"]["accuracy"] for own in runs)
        yield Finding("scratch-mnist", name, "accuracy", value, len(runs),
                      seconds=statistics.fmean(own["seconds"] for own in runs),
                      **_about(record))  # fmt: skip


READERS: dict[str, Callable[[Record], Iterator[Finding]]] = {
    "sbnn_mnist": _sbnn_mnist,
    "sbnn_droprate": _sbnn_droprate,
    "bmr_images": _bmr_images,
    "aeb_linear": _aeb_linear,
    "aeb_images": _aeb_images,
    "uci": _listed("uci"),
    "sbnn_tables": _listed("sbnn-tables"),
    "tdamp_mnist": _tdamp_mnist,
    "scratch_mnist": _scratch_mnist,
}
