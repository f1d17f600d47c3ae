"""Self-distillation: train on labels softened by networks of the same kind.

Not part of any of the source papers; results that use it must say so.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from bayesieve.checks import check_fraction
from bayesieve.core.posterior import Posterior
from bayesieve.core.problem import Problem


def soften(problem: Problem, teachers: Sequence[Posterior], weight: float = 0.5) -> Problem:
    """The same problem with targets (1 - weight) · label + weight · mean teacher probability.

    Args:
        problem: a Categorical problem with class-number targets.
        teachers: posteriors of the same network; each contributes its mean's probabilities.
        weight: share of the teachers.
    """
    _check(problem, weight)
    if not teachers:
        raise ValueError("soften: give at least one teacher posterior.")
    return _with_soft_labels(problem, _mean_probs(problem.x, teachers), weight)


def _check(problem: Problem, weight: float) -> None:
    check_fraction("soften", weight=weight)
    if not problem.likelihood.soft_targets or problem.y.is_floating_point():
        raise ValueError("soften: self-distillation needs a Categorical likelihood and labels.")


def _with_soft_labels(problem: Problem, probs: Tensor, weight: float) -> Problem:
    hard = F.one_hot(problem.y.long(), probs.shape[-1]).to(probs)
    return problem.with_data((problem.x, (1 - weight) * hard + weight * probs))


def _mean_probs(x: Tensor, teachers: Sequence[Posterior]) -> Tensor:
    """Class probabilities averaged over the teachers' means, (N, C)."""
    total = []
    for teacher in teachers:
        w, network = teacher.mean[None], teacher.network
        outputs = [network.outputs(w, batch, teacher.buffers)[0] for batch in x.split(4096)]
        total.append(F.softmax(torch.cat(outputs), -1))
    return torch.stack(total).mean(0)
