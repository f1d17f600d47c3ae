"""The 1,797 handwritten digits of 8x8 pixels that ship with scikit-learn: nothing to fetch."""

import numpy as np
import torch

from bayesieve.data.examples import DataSet, Examples
from bayesieve.data.preprocessing import image_recipe, prepare_images


def load_digits() -> DataSet:
    """Load the digits as (N, 1, 8, 8) inputs in [0, 1]; every fifth one of a class is for testing.

    Example:
        >>> data = load_digits()
        >>> len(data.train), len(data.test), data.input_shape
        (1433, 364, (1, 8, 8))
    """
    from sklearn.datasets import load_digits as load_bundled

    bundle = load_bundled()
    labels = np.asarray(bundle.target, dtype=np.int64)
    for_test = np.zeros(len(labels), dtype=bool)
    for label in range(10):
        for_test[np.flatnonzero(labels == label)[::5]] = True
    recipe = image_recipe((1, 8, 8), [0.0], [1.0], scale=16.0)
    x, y = prepare_images(np.asarray(bundle.images), recipe), torch.from_numpy(labels)
    train, test = (Examples(x[mask], y[mask]) for mask in (~for_test, for_test))
    classes = tuple(str(digit) for digit in range(10))
    return DataSet("digits", train, test, "classification", classes, preprocessing=recipe)
