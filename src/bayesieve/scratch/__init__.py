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

from bayesieve.scratch.functions import L1 as L1
from bayesieve.scratch.functions import L2 as L2
from bayesieve.scratch.functions import Activation as Activation
from bayesieve.scratch.functions import CrossEntropy as CrossEntropy
from bayesieve.scratch.functions import Gaussian as Gaussian
from bayesieve.scratch.functions import Glorot as Glorot
from bayesieve.scratch.functions import Initialiser as Initialiser
from bayesieve.scratch.functions import Linear as Linear
from bayesieve.scratch.functions import Loss as Loss
from bayesieve.scratch.functions import Penalty as Penalty
from bayesieve.scratch.functions import Random as Random
from bayesieve.scratch.functions import ReLU as ReLU
from bayesieve.scratch.functions import Sigmoid as Sigmoid
from bayesieve.scratch.functions import Softmax as Softmax
from bayesieve.scratch.functions import SquaredError as SquaredError
from bayesieve.scratch.functions import Tanh as Tanh
from bayesieve.scratch.net import Evaluation as Evaluation
from bayesieve.scratch.net import FeedForwardNet as FeedForwardNet
from bayesieve.scratch.net import one_hot as one_hot
from bayesieve.scratch.report import ClassificationReport as ClassificationReport
from bayesieve.scratch.report import classification_report as classification_report
from bayesieve.scratch.training import Adam as Adam
from bayesieve.scratch.training import GradientDescent as GradientDescent
from bayesieve.scratch.training import History as History
from bayesieve.scratch.training import Optimiser as Optimiser
from bayesieve.scratch.training import Plan as Plan
from bayesieve.scratch.training import Record as Record
from bayesieve.scratch.training import constant as constant
from bayesieve.scratch.training import linear_decay as linear_decay
