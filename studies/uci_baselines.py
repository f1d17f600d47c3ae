"""scikit-learn's rows of the UCI study, in the same protocol as the networks.

The noise of ridge and boosting is the root mean squared error on held-out training rows, since
neither has a density of its own; the Gaussian process has one.
"""

import math
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bayesieve.data.examples import DataSet

BASELINES = ("linear", "boosting", "process")
_MOST_ROWS = 2000  # of an exact Gaussian process
_HELD_OUT = 0.15
Array = NDArray[np.float64]


def run_baseline(
    row: str, splits: Sequence[DataSet]
) -> tuple[list[dict[str, float]], dict[str, float], dict[str, str]]:
    """Scores of every split, seconds, and why there are none where the method is not feasible."""
    if row == "process" and len(splits[0].train) > _MOST_ROWS:
        return [], {"seconds": 0.0}, {"skipped": f"more than {_MOST_ROWS} rows"}
    started = time.perf_counter()
    each = []
    for number, data in enumerate(splits):
        x, y = data.train.x.numpy().astype(float), data.train.y.numpy().astype(float)
        at, truth = data.test.x.numpy().astype(float), data.test.y.numpy().astype(float)
        mean, std = _fit(row, x, y, at, number)
        unit = float(data.test.target_std)
        rmse = float(np.sqrt(np.mean((mean - truth) ** 2))) * unit
        density = -0.5 * ((truth - mean) / std) ** 2 - np.log(std) - 0.5 * math.log(2 * math.pi)
        each.append({"rmse": rmse, "log_lik": float(density.mean()) - math.log(unit)})
    return each, {"seconds": round(time.perf_counter() - started, 2)}, {}


def _fit(row: str, x: Array, y: Array, at: Array, seed: int) -> tuple[Array, Array]:
    """Mean and std of the prediction at new inputs."""
    if row == "process":
        return _process(x, y, at, seed)
    model = _ridge() if row == "linear" else _boosting(len(x), seed)
    order = np.random.default_rng(seed).permutation(len(x))
    n_test = max(1, round(_HELD_OUT * len(x)))
    inner = model.fit(x[order[n_test:]], y[order[n_test:]])
    residual = y[order[:n_test]] - inner.predict(x[order[:n_test]])
    mean: Array = model.fit(x, y).predict(at)
    return mean, np.full_like(mean, float(np.sqrt(np.mean(residual**2))))


def _ridge() -> Any:
    from sklearn.linear_model import RidgeCV

    return RidgeCV(np.logspace(-3, 3, 13))


def _boosting(n: int, seed: int) -> Any:
    from sklearn.ensemble import GradientBoostingRegressor, HistGradientBoostingRegressor

    if n > _MOST_ROWS:
        return HistGradientBoostingRegressor(
            max_iter=500, learning_rate=0.08, early_stopping=True, random_state=seed
        )
    return GradientBoostingRegressor(
        n_estimators=500, learning_rate=0.05, max_depth=4, subsample=0.7, random_state=seed
    )


def _short_search(objective: Any, start: Array, bounds: Array) -> tuple[Array, float]:
    """L-BFGS as scikit-learn calls it, but for 40 steps at most: each is cubic in the rows."""
    from scipy.optimize import minimize

    numbers = minimize(
        objective, start, method="L-BFGS-B", jac=True, bounds=bounds, options={"maxiter": 40}
    )
    return numbers.x, numbers.fun


def _process(x: Array, y: Array, at: Array, seed: int) -> tuple[Array, Array]:
    import warnings

    from sklearn.exceptions import ConvergenceWarning
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

    kernel = ConstantKernel(1.0) * RBF(np.ones(x.shape[1]), (1e-2, 1e3)) + WhiteKernel(0.1)
    model = GaussianProcessRegressor(kernel, optimizer=_short_search, random_state=seed)
    with warnings.catch_warnings():
        # A length scale at its bound is an input that does not matter: nothing to act on.
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(x, y)
    mean, std = model.predict(at, return_std=True)
    return mean, std
