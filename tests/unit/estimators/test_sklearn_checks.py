"""Scikit-learn's own list of promises, for all three estimators.

The instances are small and stop after a few epochs: the promises are about behaviour, and the few
that ask for quality are easy.
"""

from sklearn.utils.estimator_checks import parametrize_with_checks

from bayesieve.estimators import SieveClassifier, SieveRegressor, SieveSelector

_SMALL = {"hidden": (8,), "epochs": 10, "folds": 0, "n_samples": 4, "lr": 0.1, "random_state": 0}
# A row of weight 2 is not drawn as often as two rows, and a row of weight 0 is still drawn: so
# batches, and the path of stochastic gradients, differ, as in scikit-learn's own SGD estimators.
_BATCHES = "stochastic batches: weights equal repetition in the objective, not step by step"
_EXPECTED = {"check_sample_weight_equivalence_on_dense_data": _BATCHES}

ESTIMATORS = [
    SieveClassifier(**_SMALL),
    SieveRegressor(**_SMALL),
    SieveSelector(estimator=SieveRegressor(**_SMALL), fraction=0.5, random_state=0),
]


def expected_failures(estimator):
    return {} if isinstance(estimator, SieveSelector) else _EXPECTED


@parametrize_with_checks(ESTIMATORS, expected_failed_checks=expected_failures)
def test_scikit_learn_promises(estimator, check):
    check(estimator)
