"""UCI regression: RMSE and log-likelihood on the published splits, whole and half-pruned.

    python -m bayesieve.studies.uci --jobs 2 --out results/uci.json          # all sets, all rows
    python -m bayesieve.studies.uci --sets yacht --splits 4 --quick          # a minute on one core

Protocol: the 20 splits of 90/10 (Protein 5) of [Hernandez], inputs and target standardised
on the training part, scores in the unit of the target. Every choice (network, prior
weight, kind of noise, its width) is made inside the training part of its split. All splits,
candidates' inner splits and ensemble members of one setting train as one population. Rows:

    sbnn, flat-vi             ensembles of 5, chosen settings; also with 50 % of the weights removed
    sbnn-het                  the same with noise that depends on the inputs
    sbnn-dropout              the same, wider, with dropout while it learns, for twice the steps
    sbnn-paper                one network of 50 units, the paper's prior; pruned in one shot
    deep-ensemble             5 plain networks
    bnn                       one mean-field Gaussian network, prior weight 1
    dropout                   one network with dropout
    linear, boosting, process scikit-learn's ridge, gradient boosting and Gaussian process

Results are written after every row; a second call with the same --out does what is missing.

Paper ([Saha], table 3), RMSE whole and at 50 %: see `PUBLISHED`.
"""

import argparse
import json
import math
import multiprocessing
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from bayesieve.checks import check_choice
from bayesieve.core.storage import atomic_write
from bayesieve.data.files import data_root
from bayesieve.data.uci import load_uci
from bayesieve.studies.parts import join_uci, read_parts
from bayesieve.studies.records import machine
from bayesieve.studies.uci_baselines import BASELINES, run_baseline
from bayesieve.studies.uci_fits import (
    Budget,
    Setting,
    Task,
    budget_for,
    pruning_table,
    run_engine,
    single,
)
from bayesieve.studies.uci_page import OUR_ROWS, PUBLISHED, findings, page

SETS = tuple(PUBLISHED)
_N_SPLITS = {"protein": 5}
_ENGINES = (
    "sbnn",
    "sbnn-het",
    "sbnn-dropout",
    "flat-vi",
    "deep-ensemble",
    "bnn",
    "dropout",
    "sbnn-paper",
)
ROWS = (*_ENGINES, *BASELINES)


def candidates(row: str, *, large: bool) -> list[Setting]:
    """The settings among which each split of a row chooses."""
    deep = (100, 100) if large else (50, 50)
    if row == "sbnn":
        return [Setting(widths=(50,), kl=0.1), Setting(widths=deep, kl=0.1),
                Setting(widths=deep, kl=0.3)]  # fmt: skip
    if row == "sbnn-het":
        return [Setting(widths=deep, kl=kl, noise="heteroscedastic") for kl in (0.1, 0.3)]
    if row == "sbnn-dropout":
        return [Setting(widths=(width, width), kl=0.03, dropout=0.1) for width in (100, 200)]
    if row == "flat-vi":
        return [Setting("flat-vi", deep, kl, 0.5) for kl in (0.03, 0.1, 0.3)]
    if row == "deep-ensemble":
        return [Setting("map", deep, lr=5e-3, weight_decay=decay) for decay in (0.01, 0.1)]
    if row == "bnn":
        return [Setting("flat-vi", (50,), 1.0, 1.0), Setting("flat-vi", (50,), 1.0, 0.3)]
    if row == "sbnn-paper":
        return [Setting(slab_std=math.exp(1), spike_std=math.exp(-6), init_std=0.0015)]
    return [Setting("map", (50,), lr=5e-3, dropout=p) for p in (0.01, 0.05)]


def run_row(
    name: str, row: str, n_splits: int, device: str, *, quick: bool = False, effort: float = 1.0
) -> dict[str, Any]:
    """One row of the table for one set."""
    torch.set_num_threads(1)  # rows side by side use the other cores
    splits = [load_uci(name, data_root(), split=i) for i in range(n_splits)]
    n_rows = len(splits[0].train)
    if row in BASELINES:
        return run_baseline(row, splits)
    budget: Budget = budget_for(n_rows, quick=quick, effort=effort)
    if row in ("bnn", "dropout", "sbnn-paper"):
        budget = single(budget)
    if row == "sbnn-dropout":
        budget = replace(budget, steps=2 * budget.steps)
    settings = candidates(row, large=n_rows > 20_000)
    task = Task(name, splits, device)
    if row == "sbnn-paper":
        return pruning_table(task, settings[0], budget)
    return run_engine(task, settings[:2] if quick else settings, budget, halve=row in OUR_ROWS)


def timing(name: str, device: str, steps: int = 300, alone: int = 3) -> dict[str, Any]:
    """Seconds per network: all splits with five members as one population, against one by one.

    On a CPU these are processor seconds of one thread: what else the machine does leaves them be.
    """
    torch.set_num_threads(1)
    clock = time.process_time if device == "cpu" else time.perf_counter
    splits = [load_uci(name, data_root(), split=i) for i in range(_N_SPLITS.get(name, 20))]
    task, setting = Task(name, splits, device), candidates("sbnn", large=False)[1]
    budget = replace(budget_for(len(splits[0].train)), steps=steps)
    rows = [(i, torch.arange(len(data.train))) for i, data in enumerate(splits) for _ in range(5)]
    task.train(setting, rows[:1], budget, 0)  # what is loaded once is not counted
    began = clock()
    for row in rows[:alone]:
        task.train(setting, [row], budget, 1)
    single_seconds = (clock() - began) / alone
    began = clock()
    task.train(setting, rows, budget, 1)
    together = (clock() - began) / len(rows)
    return {"set": name, "steps": steps, "networks": len(rows), "alone_seconds": single_seconds,
            "together_seconds": together, "ratio": single_seconds / together}  # fmt: skip


def estimate(name: str, steps: int = 30) -> dict[str, Any]:
    """Processor seconds of row "sbnn" on one CPU core, from `steps` steps of each population.

    What grows with the steps is measured between a short run and one of twice its length. The
    whole networks and the pruned ones are all counted as the costliest candidate: an upper bound
    up to prediction, which takes seconds.
    """
    torch.set_num_threads(1)
    splits = [load_uci(name, data_root(), split=i) for i in range(_N_SPLITS.get(name, 20))]
    n_rows = len(splits[0].train)
    budget, task = budget_for(n_rows), Task(name, splits, "cpu")
    every = [(i, torch.arange(len(data.train))) for i, data in enumerate(splits)]

    def extrapolated(setting: Setting, n_each: int) -> float:
        rows, spent = [own for own in every for _ in range(n_each)], []
        for length in (steps, 2 * steps):
            began = time.process_time()
            task.train(setting, rows, replace(budget, steps=length), 1)
            spent.append(time.process_time() - began)
        return spent[0] + (spent[1] - spent[0]) * (budget.steps - steps) / steps

    settings = candidates("sbnn", large=n_rows > 20_000)
    choice = sum(extrapolated(own, budget.inner) for own in settings)
    training = max(extrapolated(own, budget.n_members) for own in settings)
    return {"set": name, "choice_seconds": round(choice), "training_seconds": round(2 * training),
            "seconds": round(choice + 2 * training)}  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    """Run what is asked for and missing; write JSON and a page."""
    options = _parser().parse_args(arguments)
    if options.join is not None:
        _finish(join_uci(read_parts(options.join, "uci")), options.out)
        return 0
    sets, rows = options.sets.split(","), options.rows.split(",")
    for name in sets:
        check_choice("uci", "set", name, SETS)
    for row in rows:
        check_choice("uci", "row", row, ROWS)
    result = _begin(options, arguments)
    if options.timing is not None:
        check_choice("uci", "set", options.timing, SETS)
        result["timing"] = timing(options.timing, options.device)
        print(json.dumps(result["timing"]))
        _write(options.out, result)
        return 0
    if options.estimate:
        result["estimate"] = _estimates(sets)
        _write(options.out, result)
        return 0
    todo = [(name, row) for name in sets for row in rows if row not in result["sets"].get(name, {})]
    # The longest first: the others fill the gaps.
    todo.sort(key=lambda task: (SETS.index(task[0]) not in (6, 4, 5, 3), ROWS.index(task[1])))
    for (name, row), record in _results(todo, options):
        result["sets"].setdefault(name, {})[row] = {**record, "machine": result["machine"]}
        print(_line(name, row, record), flush=True)
        _write(options.out, result)
    _finish(result, options.out)
    return 0


def _estimates(sets: list[str]) -> dict[str, Any]:
    found = []
    for name in sets:
        found.append(estimate(name))
        print(json.dumps(found[-1]), flush=True)
    total = sum(own["seconds"] for own in found)
    print(f"{total} s of one core, {total / 120:.0f} minutes on two")
    return {"sets": found, "core_seconds": total, "minutes_on_two_cores": round(total / 120, 1)}


def _finish(result: dict[str, Any], out: Path | None) -> None:
    _write(out, result)
    print(page(result))
    if out is not None:
        atomic_write(out.with_suffix(".md"), page(result).encode())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--sets", default=",".join(SETS), help=f"comma list of {', '.join(SETS)}")
    parser.add_argument("--rows", default=",".join(ROWS), help=f"comma list of {', '.join(ROWS)}")
    parser.add_argument("--splits", type=int, help="the first so many splits; all unless given")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--jobs", type=int, default=1, help="rows computed side by side")
    parser.add_argument("--effort", type=float, default=1.0, help="factor on the training steps")
    parser.add_argument("--quick", action="store_true", help="300 steps, 2 members, 2 candidates")
    parser.add_argument("--full", action="store_true", help="everything: what is done anyway")
    parser.add_argument("--timing", metavar="SET", help="time a population against one by one")
    parser.add_argument(
        "--estimate", action="store_true", help="predict the CPU time of row sbnn from a few steps"
    )
    parser.add_argument("--join", type=Path, nargs="+", help="make one record of these parts")
    parser.add_argument("--out", type=Path)
    return parser


def _results(todo: list[tuple[str, str]], options: argparse.Namespace) -> Any:
    work = {task: _arguments(task, options) for task in todo}
    if options.jobs == 1:
        for task, own in work.items():
            yield task, run_row(*own, quick=options.quick, effort=options.effort)
        return
    context = multiprocessing.get_context("spawn")  # a forked process cannot use CUDA
    with ProcessPoolExecutor(options.jobs, mp_context=context) as pool:
        futures = {
            pool.submit(run_row, *own, quick=options.quick, effort=options.effort): task
            for task, own in work.items()
        }
        for future in as_completed(futures):
            yield futures[future], future.result()


def _arguments(task: tuple[str, str], options: argparse.Namespace) -> tuple[str, str, int, str]:
    name, row = task
    n_splits = _N_SPLITS.get(name, 20)
    return name, row, min(options.splits or n_splits, n_splits), options.device


def _begin(options: argparse.Namespace, arguments: list[str] | None) -> dict[str, Any]:
    given = arguments if arguments is not None else sys.argv[1:]
    fresh: dict[str, Any] = {
        "study": "uci", "machine": machine(options.device), "quick": options.quick,
        "splits": options.splits, "effort": options.effort, "sets": {},
        "command": " ".join(["python -m bayesieve.studies.uci", *given]),
    }  # fmt: skip
    if options.out is None or not options.out.is_file():
        return fresh
    stored = json.loads(options.out.read_text())
    for name in ("quick", "splits", "effort"):
        if stored.get(name) != fresh[name]:
            raise ValueError(
                f"uci: {options.out} was begun with {name}={stored.get(name)}, this call has "
                f"{fresh[name]}. Use another --out."
            )
    names = ("sets", "findings", "timing", "estimate")
    kept = {name: stored[name] for name in names if name in stored}
    return {**fresh, **kept}


def _line(name: str, row: str, record: dict[str, Any]) -> str:
    own = record["full"]
    text = f"{name:<9} {row:<14} rmse {own['rmse']:.4g}  log-lik {own['log_lik']:.3f}"
    if "half" in record:
        half = record["half"]
        text += f"  | half: rmse {half['rmse']:.4g}  log-lik {half['log_lik']:.3f}"
    return text + f"  {record['seconds']:.0f} s"


def _write(path: Path | None, result: dict[str, Any]) -> None:
    result["findings"] = findings(result)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(path, (json.dumps(result, indent=1) + "\n").encode())


if __name__ == "__main__":
    sys.exit(main())
