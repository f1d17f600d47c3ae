"""Likelihoods p(target | network output): one class each, with everything that is true of it.

To add one, write its class beside the others and add it here: to `LikelihoodName` ("student-t" is
`StudentT`), `_HOMES` and the imports. docs/adding-a-likelihood.md shows how. Classes are loaded
when they are first asked for, so that the command line can list the names without loading torch.
"""

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

if TYPE_CHECKING:
    from bayesieve.core.likelihoods.base import ClassLikelihood as ClassLikelihood
    from bayesieve.core.likelihoods.base import Likelihood as Likelihood
    from bayesieve.core.likelihoods.base import Numbers as Numbers
    from bayesieve.core.likelihoods.base import RealLikelihood as RealLikelihood
    from bayesieve.core.likelihoods.base import Task as Task
    from bayesieve.core.likelihoods.base import diagonal_roots as diagonal_roots
    from bayesieve.core.likelihoods.base import number as number
    from bayesieve.core.likelihoods.classes import Bernoulli as Bernoulli
    from bayesieve.core.likelihoods.classes import Categorical as Categorical
    from bayesieve.core.likelihoods.prediction import ClassPrediction as ClassPrediction
    from bayesieve.core.likelihoods.prediction import Prediction as Prediction
    from bayesieve.core.likelihoods.prediction import RealPrediction as RealPrediction
    from bayesieve.core.likelihoods.prediction import pooled as pooled
    from bayesieve.core.likelihoods.real import Gaussian as Gaussian
    from bayesieve.core.likelihoods.real import Heteroscedastic as Heteroscedastic
    from bayesieve.core.likelihoods.real import StudentT as StudentT

LikelihoodName = Literal["categorical", "bernoulli", "gaussian", "student-t", "heteroscedastic"]

NAMES: tuple[LikelihoodName, ...] = get_args(LikelihoodName)
_CLASSES = {name: "".join(map(str.capitalize, name.split("-"))) for name in NAMES}
_HOMES = {
    "ClassLikelihood": "base", "Likelihood": "base", "Numbers": "base", "RealLikelihood": "base",
    "Task": "base", "diagonal_roots": "base", "number": "base",
    "Bernoulli": "classes", "Categorical": "classes",
    "ClassPrediction": "prediction", "Prediction": "prediction", "RealPrediction": "prediction",
    "pooled": "prediction", "Gaussian": "real", "Heteroscedastic": "real", "StudentT": "real",
}  # fmt: skip
_REGISTERED: dict[str, "type[Likelihood]"] = {}  # classes of other packages, by their names

__all__ = [
    *_HOMES,
    "LikelihoodName",
    "NAMES",
    "from_dict",
    "likelihood_class",
    "name_of",
    "register",
]

L = TypeVar("L", bound="Likelihood")


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def likelihood_class(name: LikelihoodName) -> "type[Likelihood]":
    """The class behind a name of the command line.

    Example:
        >>> likelihood_class("student-t").__name__
        'StudentT'
    """
    return getattr(import_module(__name__), _CLASSES[name])


def name_of(likelihood: "Likelihood") -> LikelihoodName:
    """The name on the command line; raises for a likelihood that has none."""
    for name, kind in _CLASSES.items():
        if kind == type(likelihood).__name__:
            return name
    raise ValueError(f"{type(likelihood).__name__} has no name on the command line.")


def register(likelihood: type[L]) -> type[L]:
    """Make bundles and ONNX files with a likelihood of another package readable; a decorator."""
    _REGISTERED[likelihood.__name__] = likelihood
    return likelihood


def from_dict(row: Mapping[str, Any]) -> "Likelihood":
    """The likelihood that `to_dict` wrote; raises ValueError if it is unknown or damaged.

    Example:
        >>> from_dict({"name": "Gaussian", "noise_std": 0.5})
        Gaussian(noise_std=0.5, learned=False)
    """
    kind = row.get("name")
    if isinstance(kind, str) and kind in _REGISTERED:
        return _REGISTERED[kind].from_dict(row)
    for name, known in _CLASSES.items():
        if kind == known:
            return likelihood_class(name).from_dict(row)
    raise ValueError(
        f"unknown likelihood {str(kind)[:80]!r}. Import the module that defines it and passes it "
        "to likelihoods.register."
    )
