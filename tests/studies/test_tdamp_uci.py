"""The study of regression sets on simulated ones: what it chooses, scores and writes."""

import json
import math

import pytest
import torch

from bayesieve.data.examples import DataSet, Examples
from problems import normal32
from studies import tdamp_uci

STD = 3.0


def simulated(name, split=0):
    """y = 3 (x₁ + noise of std 0.3) + 10, standardised with known numbers."""
    x = normal32(150, 3, seed=split)
    y = (x[:, 0] + 0.3 * normal32(150, seed=split + 50)) / 1.044
    mean, std = torch.tensor(10.0), torch.tensor(STD)
    pieces = (Examples(x[i], y[i], mean, std) for i in (slice(120), slice(120, None)))
    return DataSet(name, *pieces, "regression", n_splits=2)


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(tdamp_uci, "load_data", simulated)
    monkeypatch.setattr(tdamp_uci, "CANDIDATES", tuple(
        tdamp_uci.Candidate(variance, 12) for variance in (1e-4, 0.3)))  # fmt: skip
    monkeypatch.setattr(tdamp_uci, "_WIDTH", 10)


def test_every_split_is_chosen_scored_and_written(small, tmp_path, capsys):
    out = tmp_path / "x.json"
    assert tdamp_uci.main(["--full", "--sets", "yacht", "--out", str(out)]) == 0
    result = json.loads(out.read_text())
    (row,) = result["rows"]
    assert row["seeds"] == [0, 1]
    numbers = row["metrics"]
    assert all(one["variance"] == 0.3 for one in row["each"])  # the other cannot fit
    assert numbers["rmse"] == pytest.approx(0.3 * STD / 1.044, rel=0.4)
    assert 0.7 <= numbers["coverage_90_pooled"] <= 1
    rmse = [one["rmse"] for one in row["each"]]
    assert numbers["rmse_standard_error"] == pytest.approx(abs(rmse[0] - rmse[1]) / 2)
    assert numbers["first_split_rmse"] == rmse[0]
    assert math.isfinite(numbers["log_lik"])
    assert result["command"].endswith(str(out))
    assert "yacht" in capsys.readouterr().out
