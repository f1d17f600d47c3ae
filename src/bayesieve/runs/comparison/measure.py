"""One method, trained within a budget and scored in every way that is asked for.

Every method may evaluate as many gradients as the others: an ensemble of M networks trains each of
them for 1/M of the epochs.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Generator, nn

from bayesieve.assess.evaluate import evaluate
from bayesieve.assess.metrics import auroc
from bayesieve.assess.predict import ClassPrediction, predict
from bayesieve.assess.robustness import Attacked, fgsm_curve
from bayesieve.core.network import Network
from bayesieve.core.posterior import Posterior, Samples
from bayesieve.core.problem import Problem
from bayesieve.errors import UnsupportedModelError
from bayesieve.runs.comparison.budget import Budget, Method, Scoring
from bayesieve.runs.comparison.dropout import dropout_draws, with_dropout
from bayesieve.runs.comparison.learn import learn
from bayesieve.runs.comparison.sparse import reachable, sieved
from bayesieve.training.compiling import CompileMode

Numbers = dict[str, float]  # what one seed scored, by the name of the metric
_ATTACKED_AT_ONCE = 4096  # inputs times draws whose activations are held for a gradient


def measure(
    method: Method,
    model: nn.Module,
    problem: Problem,
    tests: Scoring,
    budget: Budget,
    seed: int = 0,
    compile: CompileMode = "auto",
) -> dict[str, Any]:
    """Train and score one method.

    Args:
        method: what to train.
        model: the network as it was given to the problem.
        problem: network, likelihood, data and roles; on the device to train on.
        tests: what to score on.
        budget: what may be spent.
        seed: of all repetitions.
        compile: whether to compile the elementwise part of a step.

    Returns:
        Plain values. `seeds` holds the numbers of each repetition and `repetitions` its name,
        (seed, place); `zeros_reached` what fraction each was pruned to, which is more than asked
        where the engine itself had removed more. `seconds` is the training of all of them, `bytes`
        the state of one, `peak_bytes` the most that a device allocated at any time besides the data
        (None on a CPU).
    """
    own, plain = model, problem.network  # whose units are linked, with dropout or without
    _check_reachable(method, plain, budget)
    if method.kind == "dropout":
        own = with_dropout(model, method.dropout)
        data = problem.x.to("cpu"), problem.y.to("cpu")  # where the module is
        problem = Problem(
            own, problem.likelihood, data, precision=problem.precision, augment=problem.augment
        ).to(problem.device)
    members = method.members if method.kind == "ensemble" else 1
    whole = learn(method, problem, budget, members, seed, compile)
    learned = whole.posteriors
    pruned = sieved(method, problem, learned, budget, members, plain, compile)
    seeds, reached = [], []
    for first in range(0, len(learned), members):
        group = slice(first, first + members)
        scores = _scores(
            _predictor(method, own, learned[group], budget, seed), tests, budget, method, seed
        )
        for zeros, sparse in zip(budget.zeros, pruned, strict=True):
            thin = [one.posterior for one in sparse[group]]
            predictor = _predictor(method, own, thin, budget, seed)
            scores |= _pruned_score(predictor, zeros, tests, budget, method, seed)
        seeds.append(scores)
        reached.append([sum(one.zeros for one in sparse[group]) / members for sparse in pruned])
    return {
        "name": method.name,
        "engine": repr(method.engine),
        "kind": method.kind,
        "score": method.score,
        "members": members,
        "epochs": whole.epochs,
        "seconds": whole.seconds,
        "bytes": whole.state_bytes / budget.seeds,
        "peak_bytes": whole.peak_bytes,
        "repetitions": [[seed, place] for place in range(budget.seeds)],
        "zeros_reached": reached,
        "seeds": seeds,
    }


def _check_reachable(method: Method, network: Network, budget: Budget) -> None:
    """Raise before training where pruning would fail."""
    for zeros, reason in reachable(network, budget.zeros)[1].items():
        raise UnsupportedModelError(
            f"{method.name}: its network cannot have {100 * zeros:g} % zeros: {reason} Ask for "
            "fewer zeros."
        )


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
        at_once = max(1, _ATTACKED_AT_ONCE // max(n, 1))
        attacked = Attacked(learned, n_samples=n, seed=seed, scale=tests.scale, batch_size=at_once)
        device, n_test = learned.network.device, len(tests.inside.x)
        # Evenly spaced: some sets stand in the order of their classes.
        part = torch.linspace(0, n_test - 1, min(budget.n_attacked, n_test)).round().long()
        x, y = tests.inside.x[part].to(device), tests.inside.y[part].to(device)
        (point,) = fgsm_curve(attacked, x, y, [budget.attack])
        scores[f"error under FGSM {budget.attack:g}"] = 1 - point.accuracy
    return scores


def _pruned_score(
    learned: Posterior, zeros: float, tests: Scoring, budget: Budget, method: Method, seed: int
) -> Numbers:
    n = _n_samples(method, learned, budget)
    found = evaluate(learned, tests.inside, n_samples=n, seed=seed).to_dict()
    name, value = ("error", found["error"]) if "error" in found else ("RMSE", found["rmse"])
    return {f"{name} at {100 * zeros:g} % zeros": float(value)}
