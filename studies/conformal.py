"""Coverage of conformal intervals in simulated tables, beside that of the model's own intervals.

    python -m studies.conformal --full --out results/conformal.json
    python -m studies.conformal --quick             # twenty tables a case
    python -m studies.conformal --full --part 1/4 --out part1.json; ...; python -m studies.conformal
        --full --join part*.json --out results/conformal.json       # four processes side by side

Protocol: every case is 300 tables (--full; 60 otherwise) of n rows and 5 columns, one of which is
useless, and 200 new rows for each; targets are a line, a wave and noise. `SieveRegressor` with one
hidden layer of 20 units and its weight of the prior given (0.3), so that a table takes six fits.
`coverage` is the share of new targets in 90 % intervals with conformal=True (CV+), `split` with
"split", `model` without; `width` is that of the first in units of the std of the noise.
What is to be reached: coverage from .88 to .93 in each case.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from bayesieve.estimators import SieveRegressor, fit_many
from studies.harness import Row, Run, chosen, joined, make_row, study_parser
from studies.record import by_seed

Rows = NDArray[np.float64]
Noise = Callable[[np.random.Generator, Rows], Rows]

N_NEW = 200
ALPHA = 0.1
N_SETS = {"quick": 20, "": 60, "full": 300}  # tables of a case
SHOWN = ("coverage", "coverage_standard_error", "split", "model", "width")
SETTINGS: dict[str, Any] = {
    "hidden": (20,),
    "epochs": 150,
    "batch_size": 32,
    "kl": 0.3,
    "folds": 0,
    "n_samples": 32,
}


def normal(source: np.random.Generator, x: Rows) -> Rows:
    """Standard normal noise."""
    return source.normal(size=len(x))


def heavy(source: np.random.Generator, x: Rows) -> Rows:
    """Student-t noise of 3 degrees of freedom, with std 1."""
    return source.standard_t(3, len(x)) / 3**0.5


def uneven(source: np.random.Generator, x: Rows) -> Rows:
    """Normal noise that grows with the third column, with std 1 on average."""
    std: Rows = np.exp(x[:, 2])
    return std / np.e * source.normal(size=len(x))


@dataclass(frozen=True)
class Case:
    """A kind of table and of estimator.

    Args:
        n: rows.
        noise: added to the mean of the targets.
        outliers: share of rows with one input of 1,000 in place of a usual one.
        settings: of the estimator, besides the common ones.
    """

    n: int = 100
    noise: Noise = normal
    outliers: float = 0.0
    settings: dict[str, Any] = field(default_factory=dict)

    def draw(self, n: int, seed: int) -> tuple[Rows, Rows]:
        """Rows and targets."""
        source = np.random.default_rng(seed)
        x = source.normal(size=(n, 5))
        y = 1.5 * x[:, 0] + np.sin(2 * x[:, 1]) + x[:, 3] + self.noise(source, x)
        wild = source.random(n) < self.outliers
        x[wild, 3] = 1000 * source.choice([-1.0, 1.0], n)[wild]
        return x, y


CASES = {
    "40 rows": Case(n=40),
    "100 rows": Case(),
    "heavy tails": Case(noise=heavy),
    "heteroscedastic": Case(noise=uneven),
    "heteroscedastic likelihood": Case(
        n=200, noise=uneven, settings={"likelihood": "heteroscedastic"}
    ),
    "input outliers": Case(outliers=0.02),
    "5 members": Case(settings={"n_members": 5}),
    "pruned": Case(settings={"engine": "bmr", "zeros": 0.9}),
}


def coverage(
    case: Case, seeds: Sequence[int], conformal: Literal["cv+", "split"] | bool
) -> list[dict[str, float]]:
    """Share of new targets inside and mean width of the intervals, of the table of every seed."""
    tables = [case.draw(case.n, seed) for seed in seeds]
    x, y = (np.concatenate(values) for values in zip(*tables, strict=True))
    model = SieveRegressor(**SETTINGS | case.settings, conformal=conformal, random_state=0)
    fitted: list[SieveRegressor] = fit_many(
        model, x, y, np.split(np.arange(len(x)), len(seeds)), at_once=1500
    )
    result = []
    for seed, one in zip(seeds, fitted, strict=True):
        x, y = case.draw(N_NEW, 1_000_000 + seed)
        low, high = one.predict_interval(x, ALPHA).T
        inside = float(np.mean((low <= y) & (y <= high)))
        result.append({"coverage": inside, "width": float(np.mean(high - low))})
    return result


def row_of(
    name: str, setting: dict[str, Any], seeds: Sequence[int], each: Sequence[dict[str, float]],
    seconds: float,
) -> Row:  # fmt: skip
    """The row of a case; seeds from 0 on are given by their number."""
    whole = list(seeds) == list(range(len(seeds)))
    return make_row(name, setting, each, seeds=len(seeds) if whole else list(seeds),
                    seconds=seconds, spread=["coverage"])  # fmt: skip


def pool(rows: Sequence[Row]) -> Row:
    """One row of the parts of a case."""
    seeds, each = by_seed(rows)
    seconds = sum(row["seconds"] for row in rows)
    return row_of(rows[0]["name"], rows[0]["setting"], seeds, each, seconds)


def main(arguments: list[str] | None = None) -> int:
    """Measure every case; write the record."""
    parser = study_parser(__doc__, "--budget", "--join", "--part", quick="20 tables a case",
                          full="300 tables a case", device=False)  # fmt: skip
    parser.add_argument("--only", help="comma list of cases, in place of all")
    options = parser.parse_args(arguments)
    if options.join:
        joined(options.join, "conformal", options.out, ("only", "out", "part"), pool=pool)
        return 0
    n_sets = N_SETS["quick" if options.quick else "full" if options.full else ""]
    run = Run("conformal", arguments, options, kind=None,
              settings={"n_sets": n_sets, "n_new": N_NEW, "alpha": ALPHA, **SETTINGS})  # fmt: skip
    first, step = options.part
    seeds = range(first - 1, n_sets, step)
    names = chosen("conformal", "case", options.only, CASES) if options.only else list(CASES)
    for name in names:
        case = CASES[name]
        setting = asdict(case) | {"noise": case.noise.__name__}
        if not run.wants(name, setting):
            continue
        start = time.process_time()
        each = coverage(case, seeds, True)
        split, model = coverage(case, seeds, "split"), coverage(case, seeds, False)
        for one, by_split, by_model in zip(each, split, model, strict=True):
            one |= {"split": by_split["coverage"], "model": by_model["coverage"]}
        run.add(row_of(name, setting, seeds, each, time.process_time() - start), SHOWN)
    return run.finish(SHOWN)


if __name__ == "__main__":
    raise SystemExit(main())
