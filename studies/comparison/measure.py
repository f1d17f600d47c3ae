"""One method, trained within a budget, pruned, and scored in every way that is asked for.

Every method may evaluate as many gradients as the others: an ensemble of M networks trains each of
them for 1/M of the epochs. Models train together as a population, but with convolutions on a CPU,
or many of them on a GPU, one after another: a convolution for many models at once is a grouped one,
which is slow.
"""

import gc
import math
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Generator, Tensor, nn

from bayesieve.assess.evaluate import evaluate
from bayesieve.assess.predict import ClassPrediction, draws_of, predict
from bayesieve.core.batch import ExamplesLike
from bayesieve.core.network import Network
from bayesieve.core.posterior import Posterior, Samples, SparseModel
from bayesieve.core.problem import Problem, starting_points
from bayesieve.core.state import named_tensors
from bayesieve.data.images import PixelScale
from bayesieve.errors import UnsupportedModelError
from bayesieve.runs.config import Floats, convert
from bayesieve.sieve.rules import fewest_kept, keep_zeros
from bayesieve.training.launch import fit
from bayesieve.uncertainty.calibration import auroc
from bayesieve.uncertainty.robustness import Attacked, fgsm_curve
from studies.comparison.budget import Compare
from studies.comparison.methods import DROPOUT, Method, dropout_draws, with_dropout

N_ATTACKED = 1000  # test inputs attacked, evenly spaced
_ATTACKED_AT_ONCE = 4096  # inputs times draws whose activations are held for a gradient
_WEIGHTS_AT_ONCE = 32_000_000  # of models that train together
_FEW_CONVOLUTIONS = 4  # layers that a GPU runs for many models at once
_SEED_STRIDE = 1_000_003  # between runs of one comparison, so that seeds 0, 1, 2 share none


def measure(
    method: Method,
    model: nn.Module,
    problem: Problem,
    test: ExamplesLike,
    asked: Compare,
    *,
    outside: Tensor | None = None,
    scale: PixelScale | None = None,
) -> dict[str, Any]:
    """Train and score one method.

    Args:
        method: what to train.
        model: the network as it was given to the problem.
        problem: network, likelihood, data and roles; on the device to train on.
        test: examples to score on.
        asked: options of the comparison: what may be spent, and what is asked.
        outside: inputs of another kind, which should look uncertain; None for none.
        scale: how inputs come from pixels; None if they are not images.

    Returns:
        Plain values. `seeds` holds the numbers of each repetition and `repetitions` its name,
        (seed, place); `zeros_reached` what fraction each was pruned to, which is more than asked
        where the engine itself had removed more. `seconds` is the training of all of them, `bytes`
        the state of one, `peak_bytes` the most that a device allocated at any time besides the data
        (None on a CPU).
    """
    plain = problem.network  # without dropout
    levels, seed = fractions_of_zeros(asked), asked.seed
    for zeros, reason in reachable(plain, levels)[1].items():
        raise UnsupportedModelError(
            f"{method.name}: its network cannot have {100 * zeros:g} % zeros: {reason} Ask for "
            "fewer zeros."
        )
    if method.kind == "dropout":
        model = with_dropout(model, DROPOUT)
        data = problem.x.to("cpu"), problem.y.to("cpu")  # where the module is
        problem = Problem(
            model,
            problem.likelihood,
            data,
            precision=problem.execution.formats.network,
            augment=problem.data.augment,
        ).to(problem.device)
    learned, costs = learn(method, problem, asked)
    pruned = sieved(method, problem, learned, asked, plain)
    seeds, reached = [], []
    for first in range(0, len(learned), method.members):
        group = slice(first, first + method.members)
        predictor = _predictor(method, model, learned[group], asked)
        n = draws_of(predictor, asked.samples)
        evaluation = evaluate(predictor, test, n_samples=n, seed=seed)
        numbers, inside = evaluation.to_dict(), evaluation.prediction
        if isinstance(inside, ClassPrediction):
            name, key = "error", "error"
            scores = {"error": numbers["error"], "NLL": numbers["nll"], "ECE": numbers["ece"]}
            if outside is not None:
                foreign = predict(predictor, outside, n_samples=n, seed=seed)
                assert isinstance(foreign, ClassPrediction)
                scores["out-of-distribution AUROC"] = auroc(inside.entropy, foreign.entropy)
            if scale is not None and asked.attack:
                error = _attacked_error(predictor, test, asked, scale, n)
                scores[f"error under FGSM {asked.attack:g}"] = error
        else:
            name, key = "RMSE", "rmse"
            scores = {"RMSE": numbers["rmse"], "NLL": -numbers["log_lik"]}
        for zeros, sparse in zip(levels, pruned, strict=True):
            thin = [one.posterior for one in sparse[group]]
            predictor = _predictor(method, model, thin, asked)
            n = draws_of(predictor, asked.samples)
            numbers = evaluate(predictor, test, n_samples=n, seed=seed).to_dict()
            scores[f"{name} at {100 * zeros:g} % zeros"] = float(numbers[key])
        seeds.append(scores)
        reached.append(
            [sum(one.zeros for one in sparse[group]) / method.members for sparse in pruned]
        )
    return {
        "name": method.name,
        "engine": repr(method.engine),
        "kind": method.kind,
        "score": method.score,
        "members": method.members,
        **costs,
        "repetitions": [[seed, place] for place in range(asked.seeds)],
        "zeros_reached": reached,
        "seeds": seeds,
    }


def _predictor(
    method: Method, model: nn.Module, group: Sequence[Posterior], asked: Compare
) -> Posterior:
    """The posterior that predicts: of the engine, of dropout masks, or of an ensemble."""
    first = group[0]
    if method.kind == "dropout":
        generator = Generator(first.mean.device).manual_seed(asked.seed)
        return dropout_draws(first, model, asked.samples, generator)
    if method.kind == "ensemble":
        buffers = {name: torch.stack([q.buffers[name] for q in group]) for name in first.buffers}
        draws = torch.stack([q.mean for q in group])
        return Samples(first.network, draws, None, dict(first.buffers), buffers)
    return first


def _attacked_error(
    learned: Posterior, test: ExamplesLike, asked: Compare, scale: PixelScale, n: int
) -> float:
    """Error under the fast gradient sign attack, of predictions with n draws."""
    at_once = max(1, _ATTACKED_AT_ONCE // max(n, 1))
    attacked = Attacked(learned, n_samples=n, seed=asked.seed, scale=scale, batch_size=at_once)
    device, n_test = learned.network.device, len(test.x)
    # Evenly spaced: some sets stand in the order of their classes.
    some = torch.linspace(0, n_test - 1, min(N_ATTACKED, n_test)).round().long()
    x, y = test.x[some].to(device), test.y[some].to(device)
    (point,) = fgsm_curve(attacked, x, y, [asked.attack])
    return 1 - point["accuracy"]


def learn(
    method: Method, problem: Problem, asked: Compare
) -> tuple[list[Posterior], dict[str, Any]]:
    """Train all models of a method; a run that ends in weights that are not finite raises.

    Args:
        method: what to train; its members share the passes.
        problem: on the device to train on.
        asked: options of the comparison: passes, repetitions, seed.

    Returns:
        The posteriors of all members of all repetitions, repetition by repetition, and what they
        cost: `epochs` that each was given, `seconds` and `peak_bytes` of all, `bytes` that must
        survive a step of one repetition.
    """
    epochs = max(1, math.ceil(asked.epochs / method.members))
    n_models, at_once = asked.seeds * method.members, models_at_once(problem)
    before, on_cuda = 0, problem.device.type == "cuda"
    if on_cuda:  # its peak is counted anew from here
        gc.collect()  # graphs of earlier methods hold memory until their cycles are found
        torch.cuda.reset_peak_memory_stats(problem.device)
        before = torch.cuda.memory_allocated(problem.device)
    start = time.perf_counter()
    starts = None
    if at_once < n_models:  # separate runs would all begin at the module's weights
        generator = Generator(problem.device).manual_seed(asked.seed)
        starts = starting_points(problem, n_models, generator, "module")
    posteriors, state_bytes = [], 0
    for first in range(0, n_models, at_once):
        begun = problem
        if starts is not None:
            begun = problem.to(problem.device)
            begun.initial = starts[first]
        run = fit(
            begun,
            [method.engine] * min(at_once, n_models - first),
            epochs=epochs,
            batch_size=asked.batch_size,
            seed=asked.seed + first * _SEED_STRIDE,
            schedule=replace(method.schedule, compile=asked.compile),
        )
        posteriors += run.complete().posteriors
        state_bytes += sum(value.nbytes for _, value in named_tensors(run.state))
    seconds = time.perf_counter() - start
    peak = torch.cuda.max_memory_allocated(problem.device) - before if on_cuda else None
    costs = {
        "epochs": epochs,
        "seconds": seconds,
        "bytes": state_bytes / asked.seeds,
        "peak_bytes": peak,
    }
    return posteriors, costs


def models_at_once(problem: Problem) -> int:
    """The number of models of a network that train together: see the file's first lines."""
    modules = problem.network.skeleton.modules()
    n_convolutions = sum(isinstance(m, nn.Conv1d | nn.Conv2d) for m in modules)
    if n_convolutions > (_FEW_CONVOLUTIONS if problem.device.type == "cuda" else 0):
        return 1
    return max(1, _WEIGHTS_AT_ONCE // problem.layout.size)


def sieved(
    method: Method,
    problem: Problem,
    learned: Sequence[Posterior],
    asked: Compare,
    units: Network,
) -> list[list[SparseModel]]:
    """Every model pruned in one shot to each fraction of zeros, then trained on with its mask.

    Args:
        method: what they were trained with; its members share the passes.
        problem: what they were trained on.
        learned: posteriors of all members of all repetitions.
        asked: options of the comparison: fractions of zeros and passes.
        units: the network without dropout, whose units are removed; it has the same weights.

    Returns:
        One list per fraction, of as many models as were learned.
    """
    masked = []
    for zeros in fractions_of_zeros(asked):
        rule = keep_zeros(zeros, score=method.score)
        for one in learned:
            keep = rule(replace(cast(Any, one), network=units))  # whose layers a rule knows
            masked.append(SparseModel(one.masked(keep), keep))
    done: list[SparseModel] = []
    at_once = models_at_once(problem)
    for first in range(0, len(masked), at_once):
        group = masked[first : first + at_once]
        run = fit(
            problem,
            [method.finetune_engine or method.engine] * len(group),
            epochs=max(1, math.ceil(asked.finetune / method.members)),
            batch_size=asked.batch_size,
            schedule=replace(method.finetune, compile=asked.compile),
            start_from=group,
        )
        pairs = zip(run.complete().posteriors, group, strict=True)
        done += [SparseModel(q.masked(sparse.keep), sparse.keep) for q, sparse in pairs]
    return [done[first : first + len(learned)] for first in range(0, len(done), len(learned))]


def fractions_of_zeros(asked: Compare) -> tuple[float, ...]:
    """The fractions of zeros that a comparison prunes to."""
    return convert(asked.zeros, Floats, "--zeros") if asked.zeros else ()


def reachable(
    network: Network, zeros: Sequence[float]
) -> tuple[tuple[float, ...], dict[float, str]]:
    """The fractions of zeros a network can be pruned to, and why it cannot reach the others.

    Args:
        network: what is to be pruned, with any weights.
        zeros: fractions asked for.

    Returns:
        Those it can reach in the order given, and the reason of each other one.

    Example:
        >>> from bayesieve.sieve.examples import small_posterior
        >>> reachable(small_posterior().network, (0.5, 0.9))
        ((0.5,), {0.9: '2 of 16 parameters may stay, but 4 always do: at most 75 % can be 0.'})
    """
    size, fewest = network.layout.size, fewest_kept(network)
    left = {fraction: round((1 - fraction) * size) for fraction in zeros}
    most = math.floor(1e4 * (1 - fewest / size)) / 100  # not rounded up to what cannot be reached
    reasons = {
        fraction: f"{n_left} of {size} parameters may stay, but {fewest} always do: "
        f"at most {most:g} % can be 0."
        for fraction, n_left in left.items()
        if n_left < fewest
    }
    return tuple(fraction for fraction in zeros if fraction not in reasons), reasons
