"""What a page of `bayesieve report` takes: to build, to paint, and to follow its slider.

Needs a run folder, and for the last two Chromium and playwright (the extra `dev`). Building is
collecting and writing, without starting Python or reading the data; its time is given on the wall
and as processor time, which a busy machine does not inflate. `stored` is the whole command, from
the start of Python to its end, where the page in the run folder is as it would be. The slider is
moved over all its positions; a move counts until the page is laid out again.

    bayesieve demo --out runs/demo
    python benchmarks/report.py runs/demo --out results/report.json
"""

import argparse
import datetime
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from bayesieve.files import write_atomically
from bayesieve.report.collect import collect
from bayesieve.report.page import page
from bayesieve.runs.folder import RunFolder
from bayesieve.runs.page import read_source

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
TARGETS = {  # the most that is allowed
    "first_build_s": 3.0,
    "stored_cpu_s": 4.0,
    "bytes": 3_000_000,
    "first_paint_ms": 1000.0,
    "slider_worst_ms": 50.0,
}
PAINT = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
MOVES = """() => {
    const slider = document.getElementById("cut"), times = [];
    for (let i = Number(slider.max); i >= Number(slider.min); i--) {
        const start = performance.now();
        slider.value = i;
        slider.dispatchEvent(new Event("input"));
        document.body.offsetHeight;
        times.push(performance.now() - start);
    }
    return times;
}"""


def build(folder: Path, out: Path) -> dict[str, Any]:
    """Seconds to build the page, twice: the first time has modules to import."""
    rows = {}
    source = read_source(RunFolder(folder), "cpu")
    for name in ("first", "second"):
        wall, cpu = time.perf_counter(), time.process_time()
        text = page(collect([source]))
        rows[f"{name}_build_s"] = round(time.perf_counter() - wall, 3)
        rows[f"{name}_build_cpu_s"] = round(time.process_time() - cpu, 3)
    out.write_text(text, encoding="utf-8")
    return {**rows, "bytes": len(text.encode())}


def stored(folder: Path, out: Path) -> dict[str, Any]:
    """Processor time of `bayesieve report` with the page in the run folder, the median of 5."""
    command = [sys.executable, "-m", "bayesieve", "report", str(folder)]
    seconds = []
    subprocess.run(command, check=True, capture_output=True)  # writes the page that is missing
    for _ in range(5):
        before = os.times()
        subprocess.run([*command, "-o", str(out)], check=True, capture_output=True)
        after = os.times()
        seconds.append(sum(after[2:4]) - sum(before[2:4]))  # of child processes
    return {"stored_cpu_s": round(statistics.median(seconds), 2)}


def look(path: Path) -> dict[str, Any]:
    """First paint and slider in Chromium; empty where there is none."""
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        return {"browser": "none found"}
    from playwright.sync_api import sync_playwright

    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=arguments)
        paints, moves = [], []
        for _ in range(3):
            tab = browser.new_page()
            tab.goto(path.as_uri())
            tab.wait_for_selector("#self-check[data-worst]")
            paints.append(tab.evaluate(PAINT))
            moves += tab.evaluate(MOVES)
            tab.close()
        version = browser.version
        browser.close()
    moves.sort()
    return {
        "browser": f"Chromium {version}",
        "first_paint_ms": round(sorted(paints)[1], 1),
        "slider_median_ms": round(moves[len(moves) // 2], 1),
        "slider_worst_ms": round(moves[-1], 1),
        "moves": len(moves),
    }


def record(folder: Path, rows: dict[str, Any]) -> dict[str, Any]:
    """Numbers with their targets, and where they were measured."""
    described = Path("/proc/cpuinfo")
    lines = described.read_text().splitlines() if described.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    met = {name: rows[name] <= most for name, most in TARGETS.items() if name in rows}
    return {
        "benchmark": "report",
        "run": folder.name,
        "machine": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "cpu": (names or [platform.processor()])[0],
            "cores": os.cpu_count(),
            "load_average": round(os.getloadavg()[0], 1),
            "date": datetime.date.today().isoformat(),
        },
        "numbers": rows,
        "targets": TARGETS,
        "met": met,
    }


def main() -> None:
    """Measure one run and print a JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("run", nargs="?", type=Path, default=Path("runs/demo"))
    parser.add_argument("--out", type=Path, help="file that takes the record")
    options = parser.parse_args()
    if not RunFolder(options.run).finished:
        print(f"{options.run} holds no finished run: bayesieve demo --out {options.run}")
        return
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "report.html"
        rows = build(options.run, path)
        rows |= stored(options.run, path.with_name("stored.html"))
        found = record(options.run, {**rows, **look(path)})
    text = json.dumps(found, indent=1) + "\n"
    print(text, end="")
    if options.out is not None:
        write_atomically(options.out, text)


if __name__ == "__main__":
    main()
