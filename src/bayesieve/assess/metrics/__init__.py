"""Numbers that say how good a prediction is: pure functions of tensors, no autograd.

Information is in nats. Everything is computed in float64 on the device of the input, and a wrong
shape, label or probability raises instead of being repaired.

Modules: `classification` (error, likelihood, calibration, entropy and its parts), `regression`
(errors, mixture likelihood, intervals), each with the report that is printed and stored; `ranking`
(selective prediction, OOD detection, standard error).
"""

from bayesieve.assess.metrics.classification import (
    Binning,
    ClassificationReport,
    ReliabilityBins,
    accuracy,
    brier,
    classification_report,
    confusion_matrix,
    ece,
    error,
    expected_entropy,
    mutual_information,
    negative_log_likelihood,
    precision_recall_f1,
    predictive_entropy,
    predictive_log_probs,
    reliability_bins,
)
from bayesieve.assess.metrics.ranking import aurc, auroc, risk_coverage, standard_error
from bayesieve.assess.metrics.regression import (
    RegressionReport,
    interval,
    interval_coverage,
    log_likelihood_mixture,
    mae,
    mean_interval_width,
    predictive_moments,
    regression_report,
    rmse,
)

__all__ = [
    "Binning",
    "ClassificationReport",
    "RegressionReport",
    "ReliabilityBins",
    "accuracy",
    "aurc",
    "auroc",
    "brier",
    "classification_report",
    "confusion_matrix",
    "ece",
    "error",
    "expected_entropy",
    "interval",
    "interval_coverage",
    "log_likelihood_mixture",
    "mae",
    "mean_interval_width",
    "mutual_information",
    "negative_log_likelihood",
    "precision_recall_f1",
    "predictive_entropy",
    "predictive_log_probs",
    "predictive_moments",
    "regression_report",
    "reliability_bins",
    "risk_coverage",
    "rmse",
    "standard_error",
]
