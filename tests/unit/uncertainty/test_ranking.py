"""Ranking metrics against scikit-learn and all orders of the ties."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from bayesieve.uncertainty.calibration import auroc, risk_coverage

levels = st.lists(st.integers(0, 4).map(float), min_size=1, max_size=12)


def aurc(uncertainty: torch.Tensor, losses: torch.Tensor) -> float:
    """Area under the risk-coverage curve."""
    return float(risk_coverage(uncertainty, losses)[1].mean())


def _slow_risk(uncertainty: list[float], losses: list[float]) -> list[float]:
    """Mean risk curve over every order of the examples that sorts the uncertainty."""
    n = len(losses)
    curves = []
    for order in itertools.permutations(range(n)):
        sorted_scores = [uncertainty[i] for i in order]
        if sorted_scores == sorted(sorted_scores):
            curves.append([sum(losses[i] for i in order[:k]) / k for k in range(1, n + 1)])
    return [sum(column) / len(curves) for column in zip(*curves, strict=True)]


@pytest.mark.parametrize(
    ("uncertainty", "losses"),
    [
        ([0.3, 0.1, 0.2], [1.0, 0.0, 0.0]),
        ([0.5, 0.5, 0.5, 0.5], [1.0, 0.0, 0.0, 1.0]),
        ([0.2, 0.7, 0.2, 0.1, 0.7, 0.2], [0.0, 1.0, 1.0, 0.5, 0.0, 0.0]),
    ],
)
def test_risk_averages_over_every_order_of_the_ties(
    uncertainty: list[float], losses: list[float]
) -> None:
    expected = _slow_risk(uncertainty, losses)
    coverage, risk = risk_coverage(torch.tensor(uncertainty), torch.tensor(losses))
    assert risk.tolist() == pytest.approx(expected)
    assert coverage.tolist() == pytest.approx([k / len(losses) for k in range(1, len(losses) + 1)])
    area = aurc(torch.tensor(uncertainty), torch.tensor(losses))
    assert area == pytest.approx(sum(expected) / len(expected))


@settings(max_examples=50, deadline=None)
@given(levels)
def test_full_coverage_has_the_mean_loss_and_useless_scores_are_flat(losses: list[float]) -> None:
    values = torch.tensor(losses)
    _, risk = risk_coverage(torch.zeros(len(losses)), values)
    assert torch.allclose(risk, values.double().mean().expand_as(risk))
    best, worst = aurc(values, values), aurc(-values, values)
    assert best <= aurc(torch.zeros(len(losses)), values) + 1e-12
    assert worst >= best


@settings(max_examples=50, deadline=None)
@given(levels, levels)
def test_auroc_agrees_with_sklearn_with_ties(inside: list[float], outside: list[float]) -> None:
    truth = [0] * len(inside) + [1] * len(outside)
    expected = roc_auc_score(truth, inside + outside)
    area = auroc(torch.tensor(inside), torch.tensor(outside))
    assert area == pytest.approx(expected, abs=1e-12)
    swapped = auroc(torch.tensor(outside), torch.tensor(inside))
    assert area + swapped == pytest.approx(1)


def test_wrong_input_raises() -> None:
    with pytest.raises(ValueError, match="auroc: outside must be finite"):
        auroc(torch.ones(2), torch.tensor([math.nan]))
    with pytest.raises(ValueError, match="auroc: inside must have one non-empty shape"):
        auroc(torch.ones(0), torch.ones(2))
    with pytest.raises(ValueError, match="uncertainty and losses must have one"):
        aurc(torch.ones(2), torch.ones(3))
    with pytest.raises(ValueError, match="uncertainty must have one axis"):
        risk_coverage(torch.ones(2, 1), torch.ones(2, 1))
