"""Realised false discoveries and power of feature selection, and calibration of its probabilities.

    python -m studies.selection --full --out results/selection.json     # 60 data sets per design
    python -m studies.selection --quick
    python -m studies.selection --full --part 1/4 --out part1.json; ...; python -m studies.selection
        --full --join part*.json --out results/selection.json       # four processes side by side

Each design draws data sets with known truth: 10 of the columns enter linearly with one size and
random signs, none in "null". Four ways choose columns at levels .1 and .2:

- ours: `joint_posterior`, then `select_fdr` (what `SieveSelector(rule="fdr")` and `bayesieve select
  --fdr` do);
- least squares: t-tests of all coefficients, then Benjamini and Hochberg; only where n > p;
- knockoffs: `gaussian_knockoffs` with the shrunk covariance of Ledoit and Wolf, and the difference
  of the lasso's coefficients;
- lasso: the largest coefficients of LassoCV, as many of them (one number for all data sets of a
  design) as keep the realised rate at ours. It is told the truth, so it is a yardstick, no method.

Classes are 0 and 1 to the rivals. Every row also counts, by bins of the probability, the columns
that are true.

The row "weights" is about the inclusion of weights, which mean-field posteriors have: 8 columns
with AR(.9), two of which enter, and a linear network of 8 weights under a spike and slab, trained
by sBNN from 16 starts. The exact inclusion is that of all 2^8 models. Its numbers are the errors of
one start and of the mean over the starts, each the mean or the largest over the weights.
"""

import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from sklearn.covariance import LedoitWolf
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LassoCV
from torch import Tensor

from bayesieve import SBNN, Problem, Schedule, fit
from bayesieve.core.likelihoods import Gaussian
from bayesieve.core.priors import SpikeSlab
from bayesieve.select import joint_posterior, select_fdr
from studies.harness import Run, chosen, joined, study_parser
from studies.knockoffs import gaussian_knockoffs, knockoff_select, knockoff_statistic
from studies.record import Row, by_seed, make_row

Array = NDArray[Any]
LEVELS = (0.1, 0.2)
BINS = (0.0, 0.1, 0.2, 0.5, 0.8, 0.9, 1.0)
_LASSO_KEPT = 40  # largest number of the lasso's columns that is tried


@dataclass(frozen=True)
class Design:
    """How the data sets of a row are drawn."""

    size: float  # of an effect, in standard deviations of column and noise
    n: int = 200
    p: int = 50
    n_true: int = 10
    correlation: float = 0.0  # of neighbours, falling as a power of the distance
    blocks: bool = False  # correlation .7 within blocks of five columns
    binary: bool = False
    noise_df: float | None = None  # degrees of freedom of the noise and of the columns
    column_df: float | None = None

    def draw(self, seed: int) -> tuple[Array, Array, Array]:
        """Columns, (n, p), targets, (n,), and which columns enter, (p,)."""
        rng = np.random.default_rng(seed)
        x = _draw(rng, self.column_df, (self.n, self.p))
        if self.correlation:
            distance = np.abs(np.subtract.outer(np.arange(self.p), np.arange(self.p)))
            x = x @ np.linalg.cholesky(self.correlation**distance).T
        if self.blocks:
            shared = rng.standard_normal((self.n, self.p // 5)).repeat(5, 1)
            x = np.sqrt(0.3) * x + np.sqrt(0.7) * shared
        effects = np.zeros(self.p)
        effects[rng.choice(self.p, self.n_true, replace=False)] = self.size
        effects *= rng.choice([-1, 1], self.p)
        y = x @ effects
        if self.binary:
            return x, (rng.random(self.n) < 1 / (1 + np.exp(-y))).astype(np.int64), effects != 0
        return x, y + _draw(rng, self.noise_df, self.n), effects != 0


def _draw(rng: np.random.Generator, df: float | None, shape: int | tuple[int, int]) -> Array:
    return rng.standard_normal(shape) if df is None else rng.standard_t(df, shape)


DESIGNS: Mapping[str, Design] = {
    "null": Design(0.5, n_true=0),
    "independent": Design(0.3),
    "AR(.7)": Design(0.5, correlation=0.7),
    "AR(.9)": Design(1.0, correlation=0.9),
    "blocks": Design(0.5, blocks=True),
    "n < p": Design(1.0, n=100, p=300),
    "binary": Design(0.8, n=300, binary=True),
    "binary AR(.9)": Design(1.5, n=300, correlation=0.9, binary=True),
    "heavy noise": Design(0.6, noise_df=2.5),
    "heavy columns": Design(0.3, column_df=3.0),
}


def least_squares(x: Array, y: Array) -> dict[float, Array]:
    """Columns that Benjamini and Hochberg keep at each level."""
    n, p = x.shape
    design = np.c_[np.ones(n), x]
    inverse = np.linalg.inv(design.T @ design)
    weights = inverse @ design.T @ y
    variance = np.square(y - design @ weights).sum() / (n - p - 1)
    t = weights / np.sqrt(variance * np.diag(inverse))
    values = 2 * stats.t.sf(np.abs(t[1:]), n - p - 1)
    ranks = np.argsort(np.argsort(values)) + 1
    passed = {level: values <= level * ranks / p for level in LEVELS}
    return {level: values <= max(values[ok], default=-1.0) for level, ok in passed.items()}


def lasso(x: Array, y: Array, alphas: int = 30, folds: int = 5) -> Array:
    """Size of the coefficients of standardised columns, (p,)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        fitted = LassoCV(alphas=alphas, cv=folds).fit((x - x.mean(0)) / x.std(0), y)
    size: Array = np.abs(fitted.coef_)
    return size


def knockoffs(x: Array, y: Array, seed: int) -> dict[float, Array]:
    """Columns that the knockoff filter keeps at each level."""
    source = torch.Generator().manual_seed(seed)
    covariance = torch.as_tensor(LedoitWolf().fit(x).covariance_)
    copies = gaussian_knockoffs(torch.as_tensor(x), source, covariance=covariance)
    size = torch.as_tensor(lasso(np.c_[x, copies.numpy()], y))
    return {level: knockoff_select(knockoff_statistic(size), level).numpy() for level in LEVELS}


def rates(keep: Array, true: Array) -> tuple[float, float]:
    """Share of what is kept that is false, and of what is true that is kept."""
    return (keep & ~true).sum() / max(keep.sum(), 1), (keep & true).sum() / max(true.sum(), 1)


def measure(design: Design, seed: int) -> tuple[dict[str, float], Array, list[list[float]]]:
    """Rates by way and level, rates (2, k) of the lasso's first k columns, and the calibration."""
    x, y, true = design.draw(seed)
    began = time.process_time()
    joint = joint_posterior(torch.as_tensor(x), torch.as_tensor(y), seed=seed)
    numbers = {"seconds": time.process_time() - began, "error": float(joint.error.max())}
    ways = {"ours": {level: select_fdr(joint.inclusion, level).numpy() for level in LEVELS}}
    if design.n > design.p + 1:
        ways["least squares"] = least_squares(x, y)
    ways["knockoffs"] = knockoffs(x, y, seed)
    for way, kept in ways.items():
        for level, keep in kept.items():
            numbers[f"{way} fdr {level}"], numbers[f"{way} power {level}"] = rates(keep, true)
    size = lasso(x, y)
    numbers["LassoCV fdr"], numbers["LassoCV power"] = rates(size > 0, true)
    order = np.argsort(-size)
    path = [rates(np.isin(np.arange(len(true)), order[:k]), true) for k in range(_LASSO_KEPT + 1)]
    inclusion = joint.inclusion.numpy()
    place = np.digitize(inclusion, BINS[1:-1])
    inside = [place == i for i in range(len(BINS) - 1)]
    bins = [[int(b.sum()), int(true[b].sum()), float(inclusion[b].sum())] for b in inside]
    return numbers, np.array(path).T, bins


def row_of(name: str, design: Design, seeds: Sequence[int]) -> Row:
    """The row of a design."""
    began = time.process_time()
    each, paths, bins = zip(*(measure(design, seed) for seed in seeds), strict=True)
    return summary(name, asdict(design), list(seeds), each, np.sum(paths, 0), np.sum(bins, 0),
                   time.process_time() - began)  # fmt: skip


def summary(
    name: str, setting: Mapping[str, Any], seeds: list[int], each: Sequence[Mapping[str, float]],
    path: Array, bins: Array, seconds: float,
) -> Row:  # fmt: skip
    """The row of data sets; path, (2, k), and bins are sums over them."""
    fdr, power = path / len(each)
    told: dict[str, float | None] = {}
    for level in LEVELS:  # the lasso that is told how many columns keep the rate at ours
        ours = np.mean([one[f"ours fdr {level}"] for one in each])
        k = int(np.flatnonzero(fdr <= max(ours, 1e-9))[-1])
        told |= {f"lasso fdr {level}": float(fdr[k]), f"lasso power {level}": float(power[k])}
    return make_row(
        name, setting, each, seeds=seeds, metrics=told, seconds=round(seconds, 1),
        spread=[key for key in each[0] if key.startswith("ours")], bins=bins.tolist(),
        path=path.tolist(),
    )  # fmt: skip


def pool(rows: Sequence[Row]) -> Row:
    """One row of the parts of a design."""
    name, setting, (seeds, each) = rows[0]["name"], rows[0]["setting"], by_seed(rows)
    seconds = sum(row["seconds"] for row in rows)
    if name == "weights":
        return make_row(name, setting, each, seeds=seeds, spread=list(each[0]), seconds=seconds)
    path, bins = (np.sum([row["detail"][key] for row in rows], 0) for key in ("path", "bins"))
    return summary(name, setting, seeds, each, path, bins, seconds)


WEIGHTS = Design(0.5, n=60, p=8, n_true=2, correlation=0.9)
SLAB_STD, SPIKE_STD, SLAB_PROB = 0.7, 0.1, 0.25  # prior of the row "weights"


def exact_inclusion(x: Tensor, y: Tensor) -> Tensor:
    """Inclusion of the p weights of y = x w + N(0, 1), (p,), from all 2^p models."""
    x, y, p = x.double(), y.double(), x.shape[1]
    on = torch.tensor(list(product((False, True), repeat=p)))
    variance = torch.where(on, SLAB_STD, SPIKE_STD).double().square()
    covariance = torch.einsum("nd,md,kd->mnk", x, variance, x) + torch.eye(len(x)).double()
    density = torch.distributions.MultivariateNormal(torch.zeros(len(x)).double(), covariance)
    prior = torch.where(on, SLAB_PROB, 1 - SLAB_PROB).log().sum(1)
    return (density.log_prob(y) + prior).softmax(0) @ on.double()


def starts_inclusion(x: Tensor, y: Tensor, seed: int, n_models: int = 16) -> Tensor:
    """Inclusion of the p weights after training from each of some starts, (n_models, p)."""
    network = torch.nn.Linear(x.shape[1], 1, bias=False)
    problem = Problem(network, Gaussian(1.0), (x.float(), y.float()))
    prior = SpikeSlab(SLAB_STD, SPIKE_STD, SLAB_PROB)
    engine = SBNN(prior, lr=3e-2, init_std=0.1, start="he", local=True)
    run = fit(problem, [engine] * n_models, epochs=300, batch_size=len(x), seed=seed,
              schedule=Schedule(lr="cosine"))  # fmt: skip
    inclusion = [q.inclusion for q in run.posteriors if q.inclusion is not None]
    return torch.stack(inclusion).double()


def weights_row(seeds: Sequence[int]) -> Row:
    """How far the inclusion of weights is from that of enumeration."""
    began, each = time.perf_counter(), []
    for seed in seeds:
        x, y, _ = (torch.as_tensor(values) for values in WEIGHTS.draw(seed))
        exact, starts = exact_inclusion(x, y), starts_inclusion(x, y, seed)
        single, mean = (starts - exact).abs(), (starts.mean(0) - exact).abs()
        each.append({
            "one start, mean": float(single.mean()),
            "one start, largest": float(single.amax(1).mean()),
            "mean of starts, mean": float(mean.mean()),
            "mean of starts, largest": float(mean.max()),
        })  # fmt: skip
    return make_row("weights", asdict(WEIGHTS), each, seeds=list(seeds), spread=list(each[0]),
                    seconds=round(time.perf_counter() - began, 1))  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    """Command line of the study."""
    parser = study_parser(__doc__, "--budget", "--join", "--part", quick="2 data sets",
                          full="60 data sets", device=False)  # fmt: skip
    parser.add_argument("--seeds", type=int, help="data sets of every design")
    names = [*DESIGNS, "weights"]
    parser.add_argument("--designs", default=",".join(names), help="names with commas between")
    options = parser.parse_args(arguments)
    if options.join:
        joined(options.join, "selection", options.out, ("designs", "out", "part"), pool=pool)
        return 0
    n = options.seeds or (60 if options.full else 2)
    first, step = options.part
    seeds = range(first - 1, n, step)
    torch.set_num_threads(1)
    run = Run("selection", arguments, options, settings={"levels": LEVELS, "bins": BINS, "sets": n})
    for name in chosen("selection", "design", options.designs, names):
        if name == "weights":
            if run.wants(name, asdict(WEIGHTS)):
                run.add(weights_row(seeds), ("one start, mean", "mean of starts, mean"))
        elif run.wants(name, asdict(DESIGNS[name])):
            run.add(row_of(name, DESIGNS[name], seeds), ("ours fdr 0.1", "ours power 0.1"))
    ways = product(("ours", "least squares", "knockoffs", "lasso"), ("fdr", "power"))
    return run.finish([f"{way} {what} 0.1" for way, what in ways])


if __name__ == "__main__":
    raise SystemExit(main())
