"""Temperature scaling against grids, closed forms and symmetries."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bayesieve.assess.metrics import ece, negative_log_likelihood
from bayesieve.uncertainty.calibration import (
    MAX_TEMPERATURE,
    MIN_TEMPERATURE,
    fit_temperature,
)


def _case(seed: int, true_temperature: float, n: int = 400) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(n, 5, generator=generator, dtype=torch.float64)
    probs = (logits / true_temperature).softmax(-1)
    labels = torch.multinomial(probs, 1, generator=generator).squeeze(1)
    return logits, labels


def _nll(logits: Tensor, labels: Tensor, temperature: float) -> float:
    return negative_log_likelihood((logits / temperature).log_softmax(-1), labels)


@pytest.mark.parametrize("true_temperature", [0.4, 1.0, 3.0])
def test_no_temperature_of_a_refined_grid_is_better(true_temperature: float) -> None:
    logits, labels = _case(0, true_temperature)
    temperature = fit_temperature(logits, labels)
    low, high = MIN_TEMPERATURE, MAX_TEMPERATURE
    for _ in range(7):  # each pass narrows the bracket about tenfold
        grid = torch.logspace(math.log10(low), math.log10(high), 25, dtype=torch.float64).tolist()
        best = min(range(25), key=lambda i: _nll(logits, labels, grid[i]))
        low, high = grid[max(best - 1, 0)], grid[min(best + 1, 24)]
    # the objective is flat to 1e-16 within 1e-8 of its minimum; a grid cannot see closer
    assert temperature == pytest.approx(math.sqrt(low * high), rel=1e-6)


def test_the_derivative_by_autograd_vanishes() -> None:
    logits, labels = _case(1, 2.0)
    temperature = torch.tensor(fit_temperature(logits, labels), dtype=torch.float64)
    temperature.requires_grad_()
    torch.nn.functional.cross_entropy(logits / temperature, labels).backward()  # type: ignore[no-untyped-call]
    assert temperature.grad is not None
    assert abs(float(temperature.grad)) < 1e-9


@settings(max_examples=30, deadline=None)
@given(st.floats(0.5, 20), st.integers(1, 9))
def test_two_classes_have_a_closed_form(score: float, n_right: int) -> None:
    # sigmoid(score / T) = n_right / 10, within the limits
    logits = torch.tensor([[score, 0.0]] * 10, dtype=torch.float64)
    labels = torch.tensor([0] * n_right + [1] * (10 - n_right))
    odds = math.log(n_right / (10 - n_right))
    exact = MAX_TEMPERATURE if odds <= 0 else min(score / odds, MAX_TEMPERATURE)
    assert fit_temperature(logits, labels) == pytest.approx(exact, rel=1e-8)


@settings(max_examples=20, deadline=None)
@given(st.floats(0.2, 5), st.floats(-3, 3))
def test_scaling_and_shifting_the_scores(factor: float, shift: float) -> None:
    logits, labels = _case(2, 1.5, n=60)
    temperature = fit_temperature(logits, labels)
    scaled = fit_temperature(factor * logits + shift, labels)
    assert scaled == pytest.approx(factor * temperature, rel=1e-7)
    assert fit_temperature(logits.log_softmax(-1), labels) == pytest.approx(temperature, rel=1e-7)


def test_it_recovers_the_truth_and_calibrates() -> None:
    logits, labels = _case(3, 2.5, n=4000)
    temperature = fit_temperature(logits, labels)
    assert temperature == pytest.approx(2.5, rel=0.1)
    before = ece(logits.softmax(-1), labels)
    after = ece((logits / temperature).softmax(-1), labels)
    assert after < 0.25 * before


def test_limits_and_ties() -> None:
    sure = torch.tensor([[2.0, 0.0], [0.0, 3.0]])
    assert fit_temperature(sure, torch.tensor([0, 1])) == MIN_TEMPERATURE
    assert fit_temperature(sure, torch.tensor([1, 0])) == MAX_TEMPERATURE
    assert fit_temperature(torch.zeros(3, 4), torch.tensor([0, 1, 2])) == 1.0


def test_impossible_classes_are_allowed_unless_they_occur() -> None:
    logits, labels = _case(4, 2.0)
    padded = torch.cat([logits, torch.full((400, 1), -math.inf)], 1)
    assert fit_temperature(padded, labels) == pytest.approx(fit_temperature(logits, labels))
    labels[0] = 5
    with pytest.raises(ValueError, match="a label has probability zero"):
        fit_temperature(padded, labels)


def test_wrong_input_raises() -> None:
    labels = torch.tensor([0, 1])
    with pytest.raises(ValueError, match=r"logits must not be NaN or \+inf"):
        fit_temperature(torch.tensor([[0.0, math.nan], [0.0, 1.0]]), labels)
    with pytest.raises(ValueError, match=r"labels must lie in 0\.\.1"):
        fit_temperature(torch.zeros(2, 2), labels + 1)
