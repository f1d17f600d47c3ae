"""Which inputs matter: importance, selection, error control, stability.

Modules: `weights` (how probable it is that a weight matters), `importance` (ψ and φ of the inputs),
`inclusion` (probability that an input matters), `selection` (fraction, threshold, posterior
false-discovery rate), `proportion` (cross-validated number of inputs), `knockoffs` (model-X check
for Gaussian inputs), `stability` (agreement over samples of the rows), `fits` (the many fits all
this asks for), `basis` (additive networks), `additive_fits` (their many fits).
"""

from bayesieve.select.additive_fits import AdditiveFits
from bayesieve.select.basis import HingeBasis, additive_network
from bayesieve.select.fits import PopulationFits, Training, evidence_schedule
from bayesieve.select.importance import (
    FeatureImportance,
    feature_importance,
    importance_draws,
    normalised,
    normalised_among,
    path_importance,
)
from bayesieve.select.inclusion import (
    feature_inclusion,
    log_bayes_factor,
    probability_from_evidence,
)
from bayesieve.select.knockoffs import (
    gaussian_knockoffs,
    knockoff_select,
    knockoff_statistic,
)
from bayesieve.select.proportion import (
    PROPORTIONS,
    ProportionPath,
    ProportionRule,
    TableFits,
    choose_proportion,
    cross_validate_proportion,
    folds,
)
from bayesieve.select.selection import (
    expected_fdr,
    select_fdr,
    select_fraction,
    select_threshold,
)
from bayesieve.select.stability import Stability, bootstrap_rows, selection_stability
from bayesieve.select.weights import Source, weight_evidence, weight_probabilities

__all__ = [
    "PROPORTIONS",
    "AdditiveFits",
    "FeatureImportance",
    "HingeBasis",
    "PopulationFits",
    "ProportionPath",
    "ProportionRule",
    "Source",
    "Stability",
    "TableFits",
    "Training",
    "additive_network",
    "bootstrap_rows",
    "choose_proportion",
    "cross_validate_proportion",
    "evidence_schedule",
    "expected_fdr",
    "feature_importance",
    "feature_inclusion",
    "folds",
    "gaussian_knockoffs",
    "importance_draws",
    "knockoff_select",
    "knockoff_statistic",
    "log_bayes_factor",
    "normalised",
    "normalised_among",
    "path_importance",
    "probability_from_evidence",
    "select_fdr",
    "select_fraction",
    "select_threshold",
    "selection_stability",
    "weight_evidence",
    "weight_probabilities",
]
