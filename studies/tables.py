"""Estimators for tables side by side: errors, densities, intervals, seconds, mean ranks.

    python -m studies.tables --full --out results/tables.json
    python -m studies.tables --quick                            # two small sets, one split
    python -m studies.tables --held-out --sets kin8nm --methods sieve-5 --with bins=0

Settings are chosen by commands like the last one, which scores training rows.

Protocol: published splits of the UCI sets [Hernandez] and two simulated tables, every method on the
same rows. Methods, all with fixed settings:

    sieve-5         SieveRegressor(n_members=5)
    sieve           SieveRegressor(), one network
    sieve-boosting  SieveRegressor(base="boosting")
    deep-ensemble   SieveRegressor(engine="map", bins=0, n_members=5): plain networks, with noise
                    corrected by held-out rows as ours is
    chains          SieveRegressor(engine="sghmc"), two chains of a sampler
    boosting        histogram gradient boosting, 300 trees
    forest          100 trees
    mlp             scikit-learn's MLPRegressor, two layers of 100, early stopping
    process         scikit-learn's Gaussian process, up to 700 rows

Boosting, forest and mlp have no density: theirs is normal, with the root mean squared error of
15 % of the training rows held out, then refitted on all. The scores are in the unit of the target;
`nll` in nats per row, `crps` is the continuous ranked probability score, `coverage_90` the share of
targets in 90 % intervals, `seconds` the processor time of fit and prediction, one core. Ranks are
among the methods that every set has, 1 is best, ties share.

`bde` (Bayesian deep ensembles by sampling) is no package of that name on PyPI, so it is not run.
Airfoil is measured where `python -m studies.airfoil` has fetched it.
"""

import ast
import math
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import rankdata
from sklearn.ensemble import HistGradientBoostingRegressor, RandomForestRegressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPRegressor

from bayesieve import SBNN
from bayesieve.core.priors import SpikeSlab
from bayesieve.data.files import data_root
from bayesieve.data.uci import find_uci, read_uci
from bayesieve.errors import DataError
from bayesieve.estimators import SieveRegressor
from bayesieve.estimators.tails import standard_crps
from bayesieve.text import markdown_table
from studies.airfoil import find_airfoil, read_airfoil
from studies.harness import Run, chosen, joined, make_row, study_parser
from studies.record import Row
from studies.uci import _process, estimator_scores

Array = NDArray[np.float64]
Scores = dict[str, float]
UCI = ("yacht", "boston", "energy", "concrete", "wine", "kin8nm", "power", "naval", "protein")
SIMULATED = ("steps", "waves")
SETS = (*UCI, *SIMULATED, "airfoil")
SPLITS = {"kin8nm": 1, "power": 1, "naval": 1, "protein": 1}  # 3 of the others
MOST_ROWS = {"protein": 12_000}  # training rows that are taken, the first of a random order
OURS: Mapping[str, Mapping[str, Any]] = {
    "sieve-5": {"n_members": 5},
    "sieve": {},
    "sieve-boosting": {"base": "boosting"},
    "deep-ensemble": {"engine": "map", "bins": 0, "n_members": 5},
    "chains": {"engine": "sghmc"},
}
RIVALS = ("boosting", "forest", "mlp", "process")
METHODS = (*OURS, *RIVALS)
RANKED = ("sieve-5", "deep-ensemble", "boosting", "forest", "mlp")
SHOWN = ("rmse", "nll", "crps", "coverage_90", "seconds")
_HELD_OUT = 0.15
_PROCESS_ROWS = 700
_FAR = 1.6448536269514722  # 90 % of a normal distribution are within so many stds


def simulated(name: str, seed: int, n: int = 1500) -> tuple[Array, Array]:
    """Columns, (n, 8), and targets with steps or with waves, noise .2.

    Example:
        >>> simulated("steps", 0, 10)[0].shape
        (10, 8)
    """
    source = np.random.default_rng(1000 + seed)
    x = source.uniform(-1, 1, (n, 8))
    if name == "steps":
        y = 2.0 * (x[:, 0] > 0.2) + 2 * np.where(x[:, 1] < -0.3, x[:, 2], -x[:, 3])
        y = y + np.floor(3 * x[:, 4])
    else:
        y = np.sin(8 * x[:, 0]) + np.sin(6 * x[:, 1]) * x[:, 2]
    return x, y + 0.2 * source.normal(size=n)


def load(name: str, split: int, *, held_out: bool) -> tuple[Array, Array, Array, Array]:
    """Training columns and targets, test columns and targets of a split.

    With `held_out` the test rows are 15 % of the training rows, and the test part is not read.
    """
    if name in SIMULATED:
        x, y = simulated(name, split)
        test = np.arange(len(y)) >= 1000
    elif name == "airfoil":
        path = find_airfoil(data_root())
        if path is None:
            raise DataError("tables: airfoil is missing; `python -m studies.airfoil` fetches it.")
        x, y = read_airfoil(path)
        test = np.zeros(len(y), dtype=bool)
        test[np.random.default_rng(split).permutation(len(y))[: len(y) // 10]] = True
    else:
        found = find_uci(name, data_root())
        if found is None:
            raise DataError(f"tables: uci/{name} is missing; see `bayesieve data list`.")
        x, y, masks = read_uci(found)
        test = masks[split]
    rows = np.random.default_rng(split).permutation(np.flatnonzero(~test))
    rows = rows[: MOST_ROWS.get(name, len(rows))]
    if not held_out:
        return x[rows], y[rows], x[test], y[test]
    n = round(_HELD_OUT * len(rows))
    return x[rows[n:]], y[rows[n:]], x[rows[:n]], y[rows[:n]]


def normal_scores(mean: Array, std: Array, y: Array) -> Scores:
    """Scores of a normal prediction."""
    z = torch.as_tensor((y - mean) / std)
    ranked = torch.as_tensor(std) * standard_crps(z, 1e7)
    density = 0.5 * z.square() + torch.as_tensor(np.log(std)) + 0.5 * math.log(2 * math.pi)
    return {
        "rmse": float(np.sqrt(np.mean((mean - y) ** 2))),
        "nll": float(density.mean()),
        "crps": float(ranked.mean()),
        "coverage_90": float((z.abs() <= _FAR).double().mean()),
    }


def score(model: SieveRegressor, x: Array, y: Array) -> Scores:
    """Scores of a fitted estimator of ours, and what it chose."""
    return {
        **estimator_scores(model, x, y),
        "kl": model.kl_,
        "bins": float(model.settings_.bins),
        "noise_factor": model.noise_factor_,
        "degrees_of_freedom": float(model.degrees_of_freedom_ or 0),  # 0 is normal
    }


def rival(method: str, x: Array, y: Array, at: Array, seed: int) -> tuple[Array, Array]:
    """Mean and std of a rival's prediction; columns and targets are standardised."""
    if method == "process":
        return _process(x, y, at, seed)
    model: Any
    if method == "boosting":
        model = HistGradientBoostingRegressor(max_iter=300, learning_rate=0.06, random_state=seed)
    elif method == "forest":
        model = RandomForestRegressor(100, min_samples_leaf=2, random_state=seed)
    else:
        model = MLPRegressor(
            hidden_layer_sizes=(100, 100), early_stopping=True, max_iter=500, random_state=seed
        )
    order = np.random.default_rng(seed).permutation(len(x))
    n = round(_HELD_OUT * len(x))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        inner = model.fit(x[order[n:]], y[order[n:]])
        noise = np.sqrt(np.mean((inner.predict(x[order[:n]]) - y[order[:n]]) ** 2))
        mean: Array = model.fit(x, y).predict(at)
    return mean, np.full(len(mean), noise)


def measure(
    method: str, rows: tuple[Array, Array, Array, Array], seed: int, setting: Mapping[str, Any]
) -> Scores:
    """Fit a method, one of ours with this setting, to training rows; score it on the others."""
    x, y, at, truth = rows
    began = time.process_time()
    if method in OURS:
        model = SieveRegressor(**setting, random_state=seed).fit(x, y)
        found = score(model, at, truth)
    else:
        spread = x.std(0)
        spread[spread == 0] = 1.0
        centre, mean_y, std_y = x.mean(0), y.mean(), y.std()
        mean, std = rival(
            method, (x - centre) / spread, (y - mean_y) / std_y, (at - centre) / spread, seed
        )
        found = normal_scores(mean_y + std_y * mean, std_y * std, truth)
    return {**found, "seconds": time.process_time() - began}


def ranks(rows: Sequence[Row], methods: Sequence[str] = RANKED) -> dict[str, dict[str, float]]:
    """Mean rank of each method by each score, over the sets that all of them have."""
    by_set: dict[str, dict[str, Mapping[str, float]]] = {}
    for row in rows:
        by_set.setdefault(row["data"], {})[row["setting"]["method"]] = row["metrics"]
    whole = [found for found in by_set.values() if set(methods) <= set(found)]
    means: dict[str, dict[str, float]] = {method: {"sets": float(len(whole))} for method in methods}
    for name in ("rmse", "nll", "crps") if whole else ():
        places = [rankdata([found[method][name] for method in methods]) for found in whole]
        for method, place in zip(methods, np.mean(places, 0), strict=True):
            means[method][name] = float(place)
    for method in methods if whole else ():
        shares = [found[method]["coverage_90"] for found in whole]
        means[method] |= {"coverage_90": float(np.mean(shares)), "least": float(np.min(shares))}
    return means


def ranks_table(found: Mapping[str, Mapping[str, float]]) -> str:
    """Mean ranks, mean coverage and the least one as a Markdown table."""
    names = ("sets", "rmse", "nll", "crps", "coverage_90", "least")
    lines = [[method, *(f"{found[method].get(name, math.nan):.3g}" for name in names)]
             for method in found]  # fmt: skip
    return markdown_table(["mean rank", *names], lines)


def _trial(words: Sequence[str]) -> dict[str, Any]:
    """Parameters of the estimator from words NAME=VALUE; those of SBNN and its prior too.

    Example:
        >>> _trial(["bins=0", "spike_std=0.05"])["engine"].prior.spike_std
        0.05
    """
    values = {name: ast.literal_eval(value) for name, value in (w.split("=", 1) for w in words)}
    of_prior, of_engine = (
        {name: values.pop(name) for name in (*values,) if name in {f.name for f in fields(kind)}}
        for kind in (SpikeSlab, SBNN)
    )
    if of_prior or set(of_engine) - {"lr"}:
        return {**values, "engine": SBNN(SpikeSlab(**of_prior), **of_engine)}
    return values | of_engine


def main(arguments: list[str] | None = None) -> int:
    """Measure what is missing; write the record; print scores and mean ranks."""
    parser = study_parser(__doc__, "--budget", "--join", quick="one split of yacht and boston",
                          full="all sets and methods", device=False)  # fmt: skip
    parser.add_argument("--held-out", action="store_true", help="score training rows instead")
    parser.add_argument("--sets", help=f"comma list of {', '.join(SETS)}")
    parser.add_argument("--methods", help=f"comma list of {', '.join(METHODS)}")
    parser.add_argument("--splits", type=int, help="of each set; 3 of small, 1 of large ones")
    parser.add_argument("--with", dest="trial", action="append", default=[], metavar="NAME=VALUE",
                        help="a parameter of ours or of SBNN, with --held-out")  # fmt: skip
    options = parser.parse_args(arguments)
    if options.trial and not options.held_out:
        parser.error("--with is for choosing settings: add --held-out.")
    trial = _trial(options.trial)
    if options.join is not None:
        record = joined(options.join, "tables", options.out, ("sets", "methods", "out"))
        print(ranks_table(ranks(record["rows"])))
        return 0
    known = [name for name in SETS if name != "airfoil" or find_airfoil(data_root())]
    sets = "yacht,boston" if options.quick else options.sets or ",".join(known)
    methods = options.methods or ("sieve,boosting" if options.quick else ",".join(METHODS))
    torch.set_num_threads(1)
    run = Run("tables", arguments, options, kind=None, settings={"splits": options.splits},
              test_reads="once per row")  # fmt: skip
    for name in chosen("tables", "set", sets, SETS):
        n_splits = 1 if options.quick else options.splits or SPLITS.get(name, 3)
        for method in chosen("tables", "method", methods, METHODS):
            ours = {**OURS[method], **trial} if method in OURS else {}
            setting = {"method": method, **{name: ours[name] for name in ours if name != "engine"}}
            setting |= {"engine": str(ours["engine"])} if "engine" in ours else {}
            rows = load(name, 0, held_out=options.held_out)
            if method == "process" and len(rows[0]) > _PROCESS_ROWS:
                continue
            if not run.wants(f"{name} {method}", setting, kind=method, data=name):
                continue
            began = time.process_time()
            each = [measure(method, load(name, split, held_out=options.held_out), split, ours)
                    for split in range(n_splits)]  # fmt: skip
            row = make_row(f"{name} {method}", setting, each, seeds=list(range(n_splits)),
                           seconds=time.process_time() - began, spread=["rmse", "nll"])  # fmt: skip
            several = setting.get("n_members", 1) > 1
            run.add(
                {**row, "data": name, "kind": "ensemble" if several else "single"}, SHOWN, method
            )
    print(ranks_table(ranks(run.rows)))
    return run.finish(SHOWN)


if __name__ == "__main__":
    raise SystemExit(main())
