"""Write the tables of README.md and docs/performance.md from results/*.json.

    python docs/make_results_table.py            # rewrite the blocks between the markers
    python docs/make_results_table.py --check    # exit 1 if a block is not what it would write

No number in those tables is typed by hand. Records of `studies.sbnn_mnist` that were scored
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
from studies.bmr_images import published
from studies.reproduce import read_findings, results_page
from studies.reproduce.choosing import headline_table, wants_table
from studies.reproduce.speed import full_table, short_table
from studies.sbnn_droprate import one_shot_table
from studies.sbnn_vgg import vgg_table

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
    """Every JSON file of a folder that is one object, in order of name."""
    files = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]
    return [content for content in files if isinstance(content, dict)]


def rows_of(results: list[dict[str, Any]], study: str, scored_on: str) -> dict[str, dict[str, Any]]:
    """Rows of all records of a study scored on "test" or "held-out", by name."""
    rows: dict[str, dict[str, Any]] = {}
    for record in results:
        if record.get("study") == study and record.get("scored_on") == scored_on:
            for row in record["rows"]:
                if row["name"] in rows and scored_on == "test":
                    raise SystemExit(f"results: two files hold {row['name']}; keep one of them.")
                rows[row["name"]] = {"machine": record["machine"], "data": record["data"], **row}
    return rows


def mnist_table(results: list[dict[str, Any]], held_out: list[dict[str, Any]]) -> str:
    """One row per setting: network, zeros, errors, and the command that makes it again."""
    chosen_by = rows_of(held_out, "sbnn_mnist", "held-out")
    rows = sorted(
        rows_of(results, "sbnn_mnist", "test").values(),
        key=lambda row: (list(NETS).index(row["setting"]["net"]), row["name"]),
    )
    if not rows:
        return EMPTY
    machines = sorted({_machine(row) for row in rows})
    lines = [
        "| network | parameters left | zeros | test error: mean (least to most) | mean of 20 draws "
        "| held-out error | remarks | setting |",
        "|---|---:|---:|---:|---:|---:|---|---|",
        *(_mnist_row(row, chosen_by.get(row["name"])) for row in rows),
    ]
    seeds = max(len(row["each"]) for row in rows)
    command = f"python -m studies.sbnn_mnist --seeds {seeds} --settings SETTING"
    note = f"Each row: `{command}`, measured on {'; '.join(machines)}."
    return "\n".join([*lines, "", note])


def _machine(row: dict[str, Any]) -> str:
    return f"{row['machine']['device']}, torch {row['machine']['torch']}"


def _mnist_row(row: dict[str, Any], held_out: dict[str, Any] | None) -> str:
    first, found = row["each"][0], row["metrics"]
    errors = [one["error"] for one in row["each"]]
    total = round(first["weights"] / (1 - first["zeros"]))
    cells = (
        NETS[row["setting"]["net"]],
        f"{first['weights']:,} of {total:,}",
        f"{100 * min(one['zeros'] for one in row['each']):.2f} %",
        f"{100 * found['error']:.2f} % ({100 * min(errors):.2f} to {100 * max(errors):.2f})",
        f"{100 * found['mc_error']:.2f} %",
        "" if held_out is None else f"{100 * held_out['metrics']['error']:.2f} %",
        _remarks(row),
        f"`{row['name']}`",
    )
    return f"| {' | '.join(cells)} |"


def _remarks(row: dict[str, Any]) -> str:
    setting = row["setting"]
    words = [f"{len(row['each'])} seeds"]
    if setting["score"] != "snr":
        words.append(f"{setting['score']} score")
    if setting["soft"]:
        words.append("soft mask")
    if setting["teachers"]:
        words.append("**self-distillation**" + (", out of fold" if setting.get("folds") else ""))
    return ", ".join(words)


def seconds_table(results: list[dict[str, Any]]) -> str:
    """Seconds of one training run and of a population, where a study was timed."""
    lines = []
    for record in results:
        timing = record["notes"].get("timing") if record.get("study") == "sbnn_mnist" else None
        if timing:
            cells = (
                _machine(record),
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
    rows = rows_of(results, "bmr_images", "test")
    if not rows:
        return EMPTY
    lines = [
        "| data, network | method, preset | ACC / ECE / NLL | the paper's | pruned | the paper's "
        "| zeros | epochs, seeds | s |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|",
        *(_reduction_row(rows[name]) for name in sorted(rows)),
    ]
    machines = sorted({_machine(row) for row in rows.values()})
    return "\n".join([*lines, "", f"Measured on {'; '.join(machines)}."])


def _reduction_row(row: dict[str, Any]) -> str:
    found, setting = row["metrics"], row["setting"]
    theirs = published(setting["data"], setting["net"], setting["method"])
    augmented = "" if setting.get("augment", "None") == "None" else ", augmented"
    cells = (
        f"{row['data']}, {setting['net']}",
        f"{setting['method']}, {setting['preset']}{augmented}",
        _scores(found),
        "/".join(theirs[key] for key in ("accuracy", "ece", "nll")),
        f"{100 * found['pruned']:.1f} %" if setting["method"] == "bmr" else "",
        theirs.get("pruned", ""),
        f"{100 * found['zeros']:.1f} %",
        f"{setting['epochs']}, {len(row['each'])}",
        f"{row['seconds']:.0f}",
    )
    return f"| {' | '.join(cells)} |"


def _scores(found: dict[str, float]) -> str:
    return "/".join(f"{found[key]:.3f}".removeprefix("0") for key in ("accuracy", "ece", "nll"))


def trials_table(held_out: list[dict[str, Any]]) -> str:
    """Presets of the model-reduction study as scored on held-out training images."""
    rows = [{"data": record["data"], **row} for record in held_out
            if record.get("study") == "bmr_images" for row in record["rows"]]  # fmt: skip
    if not rows:
        return EMPTY
    lines = [
        "| data, network | preset | ACC / ECE / NLL | zeros | epochs, seeds |",
        "|---|---|---:|---:|---:|",
    ]
    for row in sorted(rows, key=lambda row: str(row["name"])):
        setting = row["setting"]
        where = f"{row['data']}, {setting['net']}"
        zeros = f"{100 * row['metrics']['zeros']:.1f} %"
        size = f"{setting['epochs']}, {len(row['each'])}"
        lines.append(
            f"| {where} | {setting['preset']} | {_scores(row['metrics'])} | {zeros} | {size} |"
        )
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
        "sbnn_one_shot": one_shot_table(list(rows_of(results, "sbnn_droprate", "test").values()))
        or EMPTY,
        "sbnn_vgg": vgg_table(list(rows_of(results, "sbnn_vgg", "test").values())) or EMPTY,
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
