"""One method, trained within a budget and scored in every way that is asked for.

Every method may evaluate as many gradients as the others: an ensemble of M networks trains each of
them for 1/M of the epochs. Seeds train together as a population.
"""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Generator, Tensor, nn

from bayesieve.assess.evaluate import evaluate
from bayesieve.assess.metrics import auroc
from bayesieve.assess.predict import ClassPrediction, predict
from bayesieve.assess.robustness import Attacked, fgsm_curve
from bayesieve.checks import check_fraction, check_positive
from bayesieve.compare.dropout import dropout_draws, with_dropout
from bayesieve.core.batch import ExamplesLike
from bayesieve.core.posterior import Posterior, Samples, SparseModel
from bayesieve.core.problem import Problem
from bayesieve.core.state import named_tensors
from bayesieve.data.pixels import PixelScale
from bayesieve.engines import Engine
from bayesieve.sieve.prune import prune
from bayesieve.sieve.rules import keep_zeros
from bayesieve.sieve.scores import ScoreName
from bayesieve.training.fit import Fit, fit
from bayesieve.training.schedule import Schedule

Numbers = dict[str, float]  # what one seed scored, by the name of the metric


@dataclass(frozen=True)
class Budget:
    """What every method may spend, and what is asked of it.

    Args:
        epochs: passes over the data of one model.
        batch_size: examples per gradient.
        seeds: independent repetitions.
        zeros: fractions of zeros to prune to.
        finetune: passes of masked training after pruning.
        draws: weight vectors averaged in a prediction.
        attack: strength of the fast gradient sign attack in pixels from 0 to 1; None for none.
        n_attacked: test inputs attacked.
    """

    epochs: int = 20
    batch_size: int = 128
    seeds: int = 3
    zeros: tuple[float, ...] = (0.9, 0.95, 0.98, 0.99)
    finetune: int = 5
    draws: int = 32
    attack: float | None = 0.1
    n_attacked: int = 1000

    def __post_init__(self) -> None:
        check_positive(
            "Budget",
            epochs=self.epochs,
            batch_size=self.batch_size,
            seeds=self.seeds,
            draws=self.draws,
            n_attacked=self.n_attacked,
        )
        if self.zeros:
            check_fraction("Budget", open_ends=True, zeros=self.zeros)
            check_positive("Budget", finetune=self.finetune)


@dataclass(frozen=True)
class Method:
    """A way to learn.

    Args:
        name: what tables print.
        engine: what trains.
        schedule: course of learning rate and KL weight.
        score: which weights go first.
        kind: "posterior" predicts with draws of the engine's posterior, "point" with its mean,
            "ensemble" with several networks, "dropout" with masks.
        members: networks of an ensemble.
        dropout: probability of an input to be dropped.
        finetune: schedule while what is left of a pruned network trains.
        finetune_engine: the engine then, where it depends on the length of the run.
    """

    name: str
    engine: Engine[Any]
    schedule: Schedule
    score: ScoreName = "snr"
    kind: Literal["posterior", "point", "ensemble", "dropout"] = "posterior"
    members: int = 1
    dropout: float = 0.1
    finetune: Schedule = field(default_factory=lambda: Schedule(lr="cosine"))
    finetune_engine: Engine[Any] | None = None


@dataclass(frozen=True)
class Scoring:
    """What a trained method is scored on.

    Args:
        inside: the test split.
        outside: inputs of another kind, which should look uncertain; None for none.
        scale: how inputs come from pixels; None if they are not images.
    """

    inside: ExamplesLike
    outside: Tensor | None = None
    scale: PixelScale | None = None


def measure(
    method: Method,
    model: nn.Module,
    problem: Problem,
    tests: Scoring,
    budget: Budget,
    seed: int = 0,
) -> dict[str, Any]:
    """Train and score one method.

    Args:
        method: what to train.
        model: the network as it was given to the problem.
        problem: network, likelihood, data and roles; on the device to train on.
        tests: what to score on.
        budget: what may be spent.
        seed: of all repetitions.

    Returns:
        name, seconds, bytes (of the state of one repetition) and seeds, a list of numbers.
    """
    own = model
    if method.kind == "dropout":
        own = with_dropout(model, method.dropout)
        data = problem.x.to("cpu"), problem.y.to("cpu")  # where the module is
        problem = Problem(own, problem.likelihood, data).to(problem.device)
    members = method.members if method.kind == "ensemble" else 1
    epochs = max(1, math.ceil(budget.epochs / members))
    start = time.perf_counter()
    run = fit(
        problem,
        method.engine,
        epochs=epochs,
        batch_size=budget.batch_size,
        seed=seed,
        n_models=budget.seeds * members,
        schedule=method.schedule,
    )
    seconds = time.perf_counter() - start
    seeds = []
    for group in _groups(run, members):
        learned = _predictor(method, own, group, budget, seed)
        scores = _scores(learned, tests, budget, method, seed)
        for zeros in budget.zeros:
            sparse = [_sieved(method, problem, one, zeros, budget, members) for one in group]
            thin = _predictor(method, own, [one.posterior for one in sparse], budget, seed)
            scores[f"error at {100 * zeros:g} % zeros"] = _error(thin, tests, budget, method, seed)
        seeds.append(scores)
    return {
        "name": method.name,
        "engine": repr(method.engine),
        "kind": method.kind,
        "epochs": epochs,
        "seconds": seconds,
        "bytes": _state_bytes(run) / budget.seeds,
        "seeds": seeds,
    }


def _groups(run: Fit, members: int) -> Iterator[Sequence[Posterior]]:
    every = run.posteriors
    for first in range(0, len(every), members):
        yield every[first : first + members]


def _predictor(
    method: Method, model: nn.Module, group: Sequence[Posterior], budget: Budget, seed: int
) -> Posterior:
    """What predicts: the posterior itself, or its draws where they are made another way."""
    first = group[0]
    if method.kind == "dropout":
        generator = Generator(first.mean.device).manual_seed(seed)
        return dropout_draws(first, model, budget.draws, generator)
    if method.kind == "ensemble":
        own = {name: torch.stack([one.buffers[name] for one in group]) for name in first.buffers}
        draws = torch.stack([one.mean for one in group])
        return Samples(first.network, draws, None, dict(first.buffers), own)
    return first


def _n_samples(method: Method, learned: Posterior, budget: Budget) -> int:
    if method.kind == "point":
        return 0
    return len(learned.draws) if isinstance(learned, Samples) else budget.draws


def _scores(
    learned: Posterior, tests: Scoring, budget: Budget, method: Method, seed: int
) -> Numbers:
    n = _n_samples(method, learned, budget)
    evaluation = evaluate(learned, tests.inside, n_samples=n, seed=seed)
    found, inside = evaluation.to_dict(), evaluation.prediction
    if not isinstance(inside, ClassPrediction):
        return {"RMSE": found["rmse"], "NLL": -found["log_lik"]}
    scores = {"error": found["error"], "NLL": found["nll"], "ECE": found["ece"]}
    if tests.outside is not None:
        outside = predict(learned, tests.outside, n_samples=n, seed=seed)
        assert isinstance(outside, ClassPrediction)
        scores["out-of-distribution AUROC"] = auroc(inside.entropy, outside.entropy)
    if tests.scale is not None and budget.attack is not None:
        attacked = Attacked(learned, n_samples=n, seed=seed, scale=tests.scale)
        part = slice(0, budget.n_attacked)
        device = learned.network.device
        x, y = tests.inside.x[part].to(device), tests.inside.y[part].to(device)
        (point,) = fgsm_curve(attacked, x, y, [budget.attack])
        scores[f"error under FGSM {budget.attack:g}"] = 1 - point.accuracy
    return scores


def _error(learned: Posterior, tests: Scoring, budget: Budget, method: Method, seed: int) -> float:
    n = _n_samples(method, learned, budget)
    found = evaluate(learned, tests.inside, n_samples=n, seed=seed).to_dict()
    return float(found["error"] if "error" in found else found["rmse"])


def _sieved(
    method: Method, problem: Problem, one: Posterior, zeros: float, budget: Budget, members: int
) -> SparseModel:
    """Pruned in one shot, then trained on with its mask."""
    sparse = prune(one, keep_zeros(zeros, score=method.score))
    run = fit(
        problem,
        method.finetune_engine or method.engine,
        epochs=max(1, math.ceil(budget.finetune / members)),
        batch_size=budget.batch_size,
        schedule=method.finetune,
        start_from=sparse,
    )
    return SparseModel(run.posterior.masked(sparse.keep), sparse.keep)


def _state_bytes(run: Fit) -> int:
    return sum(value.numel() * value.element_size() for _, value in named_tensors(run.state))
