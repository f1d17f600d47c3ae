"""Write the tables of README.md and docs/performance.md from results/*.json.

    python docs/make_results_table.py            # rewrite the blocks between the markers
    python docs/make_results_table.py --check    # exit 1 if a block is not what it would write

No number in those tables is typed by hand. Files of `studies.sbnn_mnist` that were scored
on test images give the table of errors (with the error on held-out training images from
results/held_out/) and the one of seconds, files of `benchmarks/steps.py` the one of step times, and
files of `studies.bmr_images` that were scored on test images the one beside its paper.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # the package `studies`

from bayesieve.runs.comparison.page import page as comparison_page
from studies.reproduce import read_findings, results_page
from studies.reproduce.choosing import headline_table, wants_table
from studies.reproduce.speed import full_table, short_table
from studies.sbnn_pages import one_shot_table, vgg_table

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
EMPTY = "_To be filled by `python docs/make_results_table.py` from `results/*.json`._"
NETS = {"l300": "LeNet-300-100", "l5": "LeNet-5-Caffe", "m1200": "784-1200-1200-10"}
BLOCKS = {
    "mnist": "README.md",
    "seconds": "docs/performance.md",
    "steps": "docs/performance.md",
    "bmr_images": "docs/studies/bmr_images.md",
    "bmr_trials": "docs/studies/bmr_images.md",
    "sbnn_one_shot": "docs/studies/sbnn.md",
    "sbnn_vgg": "docs/studies/sbnn.md",
    "papers": "docs/results.md",
    "compared": "docs/comparison.md",
    "page": "docs/report.md",
    "wants": "docs/choosing-an-engine.md",
    "engines": "README.md",
    "speed": "README.md",
    "inference": "docs/performance.md",
}


def read_results(folder: Path) -> list[dict[str, Any]]:
    """Every JSON file of a folder that holds one object, in order of name."""
    files = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]
    return [content for content in files if isinstance(content, dict)]


def mnist_table(results: list[dict[str, Any]], held_out: list[dict[str, Any]]) -> str:
    """One row per setting: network, zeros, errors, and the command that makes it again."""
    chosen_by = {
        record["name"]: record["error_mean"]
        for study in held_out
        if study.get("study") == "sbnn_mnist" and "held-out" in study["scored_on"]
        for record in study["records"]
    }
    studies = [
        own
        for own in results
        if own.get("study") == "sbnn_mnist" and "test images" in own["scored_on"]
    ]
    records = {}
    for study in studies:
        for record in study["records"]:
            if record["name"] in records:
                raise SystemExit(f"results: two files hold {record['name']}; keep one of them.")
            records[record["name"]] = record
    if not records:
        return EMPTY
    rows = sorted(
        records.values(), key=lambda r: (list(NETS).index(r["setting"]["net"]), r["name"])
    )
    machines = sorted({f"{s['machine']['device']}, torch {s['machine']['torch']}" for s in studies})
    lines = [
        "| network | parameters left | zeros | test error: mean (least to most) | mean of 20 draws "
        "| held-out error | remarks | setting |",
        "|---|---:|---:|---:|---:|---:|---|---|",
        *(_mnist_row(record, chosen_by.get(record["name"])) for record in rows),
    ]
    seeds = sorted({len(record["seeds"]) for record in rows})
    command = f"python -m studies.sbnn_mnist --seeds {seeds[-1]} --settings SETTING"
    note = f"Each row: `{command}`, measured on {'; '.join(machines)}."
    return "\n".join([*lines, "", note])


def _mnist_row(record: dict[str, Any], held_out: float | None) -> str:
    setting, first = record["setting"], record["seeds"][0]
    total = round(first["weights"] / (1 - first["zeros"]))
    spread = f"({100 * record['error_min']:.2f} to {100 * record['error_max']:.2f})"
    cells = (
        NETS[setting["net"]],
        f"{first['weights']:,} of {total:,}",
        f"{100 * record['zeros_min']:.2f} %",
        f"{100 * record['error_mean']:.2f} % {spread}",
        f"{100 * record['mc_error_mean']:.2f} %",
        "" if held_out is None else f"{100 * held_out:.2f} %",
        _remarks(record),
        f"`{record['name']}`",
    )
    return f"| {' | '.join(cells)} |"


def _remarks(record: dict[str, Any]) -> str:
    setting = record["setting"]
    words = [f"{len(record['seeds'])} seeds"]
    if setting["score"] != "snr":
        words.append(f"{setting['score']} score")
    if setting["soft"]:
        words.append("soft mask")
    if record["self_distillation"]:
        words.append("**self-distillation**" + (", out of fold" if setting.get("folds") else ""))
    return ", ".join(words)


def seconds_table(results: list[dict[str, Any]]) -> str:
    """Seconds of one training run and of a population, where a study was timed."""
    lines = []
    for own in results:
        timing = own.get("timing") if own.get("study") == "sbnn_mnist" else None
        if timing:
            cells = (
                f"{own['machine']['device']}, torch {own['machine']['torch']}",
                str(timing["epochs"]),
                f"{timing['first_seconds']:.1f}",
                f"{timing['one_seconds']:.1f}",
                f"{timing['many_seconds']:.1f} ({timing['population']} models)",
                f"{timing['ratio']:.2f}",
            )
            lines.append(f"| {' | '.join(cells)} |")
    if not lines:
        return EMPTY
    head = "| machine | epochs | first run (s) | one model (s) | population (s) | ratio |"
    return "\n".join([head, "|---|---:|---:|---:|---:|---:|", *lines])


def steps_table(results: list[dict[str, Any]]) -> str:
    """Every row of every step benchmark."""
    parts = []
    for own in results:
        if "rounds" not in own or "rows" not in own:
            continue
        about = ", ".join(f"{name} {value}" for name, value in own["machine"].items())
        lines = [
            "| network | what | ms | ratio or count | of | target | met |",
            "|---|---|---:|---:|---|---:|---|",
        ]
        for row in own["rows"]:
            value = "" if row["ratio"] is None else f"{row['ratio']:.2f}"
            cells = (
                row["net"],
                row["name"],
                "" if row["median_ms"] is None else f"{row['median_ms']:.3f}",
                value if row["count"] is None else str(row["count"]),
                row.get("against") or "",
                "" if row["target"] is None else f"{row['target']:g}",
                {True: "yes", False: "no", None: ""}[row["met"]],
            )
            lines.append(f"| {' | '.join(cells)} |")
        parts.append("\n".join([f"Measured on: {about}.", "", *lines]))
    return "\n\n".join(parts) or EMPTY


def reduction_table(results: list[dict[str, Any]]) -> str:
    """Accuracy / calibration error / likelihood of each row of the model-reduction study."""
    records: dict[str, dict[str, Any]] = {}
    for own in results:
        if own.get("study") == "bmr_images" and own["scored_on"] == "test images":
            for record in own["records"]:
                if record["name"] in records:
                    raise SystemExit(f"results: two files hold {record['name']}; keep one.")
                records[record["name"]] = record
    rows = [records[name] for name in sorted(records)]
    if not rows:
        return EMPTY
    lines = [
        "| data, network | method, preset | ACC / ECE / NLL | the paper's | pruned | the paper's "
        "| zeros | epochs, seeds | s |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|",
        *map(_reduction_row, rows),
    ]
    machines = sorted({f"{r['machine']['device']}, torch {r['machine']['torch']}" for r in rows})
    return "\n".join([*lines, "", f"Measured on {'; '.join(machines)}."])


def _reduction_row(record: dict[str, Any]) -> str:
    theirs = record["published"]
    cells = (
        f"{record['data_name']}, {record['net']}",
        f"{record['method']}, {record['preset']}{_augmented(record)}",
        "/".join(f"{record[key]:.3f}".removeprefix("0") for key in ("accuracy", "ece", "nll")),
        "/".join(theirs[key] for key in ("accuracy", "ece", "nll")),
        f"{100 * record['pruned']:.1f} %" if record["method"] == "bmr" else "",
        theirs.get("pruned", ""),
        f"{100 * record['zeros']:.1f} %",
        f"{record['settings']['epochs']}, {len(record['seeds'])}",
        f"{sum(record['seconds'].values()):.0f}",
    )
    return f"| {' | '.join(cells)} |"


def _augmented(record: dict[str, Any]) -> str:
    return "" if record["settings"].get("augment", "None") == "None" else ", augmented"


def trials_table(held_out: list[dict[str, Any]]) -> str:
    """Presets of the model-reduction study as scored on held-out training images."""
    records = [
        record for own in held_out if own.get("study") == "bmr_images" for record in own["records"]
    ]
    if not records:
        return EMPTY
    lines = [
        "| data, network | preset | ACC / ECE / NLL | zeros | epochs, seeds |",
        "|---|---|---:|---:|---:|",
    ]
    for record in sorted(records, key=lambda own: own["name"]):
        scores = (f"{record[key]:.3f}".removeprefix("0") for key in ("accuracy", "ece", "nll"))
        where = f"{record['data_name']}, {record['net']}"
        zeros = f"{100 * record['zeros']:.1f} %"
        size = f"{record['settings']['epochs']}, {len(record['seeds'])}"
        lines.append(f"| {where} | {record['preset']} | {'/'.join(scores)} | {zeros} | {size} |")
    return "\n".join(lines)


def comparisons(results: list[dict[str, Any]]) -> str:
    """Every committed record of `bayesieve compare`."""
    pages = [
        comparison_page(own, picture=None, level=2).rstrip()
        for own in results
        if own.get("study") == "compare"
    ]
    return "\n\n".join(pages) if pages else EMPTY


def page_table(results: list[dict[str, Any]]) -> str:
    """What the page of a run takes, from the record of `benchmarks/report.py`."""
    found = [own for own in results if own.get("benchmark") == "report"]
    if not found:
        return EMPTY
    own = found[-1]
    machine, numbers, targets = own["machine"], own["numbers"], own["targets"]
    rows = (
        ("collecting and writing, processor time", "first_build_cpu_s", 1, "s"),
        ("the same on the wall", "first_build_s", 1, "s"),
        ("size of the page", "bytes", 1e-3, "kB"),
        ("first contentful paint", "first_paint_ms", 1, "ms"),
        (f"slider, median of {numbers.get('moves', 0)} moves", "slider_median_ms", 1, "ms"),
        ("slider, slowest of them", "slider_worst_ms", 1, "ms"),
    )
    lines = ["| | | at most |", "| --- | ---: | ---: |"]
    for words, name, unit, sign in rows:
        if name in numbers:
            most = f"{unit * targets[name]:,.4g} {sign}" if name in targets else ""
            lines.append(f"| {words} | {unit * numbers[name]:,.3g} {sign} | {most} |")
    about = (
        f"{machine['cpu']}, {machine['cores']} cores at a load of {machine['load_average']:g}, "
        f"torch {machine['torch']}, {numbers['browser']}:"
    )
    return "\n".join([about, "", *lines])


def _on_test(results: list[dict[str, Any]], study: str, part: str) -> list[dict[str, Any]]:
    """The rows of all files of a study that were scored on test images."""
    found = []
    for own in results:
        if own.get("study") == study:
            kind = own.get("scored_on") or own["settings"]["scored_on"]
            found += own[part] if "held-out" not in kind else []
    return found


def with_block(text: str, name: str, content: str) -> str:
    """The text with the lines between the markers of a block replaced."""
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    before, found, rest = text.partition(begin)
    _, closed, after = rest.partition(end)
    if not (found and closed):
        raise SystemExit(f"{BLOCKS[name]}: the markers {begin} and {end} must stand in it.")
    return f"{before}{begin}\n{content}\n{end}{after}"


def main() -> int:
    """Rewrite or check every block."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--check", action="store_true", help="only compare; exit 1 if different")
    check = parser.parse_args().check
    results = read_results(RESULTS)
    inference = json.loads((RESULTS / "inference.json").read_text(encoding="utf-8"))
    tables = {
        "mnist": mnist_table(results, read_results(RESULTS / "held_out")),
        "seconds": seconds_table(results),
        "steps": steps_table(results),
        "bmr_images": reduction_table(results),
        "bmr_trials": trials_table(read_results(RESULTS / "held_out")),
        "sbnn_one_shot": one_shot_table(_on_test(results, "sbnn_droprate", "records")) or EMPTY,
        "sbnn_vgg": vgg_table(_on_test(results, "sbnn_vgg", "rows")) or EMPTY,
        "papers": results_page(read_findings(RESULTS)),
        "compared": comparisons(results),
        "page": page_table(results),
        "wants": wants_table(read_findings(RESULTS)),
        "engines": headline_table(read_findings(RESULTS)),
        "speed": short_table(inference),
        "inference": full_table(inference),
    }
    stale = []
    for name, page in BLOCKS.items():
        path = ROOT / page
        text = path.read_text(encoding="utf-8")
        new = with_block(text, name, tables[name])
        if new != text:
            stale.append(f"{page} ({name})")
            if not check:
                path.write_text(new, encoding="utf-8")
    if check and stale:
        print(
            f"out of date: {', '.join(stale)}; run python docs/make_results_table.py",
            file=sys.stderr,
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
