"""UCI regression: RMSE and log-likelihood on the published splits, whole and half-pruned.

    python -m studies.uci --jobs 2 --out results/uci.json          # all sets, all rows
    python -m studies.uci --sets yacht --splits 4 --quick          # a minute on one core

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

Results are written after every row, with --in-blocks after a few splits of one; a second call with
the same --out does what is missing.

Paper ([Saha], table 3), RMSE whole and at 50 %: see `PUBLISHED`.
"""

import argparse
import json
import multiprocessing
import sys
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path
from typing import Any

import torch

from bayesieve.checks import check_choice
from bayesieve.data.files import data_root
from bayesieve.data.uci import load_uci
from bayesieve.files import write_atomically
from studies.parts import join_uci, read_parts
from studies.records import machine
from studies.uci_baselines import BASELINES
from studies.uci_blocks import Clock, blocks, join_blocks
from studies.uci_page import findings, page
from studies.uci_rows import N_SPLITS, ROWS, SETS, run_row
from studies.uci_timing import estimate, timing

_Work = tuple[str, str, int, int]  # set, row, first split, number of splits


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
    clock = Clock(result["command"], options.jobs, options.stop_after)
    earlier = result.get("calls", [])
    for work, record in _results(_todo(sets, rows, result, options), options, clock):
        print(_line(work, record), flush=True)
        _store(result, work, {**record, "machine": result["machine"]}, options)
        if options.in_blocks:  # the others tell the seconds of their rows
            result["calls"] = [*earlier, clock.call()]
        _write(options.out, result)
    _finish(result, options.out)
    return 0


def _todo(
    sets: list[str], rows: list[str], result: dict[str, Any], options: argparse.Namespace
) -> list[_Work]:
    """What is asked for and not stored, the longest first: the others fill the gaps."""
    pairs = [
        (name, row) for name in sets for row in rows if row not in result["sets"].get(name, {})
    ]
    pairs.sort(key=lambda pair: (SETS.index(pair[0]) not in (6, 4, 5, 3), ROWS.index(pair[1])))
    found = []
    for name, row in pairs:
        stored = result["blocks"].get(name, {}).get(row, {})
        found += [(name, row, first, n) for first, n in _parts(name, row, options)
                  if str(first) not in stored]  # fmt: skip
    return found


def _parts(name: str, row: str, options: argparse.Namespace) -> list[tuple[int, int]]:
    """(first split, number of splits) of what is computed at once."""
    n_splits = N_SPLITS.get(name, 20)
    n_splits = min(options.splits or n_splits, n_splits)
    if row in BASELINES or not options.in_blocks:
        return [(0, n_splits)]
    return blocks(n_splits, len(load_uci(name, data_root(), split=0).train))


def _store(
    result: dict[str, Any], work: _Work, record: dict[str, Any], options: argparse.Namespace
) -> None:
    """Keep a block, and the row itself once no block of it is missing."""
    name, row, first, _ = work
    starts = [str(start) for start, _ in _parts(name, row, options)]
    own = result["blocks"].setdefault(name, {}).setdefault(row, {})
    own[str(first)] = record
    if len(own) == len(starts):
        joint = record if len(own) == 1 else join_blocks([own[start] for start in starts])
        result["sets"].setdefault(name, {})[row] = {**joint, "machine": record["machine"]}
        del result["blocks"][name][row]
        result["blocks"] = {key: value for key, value in result["blocks"].items() if value}


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
        write_atomically(out.with_suffix(".md"), page(result))


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
    parser.add_argument(
        "--in-blocks", action="store_true", help="compute and store a few splits of a row at a time"
    )
    parser.add_argument("--stop-after", type=float, help="seconds after which nothing new begins")
    parser.add_argument("--join", type=Path, nargs="+", help="make one record of these parts")
    parser.add_argument("--out", type=Path)
    return parser


def _results(
    todo: list[_Work], options: argparse.Namespace, clock: Clock
) -> Iterator[tuple[_Work, dict[str, Any]]]:
    """Records as they come; nothing begins once the clock is no longer open."""
    common = {"quick": options.quick, "effort": options.effort}
    if options.jobs == 1:
        for name, row, first, n in todo:
            if clock.open:
                found = run_row(name, row, n, options.device, first=first, **common)
                yield (name, row, first, n), found
        return
    context = multiprocessing.get_context("spawn")  # a forked process cannot use CUDA
    with ProcessPoolExecutor(options.jobs, mp_context=context) as pool:
        running: dict[Future[dict[str, Any]], _Work] = {}
        waiting = list(reversed(todo))
        while running or (waiting and clock.open):
            while waiting and clock.open and len(running) < options.jobs:
                name, row, first, n = work = waiting.pop()
                own = pool.submit(run_row, name, row, n, options.device, first=first, **common)
                running[own] = work
            for done in wait(running, return_when=FIRST_COMPLETED).done:
                yield running.pop(done), done.result()


def _begin(options: argparse.Namespace, arguments: list[str] | None) -> dict[str, Any]:
    given = arguments if arguments is not None else sys.argv[1:]
    fresh: dict[str, Any] = {
        "study": "uci", "machine": machine(options.device), "quick": options.quick,
        "splits": options.splits, "effort": options.effort, "in_blocks": options.in_blocks,
        "sets": {}, "blocks": {},
        "command": " ".join(["python -m studies.uci", *given]),
    }  # fmt: skip
    if options.out is None or not options.out.is_file():
        return fresh
    stored = json.loads(options.out.read_text())
    for name in ("quick", "splits", "effort", "in_blocks"):
        if stored.get(name, False if name == "in_blocks" else None) != fresh[name]:
            raise ValueError(
                f"uci: {options.out} was begun with {name}={stored.get(name)}, this call has "
                f"{fresh[name]}. Use another --out."
            )
    names = ("sets", "blocks", "calls", "findings", "timing", "estimate")
    kept = {name: stored[name] for name in names if name in stored}
    return {**fresh, **kept}


def _line(work: _Work, record: dict[str, Any]) -> str:
    name, row, first, n = work
    own = record["full"]
    text = f"{name:<9} {row:<14} {first:>2}-{first + n - 1:<2} rmse {own['rmse']:.4g}"
    text += f"  log-lik {own['log_lik']:.3f}"
    if "half" in record:
        half = record["half"]
        text += f"  | half: rmse {half['rmse']:.4g}  log-lik {half['log_lik']:.3f}"
    return text + f"  {record['seconds']:.0f} s"


def _write(path: Path | None, result: dict[str, Any]) -> None:
    result["findings"] = findings(result)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, result)


if __name__ == "__main__":
    sys.exit(main())
