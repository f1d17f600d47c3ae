"""The reports: every key against the metric it names, and the change of units."""

import json
import math

import pytest
import torch
from scipy import stats
from torch import Tensor

from bayesieve.assess import metrics
from bayesieve.core.likelihoods import ClassPrediction, Gaussian


def _normal(seed: int, *shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def test_classification_report_reads_the_mean_probabilities() -> None:
    draws = (2 * _normal(0, 6, 50, 4)).log_softmax(-1)
    labels = torch.arange(50) % 4
    row = metrics.classification_report(draws, labels)
    probs = draws.exp().mean(0)
    assert json.loads(json.dumps(row)) == row
    precision, recall, f1 = metrics.precision_recall_f1(probs, labels)
    expected = {
        "error": metrics.error(probs, labels),
        "accuracy": metrics.accuracy(probs, labels),
        "nll": metrics.negative_log_likelihood(probs.log(), labels),
        "brier": metrics.brier(probs, labels),
        "ece": metrics.ece(probs, labels),
        "ece_equal_mass": metrics.ece(probs, labels, 15, "equal-mass"),
        "precision": precision,
        "recall": recall,
        "f1": f1,
        "entropy": float(ClassPrediction(draws).entropy.mean()),
        "aleatoric": float(ClassPrediction(draws).aleatoric.mean()),
        "epistemic": float(ClassPrediction(draws).epistemic.mean()),
        "n_examples": 50,
    }
    assert list(row) == list(expected)
    assert row == pytest.approx(expected, rel=1e-9)
    assert row["entropy"] == pytest.approx(row["aleatoric"] + row["epistemic"])


@pytest.mark.parametrize("target_std", [1.0, 10.0, (0.5, 20.0)])
def test_regression_report_equals_the_metrics_in_original_units(
    target_std: float | tuple[float, float],
) -> None:
    draws, targets = _normal(1, 5, 40, 2), _normal(2, 40, 2)
    scale = torch.tensor(target_std, dtype=torch.float64)
    per_output = scale.expand(2)
    row = metrics.regression_report(draws, 0.7, targets, Gaussian(), scale)
    assert json.loads(json.dumps(row)) == row
    mean = draws.mean(0) * per_output
    total = ((0.49 + draws.var(0, correction=0)).sqrt()) * per_output
    half = stats.norm.ppf(0.95)
    log_lik = metrics.log_likelihood_mixture(
        draws * per_output, 0.7 * per_output, targets * per_output, Gaussian()
    )
    expected = {
        "rmse": metrics.rmse(mean, targets * per_output),
        "mae": metrics.mae(mean, targets * per_output),
        "log_lik": log_lik,
        "nll": -log_lik,
        "coverage_90": metrics.interval_coverage(
            mean - half * total, mean + half * total, targets * per_output
        ),
        "interval_width_90": float(2 * half * total.mean()),
        "aleatoric_std": float(0.7 * per_output.mean()),
        "epistemic_std": float((draws.std(0, correction=0) * per_output).mean()),
        "n_examples": 40,
    }
    assert list(row) == list(expected)
    assert row == pytest.approx(expected, rel=1e-9)


def test_one_output_needs_no_output_axis() -> None:
    draws, targets = _normal(3, 4, 9), _normal(4, 9)
    flat = metrics.regression_report(draws, 0.5, targets, Gaussian(), 3.0)
    columns = draws.unsqueeze(-1), 0.5, targets.unsqueeze(-1)
    column = metrics.regression_report(*columns, Gaussian(), 3.0)
    assert flat == column


def test_reports_leave_no_graph_and_refuse_wrong_shapes() -> None:
    draws = _normal(5, 3, 4, 1).requires_grad_()
    report = metrics.regression_report(draws, 1.0, torch.zeros(4, 1), Gaussian())
    assert isinstance(report["rmse"], float)
    with pytest.raises(ValueError, match="draw and targets must have one"):
        metrics.regression_report(draws, 1.0, torch.zeros(4), Gaussian())
    with pytest.raises(ValueError, match=r"target_std must be a number or have shape \(1,\)"):
        metrics.regression_report(draws, 1.0, torch.zeros(4, 1), Gaussian(), torch.ones(2))
    with pytest.raises(ValueError, match="target_std must be > 0, got 0"):
        metrics.regression_report(draws, 1.0, torch.zeros(4, 1), Gaussian(), 0.0)
    log_probs = torch.full((2, 3, 2), math.log(0.5))
    with pytest.raises(ValueError, match=r"labels must have shape \(3,\)"):
        metrics.classification_report(log_probs, torch.zeros(2, dtype=torch.long))
