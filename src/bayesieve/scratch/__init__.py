"""A multilayer perceptron in NumPy alone: every gradient written out by hand.

Made to be read, and to check our torch code by an independent route. Importing it loads numpy and
nothing heavier. Read `functions`, then `net`, then `training`; `report` prints a table of scores.

Source: the course report "EE5179 Programming Assignment 1: MNIST". docs/theory/scratch.md says
which of its numbers can be reproduced.

Example:
    >>> import numpy as np
    >>> from bayesieve.scratch import Adam, FeedForwardNet, Plan, ReLU
    >>> rng = np.random.default_rng(0)
    >>> x = rng.normal(size=(200, 2))
    >>> inside = (np.linalg.norm(x, axis=1) < 1.2).astype(int)
    >>> net = FeedForwardNet(2, (16, 16), 2, hidden=ReLU(), seed=0)
    >>> history = net.train(x, inside, Plan(Adam(lr=0.01), epochs=50, batch_size=20))
    >>> net.evaluate(x, inside).accuracy > 0.97
    True
"""

from bayesieve.scratch.functions import (
    L1,
    L2,
    Activation,
    CrossEntropy,
    Gaussian,
    Glorot,
    Initialiser,
    Linear,
    Loss,
    Penalty,
    Random,
    ReLU,
    Sigmoid,
    Softmax,
    SquaredError,
    Tanh,
)
from bayesieve.scratch.net import Evaluation, FeedForwardNet, one_hot
from bayesieve.scratch.report import ClassificationReport, classification_report
from bayesieve.scratch.training import (
    Adam,
    GradientDescent,
    History,
    Optimiser,
    Plan,
    Record,
    constant,
    linear_decay,
)

__all__ = [
    "L1",
    "L2",
    "Activation",
    "Adam",
    "ClassificationReport",
    "CrossEntropy",
    "Evaluation",
    "FeedForwardNet",
    "Gaussian",
    "Glorot",
    "GradientDescent",
    "History",
    "Initialiser",
    "Linear",
    "Loss",
    "Optimiser",
    "Penalty",
    "Plan",
    "Random",
    "ReLU",
    "Record",
    "Sigmoid",
    "Softmax",
    "SquaredError",
    "Tanh",
    "classification_report",
    "constant",
    "linear_decay",
    "one_hot",
]
