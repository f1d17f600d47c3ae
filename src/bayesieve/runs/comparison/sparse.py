"""The pruned versions of what a method has learned, trained on with their masks."""

import math
from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from bayesieve.core.network import Network
from bayesieve.core.posterior import Factorised, Posterior, Samples, SparseModel
from bayesieve.core.problem import Problem
from bayesieve.runs.comparison.budget import Budget, Method
from bayesieve.runs.comparison.learn import models_at_once
from bayesieve.sieve.prune import prune
from bayesieve.sieve.rules import Rule, fewest_kept, keep_zeros
from bayesieve.training.compiling import CompileMode
from bayesieve.training.fit import fit


def sieved(
    method: Method,
    problem: Problem,
    learned: Sequence[Posterior],
    budget: Budget,
    members: int,
    units: Network,
    compile: CompileMode,
) -> list[list[SparseModel]]:
    """Every model pruned in one shot to each fraction of zeros, then trained on with its mask.

    Args:
        method: what they were trained with.
        problem: what they were trained on.
        learned: posteriors of all members of all repetitions.
        budget: fractions of zeros and passes.
        members: networks that share the passes.
        units: the network without dropout, whose units are removed; it has the same weights.
        compile: whether to compile the elementwise part of a step.

    Returns:
        One list per fraction, of as many models as were learned.
    """
    rules: list[Rule] = [keep_zeros(zeros, score=method.score) for zeros in budget.zeros]
    if method.kind == "dropout":
        rules = [_on(units, rule) for rule in rules]
    masked = [prune(one, rule) for rule in rules for one in learned]
    done: list[SparseModel] = []
    at_once = models_at_once(problem)
    for first in range(0, len(masked), at_once):
        part = masked[first : first + at_once]
        run = fit(
            problem,
            [method.finetune_engine or method.engine] * len(part),
            epochs=max(1, math.ceil(budget.finetune / members)),
            batch_size=budget.batch_size,
            schedule=replace(method.finetune, compile=compile),
            start_from=part,
        )
        pairs = zip(run.posteriors, part, strict=True)
        done += [SparseModel(one.masked(own.keep), own.keep) for one, own in pairs]
    return [done[first : first + len(learned)] for first in range(0, len(done), len(learned))]


def _on(units: Network, rule: Rule) -> Rule:
    """The rule, told which units there are: a layer with dropout is foreign to it."""

    def on_units(posterior: Posterior, within: Tensor | None) -> Tensor:
        assert isinstance(posterior, Factorised | Samples)
        return rule(replace(posterior, network=units), within)

    return on_units


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
        >>> from bayesieve.sieve.scores import small_posterior
        >>> reachable(small_posterior().network, (0.5, 0.9))
        ((0.5,), {0.9: '2 of 16 parameters may stay, but 4 always do: at most 75 % can be 0.'})
    """
    size, fewest = network.layout.size, fewest_kept(network)
    left = {fraction: round((1 - fraction) * size) for fraction in zeros}
    most = math.floor(1e4 * (1 - fewest / size)) / 100  # not rounded up to what cannot be reached
    reasons = {
        fraction: f"{own} of {size} parameters may stay, but {fewest} always do: "
        f"at most {most:g} % can be 0."
        for fraction, own in left.items()
        if own < fewest
    }
    return tuple(own for own in zeros if own not in reasons), reasons
