"""Twenty bootstrap samples as one fit: which columns are chosen every time?

python examples/table_many.py       # some seconds on a CPU
"""

import numpy as np
from sklearn.datasets import make_friedman1

from bayesieve import SieveRegressor, fit_many


def main() -> None:
    """Run the example."""
    x, y = make_friedman1(300, 8, noise=1.0, random_state=0)
    source = np.random.default_rng(0)
    samples = [source.integers(300, size=300) for _ in range(20)]

    # One population: every network draws its batches from its own rows.
    model = SieveRegressor(hidden=(20,), epochs=60, folds=0, random_state=0)
    found = fit_many(model, x, y, samples)

    importance = np.stack([model.feature_importances_ for model in found])
    chosen = np.argsort(np.argsort(-importance, 1), 1) < 5
    for column in range(8):
        print(f"column {column}: among the first five in {chosen[:, column].mean():.0%} of samples")
    outside = [np.setdiff1d(np.arange(300), rows) for rows in samples]
    scores = [model.score(x[rest], y[rest]) for model, rest in zip(found, outside, strict=True)]
    print(f"R² on rows left out: {np.mean(scores):.3f} ± {np.std(scores):.3f}")


if __name__ == "__main__":
    main()
