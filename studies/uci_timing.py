"""How long the UCI study takes: a population against one by one, and the whole of it foretold."""

import time
from dataclasses import replace
from typing import Any

import torch

from bayesieve.data.files import data_root
from bayesieve.data.uci import load_uci
from studies.uci_fits import Setting, Task, budget_for
from studies.uci_rows import N_SPLITS, candidates


def timing(name: str, device: str, steps: int = 300, alone: int = 3) -> dict[str, Any]:
    """Seconds per network: all splits with five members as one population, against one by one.

    On a CPU these are processor seconds of one thread: what else the machine does leaves them be.
    """
    torch.set_num_threads(1)
    clock = time.process_time if device == "cpu" else time.perf_counter
    splits = [load_uci(name, data_root(), split=i) for i in range(N_SPLITS.get(name, 20))]
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
    splits = [load_uci(name, data_root(), split=i) for i in range(N_SPLITS.get(name, 20))]
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
