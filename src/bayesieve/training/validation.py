"""Held-out examples of a run: scores after its epochs, and when to stop."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bayesieve.checks import check_not_negative, check_positive
from bayesieve.core.batch import Batch, Data, ExamplesLike, Rows, pair_of
from bayesieve.core.inputs import Input, mapped
from bayesieve.core.network import Buffers, Network, plain_attention
from bayesieve.core.posterior import Posterior
from bayesieve.core.problem import Problem, check_examples, first_outputs


@dataclass(frozen=True)
class Validation:
    """Held-out examples to watch, and when to stop.

    The models of a population are watched in groups: each group has one score, the mean over its
    models' held-out rows, and one best epoch, to which all its models return. A model that holds
    out nothing (all its rows have weight 0) follows the others of its group.

    Args:
        data: examples the posterior mean is scored on after each epoch, as for `Problem`.
        patience: epochs without a better value of any group before stopping; the run then ends in
            the state of the best epochs. None never stops. With pruning, epochs count once it has
            ended.
        min_delta: how much lower the negative log-likelihood must be to count as better.
        every: epochs between scores; the last epoch is always scored.
        rows: the rows of `data` that each model is scored on; None scores all on all.
        groups: the group of each model, numbered from 0; None makes every model of a population
            with `rows` a group of its own, and one group of all models otherwise.

    Example:
        >>> import torch
        >>> Validation((torch.zeros(3, 2), torch.zeros(3)), patience=10).group_of(2)
        (0, 0)
    """

    data: ExamplesLike
    patience: int | None = None
    min_delta: float = 0.0
    every: int = 1
    rows: Rows | None = None
    groups: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        check_not_negative("Validation", min_delta=self.min_delta)
        check_positive("Validation", every=self.every)
        pair = pair_of("Validation", self.data)
        if isinstance(self.data, tuple | list):
            object.__setattr__(self, "data", Batch(*pair))
        if self.patience is not None:
            check_positive("Validation", patience=self.patience)
        if self.rows is not None:
            self.rows.check(len(self.data.y))
        if self.groups is not None and set(self.groups) != set(range(max(self.groups) + 1)):
            raise ValueError(
                f"Validation: groups must be numbered 0, 1, ... without gaps, got {self.groups}."
            )

    def check(self, problem: Problem, n_models: int) -> None:
        """Raise unless this fits a problem and a population of so many models."""
        check_others(problem, "Validation", self.data)
        counts = {
            "rows": self.rows and self.rows.n_models,
            "groups": self.groups and len(self.groups),
        }
        for name, count in counts.items():
            if count is not None and count != n_models:
                raise ValueError(f"Validation: {name} has {count} entries for {n_models} models.")
        if self.rows is None or self.rows.weight is None:
            return
        held_out = self.rows.weight.sum(1).tolist()
        groups = self.group_of(n_models)
        for group in set(groups):
            if not any(n for n, other in zip(held_out, groups, strict=True) if other == group):
                raise ValueError(f"Validation: the models of group {group} hold out no row.")

    def group_of(self, n_models: int) -> tuple[int, ...]:
        """The group of each model."""
        if self.groups is not None:
            return self.groups
        return (0,) * n_models if self.rows is None else tuple(range(n_models))

    def by_group(self, scores: list[float], without: Sequence[int] = ()) -> list[float]:
        """The mean score of each group of models, weighted by the rows each is scored on.

        The scores of the models `without` do not count; a group of no other has an infinite one.
        """
        groups = self.group_of(len(scores))
        weight = None if self.rows is None else self.rows.weight
        counts = [1.0] * len(scores) if weight is None else weight.sum(1).tolist()
        totals = [[0.0, 0.0] for _ in range(max(groups) + 1)]
        for i, (group, score, count) in enumerate(zip(groups, scores, counts, strict=True)):
            if i not in without:
                totals[group][0] += score * count
                totals[group][1] += count
        return [total / count if count else math.inf for total, count in totals]

    def scores(
        self, problem: Problem, members: Sequence[Posterior]
    ) -> tuple[list[float], list[float]]:
        """Negative log-likelihood per example, and error or RMSE, at each member's mean.

        A member that holds out no row scores 0. `assess` has all scores.
        """
        network, likelihood = problem.network, problem.likelihood
        w = torch.stack([member.mean for member in members])
        names, numbers = members[0].buffers, network.numbers(w)
        buffers = {n: torch.stack([member.buffers[n] for member in members]) for n in names}
        inputs, targets = pair_of("Validation", self.data)
        rows = Rows(torch.arange(len(targets))[None]) if self.rows is None else self.rows
        rows = rows.to(targets.device)
        weights = torch.ones(rows.index.shape) if rows.weight is None else rows.weight
        total = w.new_zeros(len(w), dtype=torch.float64)

        def for_each(values: Tensor) -> Tensor:
            return values.to(problem.device).expand(len(w), *values.shape[1:])

        wrong, count = torch.zeros_like(total), torch.zeros_like(total)
        for index, part in zip(rows.index.split(4096, 1), weights.split(4096, 1), strict=True):
            x = mapped(for_each, inputs[index])
            y, weight = for_each(targets[index]), for_each(part)
            if self.rows is None:  # one by one: equal members score the same, however many
                each = [network.outputs(q.mean[None], x[0], q.buffers)[0] for q in members]
            else:
                each = list(member_outputs(network, w, x, buffers))
            for i, output in enumerate(each):
                learned = {name: value[i] for name, value in numbers.items()}
                total[i] -= (likelihood.log_prob(output, y[i], learned) * weight[i]).sum()
                wrong[i] += (likelihood.mistakes(output, y[i], learned) * weight[i]).sum()
            count += weight.sum(1)
        mean = wrong / count.clamp(min=1e-12)
        error = mean if likelihood.task == "classification" else mean.sqrt()
        return (total / count.clamp(min=1e-12)).tolist(), error.tolist()


def member_outputs(network: Network, w: Tensor, x: Input, buffers: Buffers) -> Tensor:
    """Evaluate k weight vectors, (k, d), each on n inputs that belong to it, in eval mode.

    Args:
        network: whose module runs.
        w: weight vectors, shape (k, d).
        x: inputs, shape (k, n, ...).
        buffers: module buffers, each with a leading axis of k.

    Returns:
        Outputs, shape (k, n, ...), without gradients.
    """
    if len(w) > 1 and network.is_batchable(x[0][:2]):
        with network.borrowed() as module, plain_attention, torch.no_grad():
            return torch.vmap(network.call_of(module))(network.split(w)[0], dict(buffers), x)
    rows = ({name: value[i] for name, value in buffers.items()} for i in range(len(w)))
    return torch.cat([network.outputs(w[i : i + 1], x[i], b) for i, b in enumerate(rows)])


def check_others(problem: Problem, who: str, data: Data) -> None:
    """Raise unless other examples, held out for `who`, fit the network and the likelihood."""
    x, y = pair_of(who, data)
    check_examples(x, y, problem.network.dtype, who)
    output = first_outputs(problem.network, problem.initial, x[:2], who)
    try:
        problem.likelihood.check(output, y)
    except ValueError as error:
        raise ValueError(f"{who}: {error}") from error
