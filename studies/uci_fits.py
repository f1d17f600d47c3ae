"""Training and scoring of one engine on many splits of one UCI set, all splits as one population.

Settings are chosen split by split, inside its training part: each candidate learns from a part of
it and predicts the rest. The same predictions say by how much the noise must be widened or
narrowed, and how heavy its tails must be, for honest densities. Then `n_members` networks per split
learn from the whole training part and predict the test part together, once as they are and once
with half of their weights removed.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from bayesieve.core.likelihoods import Gaussian, Heteroscedastic, Likelihood, StudentT
from bayesieve.core.posterior import Posterior
from bayesieve.core.priors import Normal, SpikeSlab
from bayesieve.core.problem import Problem
from bayesieve.core.rows import Rows
from bayesieve.data.examples import DataSet
from bayesieve.engines import Engine
from bayesieve.engines.flat_vi import FlatVI
from bayesieve.engines.map import MAP
from bayesieve.engines.sbnn import SBNN
from bayesieve.sieve.schedule import GradualPruning
from bayesieve.training.fit import Fit, fit
from bayesieve.training.population import stacked
from bayesieve.training.schedule import Schedule
from studies.table_nets import seeded_mlp
from studies.uci_scoring import (
    Tails,
    best_tails,
    mean_log_lik,
    predict_members,
    removed_share,
    summary,
    without_least,
)

EngineName = Literal["sbnn", "flat-vi", "map"]
NoiseName = Literal["gaussian", "heteroscedastic", "student-t"]


@dataclass(frozen=True)
class Setting:
    """One candidate.

    Args:
        engine: which algorithm.
        widths: hidden layers.
        kl: weight of the prior; 1 is Bayes.
        slab_std: of a spike-and-slab prior, or std of a normal one.
        spike_std: of a spike-and-slab prior.
        noise: kind of likelihood.
        lr: learning rate.
        weight_decay: of "map".
        dropout: of "map".
        init_std: starting spread of the variational engines.
    """

    engine: EngineName = "sbnn"
    widths: tuple[int, ...] = (50,)
    kl: float = 1.0
    slab_std: float = 1.0
    spike_std: float = 0.05
    noise: NoiseName = "gaussian"
    lr: float = 1e-2
    weight_decay: float = 0.0
    dropout: float = 0.0
    init_std: float = 0.02


@dataclass(frozen=True)
class Budget:
    """How much work goes into one set.

    Args:
        steps: gradient steps of one fit.
        batch_size: rows per step.
        inner: random inner splits per split on which settings are compared.
        held_out: part of the training rows an inner split holds out.
        n_members: networks that predict together.
        n_draws: weight vectors drawn from each of them; 0 takes its mean.
        at_once: networks in one population at most.
    """

    steps: int
    batch_size: int
    inner: int
    held_out: float = 0.15
    n_members: int = 5
    n_draws: int = 10
    at_once: int = 200


def budget_for(n_rows: int, *, quick: bool = False, effort: float = 1.0) -> Budget:
    """What a set of this many training rows gets; `effort` multiplies the steps."""
    if quick:
        return Budget(300, 32, 1, n_members=2, n_draws=4)
    if n_rows < 2000:
        return Budget(round(3000 * effort), 32, 2 if effort < 2 else 4)
    steps = 3000 if n_rows < 20_000 else 5000
    return Budget(round(steps * effort), 256, 1, held_out=0.1)


def build_engine(setting: Setting) -> Engine[Any]:
    """The engine of a setting."""
    if setting.engine == "sbnn":
        prior = SpikeSlab(setting.slab_std, setting.spike_std)
        return SBNN(prior, setting.lr, setting.init_std, local=True)
    if setting.engine == "flat-vi":
        return FlatVI(Normal(setting.slab_std), setting.lr, setting.init_std, local=True)
    return MAP(lr=setting.lr, weight_decay=setting.weight_decay)


def build_likelihood(setting: Setting) -> Likelihood:
    """The noise of a setting; learned, in units of the standardised target."""
    if setting.noise == "heteroscedastic":
        return Heteroscedastic(0.3, 0.01)
    if setting.noise == "student-t":
        return StudentT(0.3, 5.0, learned=True)
    return Gaussian(0.3, learned=True)


@dataclass(frozen=True, eq=False)
class Task:
    """One set with its splits.

    Args:
        name: of the set.
        splits: the data sets, each standardised on its own training part.
        device: where to train.
        first: number of the first split; seeds depend on it.
    """

    name: str
    splits: Sequence[DataSet]
    device: str
    first: int = 0

    def train(
        self, setting: Setting, rows: Sequence[tuple[int, Tensor]], budget: Budget, seed: int,
        removed: float = 0.0,
    ) -> list[Posterior]:  # fmt: skip
        """One network per (split, rows of its training part); those removed are exactly 0."""
        found: list[Posterior] = []
        for start in range(0, len(rows), budget.at_once):
            part = rows[start : start + budget.at_once]
            run = self._fit(setting, part, budget, seed + start + 10_000 * self.first, removed)
            found += [q.to("cpu") for q in run.posteriors]
        return found

    def _fit(
        self, setting: Setting, rows: Sequence[tuple[int, Tensor]], budget: Budget, seed: int,
        removed: float,
    ) -> Fit:  # fmt: skip
        used = sorted({split for split, _ in rows})
        tables = [(self.splits[i].train.x, self.splits[i].train.y) for i in used]
        x, y, places = stacked(tables)
        members = Rows.of([places.index[used.index(split)][own] for split, own in rows])
        likelihood = build_likelihood(setting)
        outputs = 2 if setting.noise == "heteroscedastic" else 1
        model = seeded_mlp(x.shape[1], outputs, setting.widths, dropout=setting.dropout, seed=seed)
        problem = Problem(model, likelihood, (x, y), rows=members)
        layout = problem.layout
        pruning = None
        if removed:
            score: Any = "magnitude" if setting.engine == "map" else "snr"
            zeros = removed * layout.n_sparse / layout.size
            pruning = GradualPruning(zeros, start=0.2, end=0.5, score=score)
        schedule = Schedule(lr="cosine", hold=0.3, kl=setting.kl, kl_warmup_epochs=1.0)
        return fit(
            problem.to(self.device), build_engine(setting), steps=budget.steps,
            batch_size=min(budget.batch_size, members.n), seed=seed, schedule=schedule,
            pruning=pruning,
        )  # fmt: skip


@dataclass(frozen=True, eq=False)
class Choice:
    """What was chosen inside one split's training part.

    Args:
        setting: index among the candidates.
        tails: how the noise of its predictions is corrected.
        scores: of the candidates on inner held-out rows, lower is better.
    """

    setting: int
    tails: Tails
    scores: tuple[float, ...]


def choose(task: Task, settings: Sequence[Setting], budget: Budget) -> list[Choice]:
    """Compare the candidates inside every split.

    Those with one noise for all rows by squared error, those whose noise depends on the inputs by
    log-likelihood: there the squared error is not what they maximise.
    """
    parts = [
        inner_rows(len(data.train), budget, i) for i, data in enumerate(task.splits, task.first)
    ]
    rows = [(i, train) for i, own in enumerate(parts) for train, _ in own]
    errors, corrections = [], []
    for number, setting in enumerate(settings):
        posteriors = task.train(setting, rows, budget, 1000 * (number + 1))
        own_errors, own_tails = [], []
        for i, data in enumerate(task.splits):
            own = posteriors[i * budget.inner : (i + 1) * budget.inner]
            tests = [data.train.subset(test) for _, test in parts[i]]
            found = [
                predict_members([q], t.x, budget.n_draws) for q, t in zip(own, tests, strict=True)
            ]
            pairs = list(zip(found, [t.y for t in tests], strict=True))
            tails = best_tails(pairs)
            if setting.noise == "gaussian":
                square = [(p.mean[:, 0] - y).square() for p, y in pairs]
                own_errors.append(float(torch.cat(square).mean()))
            else:
                own_errors.append(-sum(mean_log_lik(p, y, tails) for p, y in pairs) / len(pairs))
            own_tails.append(tails)
        errors.append(own_errors)
        corrections.append(own_tails)
    chosen = []
    for i in range(len(task.splits)):
        column = tuple(row[i] for row in errors)
        best = min(range(len(column)), key=column.__getitem__)
        chosen.append(Choice(best, corrections[best][i], column))
    return chosen


def score(
    task: Task, settings: Sequence[Setting], choices: Sequence[Choice], budget: Budget,
    removed: float = 0.0,
) -> dict[str, Any]:  # fmt: skip
    """Train with the chosen settings on whole training parts and score the test parts."""
    started = time.perf_counter()
    n, rows_of = budget.n_members, [torch.arange(len(data.train)) for data in task.splits]
    rmse, log_lik = [0.0] * len(task.splits), [0.0] * len(task.splits)
    zeros: list[float] = []
    for number, setting in enumerate(settings):
        own = [i for i, choice in enumerate(choices) if choice.setting == number]
        if not own:
            continue
        rows = [(i, rows_of[i]) for i in own for _ in range(n)]
        posteriors = task.train(setting, rows, budget, 7, removed)
        for place, i in enumerate(own):
            members, test = posteriors[place * n : (place + 1) * n], task.splits[i].test
            found = predict_members(members, test.x, budget.n_draws)
            std = float(test.target_std)
            rmse[i] = float((found.mean[:, 0] - test.y).square().mean().sqrt()) * std
            log_lik[i] = mean_log_lik(found, test.y, choices[i].tails) - math.log(std)
            zeros += [removed_share(q) for q in members]
    return {**summary(rmse, log_lik), "removed": min(zeros), "members": n,
            "seconds": round(time.perf_counter() - started, 2)}  # fmt: skip


def pruning_table(task: Task, setting: Setting, budget: Budget) -> dict[str, Any]:
    """RMSE of one network per split with weights removed by inclusion in one shot, no fine-tuning.

    Experiment 5 of [Saha], table 2.
    """
    started = time.perf_counter()
    rows = [(i, torch.arange(len(data.train))) for i, data in enumerate(task.splits)]
    posteriors = task.train(setting, rows, budget, 11)
    found = []
    for removed in (0.0, 0.1, 0.2, 0.25, 0.5, 0.75, 0.8, 0.9, 0.95):
        rmse, log_lik = [], []
        for q, data in zip(posteriors, task.splits, strict=True):
            own = without_least(q, removed)
            prediction, std = (
                predict_members([own], data.test.x, budget.n_draws),
                float(data.test.target_std),
            )
            rmse.append(float((prediction.mean[:, 0] - data.test.y).square().mean().sqrt()) * std)
            log_lik.append(mean_log_lik(prediction, data.test.y, Tails()) - math.log(std))
        found.append({"removed_in_one_shot": removed, **summary(rmse, log_lik)})
    seconds = round(time.perf_counter() - started, 2)
    return {"candidates": [asdict(setting)], "budget": asdict(budget), "full": found[0],
            "one_shot": found, "seconds": seconds}  # fmt: skip


def run_engine(
    task: Task, settings: Sequence[Setting], budget: Budget, *, halve: bool
) -> dict[str, Any]:
    """Choose, then score whole and half-pruned networks."""
    started = time.perf_counter()
    choices = choose(task, settings, budget)
    record: dict[str, Any] = {
        "candidates": [asdict(setting) for setting in settings],
        "budget": asdict(budget),
        "chosen": [choice.setting for choice in choices],
        "noise_factor": [round(choice.tails.factor, 3) for choice in choices],
        "degrees_of_freedom": [choice.tails.df for choice in choices],
        "choice_seconds": round(time.perf_counter() - started, 2),
        "full": score(task, settings, choices, budget),
    }
    if halve:
        record["half"] = score(task, settings, choices, budget, removed=0.5)
    return {**record, "seconds": round(time.perf_counter() - started, 2)}


def single(budget: Budget) -> Budget:
    """The same work for one network per split."""
    return replace(budget, n_members=1)


def inner_rows(n: int, budget: Budget, seed: int) -> list[tuple[Tensor, Tensor]]:
    """Random (rest, held-out) rows of a training part, `inner` times."""
    generator = torch.Generator().manual_seed(seed)
    n_test = max(1, round(budget.held_out * n))
    orders = [torch.randperm(n, generator=generator) for _ in range(budget.inner)]
    return [(order[n_test:].sort().values, order[:n_test].sort().values) for order in orders]
