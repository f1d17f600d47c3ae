"""Sieve a trained network without training: as far as held-out examples allow, and no further.

Weights are ranked by |mean| / std of a Laplace posterior (`laplace_units`: those that stay follow
what goes; `laplace` for networks it does not know). The evidence of single weights also says how
many should go, but each with all others in place. Many that lean on each other are then missed
together, and no threshold on it is safe. So the number is found by walking: at every step some
more weights go and held-out examples say what that costs. The walk ends beyond a stated loss.
Measured against the rules of evidence: docs/theory/bmr.md.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from bayesieve.checks import check_choice, check_not_negative
from bayesieve.core.batch import Data, pair_of
from bayesieve.core.inputs import Input
from bayesieve.core.posterior import Factorised, Posterior, SparseModel
from bayesieve.core.problem import Problem
from bayesieve.engines.laplace import UnitLaplace, laplace, laplace_units
from bayesieve.errors import UnsupportedModelError
from bayesieve.sieve.evidence import prune_units_by_evidence
from bayesieve.sieve.prune import prune, reestimate_batchnorm
from bayesieve.sieve.weight_rules import keep_zeros

Curvature = Literal["unit", "diagonal"]
MAX_LOSS = 0.01  # nats per held-out example
_STEP = 0.85  # of what is kept, from one point of the curve to the next
_TRIES = 2  # points beyond the loss before the walk ends: the curve is noisy
_FINER = 2  # halvings of the last step
_BATCH = 1024


class Cost(NamedTuple):
    """One point of the curve: what held-out examples lose with so many zeros."""

    zeros: float  # of all parameters
    lost: float  # nats per example, against the dense network
    mistakes: float  # share of wrong labels, or mean squared error


@dataclass(frozen=True, eq=False)
class Sieved:
    """A sieved network and what it cost.

    Args:
        model: what is left.
        posterior: around all weights.
        curve: every point that was tried, by zeros; the first is the dense network.
        curvature: by unit, or of each weight alone.
        max_loss: that was allowed, nats per held-out example.
    """

    model: SparseModel
    posterior: Factorised
    curve: tuple[Cost, ...]
    curvature: Curvature
    max_loss: float

    @property
    def cost(self) -> Cost:
        """The point of the curve at which the model stands."""
        return min(self.curve, key=lambda point: abs(point.zeros - self.model.zeros))

    def __str__(self) -> str:
        dense, here = self.curve[0], self.cost
        return (
            f"{here.zeros:.1%} zeros cost {here.lost:+.4f} nats per held-out example (allowed "
            f"{self.max_loss:g}); mistakes {dense.mistakes:.4g} before, {here.mistakes:.4g} now"
        )


def sieve_trained(
    problem: Problem,
    held_out: Data,
    posterior: Posterior | None = None,
    *,
    max_loss: float = MAX_LOSS,
    curvature: Curvature | None = None,
    labels: Literal["exact", "sampled"] | None = None,
    reestimate: bool = False,
    seed: int = 0,
) -> Sieved:
    """Remove the weights that held-out examples do not miss; nothing is trained.

    Args:
        problem: network, likelihood and the data it was trained on.
        held_out: an (x, y) pair, or anything with `.x` and `.y`: examples that say what a cut
            costs. Not the test data, which would no longer be such.
        posterior: where to start: its mean; None takes the weights of the problem's model.
        max_loss: log-likelihood that may be lost, in nats per held-out example.
        curvature: "unit" for Linear and Conv2d layers, "diagonal" for any; None takes the first
            where the network has such layers alone. `Sieved.curvature` says which it was.
        labels: of the curvature, as in `laplace`.
        reestimate: whether BatchNorm statistics are renewed after every cut, from `problem.x`.
        seed: of sampled labels.

    Example:
        >>> from bayesieve.core.likelihoods import Gaussian
        >>> model = torch.nn.Linear(8, 1)
        >>> with torch.no_grad():
        ...     _ = model.weight.copy_(torch.tensor([[2.0, -1.0, 0, 0, 0, 0, 0, 0]]))
        >>> x = torch.randn(100, 8, generator=torch.Generator().manual_seed(0))
        >>> problem = Problem(model, Gaussian(), (x[:80], model(x[:80]).detach()))
        >>> found = sieve_trained(problem, (x[80:], model(x[80:]).detach()))
        >>> found.model.keep.tolist()
        [True, True, False, False, False, False, False, False, True]
    """
    check_not_negative("sieve_trained", max_loss=max_loss)
    inputs, targets = pair_of("sieve_trained", held_out)
    x, y = inputs.to(problem.device), targets.to(problem.device)
    way = ranked(problem, posterior, curvature, labels, seed)
    whole = way.posterior
    dense = SparseModel(whole, torch.ones_like(whole.mean, dtype=torch.bool))
    first_nll, first_mistakes = _scores(dense, x, y)
    curve = {0.0: Cost(0.0, 0.0, first_mistakes)}

    def tried(start: SparseModel, step: float) -> tuple[SparseModel, Cost] | None:
        """The network with this part of `start` kept, and its cost; None if nothing more may go."""
        kept = int(start.keep.sum())
        kept = min(round(kept * step), kept - 1)
        try:
            found = way.cut(start, 1 - kept / whole.layout.size)
        except ValueError:  # of keep_zeros: biases of live units and one path always stay
            return None
        if reestimate:
            found = reestimate_batchnorm(found, problem.x)
        nll, mistakes = _scores(found, x, y)
        curve[found.zeros] = Cost(found.zeros, nll - first_nll, mistakes)
        return found, curve[found.zeros]

    best, model, beyond = dense, dense, 0
    while beyond < _TRIES and (found := tried(model, _STEP)) is not None:
        model, cost = found
        good = cost.lost <= max_loss
        best, beyond = (model, 0) if good else (best, beyond + 1)
    for halvings in range(1, _FINER + 1):
        found = tried(best, _STEP ** (0.5**halvings))
        if found is not None and found[1].lost <= max_loss:
            best = found[0]
    points = tuple(curve[zeros] for zeros in sorted(curve))
    return Sieved(best, whole, points, way.curvature, max_loss)


@dataclass(frozen=True, eq=False)
class Ranked:
    """A Laplace posterior, and how a network is cut by it.

    Args:
        posterior: around all weights.
        units: curvature by unit, with which those that stay follow what goes; None if diagonal.
    """

    posterior: Factorised
    units: UnitLaplace | None

    @property
    def curvature(self) -> Curvature:
        """By unit, or of each weight alone."""
        return "diagonal" if self.units is None else "unit"

    def kept(self, keep: Tensor) -> SparseModel:
        """The network with this mask, (d,) bool; the rest of each unit follows."""
        if self.units is not None:
            return self.units.reduced(keep)
        return SparseModel(self.posterior.masked(keep), keep)

    def cut(self, start: SparseModel, zeros: float) -> SparseModel:
        """The model with a larger fraction of zeros, those of `start` among them."""
        return self.kept(keep_zeros(zeros, "snr")(start.posterior, start.keep))

    def pruned(self, zeros: float) -> SparseModel:
        """The network with a fraction of zeros."""
        if self.units is not None:
            return prune_units_by_evidence(self.units, zeros)
        return prune(self.posterior, keep_zeros(zeros, "snr"))


def ranked(
    problem: Problem,
    posterior: Posterior | None = None,
    curvature: Curvature | None = None,
    labels: Literal["exact", "sampled"] | None = None,
    seed: int = 0,
) -> Ranked:
    """The posterior by which weights go, by unit where the network allows it or as asked for.

    Arguments are those of `sieve_trained`.
    """
    if curvature is not None:
        check_choice("sieve", "curvature", curvature, ("unit", "diagonal"))
    if curvature != "diagonal":
        try:
            units = laplace_units(problem, posterior, labels=labels, seed=seed)
        except UnsupportedModelError:
            if curvature == "unit":
                raise
        else:
            return Ranked(units.posterior, units)
    return Ranked(laplace(problem, posterior, labels=labels, seed=seed), None)


def _scores(model: SparseModel, x: Input, y: Tensor) -> tuple[float, float]:
    """Mean negative log-likelihood and mean mistakes of the weights' means."""
    network, w = model.network, model.posterior.mean
    numbers, likelihood = network.numbers(w), network.likelihood
    nll = mistakes = 0.0
    for inputs, targets in zip(x.split(_BATCH), y.split(_BATCH), strict=True):
        outputs = network.outputs(w[None], inputs, model.posterior.buffers)[0]
        nll -= likelihood.log_prob(outputs, targets, numbers).double().sum().item()
        mistakes += likelihood.mistakes(outputs, targets, numbers).double().sum().item()
    return nll / len(y), mistakes / len(y)
