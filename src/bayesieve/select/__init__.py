"""Statements about the inputs of a network: importance, probability, choice, stability.

Everything here reads posteriors, or asks a `TableFits` for the networks it needs; the one that
trains them as a population is `estimators.population.PopulationFits`.

Modules: `importance` (how probable it is that a weight matters, ψ and φ of the inputs, probability
that an input matters), `selection` (fraction, threshold, posterior false-discovery rate,
cross-validated number of inputs, stability over samples of the rows), `knockoffs` (model-X check
for Gaussian inputs), `additive` (additive networks).
"""

from bayesieve.select.additive import HingeBasis, additive_network
from bayesieve.select.importance import (
    FeatureImportance,
    Source,
    best_source,
    feature_importance,
    feature_inclusion,
    importance_draws,
    log_bayes_factor,
    normalised,
    normalised_among,
    path_importance,
    probability_from_evidence,
    weight_log_bayes_factors,
    weight_probabilities,
)
from bayesieve.select.knockoffs import (
    gaussian_knockoffs,
    knockoff_select,
    knockoff_statistic,
)
from bayesieve.select.selection import (
    PROPORTIONS,
    ProportionPath,
    ProportionRule,
    Stability,
    TableFits,
    bootstrap_rows,
    choose_proportion,
    cross_validate_proportion,
    expected_fdr,
    folds,
    select_fdr,
    select_fraction,
    select_threshold,
    selection_stability,
)

__all__ = [
    "PROPORTIONS",
    "FeatureImportance",
    "HingeBasis",
    "ProportionPath",
    "ProportionRule",
    "Source",
    "Stability",
    "TableFits",
    "additive_network",
    "best_source",
    "bootstrap_rows",
    "choose_proportion",
    "cross_validate_proportion",
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
    "weight_log_bayes_factors",
    "weight_probabilities",
]
