"""The report's program, by its own formulas and on images that are easy to tell apart."""

import json
import math

import pytest
import torch

from bayesieve.data.examples import DataSet, Examples
from problems import normal, normal32, seeded
from studies import tdamp_report

CLASSES = tuple(str(digit) for digit in range(10))
IMAGES = Examples(normal32(200, 1, 28, 28, seed=2), torch.arange(200) % 10)
DATA = DataSet("mnist", IMAGES, IMAGES, "classification", CLASSES)


def test_adam_takes_the_sign_of_a_gradient_that_is_new_to_it():
    grad = normal32(50, seed=0)
    for call in (1, 7, 400):
        weight = torch.zeros(50, requires_grad=True)
        adam = torch.optim.Adam([weight], lr=0.01, betas=(0.9, 0.999), eps=1e-12)
        weight.grad = grad
        adam.step()  # call 1 of torch's Adam: the same, but for the corrections of later calls
        later = math.sqrt(1 - 0.999**call) / (1 - 0.9**call) / (math.sqrt(1 - 0.999) / (1 - 0.9))
        expected = -weight.detach() * later
        torch.testing.assert_close(
            tdamp_report.adam_with_new_moments(grad, call), expected, rtol=1e-3, atol=1e-6
        )


def test_the_likelihood_is_a_product_of_probits():
    values, y = normal(5, 10, seed=1, dtype=torch.float64), torch.tensor([0, 3, 9, 9, 1])
    standard = torch.distributions.Normal(0.0, 1.0)
    for i, label in enumerate(y):
        others = [c for c in range(10) if c != label]
        gaps = (values[i, label] - values[i, others]) / math.sqrt(0.7)
        expected = standard.cdf(gaps).log().sum()
        found = tdamp_report.log_likelihood(values, y, 0.7)[i]
        assert found.item() == pytest.approx(expected.item(), rel=1e-6)


def test_a_step_shrinks_variances_and_moves_every_weight_alike():
    state = tdamp_report.start(seeded(0))
    before = [mean.clone() for mean in state.means]
    x, y = DATA.train.x[:100].flatten(1), DATA.train.y[:100]
    tdamp_report.step_(state, x, y, seeded(1))
    assert all((v - 0.095).abs().max() < 1e-7 for v in state.variances)
    moved = (state.means[2] - before[2]).abs()
    length = tdamp_report.adam_with_new_moments(torch.ones(1), 3).item()
    torch.testing.assert_close(moved[moved > 0], torch.full_like(moved[moved > 0], length),
                               rtol=1e-2, atol=0)  # fmt: skip
    assert state.calls == 4
    assert tdamp_report.kept_units(state.rho).sum() == 64


def test_the_quick_study_writes_both_rows(monkeypatch, tmp_path):
    monkeypatch.setattr(tdamp_report, "load_data", lambda name: DATA)
    out = tmp_path / "x.json"
    assert tdamp_report.main(["--quick", "--out", str(out)]) == 0
    whole, kept = json.loads(out.read_text())["rows"]
    assert (whole["metrics"]["units"], kept["metrics"]["units"]) == (128, 64)
    assert 0 <= kept["metrics"]["accuracy"] <= 1
