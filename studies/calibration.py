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

and what is measured, over data sets and weights:

    mean_off      distance of the mean from the exact one, in exact standard deviations
    std_ratio     standard deviation over the exact one
    z             root mean square of (truth - mean) / std; exact is 1, above 1 is overconfident
    ks            distance of the ranks of the truth from uniform (Kolmogorov-Smirnov)
    ks_limit      what an exact posterior stays below in 95 % of such simulations
    nats          log evidence minus the bound that the posterior gives: KL to the exact posterior;
                  not of samplers, whose draws have no density
    coverage      share of new targets in 90 % intervals; error is its standard error over data sets

The horseshoe has a prior of its own, so that none of these posteriors is the exact one for it.
"""

import argparse
import math
import time
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Generator, Tensor, nn

from bayesieve import Problem, Schedule, fit, predict
from bayesieve.assess.predict import RealPrediction
from bayesieve.core.batch import Rows
from bayesieve.core.likelihoods import Bernoulli, Gaussian, Likelihood
from bayesieve.core.posterior import Factorised, Posterior, Samples
from bayesieve.core.priors import GroupSparse, LayerScaled, Normal, SpikeSlab
from bayesieve.engines import Engine
from bayesieve.engines.bmr import BMR
from bayesieve.engines.flat_vi import FlatVI
from bayesieve.engines.laplace import laplace
from bayesieve.engines.map import MAP
from bayesieve.engines.sampling import Chain
from bayesieve.engines.sbnn import SBNN
from bayesieve.engines.sgmcmc import SGHMC, SGLD
from bayesieve.engines.tdamp import TDAMP
from studies.harness import Run, make_row, study_parser

F64 = torch.float64
NAMES = ("map", "laplace", "flat-vi", "sbnn", "bmr", "sgld", "sghmc", "tdamp")
WORLDS = ("linear", "correlated", "logistic")
NOISES = ("gaussian", "heavy", "uneven")
SIZES = (20, 200)
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


@dataclass(frozen=True, eq=False)
class Logistic:
    """K data sets with labels 0 or 1, two weights ~ N(0, 1), whose moments are sums over a grid."""

    x: Tensor
    truth: Tensor
    y: Tensor
    prior_std: float = 1.0
    likelihood: Likelihood = _LABELS

    @classmethod
    def simulate(cls, n_sets: int, seed: int = 0) -> "Logistic":
        """Sets of 40 rows."""
        x, truth = normals(seed, n_sets, 40, 2), normals(seed + 1, n_sets, 2)
        chance = torch.sigmoid((x @ truth[..., None])[..., 0])
        source = Generator().manual_seed(seed + 2)
        return cls(
            x, truth, (torch.rand(n_sets, 40, dtype=F64, generator=source) < chance).double()
        )

    @cached_property
    def grid(self) -> Tensor:
        """Weights, (G, 2)."""
        axis = torch.linspace(-6, 6, 121, dtype=F64)
        return torch.cartesian_prod(axis, axis)

    @cached_property
    def log_density(self) -> Tensor:
        """Of the exact posteriors at the grid, (K, G)."""
        signs = 2 * self.y - 1
        rows = []
        for x, sign in zip(self.x, signs, strict=True):
            log_lik = nn.functional.logsigmoid(sign * (self.grid @ x.T)).sum(1)
            rows.append(log_lik - 0.5 * self.grid.square().sum(1) / self.prior_std**2)
        logs = torch.stack(rows)
        return logs - logs.logsumexp(1, keepdim=True) - 2 * math.log(0.1)

    @cached_property
    def mean(self) -> Tensor:
        """Of the exact posteriors, (K, 2)."""
        return self.log_density.softmax(1) @ self.grid

    @cached_property
    def std(self) -> Tensor:
        """Marginal, of the exact posteriors, (K, 2)."""
        return (self.log_density.softmax(1) @ self.grid.square() - self.mean.square()).sqrt()

    def nats(self, mean: Tensor, std: Tensor) -> Tensor:
        """KL from independent Gaussians, (K, 2) each, to the exact posteriors, (K,)."""
        gaps = (self.grid - mean[:, None]) / std[:, None]
        log_q = -0.5 * gaps.square().sum(2) - std.log().sum(1)[:, None] - math.log(2 * math.pi)
        weight = log_q.softmax(1)
        return (weight * (log_q - self.log_density)).sum(1)


World = Linear | Logistic


def simulated(world: str, n_sets: int) -> World:
    """The data sets of a check by name."""
    if world == "logistic":
        return Logistic.simulate(n_sets)
    return Linear.simulate(n_sets, 0.9 if world == "correlated" else 0.0)


# --------------------------------------------------------------------------------------- engines


def population(x: Tensor, y: Tensor, likelihood: Likelihood) -> Problem:
    """One linear network without bias per data set, weights 0; x (K, n, d), y (K, n)."""
    layer = nn.Linear(x.shape[2], 1, bias=False, dtype=F64)
    nn.init.zeros_(layer.weight)
    rows = Rows(torch.arange(x.shape[0] * x.shape[1]).view(*x.shape[:2]))
    data = (x.flatten(0, 1), y.reshape(-1, 1))
    return Problem(nn.Sequential(layer), likelihood, data, rows=rows)


def posteriors(
    name: str, x: Tensor, y: Tensor, likelihood: Likelihood, prior_std: float
) -> list[Posterior]:
    """What an engine learns from each data set, under the prior N(0, prior_std²)."""
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
    engine, steps, batch_size = engines[name]
    steady = name in ("sgld", "sghmc", "tdamp")
    schedule = Schedule() if steady else Schedule(lr="cosine")
    run = fit(population(x, y, likelihood), [engine] * n_sets, steps=steps,
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
    source = Generator().manual_seed(0)
    draws = torch.stack(
        [q.draws if isinstance(q, Samples) else q.draw(400, source) for q in known], 1
    )[..., :d].double()
    stds = [q.std[:d].double() for q in known if isinstance(q, Factorised)]
    std = torch.stack(stds) if stds else draws.std(0)
    z = (world.truth - mean) / std
    rank = ((draws < world.truth).sum(0) + 0.5) / (len(draws) + 1)
    result |= {
        "std_ratio": float((std / world.std).mean()),
        "z": float(z.square().mean().sqrt()),
        "ks": uniform_distance(rank.flatten()),
        "ks_limit": 1.36 / math.sqrt(rank.numel()),
    }
    return result | ({"nats": float(world.nats(mean, std).mean())} if stds else {})


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


# ------------------------------------------------------------------------------------------ study


def main(arguments: list[str] | None = None) -> int:
    """Run the study from the command line."""
    parser = study_parser(__doc__, quick="a fifth of the data sets", full="all data sets",
                          required=True, device=False)  # fmt: skip
    options: argparse.Namespace = parser.parse_args(arguments)
    n_sets = 20 if options.quick else 100
    run = Run("calibration", arguments, options, settings={"n_sets": n_sets})
    for world in WORLDS:
        data = simulated(world, n_sets)
        for name in NAMES:
            _measure(run, f"{world}, {name}", lambda n=name, w=data: distance(n, w))
    for kind, correlation in (("independent", 0.0), ("correlated", 0.9)):
        for starts in (1, 8):
            _measure(run, f"enumeration, {kind}, {starts}",
                     lambda c=correlation, s=starts: enumeration(c, n_sets // 4, s))  # fmt: skip
    for n_rows in SIZES:
        for noise in NOISES:
            for name in NAMES:
                if name not in ("laplace", "tdamp"):  # which do not learn the noise
                    _measure(run, f"coverage, {n_rows}, {noise}, {name}",
                             lambda n=name, r=n_rows, k=noise: coverage(n, r, k, n_sets // 4)
                             )  # fmt: skip
    return run.finish(SHOWN)


def _measure(run: Run, name: str, check: Any) -> None:
    if run.wants(name, {}):
        began = time.perf_counter()
        numbers = check()
        row = make_row(name, {}, [numbers], seeds=[0], seconds=time.perf_counter() - began)
        run.add(row, [key for key in SHOWN if key in numbers])


if __name__ == "__main__":
    raise SystemExit(main())
