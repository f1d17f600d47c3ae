"""Likelihoods p(target | network output): one class each, with everything that is true of it.

To add one, write its class beside the others and add it to `_KINDS` here; on the command line
"student-t" is `StudentT`. docs/adding-a-likelihood.md shows how.
"""

import re
from collections.abc import Mapping
from typing import Any, TypeVar

from bayesieve.checks import check_choice
from bayesieve.core.likelihoods.base import Likelihood as Likelihood
from bayesieve.core.likelihoods.base import Numbers as Numbers
from bayesieve.core.likelihoods.base import Task as Task
from bayesieve.core.likelihoods.base import diagonal_roots as diagonal_roots
from bayesieve.core.likelihoods.base import number as number
from bayesieve.core.likelihoods.classes import Bernoulli as Bernoulli
from bayesieve.core.likelihoods.classes import Categorical as Categorical
from bayesieve.core.likelihoods.classes import ClassLikelihood as ClassLikelihood
from bayesieve.core.likelihoods.counts import NegativeBinomial as NegativeBinomial
from bayesieve.core.likelihoods.counts import Poisson as Poisson
from bayesieve.core.likelihoods.prediction import ClassPrediction as ClassPrediction
from bayesieve.core.likelihoods.prediction import Prediction as Prediction
from bayesieve.core.likelihoods.prediction import RealPrediction as RealPrediction
from bayesieve.core.likelihoods.real import Gaussian as Gaussian
from bayesieve.core.likelihoods.real import Heteroscedastic as Heteroscedastic
from bayesieve.core.likelihoods.real import RealLikelihood as RealLikelihood
from bayesieve.core.likelihoods.real import StudentT as StudentT

_KINDS: dict[str, type[Likelihood]] = {  # by names of the command line
    re.sub("(?<=[a-z])(?=[A-Z])", "-", kind.__name__).lower(): kind
    for kind in (
        *(Categorical, Bernoulli),
        *(Gaussian, StudentT, Heteroscedastic),
        *(Poisson, NegativeBinomial),
    )
}
NAMES = tuple(_KINDS)
_REGISTERED: dict[str, type[Likelihood]] = {}  # classes of other packages, by their names
L = TypeVar("L", bound=Likelihood)


def likelihood_class(name: str) -> type[Likelihood]:
    """The class behind a name of the command line.

    Example:
        >>> likelihood_class("student-t").__name__
        'StudentT'
    """
    check_choice("likelihood", "name", name, NAMES)
    return _KINDS[name]


def name_of(likelihood: Likelihood) -> str:
    """The name on the command line; raises for a likelihood that has none.

    Example:
        >>> name_of(StudentT())
        'student-t'
    """
    for name, kind in _KINDS.items():
        if kind is type(likelihood):
            return name
    raise ValueError(f"{type(likelihood).__name__} has no name on the command line.")


def register(likelihood: type[L]) -> type[L]:
    """Make bundles and ONNX files with a likelihood of another package readable; a decorator."""
    _REGISTERED[likelihood.__name__] = likelihood
    return likelihood


def from_dict(row: Mapping[str, Any]) -> Likelihood:
    """The likelihood that `to_dict` wrote; raises ValueError if it is unknown or damaged.

    Example:
        >>> from_dict({"name": "Gaussian", "noise_std": 0.5})
        Gaussian(noise_std=0.5, learned=False)
    """
    known = {kind.__name__: kind for kind in _KINDS.values()} | _REGISTERED
    name = row.get("name")
    if not isinstance(name, str) or name not in known:
        raise ValueError(
            f"unknown likelihood {str(name)[:80]!r}. Import the module that defines it and passes "
            "it to likelihoods.register."
        )
    return known[name].from_dict(row)
