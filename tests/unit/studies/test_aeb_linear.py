"""The regression study in short: its data, its step against the engine's, its table."""

import json

import pytest
import torch
from torch import nn

from bayesieve.core.batch import Batch
from bayesieve.core.gaussian_laplace import GaussianLaplace
from bayesieve.core.likelihoods import Gaussian
from bayesieve.core.noise import fresh_keys
from bayesieve.core.problem import Problem
from bayesieve.engines._adaptive_prior import Averaging
from bayesieve.engines.sgld import SGLD
from bayesieve.studies import aeb_linear
from problems import seeded


def test_the_data_have_the_stated_distribution():
    data = aeb_linear.make_data((1, 2))
    assert data.x.shape == (2, 100, 1000)
    assert data.x_test.shape == (2, 2000, 1000)
    x = data.x_test[0]
    assert (x[:, :-1] * x[:, 1:]).mean().item() == pytest.approx(0.6, abs=0.01)
    assert (x[:, :-2] * x[:, 2:]).mean().item() == pytest.approx(0.36, abs=0.01)
    noise = data.y_test[0] - x @ data.truth[0]
    assert noise.var().item() == pytest.approx(3, rel=0.13)  # 4 standard errors
    assert (data.truth[:, 3:] == 0).all()
    assert not torch.equal(data.x[0], data.x[1])


def test_a_step_is_that_of_the_engine(monkeypatch):
    # Same batch, same normals: the study's closed form is the library's SGLD-SA.
    data = aeb_linear.make_data((1,))
    cells = [("sa", 0.1, 2.0), ("sa", 0.1, 1.0)]
    chains = aeb_linear._Chains(data, cells, anneal=False)
    pick, keys = torch.randperm(100, generator=seeded(0))[:50], fresh_keys(seeded(1))
    problem = Problem(nn.Linear(1000, 1, bias=False), Gaussian(1.5), (data.x[0], data.y[0]))
    monkeypatch.setattr(problem, "kernel", lambda function: function)
    problem.compiled = True  # normals by counter
    prior = GaussianLaplace(spike_scale=0.1, scale=(2.0, 1.0))
    engine = SGLD(prior, 1e-3, adapt="sa", averaging=Averaging(1.0))
    state = engine.init(problem, seeded(1), 2)
    state.w.copy_(chains.w)
    state.generator = seeded(1)
    omega = torch.full((2, 1), 1001**-0.7)
    batch = (data.x, data.y, pick, keys)
    aeb_linear._step_(chains.w, chains.latents, *batch, torch.tensor(1e-3), omega)
    engine.step(problem, state, Batch(data.x[0, pick], data.y[0, pick]))
    torch.testing.assert_close(chains.w, state.w, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(chains.latents.rho, state.latents.rho, rtol=1e-4, atol=1e-5)


def test_the_command_line_writes_a_record(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(aeb_linear, "compiler_missing", lambda device: "not wanted here")
    out = tmp_path / "x.json"
    aeb_linear.main(["--steps", "300", "--methods", "sa,sgld", "--out", str(out)])
    record = json.loads(out.read_text())
    assert len(record["rows"]) == record["chains"] == 8
    assert {line["method"] for line in record["summary"]} == {"sa", "sgld"}
    assert "8 chains, 300 steps" in capsys.readouterr().out
    with pytest.raises(ValueError, match="aeb_linear: method must be one of"):
        aeb_linear.run((1,), ("sam",), 1)


@pytest.mark.slow
def test_ten_thousand_steps_select_the_largest_coefficients(monkeypatch):
    monkeypatch.setattr(aeb_linear, "SETTINGS", ((0.1, 2.0), (0.1, 1.0)))
    rows, _ = aeb_linear.run((1,), ("paper", "sgld"), 10_000, compiled=False)
    by_cell = {(row.method, row.spike_scale, row.init_scale): row for row in rows}
    for scale in (1.0, 2.0):
        adaptive, fixed = (by_cell[method, 0.1, scale] for method in ("paper", "sgld"))
        assert adaptive.mse < 7
        assert adaptive.true_selected >= 2
        assert fixed.mse > 10 * adaptive.mse
