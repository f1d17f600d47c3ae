"""The study of how many units message passing keeps by itself."""

import json

import pytest
import torch

from studies import tdamp_support
from studies.tdamp_support import N_UNITS, Task, learned, scores


def test_targets_are_standardised_and_a_single_one_takes_every_projection_alike():
    x, y = Task(3, 500).draw(seed=0)
    assert x.shape == (500, 20)
    assert y.shape == (500, 3)
    assert torch.allclose(y.mean(0), torch.zeros(3), atol=1e-5)
    assert torch.allclose(y.std(0), torch.ones(3), atol=1e-5)
    x, y = Task(1, 2000).draw(seed=0)
    basis = torch.linalg.qr(torch.randn(20, 20, generator=torch.Generator().manual_seed(1)))[0]
    projections = torch.relu(x @ basis)
    weights = torch.linalg.lstsq(projections - projections.mean(0), y).solution.abs()
    assert weights.std() < 1e-4 * weights.mean()


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 10])
def test_twenty_useful_units_of_a_hundred_are_found(seed):
    task = Task(20, 2000)
    posterior, x, clean = learned(task, seed)
    named = posterior.layout.unflatten(posterior.mean)
    alive = (named["fc1.weight"] != 0).any(1)
    assert 19 <= alive.sum() <= 22
    assert torch.equal((named["out.weight"] != 0).any(0), alive)
    inclusion = posterior.layout.unflatten(posterior.inclusion)["fc1.weight"][:, 0]
    assert torch.equal(inclusion >= 0.5, alive)
    outputs = posterior.network.outputs(posterior.mean[None], x, {})[0]
    assert (outputs - clean).square().mean().sqrt() < 0.1


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 10])
def test_a_single_output_keeps_about_the_units_it_needs(seed):
    found = scores(Task(1, 2000, batch_size=50), seed)
    assert 12 <= found["units"] <= 28
    assert found["error"] < 0.35  # 0.5 at the share of the data that suits 20 outputs


def test_a_larger_share_keeps_more_units_and_a_forced_number_is_kept():
    small, large = (scores(Task(20, 400, share, batch_size=50), 0)["units"] for share in (0.2, 1.0))
    assert small <= large < N_UNITS
    assert scores(Task(20, 400, keep=0.3, batch_size=50), 0)["units"] == 30


def test_the_command_writes_a_record(tmp_path, monkeypatch):
    monkeypatch.setattr(tdamp_support, "tasks", lambda quick: [Task(5, 200, batch_size=50)])
    out = tmp_path / "record.json"
    assert tdamp_support.main(["--quick", "--out", str(out)]) == 0
    record = json.loads(out.read_text())
    assert record["test_reads"] == "never"
    (row,) = record["rows"]
    assert row["name"] == "5/200/0.2"
    assert 1 <= row["metrics"]["units"] <= N_UNITS
