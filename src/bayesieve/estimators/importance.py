"""Importance of columns: by the change of predictions, by weights, and by fits for selection."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bayesieve.assess.predict import ClassPrediction, predict
from bayesieve.core.batch import Rows
from bayesieve.core.likelihoods import Likelihood
from bayesieve.core.posterior import Posterior, SparseModel
from bayesieve.estimators.mixture import pooled_predictions
from bayesieve.estimators.population import AnyEngine, Table, Training, nothing_left, train_networks
from bayesieve.select import Source, best_source, feature_importance, normalised
from bayesieve.training.fit import Fit

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


@dataclass(frozen=True, eq=False)
class PopulationFits:
    """`TableFits` by one engine and network: all fits asked for at once train as one problem.

    Args:
        x: (N, D), standardised inputs.
        y: (N,) or (N, m), targets; int64 class numbers for a classification.
        model: network on D inputs; its weights serve the first network.
        likelihood: how its outputs become densities.
        engine: the algorithm.
        training: how long, and how many at once.
        source: where the probability of a weight comes from (see `feature_importance`).
        weight: (N,), what each row counts while training; None counts all once.
        groups: (D,), the column that each input belongs to, from 0: importance and what is kept
            are then of columns. None makes each its own.

    Example:
        >>> from bayesieve import MAP
        >>> from bayesieve.core.likelihoods import Gaussian
        >>> x = torch.randn(64, 2, generator=torch.Generator().manual_seed(0))
        >>> training = Training(epochs=40, batch_size=16)
        >>> net = nn.Sequential(nn.Linear(2, 1))
        >>> fits = PopulationFits(x, x[:, 0], net, Gaussian(), MAP(lr=0.1), training, "magnitude")
        >>> fits.importance([torch.arange(32), torch.arange(32, 64)]).round().tolist()
        [[1.0, 0.0], [1.0, 0.0]]
    """

    x: Tensor
    y: Tensor
    model: nn.Module
    likelihood: Likelihood
    engine: AnyEngine
    training: Training = field(default_factory=Training)
    source: Source | None = None
    weight: Tensor | None = None
    groups: Tensor | None = None

    def importance(self, rows: Sequence[Tensor]) -> Tensor:
        """Normalised importance φ from fits on each set of rows, averaged over members, (k, D)."""
        phis = [
            torch.stack([feature_importance(q, source=self.source).phi for q in members]).mean(0)
            for members in self.posteriors(rows)
        ]
        return by_column(torch.stack(phis).cpu(), self.groups)

    def errors(self, rows: Sequence[Tensor], held_out: Sequence[Tensor], keep: Tensor) -> Tensor:
        """Squared error (negative log-likelihood of classes) per held-out example, (k,).

        Each fit sees only the inputs its line of `keep`, (k, D), has True.
        """
        keep = keep if self.groups is None else keep[:, self.groups]
        errors = [
            self._error(members, self.x[test] * mask, self.y[test])
            for members, test, mask in zip(self.posteriors(rows, keep), held_out, keep, strict=True)
        ]
        return torch.stack(errors)

    def posteriors(
        self, rows: Sequence[Tensor], keep: Tensor | None = None
    ) -> list[list[Posterior]]:
        """Posteriors of `n_members` networks per set of rows that see the inputs `keep`, (k, D).

        Networks that diverged are left out; a set of rows on which all did raises.
        """
        n = self.training.n_members
        per_run = max(1, self.training.at_once // n)
        fitted: list[list[Posterior]] = []
        for start in range(0, len(rows), per_run):
            block = slice(start, start + per_run)
            run = self._train(rows[block], None if keep is None else keep[block])
            sound = set(run.sound)
            for first in range(0, run.n_models, n):
                numbers = [i for i in range(first, first + n) if i in sound]
                if not numbers:
                    raise nothing_left(run)
                fitted.append([run.engine.posterior(run.problem, run.state, i) for i in numbers])
        return fitted

    def _train(self, rows: Sequence[Tensor], keep: Tensor | None) -> Fit:
        table, n = Table(self.x, self.y, self.weight), self.training.n_members
        if keep is not None:
            # A column of zeros teaches nothing: the fit is that of a network without the input.
            x = torch.cat([self.x[r] * mask for r, mask in zip(rows, keep, strict=True)])
            weight = None if self.weight is None else torch.cat([self.weight[r] for r in rows])
            table = Table(x, torch.cat([self.y[r] for r in rows]), weight)
            rows = torch.arange(len(x)).split([len(r) for r in rows])
        members = Rows.of([r for r in rows for _ in range(n)])
        return train_networks(
            self.model, self.likelihood, table, members, self.engine, self.training
        )

    def _error(self, posteriors: Sequence[Posterior], x: Tensor, y: Tensor) -> Tensor:
        prediction = pooled_predictions([predict(q, x) for q in posteriors])
        if isinstance(prediction, ClassPrediction):
            probs = prediction.probs
            return -probs[torch.arange(len(y)), y.to(probs.device)].log().mean().cpu()
        return (prediction.mean.cpu() - y.reshape(len(y), -1)).square().mean()


def by_column(values: Tensor, groups: Tensor | None) -> Tensor:
    """Importances of columns, (..., p), from those of inputs, (..., D): that of its best input.

    Example:
        >>> by_column(torch.tensor([0.2, 0.1, 0.7]), torch.tensor([0, 1, 1]))
        tensor([0.2000, 0.7000])
    """
    if groups is None:
        return values
    columns = values.new_zeros(*values.shape[:-1], int(groups.max()) + 1)
    return columns.scatter_reduce(-1, groups.expand_as(values), values, "amax")
