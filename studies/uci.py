"""UCI regression: RMSE and log-likelihood on the published splits, whole and half-pruned.

    python -m studies.uci --jobs 2 --out results/uci.json          # all sets, all rows
    python -m studies.uci --sets yacht --splits 4 --quick          # a minute on one core

Protocol: the 20 splits of 90/10 (Protein 5) of [Hernandez], inputs and target standardised
on the training part, scores in the unit of the target. Every choice (network, prior
weight, kind of noise, its width) is made inside the training part of its split. All splits,
candidates' inner splits and ensemble members of one setting train as one population. Rows:

    sieve-5, sieve            SieveRegressor as it comes, with n_members=5 and with one network
    sbnn, flat-vi             ensembles of 5, chosen settings; also with 50 % of the weights removed
    sbnn-het                  the same with noise that depends on the inputs
    sbnn-dropout              the same, wider, with dropout while it learns, for twice the steps
    sbnn-paper                one network of 50 units, the paper's prior; pruned in one shot
    sbnn-paper-spike          the same from a start in the spike's basin, prior weight chosen
    sbnn-one-shot             the same with our prior, under which inclusion ranks well
    sbnn-by-rate              the same; every share of weights removed has its own prior weight
    deep-ensemble             5 plain networks
    bnn                       one mean-field Gaussian network, prior weight 1
    dropout                   one network with dropout
    linear, boosting, process scikit-learn's ridge, gradient boosting and Gaussian process

With --in-blocks a row is computed a few splits at a time, so that a run can stop and go on. Splits
do not know of each other: the blocks of a row say together what the row computed at once says. Only
the random numbers differ, since those of a population depend on who is in it.

Paper ([Saha], tables 2 and 3): see `reproduce.catalogue`.
"""

import argparse
import math
import multiprocessing
import os
import re
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bayesieve.data.examples import DataSet
from bayesieve.data.files import data_root
from bayesieve.data.uci import find_uci, load_uci, read_uci
from bayesieve.estimators import SieveRegressor, fit_many
from bayesieve.text import markdown_table
from studies.harness import Run, chosen, joined, show_page, study_parser, table
from studies.record import Record, Row, make_row, means
from studies.uci_networks import Setting, Task, budget_for, pruning_table, run_engine


@dataclass(frozen=True)
class Published:
    """Numbers that others report for one set, and the aim of this study."""

    dropout_log_lik: float  # MC-dropout, run again by [Mukhoti]
    target: float  # RMSE to reach, whole and half-pruned
    # RMSE the half-pruned network must not exceed where the paper's breaks down; None asks for two
    # standard errors of the whole network
    half_bound: float | None = None


PUBLISHED = {
    "boston": Published(-2.40, 2.90),
    "concrete": Published(-2.93, 4.90),
    "energy": Published(-1.21, 0.50),
    "kin8nm": Published(1.14, 0.078, 0.09),
    "naval": Published(4.45, 0.001),
    "power": Published(-2.80, 4.00, 4.2),
    "protein": Published(-2.87, 4.30, 4.5),
    "wine": Published(-0.93, 0.62),
    "yacht": Published(-1.25, 0.65),
}
# [Saha], table 2: RMSE of every set, then of Year, with so many % of the weights removed at once
ONE_SHOT = {
    0: (3.07, 5.54, 0.69, 0.08, 0.00, 4.00, 4.48, 0.62, 0.94, 8.75),
    10: (3.07, 5.54, 0.69, 0.08, 0.00, 4.00, 4.52, 0.62, 0.94, 8.76),
    20: (3.07, 5.54, 0.69, 0.09, 0.01, 4.26, 4.78, 0.62, 0.94, 8.76),
    25: (3.07, 5.54, 0.69, 0.16, 0.01, 5.28, 4.80, 0.62, 0.94, 8.76),
    50: (3.07, 5.54, 0.69, 0.33, 0.01, 8.77, 4.84, 0.62, 0.94, 8.76),
    75: (3.69, 16.39, 0.72, 0.33, 0.02, 16.74, 5.05, 0.73, 1.01, 10.26),
    80: (4.03, 17.09, 1.06, 0.31, 0.03, 17.07, 6.33, 0.78, 1.17, 10.39),
    90: (6.22, 14.98, 6.15, 0.27, 0.04, 17.08, 11.15, 0.79, 4.27, 11.35),
    95: (7.18, 15.03, 10.08, 0.26, 0.03, 17.08, 7.69, 0.79, 7.94, 11.33),
}
BASELINES = ("linear", "boosting", "process")
OUR_ROWS = ("sbnn", "sbnn-het", "sbnn-dropout", "flat-vi")
SETS = tuple(PUBLISHED)
N_SPLITS = {"protein": 5}  # 20 of the others
ESTIMATORS: Mapping[str, int] = {"sieve-5": 5, "sieve": 1}  # members
ROWS = (*ESTIMATORS, "sbnn", "sbnn-het", "sbnn-dropout", "flat-vi", "deep-ensemble", "bnn",
        "dropout", "sbnn-paper", "sbnn-paper-spike", "sbnn-one-shot", "sbnn-by-rate",
        *BASELINES)  # fmt: skip
_CUT = ("sbnn-paper-spike", "sbnn-one-shot")  # chosen by how they stand being cut
_ONE_SHOT = ("sbnn-paper", *_CUT, "sbnn-by-rate")  # weights removed at once, nothing learned after
_SINGLE = ("sieve", "bnn", "dropout", *_ONE_SHOT, *BASELINES)  # one network or model predicts
_MOST_ROWS = 2000  # of an exact Gaussian process, and of gradient boosting without bins
_DRAWS = 400  # of the target of a row, for its CRPS
_HELD_OUT = 0.15  # share of the training rows that say how wide the noise of a baseline is
_Work = tuple[str, str, int, int]  # set, row, first split, number of splits
Array = NDArray[np.float64]


def candidates(row: str, n_rows: int) -> list[Setting]:
    """The settings among which each split of a row chooses, for a set of so many training rows."""
    deep = (100, 100) if n_rows > 20_000 else (50, 50)
    paper = Setting(slab_std=math.exp(1), spike_std=math.exp(-6), init_std=0.0015)
    # a weight without data has one resting place, so that inclusion ranks well: docs/theory/sbnn.md
    close = Setting(widths=(50 if n_rows < 2000 else 200,), slab_std=0.1, spike_std=0.03,
                    slab_prob=0.1)  # fmt: skip
    return {
        "sbnn": [Setting(widths=(50,), kl=0.1), Setting(widths=deep, kl=0.1),
                 Setting(widths=deep, kl=0.3)],
        "sbnn-het": [Setting(widths=deep, kl=kl, noise="heteroscedastic") for kl in (0.1, 0.3)],
        "sbnn-dropout": [Setting(widths=(width, width), kl=0.03, dropout=0.1)
                         for width in (100, 200)],
        "flat-vi": [Setting("flat-vi", deep, kl, 0.5) for kl in (0.03, 0.1, 0.3)],
        "deep-ensemble": [Setting("map", deep, lr=5e-3, weight_decay=decay)
                          for decay in (0.01, 0.1)],
        "bnn": [Setting("flat-vi", (50,), 1.0, 1.0), Setting("flat-vi", (50,), 1.0, 0.3)],
        "sbnn-paper": [paper],
        "sbnn-paper-spike": [replace(paper, start="spike", lr=3e-3, kl=kl)
                             for kl in (0.03, 0.1, 0.3)],
        "sbnn-one-shot": [replace(close, kl=kl) for kl in (0.03, 0.1, 0.3)],
        "sbnn-by-rate": [replace(close, kl=kl) for kl in (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)],
        "dropout": [Setting("map", (50,), lr=5e-3, dropout=p) for p in (0.01, 0.05)],
    }[row]  # fmt: skip


def run_row(
    name: str, row: str, n_splits: int, device: str, *, quick: bool = False, effort: float = 1.0,
    first: int = 0,
) -> Row:  # fmt: skip
    """One row of the table for one set, on `n_splits` splits from `first` on."""
    torch.set_num_threads(1)  # rows side by side use the other cores
    splits = [load_uci(name, data_root(), split=i) for i in range(first, first + n_splits)]
    n_rows = len(splits[0].train)
    seeds, each = list(range(first, first + n_splits)), list[dict[str, Any]]()
    began, began_work = time.perf_counter(), time.process_time()
    if row in BASELINES:
        each, detail = run_baseline(row, splits)
        totals = {"seconds": round(time.perf_counter() - began, 2)}
        return row_of(name, row, each, seeds if each else [], totals, detail)
    if row in ESTIMATORS:
        each = run_estimator(name, ESTIMATORS[row], seeds)
        totals = {"seconds": round(time.perf_counter() - began, 2),
                  "processor_seconds": round(time.process_time() - began_work, 2)}  # fmt: skip
        return row_of(name, row, each, seeds, totals, {"n_members": ESTIMATORS[row]})
    budget = budget_for(n_rows, quick=quick, effort=effort)
    if row in _SINGLE:
        budget = replace(budget, n_members=1)
    if row == "sbnn-dropout":
        budget = replace(budget, steps=2 * budget.steps)
    if row in _CUT:  # one network instead of five, trained for twice as long
        budget = replace(budget, steps=2 * budget.steps, n_draws=20)
    settings = candidates(row, n_rows)
    settings = settings[:2] if quick else settings
    task = Task(splits, device, first)
    if row in _ONE_SHOT:
        by_rate = row == "sbnn-by-rate"
        each, totals = pruning_table(task, settings, budget, per_cut=by_rate), {}
    else:
        each, totals = run_engine(task, settings, budget, halve=row in OUR_ROWS)
    totals["seconds"] = round(time.perf_counter() - began, 2)
    totals["processor_seconds"] = round(time.process_time() - began_work, 2)
    detail = {"candidates": [asdict(one) for one in settings], "budget": asdict(budget)}
    return row_of(name, row, each, seeds, totals, detail)


def crps(draws: Array, targets: Array) -> float:
    """Continuous ranked probability score of draws (n, S) for targets (n,), averaged.

    E|x - y| - E|x - x'| / 2 over independent draws x, x'.

    Example:
        >>> crps(np.array([[0.0, 2.0]]), np.array([1.0]))
        0.0
    """
    n_draws = draws.shape[1]
    ranks = 2 * np.arange(1, n_draws + 1) - n_draws - 1
    spread = np.sort(draws, 1) @ ranks / (n_draws * (n_draws - 1))
    return float(np.mean(np.abs(draws - targets[:, None]).mean(1) - spread))


def estimator_scores(model: SieveRegressor, x: Array, y: Array) -> dict[str, float]:
    """Scores of a fitted estimator on test rows."""
    low, high = model.predict_interval(x, level=0.9).T
    return {
        "rmse": float(np.sqrt(np.mean((model.predict(x) - y) ** 2))),
        "nll": -model.log_likelihood(x, y),
        "crps": crps(model.sample(x, _DRAWS), y),
        "coverage_90": float(np.mean((low <= y) & (y <= high))),
    }


def run_estimator(name: str, n_members: int, splits: Sequence[int]) -> list[dict[str, Any]]:
    """Scores of `SieveRegressor` on each split, and what its inner folds chose."""
    path = find_uci(name, data_root())
    assert path is not None  # `load_uci` has read it
    x, y, masks = read_uci(path)
    models = fit_many(
        [SieveRegressor(n_members=n_members, random_state=split) for split in splits],
        x, y, [np.flatnonzero(~masks[split]) for split in splits],
    )  # fmt: skip
    each = list[dict[str, Any]]()
    for model, split in zip(models, splits, strict=True):
        found = estimator_scores(model, x[masks[split]], y[masks[split]])
        choice = {"kl": model.kl_, "bins": model.settings_.bins,
                  "epochs": model.settings_.epochs,
                  "noise_factor": round(model.noise_factor_, 3),
                  "degrees_of_freedom": model.degrees_of_freedom_}  # fmt: skip
        each.append({"log_lik": -found.pop("nll"), **found, "choice": choice})
    return each


def run_baseline(
    row: str, splits: Sequence[DataSet]
) -> tuple[list[dict[str, float]], dict[str, Any]]:
    """Scores of every split, and why there are none where the method is not feasible."""
    if row == "process" and len(splits[0].train) > _MOST_ROWS:
        return [], {"skipped": f"more than {_MOST_ROWS} rows"}
    each = []
    for number, data in enumerate(splits):
        x, y = data.train.x.numpy().astype(float), data.train.y.numpy().astype(float)
        at, truth = data.test.x.numpy().astype(float), data.test.y.numpy().astype(float)
        mean, std = _fit_baseline(row, x, y, at, number)
        unit = float(data.test.target_std)
        rmse = float(np.sqrt(np.mean((mean - truth) ** 2))) * unit
        density = -0.5 * ((truth - mean) / std) ** 2 - np.log(std) - 0.5 * math.log(2 * math.pi)
        each.append({"rmse": rmse, "log_lik": float(density.mean()) - math.log(unit)})
    return each, {}


def _fit_baseline(row: str, x: Array, y: Array, at: Array, seed: int) -> tuple[Array, Array]:
    """Mean and std of the prediction at new inputs.

    The noise of ridge and boosting is the root mean squared error on held-out training rows, since
    neither has a density of its own; the Gaussian process has one.
    """
    if row == "process":
        return _process(x, y, at, seed)
    from sklearn.ensemble import GradientBoostingRegressor, HistGradientBoostingRegressor
    from sklearn.linear_model import RidgeCV

    model: Any
    if row == "linear":
        model = RidgeCV(np.logspace(-3, 3, 13))
    elif len(x) > _MOST_ROWS:
        model = HistGradientBoostingRegressor(
            max_iter=500, learning_rate=0.08, early_stopping=True, random_state=seed
        )
    else:
        model = GradientBoostingRegressor(
            n_estimators=500, learning_rate=0.05, max_depth=4, subsample=0.7, random_state=seed
        )
    order = np.random.default_rng(seed).permutation(len(x))
    n_test = max(1, round(_HELD_OUT * len(x)))
    inner = model.fit(x[order[n_test:]], y[order[n_test:]])
    residual = y[order[:n_test]] - inner.predict(x[order[:n_test]])
    mean: Array = model.fit(x, y).predict(at)
    return mean, np.full_like(mean, float(np.sqrt(np.mean(residual**2))))


def _short_search(objective: Any, start: Array, bounds: Array) -> tuple[Array, float]:
    """L-BFGS as scikit-learn calls it, but for 40 steps at most: each is cubic in the rows."""
    from scipy.optimize import minimize

    numbers = minimize(
        objective, start, method="L-BFGS-B", jac=True, bounds=bounds, options={"maxiter": 40}
    )
    return numbers.x, numbers.fun


def _process(x: Array, y: Array, at: Array, seed: int) -> tuple[Array, Array]:
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

    kernel = ConstantKernel(1.0) * RBF(np.ones(x.shape[1]), (1e-2, 1e3)) + WhiteKernel(0.1)
    model = GaussianProcessRegressor(kernel, optimizer=_short_search, random_state=seed)
    with warnings.catch_warnings():
        # A length scale at its bound is an input that does not matter: nothing to act on.
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(x, y)
    mean, std = model.predict(at, return_std=True)
    return mean, std


def row_of(
    name: str, row: str, each: Sequence[Mapping[str, Any]], seeds: list[int],
    totals: Mapping[str, float], detail: Mapping[str, Any],
) -> Row:  # fmt: skip
    """A row with means and standard errors over its splits, and numbers of all of them."""
    more = {number: value for number, value in totals.items() if number != "seconds"}
    made = make_row(f"{name}/{row}", {"set": name, "row": row}, each, seeds=seeds,
                    seconds=totals["seconds"], metrics=more, spread=list(means(each)),
                    **detail)  # fmt: skip
    return {**made, "data": name, "kind": "single" if row in _SINGLE else "ensemble"}


def blocks(n_splits: int, n_rows: int) -> list[tuple[int, int]]:
    """(first split, number of splits) of every block: a minute or two of one core each.

    Small tables need many networks per population to be fast, large ones do not.

    Example:
        >>> blocks(20, 455), blocks(5, 41_157)[:2]
        ([(0, 10), (10, 10)], [(0, 1), (1, 1)])
    """
    size = 10 if n_rows < 2000 else 4 if n_rows < 20_000 else 1
    return [(i, min(size, n_splits - i)) for i in range(0, n_splits, size)]


def join_blocks(pieces: Sequence[Row]) -> Row:
    """One row from its blocks, in the order of their splits."""
    pieces = sorted(pieces, key=lambda row: int(row["seeds"][0]))
    each = [one for row in pieces for one in row["each"]]
    totals: dict[str, float] = {"seconds": round(sum(row["seconds"] for row in pieces), 2)}
    for number, value in pieces[0]["metrics"].items():
        if number.endswith("seconds"):
            totals[number] = round(sum(row["metrics"][number] for row in pieces), 2)
        elif number.endswith("removed"):
            totals[number] = min(row["metrics"][number] for row in pieces)
        elif number.endswith("members"):
            totals[number] = value
    seconds = [taken for row in pieces
               for taken in row["detail"].get("block_seconds", [row["seconds"]])]  # fmt: skip
    detail = {**pieces[0]["detail"], "block_seconds": seconds}
    seeds = [seed for row in pieces for seed in row["seeds"]]
    name, row = pieces[0]["name"].split("/")
    first: Mapping[str, Any] = pieces[0]
    about: dict[str, Any] = {key: first[key] for key in ("machine", "date") if key in first}
    if "command" in first:
        about["command"] = re.sub(r" --(first|splits|out) \S+", "", first["command"])
    return {**row_of(name, row, each, seeds, totals, detail), **about}


def main(arguments: list[str] | None = None) -> int:
    """Run what is asked for and missing; write the record and a page."""
    parser = study_parser(__doc__, "--join", quick="300 steps, 2 members, 2 candidates",
                          full="everything: what is done anyway")  # fmt: skip
    parser.add_argument("--sets", default=",".join(SETS), help=f"comma list of {', '.join(SETS)}")
    parser.add_argument("--rows", default=",".join(ROWS), help=f"comma list of {', '.join(ROWS)}")
    parser.add_argument("--splits", type=int, help="the first so many splits; all unless given")
    parser.add_argument("--first", type=int, help="compute --splits splits from this one on alone")
    parser.add_argument("--jobs", type=int, default=1, help="rows computed side by side")
    parser.add_argument("--effort", type=float, default=1.0, help="factor on the training steps")
    parser.add_argument(
        "--in-blocks", action="store_true", help="compute and store a few splits of a row at a time"
    )
    parser.add_argument("--stop-after", type=float, help="seconds after which nothing new begins")
    options = parser.parse_args(arguments)
    flags = ("sets", "rows", "device", "out", "jobs", "stop-after", "first", "splits")
    page_path = None if options.out is None else options.out.with_suffix(".md")
    if options.join is not None:
        record = joined(options.join, "uci", options.out, flags, _none_unfinished, join_blocks)
        show_page(page(record), page_path)
        return 0
    sets = chosen("uci", "set", options.sets, SETS)
    rows = chosen("uci", "row", options.rows, ROWS)
    options.budget = options.stop_after
    settings = {"splits": options.splits, "effort": options.effort, "in_blocks": options.in_blocks}
    if options.first is not None:  # one block of all splits
        settings |= {"splits": None, "in_blocks": True}
    run = Run("uci", arguments, options, kind=None, settings=settings, test_reads="once per split")
    earlier = run.notes.get("calls", [])
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    for row in _results(_todo(sets, rows, run, options), options, run):
        known = run.find(row["name"], row["setting"], row["data"])
        if known is not None:  # a block of a row that the record has
            run.record["rows"].remove(known)
            row = join_blocks([known, row])
        run.add(row, ("rmse", "log_lik", "half/rmse", "half/log_lik"))
        if options.in_blocks:  # otherwise the seconds of the rows say how long it took
            call = {"command": run.record["command"], "jobs": options.jobs, "cores": cores,
                    "seconds": round(run.seconds, 1)}  # fmt: skip
            run.notes["calls"] = [*earlier, call]
        run.write()
    show_page(page(run.record), page_path)
    return 0


def _splits_of(name: str, splits: int | None) -> int:
    n_splits = N_SPLITS.get(name, 20)
    return min(splits or n_splits, n_splits)


def _todo(sets: list[str], rows: list[str], run: Run, options: argparse.Namespace) -> list[_Work]:
    """Work that is asked for and not stored, the longest first: the others fill the gaps."""
    pairs = [(name, row) for name in sets for row in rows]
    pairs.sort(key=lambda pair: (SETS.index(pair[0]) not in (6, 4, 5, 3), ROWS.index(pair[1])))
    work = []
    for name, row in pairs:
        known = run.find(f"{name}/{row}", {"set": name, "row": row}, name)
        n_splits = _splits_of(name, options.splits)
        todo = [(options.first or 0, n_splits)]
        if options.in_blocks and row not in BASELINES:
            todo = blocks(n_splits, len(load_uci(name, data_root(), split=0).train))
        done = [] if known is None else known["seeds"]
        if known is not None and "skipped" in known["detail"]:
            continue
        work += [(name, row, first, n) for first, n in todo if first not in done]
    return work


def _none_unfinished(record: Record) -> Sequence[Row]:
    """Raise where splits of a joined row are missing; no row is derived."""
    for row in record["rows"]:
        if not row.get("derived") and "skipped" not in row["detail"]:
            wanted = _splits_of(row["setting"]["set"], record["settings"]["splits"])
            if len(row["seeds"]) < wanted and row["setting"]["row"] not in ESTIMATORS:
                raise ValueError(
                    f"join: some splits of {row['name']} are missing; repeat "
                    f"`{record['command']}` until it has nothing left to do."
                )
    return ()


def _results(todo: list[_Work], options: argparse.Namespace, run: Run) -> Iterator[Row]:
    """Rows as they come; nothing begins once the time is spent."""
    common = {"quick": options.quick, "effort": options.effort}
    if options.jobs == 1:
        for name, row, first, n in todo:
            if run.fits(0.0):
                yield run_row(name, row, n, options.device, first=first, **common)
        return
    context = multiprocessing.get_context("spawn")  # a forked process cannot use CUDA
    with ProcessPoolExecutor(options.jobs, mp_context=context) as pool:
        running: set[Future[Row]] = set()
        waiting = list(reversed(todo))
        while running or (waiting and run.fits(0.0)):
            while waiting and run.fits(0.0) and len(running) < options.jobs:
                name, row, first, n = waiting.pop()
                running.add(pool.submit(run_row, name, row, n, options.device, first=first,
                                        **common))  # fmt: skip
            done, running = wait(running, return_when=FIRST_COMPLETED)
            yield from (future.result() for future in done)


def verdicts(name: str, row: Row) -> list[str]:
    """RMSE, half-pruned RMSE and log-likelihood of a row beside the targets of its set."""
    aim, ours, met = PUBLISHED[name], row["metrics"], {True: "yes", False: "no"}
    rmse, half, log_lik = ours["rmse"], ours["half/rmse"], ours["log_lik"]
    bound = aim.half_bound or rmse + 2 * (ours["rmse_standard_error"] or 0.0)
    return [name, f"{rmse:.4g}", f"{aim.target:g}", met[rmse <= aim.target], f"{half:.4g}",
            met[half <= bound], f"{log_lik:.3f}", f"{aim.dropout_log_lik:g}",
            met[log_lik >= aim.dropout_log_lik]]  # fmt: skip


def by_set(record: Record) -> dict[str, dict[str, Row]]:
    """The rows of a record, by set and row."""
    result: dict[str, dict[str, Row]] = {}
    for row in record["rows"]:
        if not row.get("derived"):
            result.setdefault(row["setting"]["set"], {})[row["setting"]["row"]] = row
    return {name: result[name] for name in PUBLISHED if name in result}


def page(record: Record) -> str:
    """Markdown: RMSE and log-likelihood of every row, then whether sbnn reaches our targets."""
    rows = [row for row in record["rows"] if not row.get("derived")]
    numbers = [f"{half}{name}{error}" for half in ("", "half/") for name in ("rmse", "log_lik")
               for error in ("", "_standard_error")]  # fmt: skip
    # one row for all sets: none is chosen by its test error
    lines = [verdicts(name, of["sbnn"]) for name, of in by_set(record).items() if "sbnn" in of]
    head = ("set", "RMSE", "target", "met", "50 % removed", "met", "log-lik", "MC-dropout", "met")
    pieces = ["# UCI regression", f"Command: `{record['command']}`. Machine: {record['machine']}.",
             table(rows, numbers), "## Targets", markdown_table(head, lines)]  # fmt: skip
    calls = record["notes"].get("calls")
    if calls:
        seconds = sum(call["seconds"] for call in calls)
        pieces.append(f"{len(calls)} calls, {seconds:.0f} s by the clock, one after the other.")
    return "\n\n".join(pieces) + "\n"


if __name__ == "__main__":
    raise SystemExit(main())
