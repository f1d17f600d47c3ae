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
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from bayesieve import MAP, SBNN, FlatVI, GradualPruning, Problem, Schedule, likelihoods, priors
from bayesieve.assess.metrics import log_likelihood_mixture
from bayesieve.assess.predict import RealPrediction, predict
from bayesieve.core.posterior import Posterior
from bayesieve.core.rows import Rows
from bayesieve.data.examples import DataSet, Examples
from bayesieve.engines import Engine
from bayesieve.nets import mlp
from bayesieve.sieve.scores import inclusion_score
from bayesieve.training.fit import Fit, fit
from bayesieve.training.population import stacked

EngineName = Literal["sbnn", "flat-vi", "map"]
NoiseName = Literal["gaussian", "heteroscedastic", "student-t"]
CUTS = (0.0, 0.1, 0.2, 0.25, 0.5, 0.75, 0.8, 0.9, 0.95)  # shares of weights removed in one shot
_NOISE_FACTORS = tuple(0.5 * 1.08**i for i in range(22))  # 0.5 to 2.5


def seeded_mlp(
    n_inputs: int, n_outputs: int, widths: Sequence[int], *, dropout: float = 0.0, seed: int = 0
) -> nn.Sequential:
    """`nets.mlp` whose weights depend on `seed` alone; the global generator is left as it was.

    Example:
        >>> first, second = (seeded_mlp(2, 1, (3,)).fc1.weight for _ in range(2))
        >>> bool((first == second).all())
        True
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return mlp((n_inputs,), n_outputs, widths=widths, dropout=dropout)


@dataclass(frozen=True)
class Tails:
    """How the noise of a prediction is corrected, as held-out rows found it most probable.

    Args:
        factor: on every noise std.
        df: degrees of freedom of a Student-t with the prediction's mean and variance; None keeps
            the mixture of normals.
    """

    factor: float = 1.0
    df: int | None = None


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
        prior = priors.SpikeSlab(setting.slab_std, setting.spike_std)
        return SBNN(prior, setting.lr, setting.init_std, local=True)
    if setting.engine == "flat-vi":
        return FlatVI(priors.Normal(setting.slab_std), setting.lr, setting.init_std, local=True)
    return MAP(lr=setting.lr, weight_decay=setting.weight_decay)


def build_likelihood(setting: Setting) -> likelihoods.Likelihood:
    """The noise of a setting; learned, in units of the standardised target."""
    if setting.noise == "heteroscedastic":
        return likelihoods.Heteroscedastic(0.3, 0.01)
    if setting.noise == "student-t":
        return likelihoods.StudentT(0.3, 5.0, learned=True)
    return likelihoods.Gaussian(0.3, learned=True)


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
        learned: list[Posterior] = []
        for start in range(0, len(rows), budget.at_once):
            some = rows[start : start + budget.at_once]
            run = self._fit(setting, some, budget, seed + start + 10_000 * self.first, removed)
            learned += [q.to("cpu") for q in run.posteriors]
        return learned

    def _fit(
        self, setting: Setting, rows: Sequence[tuple[int, Tensor]], budget: Budget, seed: int,
        removed: float,
    ) -> Fit:  # fmt: skip
        used = sorted({split for split, _ in rows})
        tables = [(self.splits[i].train.x, self.splits[i].train.y) for i in used]
        x, y, places = stacked(tables)
        members = Rows.of([places.index[used.index(split)][index] for split, index in rows])
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
    inner = [
        inner_rows(len(data.train), budget, i) for i, data in enumerate(task.splits, task.first)
    ]
    rows = [(i, train) for i, splits in enumerate(inner) for train, _ in splits]
    errors: list[list[float]] = []
    corrections: list[list[Tails]] = []
    for number, setting in enumerate(settings):
        posteriors = task.train(setting, rows, budget, 1000 * (number + 1))
        errors.append([])
        corrections.append([])
        for i, data in enumerate(task.splits):
            members = posteriors[i * budget.inner : (i + 1) * budget.inner]
            tests = [data.train.subset(test) for _, test in inner[i]]
            pairs = [(predict_members([q], test.x, budget.n_draws), test.y)
                     for q, test in zip(members, tests, strict=True)]  # fmt: skip
            tails = best_tails(pairs)
            if setting.noise == "gaussian":
                square = [(p.mean[:, 0] - y).square() for p, y in pairs]
                error = float(torch.cat(square).mean())
            else:
                error = -sum(mean_log_lik(p, y, tails) for p, y in pairs) / len(pairs)
            errors[-1].append(error)
            corrections[-1].append(tails)
    choices = []
    for i in range(len(task.splits)):
        column = tuple(row[i] for row in errors)
        best = min(range(len(column)), key=column.__getitem__)
        choices.append(Choice(best, corrections[best][i], column))
    return choices


def score(
    task: Task, settings: Sequence[Setting], choices: Sequence[Choice], budget: Budget,
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
        splits = [i for i, choice in enumerate(choices) if choice.setting == number]
        if not splits:
            continue
        rows = [(i, rows_of[i]) for i in splits for _ in range(n)]
        posteriors = task.train(setting, rows, budget, 7, removed)
        for place, i in enumerate(splits):
            members, test = posteriors[place * n : (place + 1) * n], task.splits[i].test
            scores[i] = scored(members, test, budget.n_draws, choices[i].tails)
            zeros += [removed_share(q) for q in members]
    seconds = round(time.perf_counter() - started, 2)
    return scores, {"removed": min(zeros), "members": n, "seconds": seconds}


def scored(
    members: Sequence[Posterior], test: Examples, n_draws: int, tails: Tails
) -> dict[str, float]:
    """RMSE and log-likelihood of the members' mixture, in the unit of the target."""
    prediction, std = predict_members(members, test.x, n_draws), float(test.target_std)
    rmse = float((prediction.mean[:, 0] - test.y).square().mean().sqrt()) * std
    return {"rmse": rmse, "log_lik": mean_log_lik(prediction, test.y, tails) - math.log(std)}


def pruning_table(
    task: Task, setting: Setting, budget: Budget
) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """Scores of one network per split with weights removed by inclusion in one shot, untuned.

    Experiment 5 of [Saha], table 2. Returns the numbers of every split, and of all together.
    """
    started = time.perf_counter()
    rows = [(i, torch.arange(len(data.train))) for i, data in enumerate(task.splits)]
    each: list[dict[str, Any]] = []
    for q, data in zip(task.train(setting, rows, budget, 11), task.splits, strict=True):
        numbers: dict[str, Any] = {}
        for removed in CUTS:
            cut = scored([without_least(q, removed)], data.test, budget.n_draws, Tails())
            numbers |= {f"cut-{100 * removed:g}/{name}": value for name, value in cut.items()}
        each.append({name: numbers[f"cut-0/{name}"] for name in ("rmse", "log_lik")} | numbers)
    return each, {"seconds": round(time.perf_counter() - started, 2)}


def run_engine(
    task: Task, settings: Sequence[Setting], budget: Budget, *, halve: bool
) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """Choose, then score whole and half-pruned networks: of every split, and of all together."""
    started = time.perf_counter()
    choices = choose(task, settings, budget)
    totals = {"choice_seconds": round(time.perf_counter() - started, 2)}
    each: list[dict[str, Any]] = [
        {"choice": {"setting": choice.setting, "noise_factor": round(choice.tails.factor, 3),
                    "degrees_of_freedom": choice.tails.df}}
        for choice in choices
    ]  # fmt: skip
    for prefix, removed in (("", 0.0), ("half/", 0.5))[: 2 if halve else 1]:
        scores, about = score(task, settings, choices, budget, removed)
        for numbers, split in zip(each, scores, strict=True):
            numbers |= {f"{prefix}{name}": value for name, value in split.items()}
        totals |= {f"{prefix or 'full/'}{name}": value for name, value in about.items()}
    return each, {**totals, "seconds": round(time.perf_counter() - started, 2)}


def single(budget: Budget) -> Budget:
    """The same work for one network per split."""
    return replace(budget, n_members=1)


def inner_rows(n: int, budget: Budget, seed: int) -> list[tuple[Tensor, Tensor]]:
    """Random (rest, held-out) rows of a training part, `inner` times."""
    generator = torch.Generator().manual_seed(seed)
    n_test = max(1, round(budget.held_out * n))
    orders = [torch.randperm(n, generator=generator) for _ in range(budget.inner)]
    return [(order[n_test:].sort().values, order[:n_test].sort().values) for order in orders]


def predict_members(posteriors: Sequence[Posterior], x: Tensor, n_draws: int) -> RealPrediction:
    """The mixture of the members' predictive distributions."""
    spread = n_draws if hasattr(posteriors[0], "std") else 0
    predictions = [predict(q, x, n_samples=spread, seed=i) for i, q in enumerate(posteriors)]
    real = [p for p in predictions if isinstance(p, RealPrediction)]
    noise = torch.cat([p.noise_std for p in real])
    return RealPrediction(torch.cat([p.sample_means for p in real]), noise, likelihoods.Gaussian())


def mean_log_lik(prediction: RealPrediction, y: Tensor, tails: Tails) -> float:
    """Nats per row of targets, (N,), with the noise corrected."""
    if tails.df is None:
        noise = tails.factor * prediction.noise_std
        return log_likelihood_mixture(prediction.sample_means, noise, y[:, None])
    noise = tails.factor * prediction.aleatoric_std.double()
    variance = (noise.square() + prediction.epistemic_std.double().square())[:, 0]
    scale = (variance * (tails.df - 2) / tails.df).sqrt()
    center = prediction.mean[:, 0].double()
    student = torch.distributions.StudentT(float(tails.df), center, scale)
    return float(student.log_prob(y.double()).mean())


def best_tails(pairs: Sequence[tuple[RealPrediction, Tensor]]) -> Tails:
    """The correction under which held-out rows, (prediction, targets), are most probable."""
    candidates = [Tails(factor, df) for df in (None, 3, 5, 8) for factor in _NOISE_FACTORS]
    totals = [sum(mean_log_lik(p, y, tails) * len(y) for p, y in pairs) for tails in candidates]
    return candidates[max(range(len(totals)), key=totals.__getitem__)]


def removed_share(posterior: Posterior) -> float:
    """Share of the prunable weights that are exactly 0."""
    sparse = posterior.mean[posterior.layout.sparse]
    return float((sparse == 0).double().mean())


def without_least(posterior: Posterior, removed: float) -> Posterior:
    """The posterior without the share `removed` of its weights of lowest inclusion; biases stay.

    The paper's droprate: it counts weights alone and lets a layer run empty.
    """
    logit = inclusion_score(posterior)[posterior.layout.sparse]
    keep = torch.ones_like(posterior.mean, dtype=torch.bool)
    keep[logit.argsort()[: round(removed * len(logit))]] = False
    return posterior.masked(keep)
