"""Many networks on parts of one table, trained as populations: what selection is measured with."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from bayesieve.assess.predict import ClassPrediction, predict
from bayesieve.checks import check_positive
from bayesieve.core.likelihoods import Likelihood
from bayesieve.core.posterior import Posterior
from bayesieve.core.problem import Problem
from bayesieve.core.rows import Rows
from bayesieve.engines import Engine
from bayesieve.select.importance import feature_importance
from bayesieve.select.weights import Source
from bayesieve.training.fit import fit
from bayesieve.training.schedule import Schedule


@dataclass(frozen=True)
class Training:
    """How every network of a selection is trained.

    Args:
        epochs: passes over its rows.
        batch_size: examples per step.
        schedule: of learning rate and prior weight.
        n_seeds: networks per set of rows whose importances, or predictions, are averaged.
        seed: of the first one.
        at_once: networks trained as one population at most; memory grows with it.
        device: where to train; None stays where the model is.
    """

    epochs: int = 100
    batch_size: int = 100
    schedule: Schedule = field(default_factory=lambda: Schedule(lr="cosine"))
    n_seeds: int = 1
    seed: int = 0
    at_once: int = 256
    device: str | None = None

    def __post_init__(self) -> None:
        check_positive(
            "Training",
            epochs=self.epochs,
            batch_size=self.batch_size,
            n_seeds=self.n_seeds,
            at_once=self.at_once,
        )


def evidence_schedule(task: str, epochs: float) -> Schedule:
    """Learning rate and prior weight under which an additive network's probabilities are right.

    From weights 0 and under all of the prior, a small table of classes never leaves the spike, and
    evidence taken there calls noise a discovery. For classes the prior therefore rises over the
    first fifth of the run; a target of numbers needs no such help, and would overfit.

    Example:
        >>> evidence_schedule("classification", 100).kl_warmup_epochs
        20.0
    """
    rise = 0.2 * epochs if task == "classification" else 0.0
    return Schedule(lr="cosine", kl_warmup_epochs=rise)


@dataclass(frozen=True, eq=False)
class PopulationFits:
    """`TableFits` by one engine and network: all fits asked for at once train as one problem.

    Args:
        x: (N, D), standardised inputs.
        y: (N,) or (N, m), targets; int64 class numbers for a classification.
        model: network on D inputs; its weights serve the first seed.
        likelihood: how its outputs become densities.
        engine: the algorithm.
        training: how long, and how many at once.
        source: what stands for the probability of a weight (see `feature_importance`).

    Example:
        >>> from bayesieve import MAP, Gaussian
        >>> x = torch.randn(64, 2, generator=torch.Generator().manual_seed(0))
        >>> own = Training(epochs=40, batch_size=16)
        >>> engine = MAP(lr=0.1)
        >>> net = nn.Sequential(nn.Linear(2, 1))
        >>> fits = PopulationFits(x, x[:, 0], net, Gaussian(), engine, own, "magnitude")
        >>> fits.importance([torch.arange(32), torch.arange(32, 64)]).round().tolist()
        [[1.0, 0.0], [1.0, 0.0]]
    """

    x: Tensor
    y: Tensor
    model: nn.Module
    likelihood: Likelihood
    engine: Engine[Any]
    training: Training = field(default_factory=Training)
    source: Source | None = None

    def importance(self, rows: Sequence[Tensor]) -> Tensor:
        """Normalised importance φ, averaged over seeds, from a fit on each set of rows, (k, D)."""
        found = [
            torch.stack([feature_importance(q, source=self.source).phi for q in own]).mean(0)
            for own in self.posteriors(rows)
        ]
        return torch.stack(found).cpu()

    def errors(self, rows: Sequence[Tensor], held_out: Sequence[Tensor], keep: Tensor) -> Tensor:
        """Squared error (negative log-likelihood of classes) per held-out example, (k,).

        Each fit sees only the inputs its line of `keep`, (k, D), has True.
        """
        found = self.posteriors(rows, keep)
        return torch.stack([
            self._error(own, self.x[test] * mask, self.y[test])
            for own, test, mask in zip(found, held_out, keep, strict=True)
        ])  # fmt: skip

    def posteriors(
        self, rows: Sequence[Tensor], keep: Tensor | None = None
    ) -> list[list[Posterior]]:
        """What each set of rows taught `n_seeds` networks that see the inputs `keep`, (k, D)."""
        n, per_run = self.training.n_seeds, max(1, self.training.at_once // self.training.n_seeds)
        found: list[list[Posterior]] = []
        for start in range(0, len(rows), per_run):
            part = slice(start, start + per_run)
            flat = self._train(rows[part], None if keep is None else keep[part])
            found += [flat[i : i + n] for i in range(0, len(flat), n)]
        return found

    def _train(self, rows: Sequence[Tensor], keep: Tensor | None) -> list[Posterior]:
        n, own = self.training.n_seeds, self.training
        if keep is None:
            x, y, parts = self.x, self.y, list(rows)
        else:
            # A column of zeros teaches nothing: the fit is that of a network without the input.
            x = torch.cat([self.x[r] * mask for r, mask in zip(rows, keep, strict=True)])
            y = torch.cat([self.y[r] for r in rows])
            ends = torch.tensor([len(r) for r in rows]).cumsum(0).tolist()
            starts = [0, *ends[:-1]]
            parts = [torch.arange(a, b) for a, b in zip(starts, ends, strict=True)]
        members = Rows.of([part for part in parts for _ in range(n)])
        problem = Problem(self.model, self.likelihood, (x, y), rows=members)
        if own.device is not None:
            problem = problem.to(own.device)
        run = fit(
            problem,
            self.engine,
            epochs=own.epochs,
            batch_size=min(own.batch_size, members.n),
            seed=own.seed,
            schedule=own.schedule,
        )
        return run.posteriors

    def _error(self, posteriors: Sequence[Posterior], x: Tensor, y: Tensor) -> Tensor:
        found = [predict(q, x) for q in posteriors]
        if isinstance(found[0], ClassPrediction):
            probs = torch.stack([p.probs for p in found if isinstance(p, ClassPrediction)]).mean(0)
            return -probs[torch.arange(len(y)), y.to(probs.device)].log().mean().cpu()
        means = [p.mean for p in found if not isinstance(p, ClassPrediction)]
        mean = torch.stack(means).mean(0).cpu()
        return (mean - y.reshape(len(y), -1)).square().mean()
