"""Networks of the UCI study: all splits of one set train as one population and are scored.

Settings are chosen split by split, inside its training part: each candidate learns from a part of
it and predicts the rest. The same predictions say by how much the noise must be widened or
narrowed, and how heavy its tails must be, for honest densities. Then `n_members` networks per split
learn from the whole training part and predict the test part together, once as they are and once
with half of their weights removed.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from bayesieve import MAP, SBNN, FlatVI, GradualPruning, Schedule, likelihoods, priors
from bayesieve.assess.predict import RealPrediction
from bayesieve.core.batch import Rows
from bayesieve.core.network import Network
from bayesieve.core.posterior import Posterior
from bayesieve.data.examples import DataSet, Examples
from bayesieve.engines import Engine
from bayesieve.estimators.mixture import predict_members
from bayesieve.estimators.population import Table, Training, stacked, train_networks
from bayesieve.estimators.tails import Tails, likeliest_tails
from bayesieve.nets import mlp
from bayesieve.sieve.ranking import inclusion_score
from bayesieve.training.fit import Fit
from studies.harness import seeded

EngineName = Literal["sbnn", "flat-vi", "map"]
NoiseName = Literal["gaussian", "heteroscedastic"]
CUTS = (0.0, 0.1, 0.2, 0.25, 0.5, 0.75, 0.8, 0.9, 0.95)  # shares of weights removed in one shot
_CHOSEN_BY = (0.0, 0.25, 0.5, 0.75, 0.9, 0.95)  # those whose held-out errors choose a setting


@dataclass(frozen=True)
class Setting:
    """One candidate."""

    engine: EngineName = "sbnn"  # which algorithm
    widths: tuple[int, ...] = (50,)  # hidden layers
    kl: float = 1.0  # weight of the prior; 1 is Bayes
    slab_std: float = 1.0  # of a spike-and-slab prior, or std of a normal one
    spike_std: float = 0.05  # of a spike-and-slab prior
    slab_prob: float = 0.5  # of a spike-and-slab prior
    noise: NoiseName = "gaussian"  # kind of likelihood
    lr: float = 1e-2  # learning rate
    weight_decay: float = 0.0  # of "map"
    dropout: float = 0.0  # of "map"
    init_std: float = 0.02  # starting spread of the variational engines
    start: Literal["module", "he", "spike"] = "module"  # starting means of "sbnn"


@dataclass(frozen=True)
class Budget:
    """Amount of work for one set."""

    steps: int  # gradient steps of one fit
    batch_size: int  # rows per step
    inner: int  # random inner splits per split on which settings are compared
    held_out: float = 0.15  # part of the training rows an inner split holds out
    n_members: int = 5  # networks that predict together
    n_draws: int = 10  # weight vectors drawn from each of them; 0 takes its mean
    at_once: int = 200  # networks in one population at most


def budget_for(n_rows: int, *, quick: bool = False, effort: float = 1.0) -> Budget:
    """Budget of a set of this many training rows; `effort` multiplies the steps."""
    if quick:
        return Budget(300, 32, 1, n_members=2, n_draws=4)
    if n_rows < 2000:
        return Budget(round(3000 * effort), 32, 2 if effort < 2 else 4)
    steps = 3000 if n_rows < 20_000 else 5000
    return Budget(round(steps * effort), 256, 1, held_out=0.1)


@dataclass(frozen=True, eq=False)
class Task:
    """One set with its splits."""

    splits: Sequence[DataSet]  # the data sets, each standardised on its own training part
    device: str  # where to train
    first: int = 0  # number of the first split; seeds depend on it

    def train(
        self, setting: Setting, rows: Sequence[tuple[int, Tensor]], budget: Budget, seed: int,
        removed: float = 0.0,
    ) -> list[Posterior]:  # fmt: skip
        """One network per (split, rows of its training part); those removed are exactly 0."""
        learned: list[Posterior] = []
        for start in range(0, len(rows), budget.at_once):
            some = rows[start : start + budget.at_once]
            run = self._fit(setting, some, budget, seed + start + 10_000 * self.first, removed)
            learned += [q.to("cpu") for q in run.complete().posteriors]
        return learned

    def _fit(
        self, setting: Setting, rows: Sequence[tuple[int, Tensor]], budget: Budget, seed: int,
        removed: float,
    ) -> Fit:  # fmt: skip
        """Train networks that fit into one population."""
        used = sorted({split for split, _ in rows})
        tables = [(self.splits[i].train.x, self.splits[i].train.y) for i in used]
        x, y, places = stacked(tables)
        members = Rows.of([places.index[used.index(split)][index] for split, index in rows])
        engine: Engine[Any] = MAP(lr=setting.lr, weight_decay=setting.weight_decay)
        if setting.engine == "sbnn":
            prior = priors.SpikeSlab(setting.slab_std, setting.spike_std, setting.slab_prob)
            engine = SBNN(prior, setting.lr, setting.init_std, setting.start, local=True)
        elif setting.engine == "flat-vi":
            normal = priors.Normal(setting.slab_std)
            engine = FlatVI(normal, setting.lr, setting.init_std, local=True)
        # the noise is learned, in units of the standardised target
        likelihood: likelihoods.Likelihood = likelihoods.Gaussian(0.3, learned=True)
        n_outputs = 1
        if setting.noise == "heteroscedastic":
            likelihood, n_outputs = likelihoods.Heteroscedastic(0.3, 0.01), 2
        model = seeded(seed, mlp, x.shape[1:], n_outputs, setting.widths, dropout=setting.dropout)
        layout = Network.of(model, likelihood).layout
        pruning = None
        if removed:
            score: Any = "magnitude" if setting.engine == "map" else "snr"
            zeros = removed * layout.n_sparse / layout.size
            pruning = GradualPruning(zeros, start=0.2, end=0.5, score=score)
        schedule = Schedule(lr="cosine", hold=0.3, kl=setting.kl, kl_warmup_epochs=1.0)
        training = Training(batch_size=budget.batch_size, schedule=schedule, pruning=pruning,
                            seed=seed, device=self.device, steps=budget.steps)  # fmt: skip
        return train_networks(model, likelihood, Table(x, y), members, engine, training)


def choose(task: Task, settings: Sequence[Setting], budget: Budget) -> list[tuple[int, Tails]]:
    """The best of the candidates, by number, and the correction of its noise, inside every split.

    Those with one noise for all rows by squared error, those whose noise depends on the inputs by
    log-likelihood: there the squared error is not what they maximise.
    """
    inner = [
        inner_rows(len(data.train), budget, i) for i, data in enumerate(task.splits, task.first)
    ]
    rows = [(i, train) for i, splits in enumerate(inner) for train, _ in splits]
    tried: list[list[tuple[float, int, Tails]]] = [[] for _ in task.splits]
    for number, setting in enumerate(settings):
        posteriors = task.train(setting, rows, budget, 1000 * (number + 1))
        for i, data in enumerate(task.splits):
            members = posteriors[i * budget.inner : (i + 1) * budget.inner]
            tests = [data.train.subset(test) for _, test in inner[i]]
            pairs = [(mixture([q], test.x, budget.n_draws), test.y)
                     for q, test in zip(members, tests, strict=True)]  # fmt: skip
            ones = [torch.ones(len(y)) for _, y in pairs]
            predictions, targets = [p for p, _ in pairs], [y for _, y in pairs]
            tails, density = likeliest_tails(predictions, targets, ones)
            if setting.noise == "gaussian":
                square = [(p.mean[:, 0] - y).square() for p, y in pairs]
                error = float(torch.cat(square).mean())
            else:
                error = -density
            tried[i].append((error, number, tails))
    return [min(one, key=lambda scored: scored[:2])[1:] for one in tried]


def score(
    task: Task, settings: Sequence[Setting], choices: Sequence[tuple[int, Tails]], budget: Budget,
    removed: float = 0.0,
) -> tuple[list[dict[str, float]], dict[str, float]]:  # fmt: skip
    """Train with the chosen settings on whole training parts and score the test parts.

    Returns:
        RMSE and log-likelihood of every split; the least share removed, members and seconds.
    """
    started = time.perf_counter()
    n, rows_of = budget.n_members, [torch.arange(len(data.train)) for data in task.splits]
    scores: list[dict[str, float]] = [{} for _ in task.splits]
    zeros: list[float] = []
    for number, setting in enumerate(settings):
        splits = [i for i, (best, _) in enumerate(choices) if best == number]
        if not splits:
            continue
        rows = [(i, rows_of[i]) for i in splits for _ in range(n)]
        posteriors = task.train(setting, rows, budget, 7, removed)
        for place, i in enumerate(splits):
            members, test = posteriors[place * n : (place + 1) * n], task.splits[i].test
            scores[i] = scored(members, test, budget.n_draws, choices[i][1])
            zeros += [float((q.mean[q.layout.sparse] == 0).double().mean()) for q in members]
    seconds = round(time.perf_counter() - started, 2)
    return scores, {"removed": min(zeros), "members": n, "seconds": seconds}


def mixture(members: Sequence[Posterior], x: Tensor, n_draws: int) -> RealPrediction:
    """The members' predictive distributions as one."""
    prediction = predict_members(members, x, n_draws)
    assert isinstance(prediction, RealPrediction)
    return prediction


def scored(
    members: Sequence[Posterior], test: Examples, n_draws: int, tails: Tails
) -> dict[str, float]:
    """RMSE and log-likelihood of the members' mixture, in the unit of the target."""
    prediction, std = mixture(members, test.x, n_draws), float(test.target_std)
    rmse = float((prediction.mean[:, 0] - test.y).square().mean().sqrt()) * std
    density = float(tails.log_density(prediction, test.y).mean())
    return {"rmse": rmse, "log_lik": density - math.log(std)}


def pruning_table(
    task: Task, settings: Sequence[Setting], budget: Budget, *, per_cut: bool = False
) -> list[dict[str, Any]]:
    """Scores of one network per split with weights removed by inclusion in one shot, untuned.

    Experiment 5 of [Saha], table 2. Where there are several settings every split chooses inside its
    training part, by `choose_for_cuts`. Returns the numbers of every split.
    """
    choices = [dict.fromkeys(CUTS, 0) for _ in task.splits]
    if len(settings) > 1:
        choices = choose_for_cuts(task, settings, budget, per_cut=per_cut)
    each: list[dict[str, Any]] = [{} for _ in task.splits]
    for number, setting in enumerate(settings):
        splits = [i for i, chosen in enumerate(choices) if number in chosen.values()]
        rows = [(i, torch.arange(len(task.splits[i].train))) for i in splits]
        for i, q in zip(splits, task.train(setting, rows, budget, 11), strict=True):
            for removed in (cut for cut, best in choices[i].items() if best == number):
                cut = without_least(q, removed)
                scores = scored([cut], task.splits[i].test, budget.n_draws, Tails())
                each[i] |= {f"cut-{100 * removed:g}/{name}": value
                            for name, value in scores.items()}  # fmt: skip
    for numbers, chosen in zip(each, choices, strict=True):
        numbers |= {name: numbers[f"cut-0/{name}"] for name in ("rmse", "log_lik")}
        if per_cut:
            numbers["choice"] = {f"cut-{100 * cut:g}": best for cut, best in chosen.items()}
        elif len(settings) > 1:
            numbers["choice"] = {"setting": chosen[0.0]}
    return each


def choose_for_cuts(
    task: Task, settings: Sequence[Setting], budget: Budget, *, per_cut: bool
) -> list[dict[float, int]]:
    """The number of the setting for every cut, inside every split, by held-out rows.

    One for all cuts is the one with the least geometric mean of squared errors over `_CHOSEN_BY`:
    of small errors and large ones alike a tenth counts as much. With `per_cut` every cut has the
    one whose error is least there.
    """
    inner = [
        inner_rows(len(data.train), budget, i) for i, data in enumerate(task.splits, task.first)
    ]
    rows = [(i, train) for i, splits in enumerate(inner) for train, _ in splits]
    logs = torch.zeros(len(settings), len(task.splits), len(CUTS), dtype=torch.float64)
    for number, setting in enumerate(settings):
        posteriors = iter(task.train(setting, rows, budget, 1000 * (number + 1)))
        for i, data in enumerate(task.splits):
            for _, held_out in inner[i]:
                q, test = next(posteriors), data.train.subset(held_out)
                for place, removed in enumerate(CUTS):
                    cut = mixture([without_least(q, removed)], test.x, budget.n_draws)
                    logs[number, i, place] += (cut.mean[:, 0] - test.y).square().mean().log()
    if not per_cut:
        weights = torch.tensor([float(cut in _CHOSEN_BY) for cut in CUTS], dtype=torch.float64)
        logs = (logs * weights).sum(2, keepdim=True).expand_as(logs)
    return [dict(zip(CUTS, of_split, strict=True)) for of_split in logs.argmin(0).tolist()]


def run_engine(
    task: Task, settings: Sequence[Setting], budget: Budget, *, halve: bool
) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """Choose, then score whole and half-pruned networks: of every split, and of all together."""
    started = time.perf_counter()
    choices = choose(task, settings, budget)
    totals = {"choice_seconds": round(time.perf_counter() - started, 2)}
    each: list[dict[str, Any]] = [
        {"choice": {"setting": number, "noise_factor": round(tails.factor, 3),
                    "degrees_of_freedom": tails.df}}
        for number, tails in choices
    ]  # fmt: skip
    for prefix, removed in (("", 0.0), ("half/", 0.5))[: 2 if halve else 1]:
        scores, about = score(task, settings, choices, budget, removed)
        for numbers, split in zip(each, scores, strict=True):
            numbers |= {f"{prefix}{name}": value for name, value in split.items()}
        totals |= {f"{prefix or 'full/'}{name}": value for name, value in about.items()}
    return each, totals


def inner_rows(n: int, budget: Budget, seed: int) -> list[tuple[Tensor, Tensor]]:
    """Random (rest, held-out) rows of a training part, `inner` times."""
    generator = torch.Generator().manual_seed(seed)
    n_test = max(1, round(budget.held_out * n))
    orders = [torch.randperm(n, generator=generator) for _ in range(budget.inner)]
    return [(order[n_test:].sort().values, order[:n_test].sort().values) for order in orders]


def without_least(posterior: Posterior, removed: float) -> Posterior:
    """The posterior without the share `removed` of its weights of lowest inclusion; biases stay.

    The paper's droprate: it counts weights alone and lets a layer run empty.
    """
    logit = inclusion_score(posterior)[posterior.layout.sparse]
    keep = torch.ones_like(posterior.mean, dtype=torch.bool)
    keep[logit.argsort()[: round(removed * len(logit))]] = False
    return posterior.masked(keep)
