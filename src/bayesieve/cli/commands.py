"""The commands of `bayesieve.runs`: each function here shows one result to people.

Flags come from the signature of the function of `runs` that does the work.
"""

import csv
import json
import sys
import textwrap
import time
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from bayesieve import runs
from bayesieve.cli.console import note, print_quality, print_table, rounded
from bayesieve.cli.flags import OF_RUNS, command
from bayesieve.runs.arguments import Json
from bayesieve.runs.config import plain_value
from bayesieve.runs.folder import PAGE, RunFolder
from bayesieve.runs.text import evaluation_rows, watched_lines, with_draws
from bayesieve.text import as_bytes, as_percent, certificate_rows, sparkline

_PREDICTED, _INPUTS = 5, 20  # rows shown


@command("demo", "demo --out runs/demo")
def demo(asked: Any, result: Json) -> None:
    """Print both networks side by side, and what is delivered."""
    out = Path(asked.out)
    delivered = result.pop("delivered")
    print_quality("digits, test images", result)
    n_images = result["dense"]["n_examples"]
    print(
        "error: wrong answers. NLL: how surprised it is by the truth. ECE: gap between its "
        "confidence\nand its accuracy. Lower is better for all three; one image of "
        f"{n_images} is {100 / n_images:.2f} %.\nbytes: the weights and their places, as delivered."
    )
    before, after = ("-".join(str(pair[i]) for pair in delivered["units"]) for i in (0, 1))
    parameters = "{:,} parameters {:,}".format(*delivered["parameters"])
    was, now = delivered["ms_of_64"]
    faster = ""
    if now is not None:
        faster = f"64 images take {1000 * now:.0f} µs in the runtime, not {1000 * was:.0f}. "
    changed = delivered["changed_predictions"] or "no"
    print(
        f"compacted: {before} hidden units are {after}, {parameters}; {changed} answer changed.\n"
        f"{faster}The model to deliver: {delivered['model']}"
    )
    print(f"open in a browser: {out / 'report.html'} (as text: {out / 'report.md'})")


@command("train", "train --data digits --epochs 60 --zeros 0.9 --out runs/a")
def train(asked: Any, result: Json) -> None:
    """Print the numbers, or what the run would take."""
    if asked.dry_run:
        rows = [
            ("parameters", f"{result['parameters']:,}"),
            ("of them prunable", f"{result['prunable']:,}"),
            ("training examples", f"{result['examples']:,}"),
            ("steps", f"{result['steps']:,} ({result['steps_per_epoch']:,} per epoch)"),
            ("device", result["device"]),
            *((f"memory: {part}", as_bytes(n)) for part, n in result["memory"].items()),
            ("memory free", as_bytes(result["free_bytes"])),
        ]
        if result["memory"]:
            rows.append(("disk per checkpoint", as_bytes(result["checkpoint_bytes"])))
        print_table("This run would take", ("", ""), rows)
        if result["engines"]:
            print_table(
                "With each engine at its defaults",
                ("engine", "memory", "bytes per weight", "largest such network that fits"),
                [
                    (name, as_bytes(row["peak"]), f"{row['per_weight']:g}", f"{row['largest']:,}")
                    for name, row in result["engines"].items()
                ],
            )
        print(json.dumps(result["config"], indent=2))
    else:
        print_quality("Test set", with_draws(result))
        _about_bytes(result)
        folder = RunFolder(Path(asked.out or ""))
        print(folder.to_read)
        if (folder.path / PAGE).is_file():
            print(f"open in a browser: {folder.path / PAGE}")
        for line in _course(folder, result):
            print(line)


def _about_bytes(result: Json) -> None:
    """Say what the bytes of a pruned network are, since `compact` makes them fewer."""
    if result["zeros"]:
        print("bytes: kept weights and where they sit; `compact` cuts out whole units on top")


def _course(folder: RunFolder, result: Json) -> list[str]:
    """The error against zeros as a line of bars, and the result of the run in one sentence."""
    key, name = ("rmse", "RMSE") if "rmse" in result else ("error", "error")

    def shown(value: float) -> str:
        return f"{value:.4g}" if key == "rmse" else as_percent(value)

    curve, lines = folder.path / "curve.json", []
    points = folder.read(curve.name)["points"] if curve.is_file() else []
    if len(points) > 1:
        first, last = (as_percent(points[i]["zeros"]) for i in (0, -1))
        values = [point[key] for point in points]
        bars = f"{sparkline(values)} (up to {shown(max(values))})"
        lines.append(f"{name} from {first} to {last} zeros: {bars}")
    sampled = result.get("sampled", {})
    chains = sampled and "nll_mc_error" not in sampled  # of a sampler: all draws there are
    best, how = (sampled, f"{sampled['draws']} draws") if chains else (result, "mean weights")
    kept = f"{result['weights']:,} of {result['parameters']:,} parameters kept"
    seconds = f", {result['seconds']:.0f} s of training" if "seconds" in result else ""
    tested = f"{name} {shown(best[key])} ({how}) on {result['n_examples']:,} test examples"
    return [*lines, f"result: {tested}, {kept}{seconds}"]


@command("pool_runs", "runs pool runs/a runs/b --out runs/both", OF_RUNS)
def pool(asked: Any, result: Json) -> None:
    """Print the agreement of all chains, and the numbers of all draws."""
    chains = result["chains"]
    print(chains["summary"])
    print_quality("Test set", {f"{chains['n_chains']} chains": result["sampled"]})
    if asked.out is not None:
        print(RunFolder(Path(asked.out)).to_read)


@command("prune", "prune runs/a --zeros 0.95 --finetune 10 --out runs/b")
def prune(asked: Any, result: Json) -> None:
    """Print the numbers before and after."""
    before = "dense" if result["dense"]["zeros"] == 0 else "before"
    _show_pruned({before: result["dense"], "sparse": result}, RunFolder(Path(asked.out)))


def _show_pruned(rows: dict[str, Json], folder: RunFolder) -> None:
    """Print the numbers before and after pruning, and where the files are."""
    print_quality("Test set, mean weights", rows)
    _about_bytes([*rows.values()][-1])
    note(f"error against sparsity: {folder.path / 'curve.json'}")
    print(folder.to_read)
    if (folder.path / PAGE).is_file():
        print(f"open in a browser: {folder.path / PAGE}")
    print(f"next: bayesieve compact {folder.path} --out {folder.path}-small")


@command("sieve", "sieve own.safetensors --net mlp:24 --data digits --out s")
def sieve(asked: Any, result: Json) -> None:
    """Print the numbers of the trained network and of the sparse one."""
    _show_pruned({"trained": result["dense"], "sieved": result}, RunFolder(Path(asked.out)))
    if (held_out := result.get("held_out")) is not None:
        lost, zeros = held_out["lost"], as_percent(held_out["zeros"])
        note(f"cost on training examples set apart: {lost:+.4f} nats per example at {zeros} zeros")


@command("evaluate", "evaluate runs/b --samples 100 --json")
def evaluate(asked: Any, result: Json) -> None:
    """Print a dozen numbers with their names and meanings; --json has them all."""
    rows = evaluation_rows(result)
    how = f"{result['samples']} draws" if result["samples"] else "mean weights"
    title = f"{asked.run}, {asked.split} split, {how}"
    print_table(title, ("", "", ""), rows, numbers=False)


def _certified(asked: Any, result: Json) -> int:
    return 0 if result["certified"] else 1


@command("certify", "certify runs/b --against runs/a --json", exit_code=_certified)
def certify(asked: Any, result: Json) -> None:
    """Print every check, and whether all passed."""
    header, *rows = certificate_rows(result)
    title = f"{asked.run} against {result['against']}, {result['n_examples']} examples"
    # the difference and its interval share a column, so that the table fits a terminal
    shown = [
        (textwrap.fill(row[0], 14), *row[1:3], f"{row[3]}\n({row[4]})", *row[5:]) for row in rows
    ]
    print_table(title, (*header[:3], f"worse by\n({header[4]})", *header[5:]), shown)
    for check in result["checks"]:
        if check["note"]:
            note(f"{check['name']}: {check['note']}")
    verdicts = [check["verdict"] for check in result["checks"]]
    if "unsure" in verdicts:
        note("unsure: the interval holds the tolerance; more test examples would decide.")
    print(
        "certified"
        if result["certified"]
        else f"not certified: {verdicts.count('fail')} failed, {verdicts.count('unsure')} unsure"
    )


@command("attack", "attack runs/a --fgsm 0.1,0.2 --shift rotation:15 --json")
def attack(asked: Any, result: Json) -> None:
    """Print every point of every curve."""
    rows = [
        (name, f"{point['strength']:g}", as_percent(point["accuracy"]), f"{point['entropy']:.4f}",
         as_percent(point["ece"]), f"{point['nll']:.4f}")
        for name, points in result["curves"].items() for point in points
    ]  # fmt: skip
    title = f"{asked.run}: {result['n_examples']} test images, {result['samples'] or 'no'} draws"
    print_table(title, ("", "strength", "accuracy", "entropy", "ECE", "NLL"), rows)
    folder = Path(asked.out or asked.run)
    picture = f", {folder / 'figures' / 'attack.png'}" if asked.figures else ""
    note(f"written: {folder / 'attack.json'}{picture}")


@command("compact", "compact runs/b --out runs/c")
def compact(asked: Any, result: Json) -> None:
    """Print the numbers of every stage, and every layer before and after."""
    report = result["compaction"]
    stages = [name for name in ("dense", "masked", "compacted") if name in result]
    print_quality("Test set, mean weights", {name: result[name] for name in stages})
    layers = [
        (row["name"], row["kind"], *(_pair(row[key]) for key in ("units", "inputs", "parameters")))
        for row in report["layers"]
    ]
    layers.append(("all", "", "", "", _pair(report["parameters"])))
    print_table("Layers, before -> after", ("", "", "units", "inputs", "parameters"), layers)
    if report["input_features"] is not None:
        read = len(report["input_features"])
        print(f"reads {read} of {report['n_inputs']} input features")
    for line in report["kept"]:
        print(f"not removed: {line}")
    zeros, (before, after) = result["masked"]["zeros"], report["parameters"]
    if zeros > 0.5 and 1 - after / before < zeros / 2:
        note(
            f"{zeros:.0%} of the parameters are 0, but only {1 - after / before:.0%} could be "
            "removed: a unit goes when all its weights are 0. For whole units: `bayesieve prune "
            "--keep-units`. Single zeros are skipped by deliver.runtime (docs/performance.md)."
        )
    changed = result["changed_predictions"]
    labels = "" if changed is None else f"changed labels: {changed} of {result['n_test']}; "
    note(f"compaction: {labels}largest difference of outputs {report['max_difference']:.2g}")
    weights = as_bytes(result["compacted"]["bytes"])
    size = f"{as_bytes(result['bundle_bytes'])}, of them {weights} weights"
    print(f"bundle: {result['bundle']} ({size}; the rest is graph, card and checksums)")


def _pair(pair: list[int]) -> str:
    before, after = pair
    return f"{after:,}" if before == after else f"{before:,} -> {after:,}"


@command("verify", "verify runs/c --against runs/b")
def verify(asked: Any, result: Json) -> None:
    """Print what was checked."""
    words = {
        "files": "files, checksums right",
        "recorded_outputs": "difference to recorded outputs",
        "max_difference": "difference of outputs",
        "n_inputs": "inputs compared",
        "changed_predictions": "changed predictions",
    }
    rows = [(words.get(k, k), rounded(v, 3)) for k, v in result.items() if v is not None]
    print_table(f"{asked.bundle} is intact", ("", ""), rows)


@command("export", "export runs/c --to onnx --out model.onnx")
def export(asked: Any, result: Json) -> None:
    """Print the file and its size."""
    print(f"{asked.to}: {asked.out} ({as_bytes(result['bytes'])})")


@command("predict", "predict runs/c data.npz --out predictions.csv")
def predict(asked: Any, result: Json) -> None:
    """Print the first predictions."""
    with Path(asked.out).open(newline="", encoding="utf-8") as stream:
        rows = list(islice(csv.reader(stream), 1, 1 + _PREDICTED))
    # four figures where a cell is a number with a point
    cells = [[(text, plain_value(text)) for text in row] for row in rows]
    shown = [[rounded(v, 4) if isinstance(v, float) else text for text, v in row] for row in cells]
    print_table("", tuple(result["columns"]), shown)
    if result["n"] > _PREDICTED:
        note(f"and {result['n'] - _PREDICTED} more")
    print(f"predictions: {asked.out}")


@command("fit_table", "fit-table house.csv --target price --report runs/price")
def fit_table(asked: Any, result: Json) -> None:
    """Print the quality on the test rows and the most important inputs."""
    print_quality("Test rows", with_draws(result["metrics"]))
    best = sorted(result["importance"].items(), key=lambda item: -item[1])[:8]
    print_table("Importance φ", ("", ""), [(name, f"{value:.2f}") for name, value in best])
    note(f"report: {Path(result['report']) / 'report.md'}")
    print(f"predict new rows: bayesieve predict {result['bundle']} NEW.csv --out predictions.csv "
          "--samples 50")  # fmt: skip


@command("select", "select data.csv --target y --fdr 0.1 --report runs/which")
def select(asked: Any, result: Json) -> None:
    """Print the inputs by probability, and the test error with and without those dropped."""
    rows = sorted(result["inputs"], key=lambda row: -row["probability"])
    shown = [
        (row["name"], f"{row['probability']:.3f}", f"{row['phi']:.2f}",
         "" if row["frequency"] is None else f"{row['frequency']:.2f}",
         "kept" if row["kept"] else "")
        for row in rows[:_INPUTS]
    ]  # fmt: skip
    header = ("input", "probability", "φ", "in samples", "")
    print_table(f"{len(result['kept'])} of {len(rows)} inputs kept", header, shown)
    if len(rows) > _INPUTS:
        note(f"and {len(rows) - _INPUTS} more")
    print(
        f"expected share of false discoveries {result['expected_fdr']:.3f}; test "
        f"{result['error_name']} with all inputs {result['error_all']:.4g}, with those kept "
        f"{result['error_kept']:.4g}"
    )
    print(f"report: {Path(result['report']) / 'report.md'}")


@command("profile", "profile runs/a runs/c --json")
def profile(asked: Any, result: Json) -> None:
    """Print one table per folder, a column for each form of its network."""
    by_folder: dict[str, dict[str, Json]] = {}
    for row in result["rows"]:
        folder, _, form = row["name"].rpartition(" ")
        by_folder.setdefault(folder, {})[form] = row
    for folder, forms in by_folder.items():
        columns = [_column(row) for row in forms.values()]
        table = [(name, *(column[name] for column in columns)) for name in columns[0]]
        print_table(folder, ("", *forms), table)
    plural = "thread" if asked.threads == 1 else "threads"
    print(
        "weights, delivered: kept weights and their places, as a bundle stores them. as a file:\n"
        "safetensors with every zero, model.safetensors of a bundle, or the ONNX file.\n"
        f"ms: median of {asked.rounds} turns, all forms of all folders in turns; ±: half the way "
        f"between\ntheir quartiles; {asked.clock} time, {asked.threads} {plural}."
    )
    for row in result["rows"]:
        if (rounding := row["rounding"]) is not None:
            where = " and ".join(map(str, rounding["batches"]))
            taken = f"used at batch {where}" if where else "never faster, so floats run"
            print(f"{row['name']}: {rounding['words']}; {taken}.")
    if any(row["busy"] for row in result["rows"]):
        note("the machine was busy: other work took the processor away. Measure again.")


def _column(row: Json) -> dict[str, str]:
    counts = {
        "parameters": row["parameters"],
        "zeros": row["zeros"],
        "units": row["units"],
        "removed units": row["removed_units"],
        "MACs": row["macs"],
        "non-zero MACs": row["nonzero_macs"],
    }
    sizes = {
        "weights, delivered": row["delivered_bytes"],
        "as a file": row["bytes"],
        "  with gzip": row["gzip_bytes"],
        "peak memory": row["peak_bytes"],
    }
    batch, times = "latency_ms_batch_", {}
    for size in (name.removeprefix(batch) for name in row if name.startswith(batch)):
        low, high = row[f"spread_ms_batch_{size}"]
        times[f"ms, batch {size}"] = f"{row[batch + size]:.4f}"
        times[f"  ±, batch {size}"] = f"{(high - low) / 2:.4f}"
    shown = {name: "" if n is None else f"{n:,}" for name, n in counts.items()}
    return shown | {name: "" if n is None else as_bytes(n) for name, n in sizes.items()} | times


def passed(asked: Any, result: Json) -> int:
    """1 if a check of the page failed and --check was given."""
    verdicts = [row["verdict"] for run in result["runs"] for row in run["checks"]]
    return int(asked.check and "fail" in verdicts)


@command("report", "report runs/a runs/b -o report.html", exit_code=passed)
def report(asked: Any, result: Json) -> None:
    """Print the checks and the files, and which networks are not inside the page."""
    for run in result["runs"]:
        rows = [(row["question"], row["verdict"], row["words"]) for row in run["checks"]]
        print_table(f"{run['name']}: {run['title']}", ("", "", ""), rows, numbers=False)
        if not run["embedded"]:
            why = run["not_embedded"].rstrip(".")
            note(f"{run['name']}: the network is not inside the page: {why}.")
    if asked.data is not None:
        print(asked.data)
    size = as_bytes(result["bytes"])
    print(f"{result['report']} ({size}): open it in a browser, it needs no network")


@command("open_page", "open runs/a")
def open(asked: Any, result: Json) -> None:
    """Say where the page is, and whether a browser took it."""
    print(result["page"])
    if not result["opened"]:
        note("no browser was found here: open the file in one.")


@command("watch", "watch runs/a")
def watch(asked: Any, result: Json) -> None:
    """Print where a run stands; on a terminal again every second until it is finished."""
    from rich.live import Live
    from rich.text import Text

    live = sys.stdout.isatty() and not asked.once
    with Live(auto_refresh=False) as view, suppress(KeyboardInterrupt):  # Ctrl-C ends the view
        view.update(Text("\n".join(watched_lines(result))), refresh=True)
        while live and not result["finished"]:
            time.sleep(1)
            result = runs.watch(asked.run, once=True)
            view.update(Text("\n".join(watched_lines(result))), refresh=True)


@command("compare", "compare --data digits --epochs 20 --out runs/compare")
def compare(asked: Any, result: Json) -> None:
    """Print two tables that fit a terminal: how good each method is, what it loses and costs."""
    from studies.terminal import print_comparison

    print_comparison(Path(asked.out), result)


@command("sweep", "sweep --data digits --epochs 20 --trials 9 --out runs/s")
def sweep(asked: Any, result: Json) -> None:
    """Print the front, and how to train one of it."""
    from studies.terminal import print_front

    print_front(Path(asked.out), result)
