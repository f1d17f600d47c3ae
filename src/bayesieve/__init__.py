"""Bayesian sparse deep learning for any `nn.Module`.

Names are loaded on first use, so that `import bayesieve` and the command line's help are instant.
Likelihoods, priors, pruning rules and run folders are in the namespaces `bayesieve.likelihoods`,
`bayesieve.priors`, `bayesieve.rules` and `bayesieve.runs`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bayesieve import priors as priors
    from bayesieve import runs as runs
    from bayesieve.assess.diagnostics import diagnose as diagnose
    from bayesieve.assess.evaluate import evaluate as evaluate
    from bayesieve.assess.predict import predict as predict
    from bayesieve.checks import AUTO as AUTO
    from bayesieve.core import likelihoods as likelihoods
    from bayesieve.core.layout import Roles as Roles
    from bayesieve.core.problem import Problem as Problem
    from bayesieve.data import load_data as load_data
    from bayesieve.deliver.bundle import load as load
    from bayesieve.deliver.bundle import save as save
    from bayesieve.deliver.c import export_c as export_c
    from bayesieve.deliver.export import export_pt2 as export_pt2
    from bayesieve.deliver.onnx import export_onnx as export_onnx
    from bayesieve.deliver.runtime import as_runtime as as_runtime
    from bayesieve.engines.bmr import BMR as BMR
    from bayesieve.engines.flat_vi import FlatVI as FlatVI
    from bayesieve.engines.horseshoe import HorseshoeVI as HorseshoeVI
    from bayesieve.engines.laplace import laplace as laplace
    from bayesieve.engines.map import MAP as MAP
    from bayesieve.engines.sampling import Chain as Chain
    from bayesieve.engines.sbnn import SBNN as SBNN
    from bayesieve.engines.sgmcmc import SGHMC as SGHMC
    from bayesieve.engines.sgmcmc import SGLD as SGLD
    from bayesieve.engines.tdamp import TDAMP as TDAMP
    from bayesieve.estimators import SieveClassifier as SieveClassifier
    from bayesieve.estimators import SieveRegressor as SieveRegressor
    from bayesieve.estimators import SieveSelector as SieveSelector
    from bayesieve.estimators import fit_many as fit_many
    from bayesieve.sieve import rules as rules
    from bayesieve.sieve.compact import compact as compact
    from bayesieve.sieve.evidence import prune_by_evidence as prune_by_evidence
    from bayesieve.sieve.prune import prune as prune
    from bayesieve.sieve.prune import sparsity_curve as sparsity_curve
    from bayesieve.sieve.schedule import GradualPruning as GradualPruning
    from bayesieve.training.launch import fit as fit
    from bayesieve.training.schedule import Schedule as Schedule
    from bayesieve.training.validation import Validation as Validation
    from bayesieve.uncertainty.familiarity import Familiarity as Familiarity

__version__ = "0.2.0"

_HOME = {
    "AUTO": "checks",
    "fit": "training.launch",
    "Problem": "core.problem",
    "Schedule": "training.schedule",
    "Validation": "training.validation",
    "Roles": "core.layout",
    "Chain": "engines.sampling",
    "predict": "assess.predict",
    "Familiarity": "uncertainty.familiarity",
    "evaluate": "assess.evaluate",
    "diagnose": "assess.diagnostics",
    "prune": "sieve.prune",
    "prune_by_evidence": "sieve.evidence",
    "compact": "sieve.compact",
    "sparsity_curve": "sieve.prune",
    "GradualPruning": "sieve.schedule",
    "save": "deliver.bundle",
    "load": "deliver.bundle",
    "export_onnx": "deliver.onnx",
    "export_c": "deliver.c",
    "export_pt2": "deliver.export",
    "as_runtime": "deliver.runtime",
    "laplace": "engines.laplace",
    "load_data": "data",
    "MAP": "engines.map",
    "FlatVI": "engines.flat_vi",
    "SBNN": "engines.sbnn",
    "BMR": "engines.bmr",
    "HorseshoeVI": "engines.horseshoe",
    "SGLD": "engines.sgmcmc",
    "SGHMC": "engines.sgmcmc",
    "TDAMP": "engines.tdamp",
    "SieveClassifier": "estimators",
    "SieveRegressor": "estimators",
    "SieveSelector": "estimators",
    "fit_many": "estimators",
}
_NAMESPACES = {
    "likelihoods": "core.likelihoods",
    "priors": "priors",
    "rules": "sieve.rules",
    "runs": "runs",
}
_READING = {"Problem", "evaluate", "predict"}  # take a DataLoader, too
__all__ = [*_HOME, *_NAMESPACES, "__version__"]


def __getattr__(name: str) -> Any:
    if name in _READING:
        import_module("bayesieve.data.streams")  # which then reads loaders for the heart
    if name in _NAMESPACES:
        return import_module(f"bayesieve.{_NAMESPACES[name]}")
    if name in _HOME:
        return getattr(import_module(f"bayesieve.{_HOME[name]}"), name)
    hint = "" if name.startswith("_") else _hint(name)
    raise AttributeError(f"module 'bayesieve' has no attribute {name!r}.{hint}")


def _hint(name: str) -> str:
    """Name the namespace that has an unknown name, or the public name closest to it."""
    for space, home in _NAMESPACES.items():
        thing = getattr(import_module(f"bayesieve.{home}"), name, None)
        if getattr(thing, "__module__", "").startswith("bayesieve."):
            return f" It is bayesieve.{space}.{name}."
    from bayesieve.checks import did_you_mean

    return did_you_mean(name, __all__)


def __dir__() -> list[str]:
    return sorted(__all__)
