"""Bayesian sparse deep learning for any `nn.Module`.

Names are loaded on first use, so that `import bayesieve` and the command line's help are instant.
Likelihoods, priors, pruning rules and run folders are in the namespaces `bayesieve.likelihoods`,
`bayesieve.priors`, `bayesieve.rules` and `bayesieve.runs`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bayesieve import runs as runs
    from bayesieve.assess.diagnostics import diagnose as diagnose
    from bayesieve.assess.evaluate import evaluate as evaluate
    from bayesieve.assess.familiarity import Familiarity as Familiarity
    from bayesieve.assess.predict import predict as predict
    from bayesieve.core import likelihoods as likelihoods
    from bayesieve.core import priors as priors
    from bayesieve.core.layout import Roles as Roles
    from bayesieve.core.problem import Problem as Problem
    from bayesieve.data import load_data as load_data
    from bayesieve.deliver.bundle import load as load
    from bayesieve.deliver.bundle import save as save
    from bayesieve.deliver.c import export_c as export_c
    from bayesieve.deliver.onnx import export_onnx as export_onnx
    from bayesieve.deliver.pt2 import export_pt2 as export_pt2
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
    from bayesieve.training.fit import fit as fit
    from bayesieve.training.options import Validation as Validation
    from bayesieve.training.schedule import Schedule as Schedule

__version__ = "0.2.0"

_HOME = {
    "fit": "training.fit",
    "Problem": "core.problem",
    "Schedule": "training.schedule",
    "Validation": "training.options",
    "Roles": "core.layout",
    "Chain": "engines.sampling",
    "predict": "assess.predict",
    "Familiarity": "assess.familiarity",
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
    "export_pt2": "deliver.pt2",
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
    "priors": "core.priors",
    "rules": "sieve.rules",
    "runs": "runs",
}
# Names of version 0.1 that are no longer at the top, and their new form after `bayesieve.`.
# They stay importable for one version, with a warning.
_MOVED = {
    "AnnealedPruning": "sieve.schedule.AnnealedPruning",
    "Augment": "data.augment.Augment",
    "Averaging": "engines.sampling.Averaging",
    "Batch": "core.batch.Batch",
    "Bernoulli": "likelihoods.Bernoulli",
    "Categorical": "likelihoods.Categorical",
    "Factorised": "core.posterior.Factorised",
    "Gaussian": "likelihoods.Gaussian",
    "GaussianLaplace": "priors.GaussianLaplace",
    "GradualUnits": "sieve.schedule.GradualUnits",
    "GroupSparse": "priors.GroupSparse",
    "Heteroscedastic": "likelihoods.Heteroscedastic",
    "Horseshoe": "priors.Horseshoe",
    "LayerScaled": "priors.LayerScaled",
    "Layout": "core.layout.Layout",
    "Normal": "priors.Normal",
    "Reduction": "engines.bmr.Reduction",
    "Role": "core.layout.Role",
    "Samples": "core.posterior.Samples",
    "SparseModel": "core.posterior.SparseModel",
    "SpikeSlab": "priors.SpikeSlab",
    "StudentT": "likelihoods.StudentT",
    "keep_fraction": "rules.keep_fraction",
    "keep_n_of_m": "rules.keep_n_of_m",
    "keep_probable": "rules.keep_probable",
    "keep_units": "rules.keep_units",
    "laplace_units": "engines.laplace.laplace_units",
    "load_posterior": "core.storage.load_posterior",
    "load_sparse": "core.storage.load_sparse",
    "reduce": "prune_by_evidence",
    "reduce_units": "sieve.evidence.prune_units_by_evidence",
    "support": "sieve.evidence.weight_evidence",
}
_REMOVED = {
    "DrawsTo": "Chains keep their draws in memory: Chain(n_kept=...).",
    "Saving": "Use fit(..., folder=..., resume=...) and Schedule(checkpoint_every=...).",
}
__all__ = [*_HOME, *_NAMESPACES, "__version__"]


def __getattr__(name: str) -> Any:
    if name in _NAMESPACES:
        return import_module(f"bayesieve.{_NAMESPACES[name]}")
    if name in _HOME:
        return getattr(import_module(f"bayesieve.{_HOME[name]}"), name)
    if name in _MOVED:
        return _moved(name, _MOVED[name])
    from bayesieve.checks import did_you_mean

    hint = "" if name.startswith("_") else did_you_mean(name, __all__)
    hint = f" {_REMOVED[name]}" if name in _REMOVED else hint
    raise AttributeError(f"module 'bayesieve' has no attribute {name!r}.{hint}")


def _moved(name: str, path: str) -> Any:
    """The object that an old name means, with a warning that says its new one."""
    import warnings

    text = f"bayesieve.{name} is deprecated; use bayesieve.{path}."
    warnings.warn(text, DeprecationWarning, stacklevel=3)
    home, _, attribute = path.rpartition(".")
    if not home:
        return __getattr__(attribute)
    return getattr(import_module(f"bayesieve.{_NAMESPACES.get(home, home)}"), attribute)


def __dir__() -> list[str]:
    return sorted(__all__)
