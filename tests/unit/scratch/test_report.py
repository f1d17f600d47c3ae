"""The classification report against scikit-learn and by hand."""

import numpy as np
import pytest
from sklearn.metrics import classification_report as by_sklearn

from bayesieve.scratch import classification_report
from bayesieve.scratch.report import confusion


@pytest.mark.parametrize("n_classes", [2, 3, 10])
def test_it_prints_what_scikit_learn_prints(n_classes):
    rng = np.random.default_rng(n_classes)
    labels = rng.integers(n_classes, size=200)
    predicted = np.where(rng.random(200) < 0.7, labels, rng.integers(n_classes, size=200))
    ours = classification_report(labels, predicted, n_classes)
    assert str(ours) == by_sklearn(labels, predicted)


def test_classes_without_members_or_predictions_score_zero():
    labels, predicted = np.array([0, 0, 1]), np.array([0, 3, 1])
    report = classification_report(labels, predicted, 4)
    expected = by_sklearn(labels, predicted, labels=range(4), zero_division=0)
    lines = [line.split() for line in expected.splitlines() if line.split()]
    ours = [line.split() for line in str(report).splitlines() if line.split()]
    assert ours[1:5] == lines[1:5]
    assert report.classes[2].support == 0
    assert report.classes[2].f1 == report.classes[3].f1 == 0


def test_against_a_confusion_matrix_made_by_hand():
    labels, predicted = np.array([0] * 4 + [1] * 6), np.array([0, 0, 0, 1, 1, 1, 1, 1, 0, 0])
    assert confusion(labels, predicted, 2).tolist() == [[3, 1], [2, 4]]
    report = classification_report(labels, predicted, 2)
    assert report.accuracy == pytest.approx(0.7)
    assert report.classes[0].precision == pytest.approx(3 / 5)
    assert report.classes[0].recall == pytest.approx(3 / 4)
    assert report.classes[0].f1 == pytest.approx(2 / 3)
    assert report.weighted.recall == pytest.approx(report.accuracy)
    assert report.macro.precision == pytest.approx((3 / 5 + 4 / 5) / 2)


@pytest.mark.parametrize(
    ("labels", "predicted", "message"),
    [
        ([0, 1], [0], r"must have one shape \(N,\), N >= 1, got \(2,\) and \(1,\)"),
        ([], [], "N >= 1"),
        ([0, 2], [0, 1], "labels must be 0 to 1, got 2"),
        ([0, 1], [-1, 1], "predicted must be 0 to 1, got -1"),
    ],
)
def test_wrong_labels_are_refused(labels, predicted, message):
    with pytest.raises(ValueError, match=message):
        classification_report(np.array(labels, int), np.array(predicted, int), 2)
