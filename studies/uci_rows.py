"""The rows of the UCI study: which settings each chooses among, what it may cost, how it is run."""

import math
import time
from dataclasses import replace
from typing import Any

import torch

from bayesieve.data.files import data_root
from bayesieve.data.uci import load_uci
from studies.uci_baselines import BASELINES, run_baseline
from studies.uci_fits import (
    Budget,
    Setting,
    Task,
    budget_for,
    pruning_table,
    run_engine,
    single,
)
from studies.uci_page import OUR_ROWS, PUBLISHED

SETS = tuple(PUBLISHED)
N_SPLITS = {"protein": 5}  # 20 of the others
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
    name: str, row: str, n_splits: int, device: str, *, quick: bool = False, effort: float = 1.0,
    first: int = 0,
) -> dict[str, Any]:  # fmt: skip
    """One row of the table for one set, on `n_splits` splits from `first` on."""
    torch.set_num_threads(1)  # rows side by side use the other cores
    began = time.process_time()
    splits = [load_uci(name, data_root(), split=i) for i in range(first, first + n_splits)]
    n_rows = len(splits[0].train)
    if row in BASELINES:
        return run_baseline(row, splits)
    budget: Budget = budget_for(n_rows, quick=quick, effort=effort)
    if row in ("bnn", "dropout", "sbnn-paper"):
        budget = single(budget)
    if row == "sbnn-dropout":
        budget = replace(budget, steps=2 * budget.steps)
    settings = candidates(row, large=n_rows > 20_000)
    task = Task(name, splits, device, first)
    if row == "sbnn-paper":
        record = pruning_table(task, settings[0], budget)
    else:
        chosen = settings[:2] if quick else settings
        record = run_engine(task, chosen, budget, halve=row in OUR_ROWS)
    return {**record, "processor_seconds": round(time.process_time() - began, 2)}
