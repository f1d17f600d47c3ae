"""Rare classes, words as labels, sets of labels with coverage: the scikit-learn classifier.

python examples/table_classification.py       # some seconds on a CPU
"""

import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split

from bayesieve import SieveClassifier


def main() -> None:
    """Run the example."""
    data = load_breast_cancer()
    labels = data.target_names[data.target]
    x, x_test, y, y_test = train_test_split(data.data, labels, test_size=0.5, random_state=0)
    model = SieveClassifier(class_weight="balanced", conformal=True, epochs=60, random_state=0).fit(
        x, y
    )
    print(f"accuracy                     {model.score(x_test, y_test):.3f}")
    print(f"log-likelihood per row       {model.log_likelihood(x_test, y_test):.3f}")

    sets = model.predict_set(x_test, alpha=0.05)
    holds = sets[np.arange(len(sets)), np.searchsorted(model.classes_, y_test)]
    print(f"sets that hold the label     {holds.mean():.3f} (asked for 0.95)")
    print(f"sets of one label            {(sets.sum(1) == 1).mean():.3f}")

    best = np.argsort(model.feature_importances_)[::-1][:3]
    print("columns that matter most    ", ", ".join(data.feature_names[best]))


if __name__ == "__main__":
    main()
