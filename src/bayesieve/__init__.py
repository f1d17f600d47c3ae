"""Bayesian sparse deep learning for any `nn.Module`.

Names are loaded on first use, so that `import bayesieve` and the command line's help are instant.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bayesieve.assess.diagnostics import diagnose as diagnose
    from bayesieve.assess.evaluate import evaluate as evaluate
    from bayesieve.assess.predict import predict as predict
    from bayesieve.core.batch import Batch as Batch
    from bayesieve.core.layout import Layout as Layout
    from bayesieve.core.layout import Role as Role
    from bayesieve.core.layout import Roles as Roles
    from bayesieve.core.likelihoods import Bernoulli as Bernoulli
    from bayesieve.core.likelihoods import Categorical as Categorical
    from bayesieve.core.likelihoods import Gaussian as Gaussian
    from bayesieve.core.likelihoods import Heteroscedastic as Heteroscedastic
    from bayesieve.core.likelihoods import StudentT as StudentT
    from bayesieve.core.posterior import Factorised as Factorised
    from bayesieve.core.posterior import Samples as Samples
    from bayesieve.core.posterior import SparseModel as SparseModel
    from bayesieve.core.priors import GaussianLaplace as GaussianLaplace
    from bayesieve.core.priors import GroupSparse as GroupSparse
    from bayesieve.core.priors import Horseshoe as Horseshoe
    from bayesieve.core.priors import LayerScaled as LayerScaled
    from bayesieve.core.priors import Normal as Normal
    from bayesieve.core.priors import SpikeSlab as SpikeSlab
    from bayesieve.core.problem import Problem as Problem
    from bayesieve.core.storage import load_posterior as load_posterior
    from bayesieve.core.storage import load_sparse as load_sparse
    from bayesieve.data import load_data as load_data
    from bayesieve.data.augment import Augment as Augment
    from bayesieve.deliver.bundle import load as load
    from bayesieve.deliver.bundle import save as save
    from bayesieve.deliver.c import export_c as export_c
    from bayesieve.deliver.onnx import export_onnx as export_onnx
    from bayesieve.deliver.pt2 import export_pt2 as export_pt2
    from bayesieve.deliver.runtime import as_runtime as as_runtime
    from bayesieve.engines.bmr import BMR as BMR
    from bayesieve.engines.bmr import Reduction as Reduction
    from bayesieve.engines.flat_vi import FlatVI as FlatVI
    from bayesieve.engines.horseshoe import HorseshoeVI as HorseshoeVI
    from bayesieve.engines.map import MAP as MAP
    from bayesieve.engines.sampling import Averaging as Averaging
    from bayesieve.engines.sampling import Chain as Chain
    from bayesieve.engines.sbnn import SBNN as SBNN
    from bayesieve.engines.sgmcmc import SGHMC as SGHMC
    from bayesieve.engines.sgmcmc import SGLD as SGLD
    from bayesieve.engines.tdamp import TDAMP as TDAMP
    from bayesieve.estimators import SieveClassifier as SieveClassifier
    from bayesieve.estimators import SieveRegressor as SieveRegressor
    from bayesieve.estimators import SieveSelector as SieveSelector
    from bayesieve.estimators import fit_many as fit_many
    from bayesieve.sieve.compact import compact as compact
    from bayesieve.sieve.evidence import prune_by_evidence as prune_by_evidence
    from bayesieve.sieve.evidence import prune_units_by_evidence as prune_units_by_evidence
    from bayesieve.sieve.evidence import weight_evidence as weight_evidence
    from bayesieve.sieve.prune import prune as prune
    from bayesieve.sieve.prune import sparsity_curve as sparsity_curve
    from bayesieve.sieve.rules import keep_fraction as keep_fraction
    from bayesieve.sieve.rules import keep_n_of_m as keep_n_of_m
    from bayesieve.sieve.rules import keep_probable as keep_probable
    from bayesieve.sieve.rules import keep_units as keep_units
    from bayesieve.sieve.rules import keep_zeros as keep_zeros
    from bayesieve.sieve.schedule import AnnealedPruning as AnnealedPruning
    from bayesieve.sieve.schedule import GradualPruning as GradualPruning
    from bayesieve.sieve.schedule import GradualUnits as GradualUnits
    from bayesieve.training.fit import fit as fit
    from bayesieve.training.laplace import laplace as laplace
    from bayesieve.training.options import Validation as Validation
    from bayesieve.training.schedule import Schedule as Schedule
    from bayesieve.training.unit_laplace import laplace_units as laplace_units

__version__ = "0.1.0"

_HOME = {
    "diagnose": "assess.diagnostics",
    "evaluate": "assess.evaluate",
    "predict": "assess.predict",
    "Batch": "core.batch",
    "GaussianLaplace": "core.priors",
    "GroupSparse": "core.priors",
    "Horseshoe": "core.priors",
    "LayerScaled": "core.priors",
    "Layout": "core.layout",
    "Role": "core.layout",
    "Roles": "core.layout",
    "Bernoulli": "core.likelihoods",
    "Categorical": "core.likelihoods",
    "Gaussian": "core.likelihoods",
    "Heteroscedastic": "core.likelihoods",
    "StudentT": "core.likelihoods",
    "Factorised": "core.posterior",
    "Samples": "core.posterior",
    "SparseModel": "core.posterior",
    "Normal": "core.priors",
    "SpikeSlab": "core.priors",
    "Problem": "core.problem",
    "load_posterior": "core.storage",
    "load_sparse": "core.storage",
    "load_data": "data",
    "Augment": "data.augment",
    "load": "deliver.bundle",
    "save": "deliver.bundle",
    "export_c": "deliver.c",
    "export_onnx": "deliver.onnx",
    "export_pt2": "deliver.pt2",
    "as_runtime": "deliver.runtime",
    "Averaging": "engines.sampling",
    "Chain": "engines.sampling",
    "BMR": "engines.bmr",
    "Reduction": "engines.bmr",
    "FlatVI": "engines.flat_vi",
    "HorseshoeVI": "engines.horseshoe",
    "MAP": "engines.map",
    "SBNN": "engines.sbnn",
    "SGHMC": "engines.sgmcmc",
    "SGLD": "engines.sgmcmc",
    "TDAMP": "engines.tdamp",
    "SieveClassifier": "estimators",
    "SieveRegressor": "estimators",
    "SieveSelector": "estimators",
    "fit_many": "estimators",
    "prune_by_evidence": "sieve.evidence",
    "prune_units_by_evidence": "sieve.evidence",
    "weight_evidence": "sieve.evidence",
    "compact": "sieve.compact",
    "GradualUnits": "sieve.schedule",
    "keep_units": "sieve.rules",
    "prune": "sieve.prune",
    "sparsity_curve": "sieve.prune",
    "keep_fraction": "sieve.rules",
    "keep_zeros": "sieve.rules",
    "keep_n_of_m": "sieve.rules",
    "keep_probable": "sieve.rules",
    "AnnealedPruning": "sieve.schedule",
    "GradualPruning": "sieve.schedule",
    "fit": "training.fit",
    "laplace": "training.laplace",
    "Validation": "training.options",
    "laplace_units": "training.unit_laplace",
    "Schedule": "training.schedule",
}
__all__ = [*_HOME, "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        from bayesieve.checks import did_you_mean

        hint = "" if name.startswith("_") else did_you_mean(name, _HOME)
        raise AttributeError(f"module 'bayesieve' has no attribute {name!r}.{hint}")
    return getattr(import_module(f"bayesieve.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
