"""A multilayer perceptron in NumPy alone: every gradient written out by hand.

Made to be read, and to check our torch code by an independent route. Importing it loads numpy and
nothing heavier. Start with `net`; the other files hold one idea each: `activations`, `losses`,
`penalties`, `initialisers`, `optimisers`, `training`, `history`, `report`.

Source: the course report "EE5179 Programming Assignment 1: MNIST". What of it can be reproduced is
told in docs/theory/scratch.md.

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

from bayesieve.scratch.activations import Activation, Linear, ReLU, Sigmoid, Softmax, Tanh
from bayesieve.scratch.history import History, Record
from bayesieve.scratch.initialisers import Gaussian, Glorot, Initialiser, Random
from bayesieve.scratch.inputs import one_hot
from bayesieve.scratch.losses import CrossEntropy, Loss, SquaredError
from bayesieve.scratch.net import Evaluation, FeedForwardNet
from bayesieve.scratch.optimisers import Adam, GradientDescent, Optimiser
from bayesieve.scratch.penalties import L1, L2, Penalty
from bayesieve.scratch.report import ClassificationReport, classification_report
from bayesieve.scratch.training import Plan, constant, linear_decay

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
