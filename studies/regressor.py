"""`SieveRegressor` as it comes, on the UCI regression sets: errors, densities, coverage, seconds.

    python -m studies.regressor --full --out results/regressor.json     # 5 published splits a set
    python -m studies.regressor --quick                         # one split of boston and yacht

Protocol: the default settings of `SieveRegressor`; only the engine is named, and `n_members` for an
average of five networks. Every choice (weight of the prior, epoch, noise) is made by the estimator
inside the training rows. The test rows of each published split (Hernández-Lobato and Adams, 2015)
are read once. RMSE, NLL (nats per row) and CRPS are in the unit of the target; `coverage_90` is the
share of test targets in 90 % intervals. The splits train as one population (`fit_many`);
`seconds_a_fit` is the processor time of one core for all of them over their number.
"""

import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bayesieve.data.files import data_root
from bayesieve.data.uci import find_uci, read_uci
from bayesieve.errors import DataError
from bayesieve.estimators import SieveRegressor, fit_many
from studies.harness import Run, chosen, make_row, study_parser

SETS = ("yacht", "boston", "energy", "concrete", "wine")
ENGINES = ("sghmc", "map", "sbnn")
MEMBERS = {"single": None, "five": 5}  # of a sampler the default is two chains
SHOWN = ("rmse", "rmse_standard_error", "nll", "crps", "coverage_90", "seconds_a_fit")
N_SPLITS, _N_DRAWS = 5, 400

Rows = NDArray[np.float64]


def crps(draws: Rows, targets: Rows) -> float:
    """Continuous ranked probability score of draws (n, S) for targets (n,), averaged.

    E|x - y| - E|x - x'| / 2 over independent draws x, x'.

    Example:
        >>> crps(np.array([[0.0, 2.0]]), np.array([1.0]))
        0.0
    """
    n_draws = draws.shape[1]
    ranks = 2 * np.arange(1, n_draws + 1) - n_draws - 1
    spread = np.sort(draws, 1) @ ranks / (n_draws * (n_draws - 1))
    return float(np.mean(np.abs(draws - targets[:, None]).mean(1) - spread))


def score(model: SieveRegressor, x: Rows, y: Rows) -> dict[str, float]:
    """Scores of a fitted estimator on test rows."""
    low, high = model.predict_interval(x, 0.1).T
    return {
        "rmse": float(np.sqrt(np.mean((model.predict(x) - y) ** 2))),
        "nll": -model.log_likelihood(x, y),
        "crps": crps(model.sample_y(x, _N_DRAWS, random_state=0), y),
        "coverage_90": float(np.mean((low <= y) & (y <= high))),
    }


def run_row(name: str, n_splits: int, setting: dict[str, Any]) -> list[dict[str, float]]:
    """Fit and score the first splits of a set."""
    path = find_uci(name, data_root())
    if path is None:
        raise DataError(f"regressor: uci/{name} is missing; see `bayesieve data list`.")
    x, y, masks = read_uci(path)
    tests = masks[:n_splits]
    began = time.process_time()
    models: list[SieveRegressor] = fit_many(
        [SieveRegressor(**setting, random_state=split) for split in range(n_splits)],
        x, y, [np.flatnonzero(~test) for test in tests],
    )  # fmt: skip
    seconds = (time.process_time() - began) / n_splits
    return [
        {**score(model, x[test], y[test]), "kl": model.kl_, "seconds_a_fit": seconds}
        for model, test in zip(models, tests, strict=True)
    ]


def main(arguments: list[str] | None = None) -> int:
    """Run every set with every engine; write the record."""
    parser = study_parser(__doc__, "--budget", quick="one split of yacht and boston",
                          full="five splits of all sets", device=False)  # fmt: skip
    parser.add_argument("--sets", default=",".join(SETS), help=f"comma list of {', '.join(SETS)}")
    parser.add_argument("--engines", default=",".join(ENGINES), help="comma list of engines")
    options = parser.parse_args(arguments)
    names = chosen("regressor", "set", "yacht,boston" if options.quick else options.sets, SETS)
    n_splits = 1 if options.quick else N_SPLITS
    run = Run("regressor", arguments, options, kind=None, settings={"n_splits": n_splits},
              test_reads="once per row")  # fmt: skip
    for kind, n_members in MEMBERS.items():
        for engine in chosen("regressor", "engine", options.engines, ENGINES):
            for name in names:
                setting = {"engine": engine, "n_members": n_members}
                row_name = f"{name} {engine} {kind}"
                if not run.wants(row_name, setting, data=name):
                    continue
                began = time.process_time()
                each = run_row(name, n_splits, setting)
                row = make_row(row_name, setting, each, seeds=list(range(n_splits)),
                               seconds=time.process_time() - began, spread=["rmse"])  # fmt: skip
                ensemble = n_members or engine == "sghmc"  # two chains are averaged
                row |= {"data": name, "kind": "ensemble" if ensemble else "single"}
                run.add(row, SHOWN)
    return run.finish(SHOWN)


if __name__ == "__main__":
    raise SystemExit(main())
