"""A table in, predictions with honest intervals out: the scikit-learn regressor.

python examples/table_regression.py       # some seconds on a CPU
"""

import numpy as np
from sklearn.datasets import make_friedman1
from sklearn.ensemble import GradientBoostingRegressor
from sklearn.model_selection import train_test_split

from bayesieve import SieveRegressor


def main() -> None:
    """Run the example."""
    # Five of ten columns matter; the noise has standard deviation 1.
    x, y = make_friedman1(1000, 10, noise=1.0, random_state=0)
    x, x_test, y, y_test = train_test_split(x, y, test_size=0.4, random_state=0)

    model = SieveRegressor(zeros=0.7, epochs=100, random_state=0).fit(x, y)
    boosted = GradientBoostingRegressor(random_state=0).fit(x, y)
    print(f"R², 70 % of the weights 0    {model.score(x_test, y_test):.3f}")
    print(f"R², gradient boosting        {boosted.score(x_test, y_test):.3f}")

    ends = model.predict_interval(x_test, alpha=0.1)
    inside = (ends[:, 0] <= y_test) & (y_test <= ends[:, 1])
    print(f"targets in the 90 % interval {inside.mean():.3f}")
    noise, doubt = model.predict_uncertainty(x_test)
    print(f"noise of the data            {noise.mean():.2f} (truth 1.00)")
    print(f"doubt about the weights      {doubt.mean():.2f}")
    print(f"importance of the columns    {np.round(model.feature_importances_, 2)}")
    print(model.compact_.compaction)


if __name__ == "__main__":
    main()
