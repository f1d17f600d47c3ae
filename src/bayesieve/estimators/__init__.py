"""Scikit-learn estimators: a Bayesian network behind the interface tables are used to."""

from bayesieve.estimators.base import fit_many
from bayesieve.estimators.classifier import SieveClassifier
from bayesieve.estimators.regressor import SieveRegressor
from bayesieve.estimators.selector import SieveSelector

__all__ = ["SieveClassifier", "SieveRegressor", "SieveSelector", "fit_many"]
