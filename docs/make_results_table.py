"""Write the tables of README.md and docs/ from results/*.json.

    python docs/make_results_table.py            # rewrite the blocks between the markers
    python docs/make_results_table.py --check    # exit 1 if a block is not what it would write
    python docs/make_results_table.py --pictures # also draw the pictures of results/compare_*.json

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

from bayesieve.assess.figures.style import save
from pages import calibration, reliability, scratch
from pages.engines import wants_table
from pages.headlines import headline_table
from pages.papers import results_page
from pages.protocol import protocol_table
from pages.speed import full_table, short_table
from pages.studies import (
    EMPTY,
    characters_table,
    characters_tested,
    engines_table,
    familiarity_table,
    mnist_table,
    one_shot_table,
    pretrained_table,
    recipes_table,
    reduction_table,
    rows_of,
    seconds_table,
    selection_calibration,
    selection_table,
    selection_weights,
    support_tables,
    tables_ranks,
    tables_table,
    trials_table,
    uci_cuts_table,
    uci_estimators_table,
    vgg_table,
    wide_table,
)
from studies.comparison.page import comparison_figure, standings
from studies.comparison.page import page as comparison_page
from studies.record import read
from studies.reproduce.table import read_findings

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
BLOCKS = {
    "mnist": "docs/studies/sbnn.md",
    "seconds": "docs/performance.md",
    "steps": "docs/performance.md",
    "bmr_images": "docs/studies/bmr_images.md",
    "bmr_trials": "docs/studies/bmr_images.md",
    "sbnn_one_shot": "docs/studies/sbnn.md",
    "uci_cuts": "docs/studies/tables.md",
    "sbnn_vgg": "docs/studies/sbnn.md",
    "pretrained": "docs/studies/sbnn.md",
    "support": "docs/theory/tdamp.md",
    "characters": "docs/studies/char_gpt.md",
    "characters-test": "docs/studies/char_gpt.md",
    "papers": "docs/results.md",
    "protocol": "docs/protocol.md",
    "compared": "docs/comparison.md",
    "page": "docs/report.md",
    "wants": "docs/choosing-an-engine.md",
    "headlines": "README.md",
    "selection": "docs/feature-selection.md",
    "selection-calibration": "docs/feature-selection.md",
    "selection-weights": "docs/feature-selection.md",
    "speed": "docs/for-engineers.md",
    "inference": "docs/performance.md",
    "familiarity": "docs/uncertainty.md",
    "recipes": "docs/uncertainty.md",
    "engines": "docs/choosing-an-engine.md",
    "tables": "docs/studies/tables.md",
    "tables-ranks": "docs/tables.md",
    "wide": "docs/tables.md",
    "uci-estimators": "docs/tables.md",
    "faults": "docs/reliability.md",
    "calibration": "docs/calibration.md",
    "scratch-source": "docs/theory/scratch.md",
    "scratch-account": "docs/theory/scratch.md",
    "scratch-better": "docs/theory/scratch.md",
    "scratch-machine": "docs/theory/scratch.md",
}


def read_results(folder: Path) -> list[dict[str, Any]]:
    """Every JSON file of a folder that is one object, in order of name."""
    files = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]
    return [content for content in files if isinstance(content, dict)]


def steps_table(results: list[dict[str, Any]]) -> str:
    """Every row of every step benchmark."""
    pieces = []
    for one in results:
        if "rounds" not in one or "rows" not in one:
            continue
        about = ", ".join(f"{name} {value}" for name, value in one["machine"].items())
        lines = [
            "| network | what | ms | ratio or count | of | target | met |",
            "|---|---|---:|---:|---|---:|---|",
        ]
        for row in one["rows"]:
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
        pieces.append("\n".join([f"Measured on: {about}.", "", *lines]))
    return "\n\n".join(pieces) or EMPTY


def comparisons(results: list[dict[str, Any]]) -> str:
    """Every committed record of `bayesieve compare`."""
    pages = [
        comparison_page(one, picture=None, level=2).rstrip()
        for one in results
        if one.get("study") == "compare"
    ]
    return "\n\n".join(pages) if pages else EMPTY


def draw_comparisons(folder: Path) -> None:
    """The picture of every committed record of `bayesieve compare`, into docs/images."""
    for path in sorted(folder.glob("compare_*.json")):
        methods = json.loads(path.read_text(encoding="utf-8"))["methods"]
        ranked = standings({method["name"]: method["seeds"] for method in methods})
        figure = comparison_figure(ranked, [method["name"] for method in methods])
        save(figure, ROOT / "docs" / "images" / f"{path.stem.replace('_', '-')}.png")


def page_table(results: list[dict[str, Any]]) -> str:
    """Time and size of the page of a run, from the record of `benchmarks/report.py`."""
    result = [one for one in results if one.get("benchmark") == "report"]
    if not result:
        return EMPTY
    one = result[-1]
    machine, numbers, targets = one["machine"], one["numbers"], one["targets"]
    rows = (
        ("collecting and writing, processor time", "first_build_cpu_s", 1, "s"),
        ("the same on the wall", "first_build_s", 1, "s"),
        ("`bayesieve report` of a stored page, processor time", "stored_cpu_s", 1, "s"),
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
    before, result, rest = text.partition(begin)
    _, closed, after = rest.partition(end)
    if not (result and closed):
        raise SystemExit(f"{BLOCKS[name]}: the markers {begin} and {end} must stand in it.")
    return f"{before}{begin}\n{content}\n{end}{after}"


def main() -> int:
    """Rewrite or check every block."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--check", action="store_true", help="only compare; exit 1 if different")
    parser.add_argument("--pictures", action="store_true", help="draw results/compare_*.json too")
    options = parser.parse_args()
    check = options.check
    if options.pictures:
        draw_comparisons(RESULTS)
    results = read_results(RESULTS)
    numpy = read(RESULTS / "scratch_mnist.json", "scratch_mnist")
    exact = read(RESULTS / "calibration.json", "calibration")
    conformal = read(RESULTS / "conformal.json", "conformal")
    selection = read(RESULTS / "selection.json", "selection")
    inference = [json.loads(path.read_text(encoding="utf-8"))
                 for path in sorted(RESULTS.glob("inference*.json"))]  # fmt: skip
    faults = json.loads((RESULTS / "faults.json").read_text(encoding="utf-8"))
    tables = {
        "mnist": mnist_table(results, read_results(RESULTS / "held_out")),
        "seconds": seconds_table(results),
        "steps": steps_table(results),
        "bmr_images": reduction_table(results),
        "bmr_trials": trials_table(read_results(RESULTS / "held_out")),
        "sbnn_one_shot": one_shot_table(list(rows_of(results, "sbnn_droprate", "test").values()))
        or EMPTY,
        "uci_cuts": uci_cuts_table(results),
        "sbnn_vgg": vgg_table(list(rows_of(results, "sbnn_vgg", "test").values())) or EMPTY,
        "pretrained": pretrained_table(results),
        "support": support_tables(results),
        "characters": characters_table(read_results(RESULTS / "held_out")),
        "characters-test": characters_tested(results),
        "papers": results_page(read_findings(RESULTS)),
        "protocol": protocol_table(RESULTS),
        "compared": comparisons(results),
        "page": page_table(results),
        "wants": wants_table(read_findings(RESULTS)),
        "headlines": headline_table(read_findings(RESULTS)),
        "selection": selection_table(selection),
        "selection-calibration": selection_calibration(selection),
        "selection-weights": selection_weights(selection),
        "speed": "\n\n".join(map(short_table, inference)),
        "inference": "\n\n".join(map(full_table, inference)),
        "familiarity": familiarity_table(results),
        "recipes": recipes_table(results),
        "engines": engines_table(results),
        "tables": tables_table(results),
        "tables-ranks": tables_ranks(results),
        "wide": wide_table(results),
        "uci-estimators": uci_estimators_table(results),
        "faults": reliability.faults_table(faults),
        "calibration": calibration.table(exact, conformal, selection),
        "scratch-source": scratch.source_table(numpy),
        "scratch-account": scratch.account_table(numpy),
        "scratch-better": scratch.better_table(numpy),
        "scratch-machine": scratch.machine_note(numpy),
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
