"""Statements about the inputs of a network: importance, probability, choice, stability.

Everything here reads posteriors or rows, or asks a `TableFits` for the fits it needs; the one that
trains networks as a population is `estimators.importance.PopulationFits`.

Modules: `joint` (probability that an input matters, from the joint posterior of an additive model),
`importance` (how probable it is that a weight matters, ψ and φ of the inputs), `selection`
(fraction, threshold, posterior false-discovery rate, cross-validated number of inputs, stability
over samples of the rows), `additive` (functions of the inputs, additive networks, and regressions
on some inputs in closed form).
"""

from bayesieve.select.additive import HingeBasis as HingeBasis
from bayesieve.select.additive import additive_network as additive_network
from bayesieve.select.importance import FeatureImportance as FeatureImportance
from bayesieve.select.importance import Source as Source
from bayesieve.select.importance import best_source as best_source
from bayesieve.select.importance import feature_importance as feature_importance
from bayesieve.select.importance import normalised as normalised
from bayesieve.select.importance import path_importance as path_importance
from bayesieve.select.importance import weight_log_bayes_factors as weight_log_bayes_factors
from bayesieve.select.importance import weight_probabilities as weight_probabilities
from bayesieve.select.joint import JointPosterior as JointPosterior
from bayesieve.select.joint import joint_posterior as joint_posterior
from bayesieve.select.selection import PROPORTIONS as PROPORTIONS
from bayesieve.select.selection import AdditiveFits as AdditiveFits
from bayesieve.select.selection import ProportionPath as ProportionPath
from bayesieve.select.selection import ProportionRule as ProportionRule
from bayesieve.select.selection import TableFits as TableFits
from bayesieve.select.selection import bootstrap_rows as bootstrap_rows
from bayesieve.select.selection import choose_proportion as choose_proportion
from bayesieve.select.selection import cross_validate_proportion as cross_validate_proportion
from bayesieve.select.selection import expected_fdr as expected_fdr
from bayesieve.select.selection import folds as folds
from bayesieve.select.selection import select_fdr as select_fdr
from bayesieve.select.selection import select_fraction as select_fraction
from bayesieve.select.selection import select_threshold as select_threshold
from bayesieve.select.selection import selection_stability as selection_stability
