"""Self-distillation: train on labels softened by an ensemble of the same network.

Not part of any of the source papers; results that use it must say so.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from bayesieve.checks import check_fraction
from bayesieve.core.likelihoods import Categorical
from bayesieve.core.posterior import Posterior
from bayesieve.core.problem import Problem


def soften(problem: Problem, teachers: Sequence[Posterior], weight: float = 0.5) -> Problem:
    """The same problem with targets (1 - weight) · label + weight · mean teacher probability.

    Args:
        problem: a Categorical problem with class-number targets.
        teachers: posteriors of the same network; each contributes its mean's probabilities.
        weight: share of the teachers.
    """
    check_fraction("soften", weight=weight)
    if not isinstance(problem.likelihood, Categorical) or problem.y.is_floating_point():
        raise ValueError("soften: self-distillation needs a Categorical likelihood and labels.")
    if not teachers:
        raise ValueError("soften: give at least one teacher posterior.")
    probs = torch.stack([_probs(problem, teacher) for teacher in teachers]).mean(0)
    hard = F.one_hot(problem.y, probs.shape[-1]).to(probs)
    return problem.with_data((problem.x, (1 - weight) * hard + weight * probs))


def _probs(problem: Problem, teacher: Posterior) -> Tensor:
    w, rows = teacher.mean[None], problem.x.split(4096)
    outputs = [problem.network.outputs(w, x.to(problem.device), teacher.buffers)[0] for x in rows]
    return F.softmax(torch.cat(outputs), -1)
