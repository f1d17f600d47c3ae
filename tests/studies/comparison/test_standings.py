"""Ranks, ties and sentences by hand."""

import pytest

from studies.comparison.page import (
    Standing,
    critical_difference,
    reading,
    removed_already,
    standings,
)

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
    (standing,) = standings({name: [{"NLL": 1.0}] for name in "abc"})
    assert standing.ranks == (2.0, 2.0, 2.0)
    assert standing.critical_difference is None  # one seed tells nothing
    assert standing.errors == (None, None, None)


@pytest.mark.parametrize(
    ("n_methods", "q"), [(2, 1.960), (3, 2.343), (4, 2.569), (5, 2.728), (10, 3.164)]
)
def test_critical_values_of_the_table(n_methods, q):
    by_hand = q * (n_methods * (n_methods + 1) / (6 * 30)) ** 0.5
    assert critical_difference(n_methods, 30) == pytest.approx(by_hand, rel=1e-3)


def test_only_metrics_that_all_methods_have():
    found = standings({"a": [{"error": 0.1, "x": 1.0}], "b": [{"error": 0.2}]})
    assert [standing.metric for standing in found] == ["error"]
    assert standings({}) == []


def test_methods_with_fewer_seeds_keep_their_means_and_are_ranked_on_what_all_have():
    (standing,) = standings({
        "a": [{"error": 0.1}, {"error": 0.3}, {"error": 0.8}],
        "b": [{"error": 0.2}, {"error": 0.2}],
    })  # fmt: skip
    assert standing.names == ("b", "a")
    assert standing.means == pytest.approx((0.2, 0.4))
    assert standing.ranks == (1.5, 1.5)
    assert standing.critical_difference == pytest.approx(critical_difference(2, 2))


def test_a_metric_that_one_seed_lacks_is_left_out():
    found = standings({"a": [{"error": 0.1, "x": 1.0}, {"error": 0.1}]})
    assert [standing.metric for standing in found] == ["error"]


def standing(means, errors, metric="error"):
    names = tuple("abc"[: len(means)])
    return Standing(metric, names, means, errors, tuple(range(1, len(means) + 1)), None)


def test_ties_are_within_two_standard_errors():
    assert standing((0.10, 0.11, 0.20), (0.004, 0.004, 0.004)).tied() == ("a", "b")
    assert standing((0.10, 0.11, 0.20), (0.002, 0.002, 0.002)).tied() == ("a",)
    assert standing((0.10, 0.11), (None, None)).tied() == ("a",)


NONE = (None, None, None)


@pytest.mark.parametrize(
    ("standing", "words"),
    [
        (standing((0.1, 0.2), (0.0, 0.0)), "a has the lowest error, 0.1000; b is last: 0.2000."),
        (
            standing((0.1, 0.11, 0.3), (0.01, 0.01, 0.01)),
            "a has the lowest error, 0.1000, tied within two standard errors with b; "
            "c is last: 0.3000.",
        ),
        (
            standing((0.1, 0.11), (0.1, 0.1)),
            "error: no method differs from the best by two standard errors (a 0.1000).",
        ),
        # One seed has no standard error: only equal numbers are equal.
        (standing((0.1, 0.1, 0.2), NONE), "a and b have the lowest error, 0.1000; c is last"),
        (standing((0.1, 0.2, 0.2), NONE), "a has the lowest error, 0.1000; b and c are last"),
        (standing((0.1, 0.1), (None, None)), "error: all methods have 0.1000."),
        (
            standing((0.1, 0.1, 0.105, 0.2)[:3], (0.0, 0.0, 0.01)),
            "error: no method differs from the best by two standard errors",
        ),
        (standing((0.9, 0.5), (0.0, 0.0), OOD), "a has the best eye for foreign inputs"),
        (
            standing((0.4, 0.3), (0.0, 0.0), OOD),
            f"{OOD}: no method does better than chance (a 0.4000).",
        ),
    ],
)
def test_sentences(standing, words):
    assert words in reading([standing])[0]


def test_nothing_is_said_about_one_method():
    assert reading([standing((0.1,), (0.0,))]) == []


def test_what_a_method_removed_itself_is_told():
    told = removed_already("bmr", (0.9, 0.95, 0.99), [[0.96, 0.96, 0.99], [0.97, 0.97, 0.991]])
    assert told == (
        "bmr had itself removed 96.5 % of its weights: its errors at 90 and 95 % zeros are taken "
        "there."
    )
    assert removed_already("map", (0.9,), [[0.9], [0.902]]) is None
    assert removed_already("map", (), [[], []]) is None
