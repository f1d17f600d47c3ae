"""How far each engine is from exact: simulated data sets whose posterior is known.

    python -m studies.calibration --full --out results/calibration.json     # make calibrate
    python -m studies.calibration --quick                                   # a few data sets

In every data set weights are drawn from the prior and targets from the weights, so that exact
posteriors are calibrated by construction (simulation-based calibration). All data sets of a check
train as one population. Checks:

    linear        4 weights, 32 rows, Gaussian noise; the posterior is Gaussian
    correlated    the same with columns of correlation .9 to the next
    logistic      2 weights, 40 rows; moments by summing over a grid
    enumeration   8 weights that are 0 or N(0, 1), 60 rows; inclusion by summing over 256 models
    coverage      linear networks that learn their noise too; 90 % intervals of new targets by
                  number of rows and kind of noise
    uci           `SieveRegressor` with its defaults on the first published splits of small tables;
                  90 % intervals of the test rows

and what is measured, over data sets and weights:

    mean_off      distance of the mean from the exact one, in exact standard deviations
    std_ratio     standard deviation over the exact one
    z             root mean square of (truth - mean) / std; exact is 1, above 1 is overconfident
    ks            distance of the ranks of the truth from uniform (Kolmogorov-Smirnov)
    ks_limit      what an exact posterior stays below in 95 % of such simulations
    nats          log evidence minus the bound that the posterior gives: KL to the exact posterior;
                  not of samplers, whose draws have no density
    coverage      share of new targets in 90 % intervals; error is its standard error over data sets

The horseshoe has a prior of its own: in a network of one layer w ~ N(0, γ²) with one half-Cauchy γ,
here below 5. Its linear worlds draw weights from that prior, and exact posteriors are sums over γ.
Its logistic world has the data of the others, so that it has no z and no ranks.

`python -m studies.conformal` and `studies.selection` measure conformal intervals and selection;
docs/calibration.md shows them in the same table.
"""

import argparse
import copy
import math
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor, nn

from bayesieve import Problem, Schedule, fit, predict
from bayesieve.assess.predict import RealPrediction
from bayesieve.core.batch import Rows
from bayesieve.core.likelihoods import Bernoulli, Gaussian, Likelihood
from bayesieve.core.posterior import Factorised, Posterior, Samples, SparseModel
from bayesieve.core.posterior_horseshoe import UnitScaled
from bayesieve.core.priors import Normal, SpikeSlab
from bayesieve.data.files import data_root
from bayesieve.data.uci import load_uci
from bayesieve.engines import Engine
from bayesieve.engines.bmr import BMR
from bayesieve.engines.flat_vi import FlatVI
from bayesieve.engines.horseshoe import HorseshoeVI
from bayesieve.engines.laplace import laplace
from bayesieve.engines.map import MAP
from bayesieve.engines.sampling import Chain
from bayesieve.engines.sbnn import SBNN
from bayesieve.engines.scaled import LayerScaled
from bayesieve.engines.sgmcmc import SGHMC, SGLD
from bayesieve.engines.tdamp import TDAMP
from bayesieve.engines.tdamp.state import GroupSparse
from bayesieve.estimators import SieveRegressor, fit_many
from studies.harness import Run, joined, make_row, study_parser

F64 = torch.float64
NAMES = ("map", "laplace", "flat-vi", "sbnn", "bmr", "horseshoe", "sgld", "sghmc", "tdamp")
WORLDS = ("linear", "correlated", "logistic")
NOISES = ("gaussian", "heavy", "uneven")
SIZES = (20, 200)
TABLES = ("yacht", "boston")
SHOWN = ("mean_off", "std_ratio", "z", "ks", "nats", "inclusion_off", "coverage")
_NOISE_STD = 0.8
_NORMAL, _LABELS = Gaussian(_NOISE_STD), Bernoulli()
_CHAIN = Chain(burn_in=400, thin=20, n_kept=80)


def normals(seed: int, *shape: int) -> Tensor:
    """Standard normals that depend on the seed alone."""
    return torch.empty(shape, dtype=F64).normal_(generator=Generator().manual_seed(seed))


def columns(seed: int, n_sets: int, n_rows: int, d: int, correlation: float) -> Tensor:
    """Standard normal columns, each with this correlation to the next, (K, n, d)."""
    x = normals(seed, n_sets, n_rows, d)
    for j in range(1, d):
        x[..., j] = correlation * x[..., j - 1] + math.sqrt(1 - correlation**2) * x[..., j]
    return x


# ------------------------------------------------------------------------------ exact posteriors


@dataclass(frozen=True, eq=False)
class Linear:
    """K data sets y = x w + noise, w ~ N(0, prior_std²), whose posteriors are Gaussian.

    Args:
        x: (K, n, d).
        truth: (K, d), the weights behind the targets.
        y: (K, n).
        prior_std: of each weight.
        likelihood: of the targets.
    """

    x: Tensor
    truth: Tensor
    y: Tensor
    prior_std: float = 0.5
    likelihood: Likelihood = _NORMAL

    @classmethod
    def simulate(cls, n_sets: int, correlation: float = 0.0, seed: int = 0) -> "Linear":
        """Sets of 32 rows and 4 columns."""
        x = columns(seed, n_sets, 32, 4, correlation)
        truth = 0.5 * normals(seed + 1, n_sets, 4)
        noise = _NOISE_STD * normals(seed + 2, n_sets, 32)
        return cls(x, truth, (x @ truth[..., None])[..., 0] + noise)

    @cached_property
    def precision(self) -> Tensor:
        """Of the exact posteriors, (K, d, d)."""
        eye = torch.eye(self.x.shape[2], dtype=F64) / self.prior_std**2
        return self.x.mT @ self.x / _NOISE_STD**2 + eye

    @cached_property
    def mean(self) -> Tensor:
        """Of the exact posteriors, (K, d)."""
        pull = self.x.mT @ self.y[..., None] / _NOISE_STD**2
        return torch.linalg.solve(self.precision, pull)[..., 0]

    @cached_property
    def std(self) -> Tensor:
        """Marginal, of the exact posteriors, (K, d)."""
        return torch.linalg.inv(self.precision).diagonal(dim1=1, dim2=2).sqrt()

    def nats(self, mean: Tensor, std: Tensor) -> Tensor:
        """KL from independent Gaussians, (K, d) each, to the exact posteriors, (K,)."""
        gap = mean - self.mean
        distance = torch.einsum("kd,kde,ke->k", gap, self.precision, gap)
        trace = (self.precision.diagonal(dim1=1, dim2=2) * std.square()).sum(1)
        log_dets = self.precision.logdet() + 2 * std.log().sum(1)
        return 0.5 * (distance + trace - self.x.shape[2] - log_dets)


# Widths γ of a layer under a horseshoe: log γ on a grid, and its log prior, γ being half-Cauchy.
# Above 5 it is cut: 600 steps do not reach weights of any size, and that is not what is asked here.
_WIDEST = 5.0
_LOG_WIDTHS = torch.linspace(-8, math.log(_WIDEST), 101, dtype=F64)
_LOG_WIDTH_PRIOR = (_LOG_WIDTHS - torch.nn.functional.softplus(2 * _LOG_WIDTHS)).log_softmax(0)


class Shrunk(Linear):
    """The same with w ~ N(0, γ²), one half-Cauchy γ < 5: the horseshoe of a network of one layer.

    Posteriors are mixtures of G Gaussians, one per width.
    """

    @classmethod
    def simulate(cls, n_sets: int, correlation: float = 0.0, seed: int = 0) -> "Shrunk":
        """Sets of 32 rows and 4 columns."""
        x = columns(seed, n_sets, 32, 4, correlation)
        level = torch.rand(n_sets, 1, dtype=F64, generator=Generator().manual_seed(seed + 3))
        width = (level * math.atan(_WIDEST)).tan()
        truth = width * normals(seed + 1, n_sets, 4)
        noise = _NOISE_STD * normals(seed + 2, n_sets, 32)
        return cls(x, truth, (x @ truth[..., None])[..., 0] + noise)

    @cached_property
    def parts(self) -> tuple[Tensor, Tensor, Tensor]:
        """Log weights, (K, G), means, (K, G, d), and precisions, (K, G, d, d)."""
        gram = (self.x.mT @ self.x / _NOISE_STD**2)[:, None]
        pull = (self.x.mT @ self.y[..., None] / _NOISE_STD**2)[:, None]
        eye = torch.eye(self.x.shape[2], dtype=F64)
        precision = gram + (-2 * _LOG_WIDTHS).exp()[:, None, None] * eye
        mean = torch.linalg.solve(precision, pull.expand(*precision.shape[:3], 1))
        evidence = 0.5 * ((pull * mean).sum((2, 3)) - precision.logdet())
        logs = evidence - self.x.shape[2] * _LOG_WIDTHS + _LOG_WIDTH_PRIOR
        return logs.log_softmax(1), mean[..., 0], precision

    @cached_property
    def mean(self) -> Tensor:
        """Of the exact posteriors, (K, d)."""
        logs, mean, _ = self.parts
        return (logs.exp()[..., None] * mean).sum(1)

    @cached_property
    def std(self) -> Tensor:
        """Marginal, of the exact posteriors, (K, d)."""
        logs, mean, precision = self.parts
        variance = torch.linalg.inv(precision).diagonal(dim1=2, dim2=3) + mean.square()
        return ((logs.exp()[..., None] * variance).sum(1) - self.mean.square()).sqrt()

    def log_density(self, member: int, w: Tensor) -> Tensor:
        """Of one of the exact posteriors at weights (S, d), (S,)."""
        logs, mean, precision = (part[member] for part in self.parts)
        gap = w[:, None] - mean
        squares = torch.einsum("sgd,gde,sge->sg", gap, precision, gap)
        log_dets = precision.logdet() - w.shape[1] * math.log(2 * math.pi)
        return (logs + 0.5 * (log_dets - squares)).logsumexp(1)


@dataclass(frozen=True, eq=False)
class Logistic:
    """K data sets with labels 0 or 1, two weights ~ N(0, 1), whose moments are sums over a grid."""

    x: Tensor
    truth: Tensor
    y: Tensor
    prior_std: float = 1.0
    likelihood: Likelihood = _LABELS
    shrunk: bool = False  # under a horseshoe in place of N(0, 1), within the grid

    @classmethod
    def simulate(cls, n_sets: int, seed: int = 0, *, shrunk: bool = False) -> "Logistic":
        """Sets of 40 rows."""
        x, truth = normals(seed, n_sets, 40, 2), normals(seed + 1, n_sets, 2)
        chance = torch.sigmoid((x @ truth[..., None])[..., 0])
        source = Generator().manual_seed(seed + 2)
        labels = torch.rand(n_sets, 40, dtype=F64, generator=source) < chance
        return cls(x, truth, labels.double(), shrunk=shrunk)

    @cached_property
    def axes(self) -> tuple[Tensor, Tensor]:
        """Weights of one axis of the grid, and the log of what each stands for.

        A horseshoe has no bound at 0, so that its grid is dense there and leaves 0 out.
        """
        if not self.shrunk:
            return torch.linspace(-6, 6, 121, dtype=F64), torch.full((121,), 0.1, dtype=F64).log()
        t = torch.linspace(-7, 7, 240, dtype=F64)
        return 0.01 * t.sinh(), (0.01 * t.cosh() * (t[1] - t[0])).log()

    @cached_property
    def grid(self) -> Tensor:
        """Weights, (G, 2)."""
        return torch.cartesian_prod(self.axes[0], self.axes[0])

    @cached_property
    def log_area(self) -> Tensor:
        """Of what each point of the grid stands for, (G,)."""
        return (self.axes[1][:, None] + self.axes[1]).flatten()

    @cached_property
    def log_density(self) -> Tensor:
        """Of the exact posteriors at the grid, (K, G)."""
        signs = 2 * self.y - 1
        rows = []
        prior = -0.5 * self.grid.square().sum(1) / self.prior_std**2
        if self.shrunk:
            prior = gaussians(self.grid, 0.0, _LOG_WIDTHS.exp()[:, None], _LOG_WIDTH_PRIOR)
        for x, sign in zip(self.x, signs, strict=True):
            log_lik = nn.functional.logsigmoid(sign * (self.grid @ x.T)).sum(1)
            rows.append(log_lik + prior)
        logs = torch.stack(rows)
        return logs - (logs + self.log_area).logsumexp(1, keepdim=True)

    @cached_property
    def weight(self) -> Tensor:
        """Probability of the points of the grid, (K, G)."""
        return (self.log_density + self.log_area).exp()

    @cached_property
    def mean(self) -> Tensor:
        """Of the exact posteriors, (K, 2)."""
        return self.weight @ self.grid

    @cached_property
    def std(self) -> Tensor:
        """Marginal, of the exact posteriors, (K, 2)."""
        return (self.weight @ self.grid.square() - self.mean.square()).sqrt()

    def nats(self, mean: Tensor, std: Tensor) -> Tensor:
        """KL from independent Gaussians, (K, 2) each, to the exact posteriors, (K,)."""
        alone = torch.zeros(1, dtype=F64)
        pairs = zip(mean[:, None], std[:, None], strict=True)
        return self.kl(torch.stack([gaussians(self.grid, m, s, alone) for m, s in pairs]))

    def kl(self, log_q: Tensor) -> Tensor:
        """KL from densities at the grid, (K, G) in logs, to the exact posteriors, (K,)."""
        return ((log_q + self.log_area).softmax(1) * (log_q - self.log_density)).sum(1)


def gaussians(w: Tensor, mean: Tensor | float, std: Tensor, log_weight: Tensor) -> Tensor:
    """Log density of a mixture of J products of Gaussians at weights (S, d), (S,).

    Args:
        w: (S, d).
        mean: (J, d) or a number.
        std: (J, d) or (J, 1).
        log_weight: (J,).
    """
    gap = (w[:, None] - mean) / std
    logs = -0.5 * gap.square() - std.log() - 0.5 * math.log(2 * math.pi)
    return (logs.sum(2) + log_weight).logsumexp(1)


def unit_scaled_log_prob(q: UnitScaled, w: Tensor) -> Tensor:
    """Log density of a horseshoe posterior of one layer at its weights (S, d), (S,).

    w = r (m + s ε), and r = γ / E[γ] is log-normal: γ² is a quotient of two log-normal numbers,
    the third and fourth of the logs.
    """
    d = w.shape[1]
    nodes, weights = np.polynomial.hermite_e.hermegauss(40)
    std = 0.5 * q.log_std[2:4].double().norm()
    r = (torch.as_tensor(nodes) * std - 0.5 * std.square()).exp()[:, None]
    log_weight = torch.as_tensor(np.log(weights / weights.sum()))
    return gaussians(w, r * q.mean[:d].double(), r * q.spread[:d].double(), log_weight)


World = Linear | Logistic


def simulated(world: str, n_sets: int, name: str = "") -> World:
    """The data sets of a check by name, for an engine."""
    if world == "logistic":
        return Logistic.simulate(n_sets, shrunk=name == "horseshoe")
    kind = Shrunk if name == "horseshoe" else Linear
    return kind.simulate(n_sets, 0.9 if world == "correlated" else 0.0)


# --------------------------------------------------------------------------------------- engines


def population(x: Tensor, y: Tensor, likelihood: Likelihood) -> Problem:
    """One linear network without bias per data set, weights 0; x (K, n, d), y (K, n)."""
    layer = nn.Linear(x.shape[2], 1, bias=False, dtype=F64)
    nn.init.zeros_(layer.weight)
    rows = Rows(torch.arange(x.shape[0] * x.shape[1]).view(*x.shape[:2]))
    data = (x.flatten(0, 1), y.reshape(-1, 1))
    return Problem(nn.Sequential(layer), likelihood, data, rows=rows)


def posteriors(
    name: str, x: Tensor, y: Tensor, likelihood: Likelihood, prior_std: float,
    steps: int | None = None,
) -> list[Posterior]:  # fmt: skip
    """Posterior of an engine for each data set, under the prior N(0, prior_std²) or its own."""
    n_sets, n_rows, d = x.shape
    engines: dict[str, tuple[Engine[Any], int, int]] = {  # with steps and rows per step
        "map": (MAP(prior=Normal(prior_std), lr=0.05), 400, n_rows),
        "laplace": (MAP(prior=Normal(prior_std), lr=0.05), 400, n_rows),
        "flat-vi": (FlatVI(prior=Normal(prior_std), lr=0.05, init_std=0.2), 600, n_rows),
        "sbnn": (SBNN(prior=SpikeSlab(prior_std, prior_std), lr=0.05, init_std=0.2), 600, n_rows),
        "bmr": (
            BMR(LayerScaled(last_std=prior_std, shape=1e6, rate=1e6), None, lr=0.1, init_std=1e-3),
            600,
            n_rows,
        ),
        "horseshoe": (HorseshoeVI(lr=0.05), 600, n_rows),
        "sgld": (SGLD(Normal(prior_std), 4e-3 * prior_std, chain=_CHAIN), 2000, n_rows),
        "sghmc": (SGHMC(Normal(prior_std), 1e-3 * prior_std, chain=_CHAIN), 2000, n_rows),
        "tdamp": (
            TDAMP(
                GroupSparse(output_variance=prior_std**2 * d), keep=1.0, power=1.0, memory=1e12,
                trust=1e6, init_scale=0.0,
            ),
            n_rows,
            1,
        ),
    }  # fmt: skip
    if likelihood.parameters():  # tdamp learns the noise over many passes
        prior = GroupSparse(output_variance=prior_std**2 * d)
        engines["tdamp"] = (TDAMP(prior, keep=1.0, init_scale=0.0), 3 * n_rows, 10)
    engine, n_steps, batch_size = engines[name]
    steady = name in ("sgld", "sghmc", "tdamp")
    schedule = Schedule() if steady else Schedule(lr="cosine")
    run = fit(population(x, y, likelihood), [engine] * n_sets, steps=steps or n_steps,
              batch_size=batch_size, schedule=schedule)  # fmt: skip
    if name != "laplace":
        return list(run.posteriors)
    return [
        laplace(single(*pair, likelihood), q, prior=Normal(prior_std))
        for pair, q in zip(zip(x, y, strict=True), run.posteriors, strict=True)
    ]


def single(x: Tensor, y: Tensor, likelihood: Likelihood) -> Problem:
    """The problem of one data set, x (n, d), y (n,)."""
    return Problem(nn.Sequential(nn.Linear(x.shape[1], 1, bias=False, dtype=F64)), likelihood,
                   (x, y[:, None]))  # fmt: skip


# ---------------------------------------------------------------------------------------- checks


def distance(name: str, world: World) -> dict[str, float]:
    """How far the posteriors of an engine are from the exact ones."""
    known = posteriors(name, world.x, world.y, world.likelihood, world.prior_std)
    d = world.x.shape[2]
    mean = torch.stack([q.mean[:d] for q in known]).double()
    result = {"mean_off": float(((mean - world.mean) / world.std).abs().mean())}
    if name == "map":
        return result
    source, n_draws = Generator().manual_seed(0), 4000 if name == "horseshoe" else 400
    draws = torch.stack(
        [q.draws if isinstance(q, Samples) else q.draw(n_draws, source) for q in known], 1
    )[..., :d].double()
    stds = [q.std[:d].double() for q in known if isinstance(q, Factorised)]
    std = torch.stack(stds) if stds else draws.std(0)
    result["std_ratio"] = float((std / world.std).mean())
    if not (isinstance(world, Logistic) and world.shrunk):  # whose truth is of another prior
        z = (world.truth - mean) / std
        rank = ((draws < world.truth).sum(0) + 0.5) / (len(draws) + 1)
        result["z"] = float(z.square().mean().sqrt())
        result["ks"] = uniform_distance(rank.flatten())
        result["ks_limit"] = 1.36 / math.sqrt(rank.numel())
    if stds:
        result["nats"] = float(world.nats(mean, std).mean())
    scaled = [q for q in known if isinstance(q, UnitScaled)]
    if scaled and isinstance(world, Logistic):
        log_q = torch.stack([unit_scaled_log_prob(q, world.grid) for q in scaled])
        result["nats"] = float(world.kl(log_q).mean())
    elif scaled and isinstance(world, Shrunk):
        gaps = [
            (unit_scaled_log_prob(q, w) - world.log_density(k, w)).mean()
            for k, (q, w) in enumerate(zip(scaled, draws.unbind(1), strict=True))
        ]
        result["nats"] = float(torch.stack(gaps).mean())
    return result


def distance_in(name: str, world: str, n_sets: int) -> dict[str, float]:
    """`distance` in a world by name."""
    return distance(name, simulated(world, n_sets, name))


def uniform_distance(ranks: Tensor) -> float:
    """Largest distance of the distribution function of ranks in (0, 1) from the diagonal.

    Example:
        >>> round(uniform_distance(torch.tensor([0.125, 0.375, 0.625, 0.875])), 3)
        0.125
    """
    ranks, n = ranks.double().sort().values, len(ranks)
    above = torch.arange(1, n + 1, dtype=F64) / n - ranks
    below = ranks - torch.arange(n, dtype=F64) / n
    return float(torch.maximum(above, below).max())


def exact_inclusion(x: Tensor, y: Tensor, noise_std: float, prob: float, spike: float) -> Tensor:
    """Probability that each weight is from N(0, 1), not N(0, spike²): all 2^d models, (K, d)."""
    d = x.shape[2]
    models = torch.cartesian_prod(*[torch.tensor([0.0, 1.0], dtype=F64)] * d).reshape(-1, d)
    gram, pull = x.mT @ x / noise_std**2, (x.mT @ y[..., None])[..., 0] / noise_std**2
    logs = []
    for model in models:
        inverse = model + (1 - model) * spike**-2
        precision = gram + torch.diag(inverse)
        fitted = torch.linalg.solve(precision, pull[..., None])[..., 0]
        evidence = 0.5 * ((pull * fitted).sum(1) + inverse.log().sum() - precision.logdet())
        n_in = model.sum()
        logs.append(evidence + n_in * math.log(prob) + (d - n_in) * math.log(1 - prob))
    return torch.stack(logs, 1).softmax(1) @ models


def enumeration(correlation: float, n_sets: int, n_starts: int) -> dict[str, float]:
    """Inclusion of sbnn against the exact one, averaged over some random starts."""
    x = columns(5, n_sets, 60, 8, correlation)
    active = torch.rand(n_sets, 8, generator=Generator().manual_seed(6)) < 0.3
    truth = torch.where(active, normals(7, n_sets, 8), 0.05 * normals(8, n_sets, 8))
    y = (x @ truth[..., None])[..., 0] + _NOISE_STD * normals(9, n_sets, 60)
    exact = exact_inclusion(x, y, _NOISE_STD, 0.3, 0.05)
    engine = SBNN(prior=SpikeSlab(1.0, 0.05, 0.3), lr=0.02, start="he")
    problem = population(x.repeat(n_starts, 1, 1), y.repeat(n_starts, 1), Gaussian(_NOISE_STD))
    run = fit(problem, [engine] * (n_sets * n_starts), steps=800, batch_size=60,
              schedule=Schedule(lr="cosine"))  # fmt: skip
    found = torch.stack([q.inclusion for q in run.posteriors if q.inclusion is not None])
    gap = (found.view(n_starts, n_sets, 8).mean(0) - exact).abs()
    return {
        "inclusion_off": float(gap.mean()),
        "inclusion_worst": float(gap.amax(1).mean()),
    }


def unit_noise(kind: str, x: Tensor, seed: int) -> Tensor:
    """Noise of variance 1 on average: "gaussian", "heavy" (Student, 3 df) or "uneven" in x."""
    noise = normals(seed, *x.shape[:2])
    if kind == "heavy":
        squares = normals(seed + 1, *x.shape[:2], 3).square().mean(2)
        return noise / squares.sqrt() / math.sqrt(3)
    if kind == "uneven":
        return noise * x[..., 0].abs()
    return noise


def coverage(name: str, n_rows: int, noise: str, n_sets: int) -> dict[str, float]:
    """Share of new targets inside 90 % intervals, and the width of those over the ideal one."""
    n_new, seed = 100, 20
    x = columns(seed, n_sets, n_rows + n_new, 4, 0.0)
    truth = 0.5 * normals(seed + 1, n_sets, 4)
    y = (x @ truth[..., None])[..., 0] + _NOISE_STD * unit_noise(noise, x, seed + 2)
    likelihood = Gaussian(1.0, learned=True)
    known = posteriors(name, x[:, :n_rows], y[:, :n_rows], likelihood, 0.5)
    inside, width = [], []
    for q, new, target in zip(known, x[:, n_rows:], y[:, n_rows:], strict=True):
        n_samples = 0 if name == "map" else None
        prediction = predict(q, new, n_samples=n_samples)
        assert isinstance(prediction, RealPrediction)
        low, high = (end[:, 0] for end in prediction.interval(0.9))
        inside.append(((low <= target) & (target <= high)).double().mean())
        width.append((high - low).mean() / (2 * 1.645 * _NOISE_STD))
    shares = torch.stack(inside)
    return {
        "coverage": float(shares.mean()),
        "error": float(shares.std() / math.sqrt(n_sets)),
        "width": float(torch.stack(width).mean()),
    }


def uci_coverage(name: str, table: str, n_splits: int, **settings: Any) -> dict[str, float]:
    """Share of the test rows of a UCI table inside 90 % intervals of `SieveRegressor`."""
    splits = [load_uci(table, data_root(), split=i) for i in range(n_splits)]
    x, y = (torch.cat([getattr(s.train, part) for s in splits]).numpy() for part in ("x", "y"))
    sizes = np.cumsum([len(split.train) for split in splits])[:-1]
    settings["engine"] = "map" if name == "laplace" else name
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of chains that have not mixed
        fitted: list[SieveRegressor] = fit_many(
            SieveRegressor(random_state=0, **settings),
            x,
            y.ravel(),
            np.split(np.arange(len(x)), sizes),
        )
    inside = []
    for one, split in zip(fitted, splits, strict=True):
        if name == "laplace":
            surround(one, split.train.x, split.train.y)
        low, high = one.predict_interval(split.test.x.numpy()).T
        target = split.test.y.numpy().ravel()
        inside.append(torch.as_tensor((low <= target) & (target <= high)).double())
    share = torch.cat(inside).mean()  # of all test rows
    error = (share * (1 - share) / sum(map(len, inside))).sqrt()
    return {"coverage": float(share), "error": float(error)}


def surround(model: SieveRegressor, x: Tensor, y: Tensor) -> None:
    """Replace the point of a regressor that `map` has fitted by Laplace's Gaussian around it."""
    (point,) = model.sparse_models_
    module = copy.deepcopy(point.posterior.network.skeleton).to_empty(device="cpu")
    for parameter in module.parameters():
        nn.init.zeros_(parameter)
    data = (model.x_scale_.apply(x.numpy()), model.y_scale_.apply(y.numpy().reshape(len(y), -1)))
    problem = Problem(module, Gaussian(1.0, learned=True), data)
    model.sparse_models_ = [SparseModel(laplace(problem, point.posterior), point.keep)]
    model.n_samples_ = 128


# ------------------------------------------------------------------------------------------ study


def checks(n_sets: int) -> Iterator[tuple[str, Callable[[], dict[str, float]]]]:
    """Name and measurement of every row."""
    n_splits = max(1, n_sets // 25)
    for name in NAMES:
        for world in WORLDS:
            yield f"{world}, {name}", partial(distance_in, name, world, n_sets)
        for n_rows in SIZES:
            for noise in NOISES:
                row = f"coverage, {n_rows}, {noise}, {name}"
                yield row, partial(coverage, name, n_rows, noise, n_sets // 4)
    for kind, correlation in (("independent", 0.0), ("correlated", 0.9)):
        for starts in (1, 8):
            row = f"enumeration, {kind}, {starts}"
            yield row, partial(enumeration, correlation, n_sets // 4, starts)
    for table in TABLES:
        for name in NAMES:
            yield f"uci, {table}, {name}", partial(uci_coverage, name, table, n_splits)


def main(arguments: list[str] | None = None) -> int:
    """Run the study from the command line."""
    parser = study_parser(__doc__, "--join", "--part", quick="a fifth of the data sets",
                          full="all data sets", required=True, device=False)  # fmt: skip
    options: argparse.Namespace = parser.parse_args(arguments)
    if options.join:
        joined(options.join, "calibration", options.out, ("out", "part"))
        return 0
    n_sets, (first, step) = 20 if options.quick else 100, options.part
    run = Run("calibration", arguments, options, settings={"n_sets": n_sets})
    for name, check in list(checks(n_sets))[first - 1 :: step]:
        if run.wants(name, {}):
            began = time.process_time()
            numbers = check()
            row = make_row(name, {}, [numbers], seeds=[0], seconds=time.process_time() - began)
            run.add(row, [key for key in SHOWN if key in numbers])
    return run.finish(SHOWN)


if __name__ == "__main__":
    raise SystemExit(main())
