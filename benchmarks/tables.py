"""Many small fits at once against one by one, in seconds of one core.

    OMP_NUM_THREADS=1 python benchmarks/tables.py [--fits 20] [--epochs 20] [--data boston]
    OMP_NUM_THREADS=1 python benchmarks/tables.py --quality
    OMP_NUM_THREADS=1 python benchmarks/tables.py --speed

Each fit is one hidden layer of 50 units on its own 90 % of the rows: the published splits of a UCI
table where BAYESIEVE_DATA has it, random splits of Friedman's function (500 rows) otherwise. Both
ways take the same steps; processor time is counted, so that a busy machine does not matter much.
`--quality` instead fits three public tables with default settings, beside scikit-learn's models;
`--speed` times default fits of simulated tables of 1,000 x 10 and 10,000 x 20.
"""

import argparse
import json
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer, load_diabetes, make_friedman1
from sklearn.ensemble import GradientBoostingClassifier, GradientBoostingRegressor
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from bayesieve.data.files import data_root
from bayesieve.estimators import SieveClassifier, SieveRegressor, fit_many
from bayesieve.estimators.base import RowSets


def table(name: str, n_fits: int) -> tuple[NDArray[np.float64], NDArray[np.float64], RowSets]:
    path = data_root() / "uci" / f"{name}.npz"
    if name != "friedman" and path.exists():
        with np.load(path) as found:
            x, y = found["x"].astype(float), found["y"].astype(float)
            masks = np.unpackbits(found["test_mask"], axis=1, count=len(x)).astype(bool)
        return x, y, [np.flatnonzero(~mask) for mask in masks[:n_fits]]
    x, y = make_friedman1(500, 10, noise=1.0, random_state=0)
    source = np.random.default_rng(0)
    return x, y, [np.sort(source.permutation(500)[:450]) for _ in range(n_fits)]


def seconds(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def quality() -> None:
    """Score on the test part of one division, and seconds of the fit."""
    friedman = make_friedman1(2000, 10, noise=1.0, random_state=0)
    sets = [
        ("friedman", friedman, 0.5),
        ("diabetes", load_diabetes(return_X_y=True), 0.3),
        ("cancer", load_breast_cancer(return_X_y=True), 0.4),
    ]
    for name, (x, y), share in sets:
        x, test_x, y, test_y = train_test_split(x, y, test_size=share, random_state=0)
        classes = name == "cancer"
        estimator = SieveClassifier if classes else SieveRegressor
        linear = LogisticRegression(max_iter=1000) if classes else RidgeCV()
        boosted = GradientBoostingClassifier if classes else GradientBoostingRegressor
        models = {
            "alone": estimator(folds=0, random_state=0),
            "default": estimator(random_state=0),
            "five members": estimator(n_members=5, random_state=0),
            "linear": make_pipeline(StandardScaler(), linear),
            "boosting": boosted(random_state=0),
        }
        for label, model in models.items():
            taken = seconds(partial(model.fit, x, y))
            score = round(float(model.score(test_x, test_y)), 3)
            row = {"data": name, "rows": len(x), "model": label, "score": score}
            print(json.dumps({**row, "seconds": round(taken, 2)}), flush=True)


def speed() -> None:
    """Processor seconds of default fits, after one that warms up."""
    SieveRegressor(epochs=2, random_state=0).fit(*make_friedman1(100, 10, random_state=0))
    for n, p in ((1_000, 10), (10_000, 20)):
        x, y = make_friedman1(n, p, noise=1.0, random_state=0)
        classes = (y > np.median(y)).astype(int)
        regressor, classifier = SieveRegressor(random_state=0), SieveClassifier(random_state=0)
        taken = {
            "regressor_s": round(seconds(partial(regressor.fit, x, y)), 2),
            "classifier_s": round(seconds(partial(classifier.fit, x, classes)), 2),
        }
        print(json.dumps({"rows": n, "columns": p, **taken}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fits", type=int, default=20)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--folds", type=int, default=0)
    parser.add_argument("--data", default="boston")
    parser.add_argument("--device", default=None)
    parser.add_argument("--quality", action="store_true")
    parser.add_argument("--speed", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.quality:
        quality()
        return
    if options.speed:
        speed()
        return
    x, y, rows = table(options.data, options.fits)
    model = SieveRegressor(
        hidden=(50,),
        bins=0,
        epochs=options.epochs,
        batch_size=32,
        folds=options.folds,
        random_state=0,
        device=options.device,
    )
    fit_many(model.set_params(epochs=1), x, y, rows[:2])  # warm up
    model.set_params(epochs=options.epochs)
    together = seconds(lambda: fit_many(model, x, y, rows))
    alone = seconds(lambda: [model.fit(x[split], y[split]) for split in rows])
    print(
        json.dumps(
            {
                "data": options.data,
                "rows": len(x),
                "fits": len(rows),
                "epochs": options.epochs,
                "folds": options.folds,
                "one_by_one_s": round(alone, 2),
                "together_s": round(together, 2),
                "times_faster": round(alone / together, 1),
            }
        )
    )


if __name__ == "__main__":
    main()
