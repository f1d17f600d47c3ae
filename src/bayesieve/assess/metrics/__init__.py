"""Numbers that say how good a prediction is: pure functions of tensors, no autograd.

Information is in nats. Everything is computed in float64 on the device of the input, and a wrong
shape, label or probability raises instead of being repaired.

Modules: `classification` (error, likelihood, calibration), `regression` (errors, mixture
likelihood, coverage), each with the report that is printed and stored; `ranking` (selective
prediction, OOD detection).
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
    negative_log_likelihood,
    precision_recall_f1,
    reliability_bins,
)
from bayesieve.assess.metrics.ranking import aurc, auroc, risk_coverage
from bayesieve.assess.metrics.regression import (
    RegressionReport,
    interval_coverage,
    log_likelihood_mixture,
    mae,
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
    "interval_coverage",
    "log_likelihood_mixture",
    "mae",
    "negative_log_likelihood",
    "precision_recall_f1",
    "regression_report",
    "reliability_bins",
    "risk_coverage",
    "rmse",
]
