"""Importance of columns: the change of predictions when one is shuffled, and by its weights."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bayesieve.assess.predict import ClassPrediction, predict
from bayesieve.core.posterior import Posterior, SparseModel
from bayesieve.select import (
    best_source,
    feature_importance,
    normalised,
)

_SHUFFLED_ROWS = 20_000  # rows times columns that importance reads


def column_importance(posterior: Posterior, varies: Tensor) -> Tensor:
    """φ of the columns, (p,), from the best that the posterior says about its weights."""
    posterior = posterior.to("cpu")
    psi = feature_importance(posterior, source=best_source(posterior)).psi
    return normalised(psi, varies)


def shuffled_change(
    models: Sequence[SparseModel], x: Tensor, groups: Tensor
) -> NDArray[np.float64]:
    """Return how much predictions change when a column is shuffled, (p,), largest 1.

    It is the root mean square over models of `shuffled_changes` at the posterior mean. A column
    that never varies has 0.
    """
    change = shuffled_changes(models, x, groups).square().mean(0).sqrt()
    return np.asarray((change / change.max().clamp_min(1e-300)).numpy())


def shuffled_changes(
    models: Sequence[SparseModel], x: Tensor, groups: Tensor, n_samples: int = 0
) -> Tensor:
    """Root mean square change of predictions when a column is shuffled over rows, (S, p).

    Predictions are means, or class probabilities, under the posterior mean of each model, or
    under `n_samples` draws of each.

    Args:
        models: networks of one table.
        x: its standardised inputs, (n, q).
        groups: the column that each input belongs to, (q,), from 0; the inputs of a column are
            shuffled together.
        n_samples: draws of each model; 0 takes its mean.
    """
    n, p = len(x), int(groups.max()) + 1
    rows = min(n, max(_SHUFFLED_ROWS // max(p, 1), 50), 500)
    source = torch.Generator().manual_seed(0)
    x = x[torch.randperm(n, generator=source)[:rows]].double()
    order = torch.randperm(rows, generator=source)
    posteriors = [model.posterior.to("cpu", torch.float64) for model in models]

    def outputs(values: Tensor) -> Tensor:
        found = [predict(posterior, values, n_samples=n_samples) for posterior in posteriors]
        return torch.cat(
            [
                f.sample_log_probs.exp() if isinstance(f, ClassPrediction) else f.sample_means
                for f in found
            ]
        ).flatten(1)

    before = outputs(x)
    changes = torch.zeros(len(before), p, dtype=torch.float64)
    for j in range(p):
        shuffled, inputs = x.clone(), (groups == j).nonzero()[:, 0]
        shuffled[:, inputs] = x[order][:, inputs]
        changes[:, j] = (outputs(shuffled) - before).square().mean(1).sqrt()
    return changes
