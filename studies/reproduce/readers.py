"""How the record of each study is read: one small function each, from JSON to findings."""

import statistics
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from studies.reproduce.findings import Finding, Record, is_quick
from studies.uci_page import OUR_ROWS


def _about(record: Record) -> dict[str, Any]:
    machine = record.get("machine", {})
    device = str(machine.get("device") or machine.get("processor") or "unknown")
    return {"device": device, "date": record.get("date"), "command": str(record["command"])}


def _held_out(record: Record) -> bool:
    return "held-out" in str(record.get("scored_on", record.get("settings", {}).get("scored_on")))


def _each(
    study: str, key: str, numbers: Mapping[str, float | None], record: Record, seeds: int | None,
    seconds: float | None,
) -> Iterator[Finding]:  # fmt: skip
    """One finding per number that is there."""
    for field, value in numbers.items():
        if value is not None:
            yield Finding(study, key, field, float(value), seeds, seconds=seconds,
                          **_about(record))  # fmt: skip


def _sbnn_mnist(record: Record) -> Iterator[Finding]:
    if _held_out(record):
        return
    for own in record["records"]:
        yield from _each("sbnn-mnist", own["name"], {"error": 100 * own["error_mean"]}, record,
                         len(own["seeds"]), own["total_seconds"])  # fmt: skip


def _sbnn_droprate(record: Record) -> Iterator[Finding]:
    if _held_out(record):
        return
    for own in record["records"]:
        numbers = {"error": 100 * own["error_mean"], "below_a_quarter": own["below_a_quarter"]}
        for score, curve in own["curves"].items():
            for point in curve:
                numbers[f"{score}-{100 * point['droprate']:g}"] = 100 * point["error"]
        yield from _each("sbnn-droprate", own["name"], numbers, record, len(own["seeds"]),
                         own["seconds"])  # fmt: skip


def _sbnn_vgg(record: Record) -> Iterator[Finding]:
    if _held_out(record):
        return
    for own in record["rows"]:
        numbers = {name: own[name] for name in ("error", "renewed_error", "nll")}
        yield from _each("sbnn-vgg", f"{own['setting']['zeros']:g}", numbers, record, 1,
                         own["seconds"])  # fmt: skip


def _uci(record: Record) -> Iterator[Finding]:
    for name, numbers in record.get("findings", {}).items():
        rows = record["sets"][name]
        ours = [rows[row] for row in OUR_ROWS if row in rows]
        yield from _each("uci", name, numbers, record, len(ours[0]["full"]["rmse_splits"]),
                         sum(own["seconds"] for own in ours))  # fmt: skip
    for name, rows in record["sets"].items():
        cut = rows.get("sbnn-paper")
        if cut is not None:
            numbers = {f"{100 * own['removed_in_one_shot']:g}": own["rmse"]
                       for own in cut["one_shot"]}  # fmt: skip
            yield from _each("uci", f"{name}/one-shot", numbers, record,
                             len(cut["full"]["rmse_splits"]), cut["seconds"])  # fmt: skip


def _sbnn_tables(record: Record) -> Iterator[Finding]:
    n_sets = record.get("scale", {}).get("n_sets")
    seconds = sum(record.get("seconds", {}).values()) or None
    for key, numbers in record.get("findings", {}).items():
        yield from _each("sbnn-tables", key, numbers, record, n_sets, seconds)


def _structured(record: Record) -> Iterator[Finding]:
    if _held_out(record):
        return
    own, delivered = record["record"], record["delivery"]
    numbers = {"error": 100 * own["error_mean"], "parameters": delivered["parameters"][1],
               "macs": delivered["macs"][1]}  # fmt: skip
    if "onnx_file" in delivered:
        numbers["shrinkage"] = delivered["onnx_file"]["ratio"]
    for row in delivered.get("onnx_speed", ()):
        numbers[f"speedup-{row['batch']}"] = row["speedup"]
    key = "-".join(str(n) for n in own["setting"]["units"])
    yield from _each("structured-lenet5", key, numbers, record, len(own["errors"]),
                     own["seconds"])  # fmt: skip


def _bmr_images(record: Record) -> Iterator[Finding]:
    if _held_out(record):
        return
    for own in record["records"]:
        key = f"{own['data']}/{own['net']}/{own['method']}/{own['preset']}"
        numbers = {n: own.get(n) for n in ("accuracy", "ece", "nll", "pruned", "zeros")}
        if "quantiles" in own:  # what figures 3 and 4 are drawn from
            numbers |= {"layers": len(own["quantiles"]), "maps": own["first_layer"]["shape"][0]}
        about = {**record, "machine": own["machine"], "date": own.get("date")}
        yield from _each("bmr-images", key, numbers, about, len(own["seeds"]),
                         sum(own["seconds"].values()))  # fmt: skip


def _bmr_mnist(record: Record) -> Iterator[Finding]:
    for own in record["records"]:
        test = own.get("test")
        if test is not None:  # a held-out run has none
            numbers = {"error": 100 * test["error_mean"], "mc_error": 100 * test["mc_error_mean"]}
            yield from _each("bmr-mnist", own["name"], numbers, record, len(test["seeds"]),
                             own["total_seconds"])  # fmt: skip


def _laplace_bmr(record: Record) -> Iterator[Finding]:
    if _held_out(record):
        return
    for way, means in record["means"].items():
        for share, error, nll in zip(record["zeros"], means["error"], means["nll"], strict=True):
            yield from _each("laplace-bmr", f"{way}/{share:g}", {"error": 100 * error, "nll": nll},
                             record, record["seeds"], record["seconds"])  # fmt: skip


def _aeb_linear(record: Record) -> Iterator[Finding]:
    first = record["settings"]["seeds"][0]
    data = "" if first == 1 else f"/data-from-{first}"  # other data sets than the table's
    for own in record["summary"]:
        key = f"{own['method']}/{own['spike_scale']:g}/{own['init_scale']:g}{data}"
        numbers = {field: own[field] for field in ("mse", "mae", "all_three_selected")}
        yield from _each("aeb-linear", key, numbers, record, own["data_sets"], record["seconds"])


def _aeb_logistic(record: Record) -> Iterator[Finding]:
    for method in dict.fromkeys(own["method"] for own in record["rows"]):
        rows = [own for own in record["rows"] if own["method"] == method]
        numbers = {"accuracy": 100 * statistics.fmean(own["accuracy"] for own in rows)}
        yield from _each("aeb-logistic", method, numbers, record, len(rows), record["seconds"])


def _aeb_uci(record: Record) -> Iterator[Finding]:
    for own in record["rows"]:
        yield from _each("aeb-uci", f"{own['data']}/{own['method']}", {"rmse": own["rmse"]}, record,
                         len(own["splits"]), own["fit_seconds"])  # fmt: skip


def _aeb_images(record: Record) -> Iterator[Finding]:
    if _held_out(record):
        return
    for own in record["rows"]:
        numbers = {"accuracy": own["pooled"]}
        for point in own.get("fgsm", ()):
            if point["strength"] == 0.5:
                numbers["attacked"] = 100 * point["accuracy"]
        yield from _each("aeb-images", f"{own['task']}/{own['setting']['method']}", numbers, record,
                         own["setting"]["chains"], own["seconds"])  # fmt: skip


def _aeb_resnet(record: Record) -> Iterator[Finding]:
    if _held_out(record):
        return
    for own in record["rows"]:
        key = f"{own['setting']['method']}/{own['setting']['zeros']}"
        numbers = {"accuracy": own["average"], "single": own["single"]}
        yield from _each("aeb-resnet", key, numbers, record, 1, own["seconds"])


def _tdamp_mnist(record: Record) -> Iterator[Finding]:
    of_table = record["n_train"] == 10_000 or is_quick(record)
    images = "" if of_table else f"/{record['n_train']}"
    for own in record["records"]:
        numbers = {**own["mean"], "passes": len(own["seeds"][0].get("history", ())) or None}
        yield from _each("tdamp-mnist", f"{own['name']}{images}", numbers, record,
                         len(own["seeds"]), 10 * own["mean"]["seconds_per_pass"])  # fmt: skip


def _tdamp_uci(record: Record) -> Iterator[Finding]:
    for own in record["records"]:
        numbers = {**own["mean"], "first_split_rmse": own["splits"][0]["rmse"]}
        yield from _each("tdamp-uci", own["name"], numbers, record, own["n_splits"],
                         sum(split["seconds"] for split in own["splits"]))  # fmt: skip


def _tdamp_digits(record: Record) -> Iterator[Finding]:
    if "test images" not in record["scored_on"]:
        return
    for own in record["records"]:
        yield from _each("tdamp-digits", own["name"], own["mean"], record, len(own["seeds"]), None)


def _scratch_mnist(record: Record) -> Iterator[Finding]:
    by_name: dict[str, list[Record]] = {}
    for own in record["records"]:
        by_name.setdefault(own["name"], []).append(own)
    chosen = record.get("recommended") or {}
    by_name["recommended"] = list(chosen.get("runs", ()))
    for name, all_runs in by_name.items():
        runs = [own for own in all_runs if "test" in own]
        if runs:
            value = statistics.fmean(own["test"]["accuracy"] for own in runs)
            yield from _each("scratch-mnist", name, {"accuracy": value}, record, len(runs),
                             statistics.fmean(own["seconds"] for own in runs))  # fmt: skip


READERS: dict[str, Callable[[Record], Iterator[Finding]]] = {
    "sbnn_mnist": _sbnn_mnist,
    "sbnn_droprate": _sbnn_droprate,
    "sbnn_vgg": _sbnn_vgg,
    "sbnn_tables": _sbnn_tables,
    "uci": _uci,
    "structured_lenet5": _structured,
    "bmr_images": _bmr_images,
    "bmr_mnist": _bmr_mnist,
    "laplace_bmr": _laplace_bmr,
    "aeb_linear": _aeb_linear,
    "aeb_logistic": _aeb_logistic,
    "aeb_uci": _aeb_uci,
    "aeb_images": _aeb_images,
    "aeb_resnet": _aeb_resnet,
    "tdamp_mnist": _tdamp_mnist,
    "tdamp_uci": _tdamp_uci,
    "tdamp_digits": _tdamp_digits,
    "scratch_mnist": _scratch_mnist,
}
