"""p(y | network output): one conditional distribution each, plus what a predictive needs.

A likelihood is a frozen dataclass without tensors. Numbers it learns (a noise level) are point
parameters appended to the flat vector under `likelihood.<name>`, so engines need not know of them.
"""

from bayesieve.core.likelihoods.classes import Bernoulli, Categorical
from bayesieve.core.likelihoods.protocol import Extra, Likelihood, RealLikelihood, Task
from bayesieve.core.likelihoods.real import Gaussian, Heteroscedastic, StudentT

__all__ = [
    "Bernoulli",
    "Categorical",
    "Extra",
    "Gaussian",
    "Heteroscedastic",
    "Likelihood",
    "RealLikelihood",
    "StudentT",
    "Task",
]
