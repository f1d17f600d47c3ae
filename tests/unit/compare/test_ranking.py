"""Ranks, ties and sentences by hand."""

import pytest

from bayesieve.compare.ranking import Standing, critical_difference, standings
from bayesieve.compare.reading import reading

OOD = "out-of-distribution AUROC"


def test_means_and_ranks_by_hand():
    found = standings({
        "a": [{"error": 0.3, OOD: 0.9}, {"error": 0.1, OOD: 0.8}],
        "b": [{"error": 0.2, OOD: 0.7}, {"error": 0.4, OOD: 0.6}],
    })  # fmt: skip
    error, ood = found
    assert error.names == ("a", "b")
    assert error.means == pytest.approx((0.2, 0.3))
    assert error.errors == pytest.approx((0.1, 0.1))
    assert error.ranks == (1.5, 1.5)  # each was better once
    assert ood.names == ("a", "b")  # more is better there
    assert ood.ranks == (1.0, 2.0)


def test_equal_values_share_a_rank():
    (own,) = standings({name: [{"NLL": 1.0}] for name in "abc"})
    assert own.ranks == (2.0, 2.0, 2.0)
    assert own.critical_difference is None  # one seed tells nothing
    assert own.errors == (None, None, None)


@pytest.mark.parametrize(
    ("n_methods", "q"), [(2, 1.960), (3, 2.343), (4, 2.569), (5, 2.728), (10, 3.164)]
)
def test_critical_values_of_the_table(n_methods, q):
    by_hand = q * (n_methods * (n_methods + 1) / (6 * 30)) ** 0.5
    assert critical_difference(n_methods, 30) == pytest.approx(by_hand, rel=1e-3)


def test_only_metrics_that_all_methods_have():
    found = standings({"a": [{"error": 0.1, "x": 1.0}], "b": [{"error": 0.2}]})
    assert [own.metric for own in found] == ["error"]
    assert standings({}) == []


def standing(means, errors):
    names = tuple("abc"[: len(means)])
    return Standing("error", names, means, errors, tuple(range(1, len(means) + 1)), None)


def test_ties_are_within_two_standard_errors():
    assert standing((0.10, 0.11, 0.20), (0.004, 0.004, 0.004)).tied() == ("a", "b")
    assert standing((0.10, 0.11, 0.20), (0.002, 0.002, 0.002)).tied() == ("a",)
    assert standing((0.10, 0.11), (None, None)).tied() == ("a",)


@pytest.mark.parametrize(
    ("own", "words"),
    [
        (standing((0.1, 0.2), (0.0, 0.0)), "a has the lowest error: 0.1000; b is last: 0.2000."),
        (standing((0.1, 0.11, 0.3), (0.01, 0.01, 0.01)), "tied within two standard errors with b;"),
        (standing((0.1, 0.11), (0.1, 0.1)), "no method differs from the best"),
    ],
)
def test_sentences(own, words):
    assert words in reading([own])[0]
