"""Selection among up to 20,000 columns: ten non-linear effects in tables of a few hundred rows.

    python -m studies.wide --full --jobs 2 --out results/wide.json     # 5 minutes of two cores
    python -m studies.wide --quick                                     # one small table

Each table has ten true columns: two each of sin 2v, v², |v|, tanh 2v and exp(-v²), scaled to
variance 1, with random signs, and normal noise of variance 1. Columns are normal, in blocks of ten
with correlations .5, .25, ... (AR); every true column is in another block. Ways to choose:

- ours: `SieveSelector(rule="fdr", level=0.1)` as it comes;
- knockoffs, by the lasso and by boosting: `knockoff_select` at level .1. They are told the true
  covariance of the blocks;
- lasso, boosting: the columns with the largest coefficients of LassoCV, or with the largest
  importance in gradient boosting, as many (one number for all tables of a design) as keep the
  realised rate of false discoveries at .1. They are told the truth, so they are yardsticks.

`processor seconds` are those of one core for a table and everything that is tried on it.

Rivals see the 1,500 columns (pairs of column and copy) with the strongest correlation of the column
or of its square with the target; none of them could take 20,000 in this time.
"""

import math
import os
import time
import warnings
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing import get_context
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.ensemble import GradientBoostingRegressor

from bayesieve.estimators import SieveSelector
from studies.harness import Run, chosen, make_row, study_parser
from studies.knockoffs import gaussian_knockoffs, knockoff_select, knockoff_statistic
from studies.record import Row
from studies.selection import lasso, rates

Array = NDArray[np.float64]
LEVEL, TRUE, BLOCK, CORRELATION = 0.1, 10, 10, 0.5
WAYS = ("ours", "knockoffs-lasso", "knockoffs-boosting", "lasso", "boosting")
_SCREEN, _LONGEST = 1500, 40  # columns that rivals see; columns of a ranking that are tried


@dataclass(frozen=True)
class Design:
    """How the tables of a row are drawn."""

    n: int
    p: int
    tables: int

    def draw(self, seed: int) -> tuple[Array, Array, NDArray[np.bool_]]:
        """Columns, (n, p), targets, (n,), and which columns are true, (p,).

        Example:
            >>> x, y, true = Design(20, 200, 1).draw(0)
            >>> x.shape, int(true.sum())
            ((20, 200), 10)
        """
        source = np.random.default_rng(seed)
        root = np.linalg.cholesky(covariance())
        x = source.standard_normal((self.n, self.p // BLOCK, BLOCK)) @ root.T
        x = x.reshape(self.n, self.p)
        blocks = source.choice(self.p // BLOCK, TRUE, replace=False)
        places = blocks * BLOCK + source.integers(BLOCK, size=TRUE)
        true = np.zeros(self.p, dtype=bool)
        true[places] = True
        y = source.standard_normal(self.n)
        for i, place in enumerate(places):
            y += source.choice([-1, 1]) * effect(x[:, place], i // 2)
        return x, y, true


def covariance() -> Array:
    """Of the columns of a block."""
    distance = np.abs(np.subtract.outer(np.arange(BLOCK), np.arange(BLOCK)))
    found: Array = CORRELATION**distance
    return found


def effect(v: Array, kind: int) -> Array:
    """One of five functions of normal values, with mean 0 and variance 1."""
    functions = (
        lambda u: np.sin(2 * u), np.square, np.abs, lambda u: np.tanh(2 * u),
        lambda u: np.exp(-np.square(u)),
    )  # fmt: skip
    grid, weight = np.polynomial.hermite_e.hermegauss(101)
    weight = weight / weight.sum()
    values = functions[kind](grid)
    mean = weight @ values
    std = math.sqrt(weight @ np.square(values - mean))
    found: Array = (functions[kind](v) - mean) / std
    return found


DESIGNS = {
    "500x20000": Design(500, 20_000, 10),
    "300x20000": Design(300, 20_000, 6),
    "200x20000": Design(200, 20_000, 4),
}


def strongest(x: Array, y: Array) -> Array:
    """Correlation of each column or of its square with the target, whichever is larger, (p,)."""
    rest = (y - y.mean()) / y.std()
    found = []
    for values in (x, np.square(x)):
        centred = values - values.mean(0)
        found.append(np.abs(rest @ centred) / np.sqrt(np.square(centred).sum(0)))
    return np.maximum(*found)


def boosting(x: Array, y: Array) -> Array:
    """Importance of the columns in gradient boosting, (p,)."""
    model = GradientBoostingRegressor(
        n_estimators=100, max_depth=2, subsample=0.7, max_features=0.2, random_state=0
    )
    importance: Array = model.fit(x, y).feature_importances_
    return importance


def copies(x: Array, seed: int) -> Array:
    """Knockoffs of the columns, block by block, by their true covariance."""
    source, sigma = torch.Generator().manual_seed(seed), torch.as_tensor(covariance())
    blocks = torch.as_tensor(x.reshape(-1, BLOCK))  # all have one law
    return np.asarray(gaussian_knockoffs(blocks, source, covariance=sigma).numpy().reshape(x.shape))


def measure(design: Design, seed: int) -> tuple[dict[str, float], dict[str, Array]]:
    """Rates of every way that chooses, and rates (2, k) of the first k columns of a ranking."""
    torch.set_num_threads(1)
    start = time.process_time()
    x, y, true = design.draw(seed)
    numbers: dict[str, float] = {}
    paths: dict[str, Array] = {}

    def note(way: str, keep: Any, began: float) -> None:
        numbers[f"{way} fdr"], numbers[f"{way} power"] = map(float, rates(keep, true))
        numbers[f"{way} seconds"] = time.process_time() - began

    began = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of a Monte-Carlo error above .03
        selector = SieveSelector(rule="fdr", level=LEVEL, random_state=seed).fit(x, y)
    note("ours", selector.get_support(), began)
    numbers["ours expected fdr"] = float(selector.expected_fdr_)
    twin = copies(x, seed)
    strength = np.maximum(strongest(x, y), strongest(twin, y))
    seen = np.sort(np.argsort(-strength)[:_SCREEN])
    for name, size_of in (("lasso", partial(lasso, alphas=20, folds=3)), ("boosting", boosting)):
        began = time.process_time()
        size = torch.as_tensor(size_of(np.c_[x[:, seen], twin[:, seen]], y))
        keep = np.zeros(design.p, dtype=bool)
        keep[seen] = knockoff_select(knockoff_statistic(size), LEVEL).numpy()
        note(f"knockoffs-{name}", keep, began)
        alone = np.sort(np.argsort(-strongest(x, y))[:_SCREEN])
        order = alone[np.argsort(-size_of(x[:, alone], y), kind="stable")]
        kept = [np.isin(np.arange(design.p), order[:k]) for k in range(_LONGEST + 1)]
        paths[name] = np.array([rates(one, true) for one in kept]).T
    numbers["processor seconds"] = time.process_time() - start
    return numbers, paths


def row_of(name: str, design: Design, found: Sequence[tuple[dict[str, float], dict[str, Array]]],
           seconds: float) -> Row:  # fmt: skip
    """The row of a design; rankings are told how many columns keep the rate at .1."""
    each = [numbers for numbers, _ in found]
    told: dict[str, float] = {}
    for way in ("lasso", "boosting"):
        fdr, power = np.mean([paths[way] for _, paths in found], 0)
        k = int(np.flatnonzero(fdr <= LEVEL)[-1])
        told |= {f"{way} fdr": float(fdr[k]), f"{way} power": float(power[k])}
    return make_row(name, asdict(design), each, seeds=list(range(len(each))), metrics=told,
                    seconds=round(seconds, 1), spread=["ours fdr", "ours power"])  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    """Measure every design; write the record."""
    parser = study_parser(__doc__, "--budget", quick="one table of 200 columns",
                          full="all designs", device=False)  # fmt: skip
    parser.add_argument("--designs", default=",".join(DESIGNS), help="names with commas between")
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1),
                        help="tables measured side by side")  # fmt: skip
    options = parser.parse_args(arguments)
    designs = {"quick": Design(120, 200, 1)} if options.quick else DESIGNS
    names = "quick" if options.quick else options.designs
    settings = {"level": LEVEL, "true": TRUE, "correlation": CORRELATION}
    run = Run("wide", arguments, options, settings=settings, test_reads=None)
    for name in chosen("wide", "design", names, designs):
        design = designs[name]
        if not run.wants(name, asdict(design)):
            continue
        began = time.perf_counter()
        task = partial(measure, design)
        if options.jobs == 1 or design.tables == 1:
            found = [task(seed) for seed in range(design.tables)]
        else:
            with ProcessPoolExecutor(options.jobs, get_context("spawn")) as pool:
                found = list(pool.map(task, range(design.tables)))
        row = row_of(name, design, found, time.perf_counter() - began)
        run.add(row, [f"{way} {what}" for way in WAYS for what in ("fdr", "power")])
    return run.finish([f"{way} {what}" for way in WAYS for what in ("fdr", "power")])


if __name__ == "__main__":
    raise SystemExit(main())
