"""Self-distillation: train on labels softened by networks of the same kind.

Not part of any of the source papers; results that use it must say so.
"""

from collections.abc import Sequence

import torch
from torch.nn import functional as F

from bayesieve.checks import check_fraction, check_positive
from bayesieve.core.posterior import Posterior
from bayesieve.core.problem import Problem
from bayesieve.core.reading import with_data


def soften(
    problem: Problem,
    teachers: Sequence[Posterior],
    weight: float = 0.5,
    temperature: float = 1.0,
) -> Problem:
    """The same problem with targets (1 - weight) · label + weight · mean teacher probability.

    Args:
        problem: a Categorical problem with class-number targets.
        teachers: posteriors of the same network; each contributes its mean's probabilities.
        weight: share of the teachers.
        temperature: what their log-odds are divided by; above 1 sure teachers still say which
            classes are alike.
    """
    check_fraction("soften", weight=weight)
    check_positive("soften", temperature=temperature)
    if not problem.likelihood.soft_targets or problem.y.is_floating_point():
        raise ValueError("soften: self-distillation needs a Categorical likelihood and labels.")
    if not teachers:
        raise ValueError("soften: give at least one teacher posterior.")
    each = []
    for teacher in teachers:
        w, network = teacher.mean[None], teacher.network
        parts = [network.outputs(w, x, teacher.buffers)[0] for x in problem.x.split(4096)]
        each.append(F.softmax(torch.cat(parts) / temperature, -1))
    probs = torch.stack(each).mean(0)
    hard = F.one_hot(problem.y.long(), probs.shape[-1]).to(probs)
    return with_data(problem, (problem.x, (1 - weight) * hard + weight * probs))
