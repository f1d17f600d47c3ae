"""The regression study in short: its data, its step against the engine's, its table."""

import json
import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from bayesieve.core.batch import Batch
from bayesieve.core.likelihoods import Gaussian
from bayesieve.core.priors_laplace import GaussianLaplace
from bayesieve.core.problem import Problem
from bayesieve.core.random import fresh_keys
from bayesieve.engines.sampling import Averaging, Chain
from bayesieve.engines.sgmcmc import SGLD
from problems import BY_COUNTER, run_by, seeded
from studies import aeb_linear


def test_the_data_have_the_stated_distribution():
    every, y, truth = aeb_linear.linear_data((1, 2))
    assert every.shape == (2, 2100, 1000)
    x = every[0, 100:]
    assert (x[:, :-1] * x[:, 1:]).mean().item() == pytest.approx(0.6, abs=0.01)
    assert (x[:, :-2] * x[:, 2:]).mean().item() == pytest.approx(0.36, abs=0.01)
    noise = y[0, 100:] - x @ truth[0]
    assert noise.var().item() == pytest.approx(3, rel=0.13)  # 4 standard errors
    assert (truth[:, 3:] == 0).all()
    assert not torch.equal(every[0], every[1])


def engine_of(method, n_steps):
    """The library's engine for a setting whose spike is narrow from the beginning."""
    chain = Chain(power=1 / 3)
    if method == "paper":
        return SGLD(
            GaussianLaplace(spike_scale=0.01, scale=(2.0, 1.0)), 1e-3, adapt="sa",
            averaging=Averaging(10.0), chain=chain,
        )  # fmt: skip
    ours, unit = aeb_linear.METHODS["sa"], n_steps / 5
    prior = GaussianLaplace(spike_scale=0.01, scale=(2.0, 1.0), penalty=ours.penalty)
    averaging = Averaging(ours.weight * unit**-0.3, unit, 0.7, noise_first=n_steps // 10)
    chain = replace(chain, warming=n_steps // 10)
    return SGLD(prior, 1e-3, adapt="sa", averaging=averaging, chain=chain)


@pytest.mark.parametrize("method", ["paper", "sa"])
def test_the_path_is_that_of_the_engine(method, monkeypatch):
    # Same batches, same normals: the study's closed form is the library's SGLD-SA, search and all.
    n_steps = 100
    x, y, _ = aeb_linear.linear_data((1,))
    chains = aeb_linear._Chains(x, y, [(method, 0.01, 2.0), (method, 0.01, 1.0)], n_steps)
    x, y = x[0, :100], y[0, :100]
    problem = Problem(nn.Linear(1000, 1, bias=False), Gaussian(1.5), (x, y))
    run_by(problem, BY_COUNTER)
    engine = engine_of(method, n_steps)
    state = engine.init(problem, seeded(0), 2)
    state.w.copy_(chains.w)
    state.generator = seeded(1)
    source = seeded(1)
    picks = []

    def step(w, latents, x, y, pick, keys, *numbers):
        picks.append(pick)
        aeb_linear._step_(w, latents, x, y, pick, fresh_keys(source), *numbers)

    chains.block(step, 0, 10)
    for pick in picks:
        engine.step(problem, state, Batch(x[pick], y[pick]))
    torch.testing.assert_close(chains.w, state.w, rtol=1e-3, atol=1e-4)
    for name in ("rho", "laplace", "gauss", "slab_prob", "scale"):
        one, other = getattr(chains.latents, name), getattr(state.latents, name)
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5, msg=name)


def test_the_search_is_cold_and_reads_the_noise_from_the_residuals():
    x, y, _ = aeb_linear.linear_data((1,))
    chains = aeb_linear._Chains(x, y, [("sa", 0.1, 2.0), ("em", 0.1, 2.0)], 1000)
    seen = []

    def step(*options):
        omega, heat, searching = options[-3:]
        seen.append([*omega[:, 0].tolist(), *heat[:, 0].tolist(), *searching[:, 0].tolist()])

    chains.block(step, 0, 100)
    chains.block(step, 100, 100)
    ours = aeb_linear.METHODS["sa"]
    assert seen[0][2:] == [0.0, 1.0, True, False]
    assert seen[50][2] == pytest.approx(0.5)
    assert seen[99][4:] == [True, False]
    assert seen[100][2:] == [1.0, 1.0, False, False]
    assert seen[0][:2] == pytest.approx([ours.weight / 200 * 1.005**-0.7, 1.0])
    assert seen[100][0] == pytest.approx(ours.later / 200 * 1.505**-0.7)


def test_the_spike_widens_without_changing_the_variance_of_a_response():
    x, y, _ = aeb_linear.linear_data((1,))
    chains = aeb_linear._Chains(x, y, [("sa", 0.1, 2.0), ("paper", 0.1, 2.0)], 1000)

    def variance():
        one = chains.latents
        return (one.scale.square() * (1 + 2 * 1000 * one.spike_scale.square()))[:, 0].tolist()

    assert chains.latents.spike_scale[:, 0].tolist() == pytest.approx([0.01, 0.1])
    before = variance()
    chains.widen_(0.05)
    assert chains.latents.spike_scale[0].item() == pytest.approx(0.01)
    chains.widen_(0.15)
    assert chains.latents.spike_scale[0].item() == pytest.approx(math.sqrt(0.001))
    assert variance() == pytest.approx(before, rel=1e-5)
    chains.widen_(0.2)
    assert chains.latents.spike_scale[:, 0].tolist() == pytest.approx([0.1, 0.1])
    assert chains.latents.scale[0].item() == pytest.approx(2 * math.sqrt(1.2 / 21), rel=1e-5)
    assert chains.latents.scale[1].item() == 2.0


def test_the_command_line_writes_a_record(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(aeb_linear, "compiler_missing", lambda device: "not wanted here")
    out = tmp_path / "x.json"
    aeb_linear.main(["--steps", "300", "--methods", "sa,sgld", "--out", str(out)])
    record = json.loads(out.read_text())
    assert len(record["rows"]) == record["settings"]["chains"] == 8
    assert {row["setting"]["method"] for row in record["rows"]} == {"sa", "sgld"}
    text = capsys.readouterr().out
    assert "8 chains, 300 steps" in text
    assert "| sgld/0.01/2 |" in text


def test_the_table_counts_data_sets():
    def score(seed, selected, true_selected, mse):
        return {"data_seed": seed, "mse": mse, "mse_50": mse + 1, "selected": selected,
                "true_selected": true_selected, "average_selected": 3,
                "average_true_selected": 3}  # fmt: skip

    cell = ("sa", 0.1, 1.0)
    scores = [score(1, 3, 3, 3.0), score(2, 4, 3, 4.0), score(3, 2, 2, 8.0)]
    (row,) = aeb_linear.rows_of({cell: scores})
    result = row["metrics"]
    assert (result["mse"], result["mse_worst"], result["mse_50"]) == (5.0, 8.0, 6.0)
    assert (result["all_three_selected"], result["exact_support"], row["seeds"]) == (
        2,
        1,
        [1, 2, 3],
    )
    assert result["exact_support_by_average"] == 3
    assert row["name"] == "sa/0.1/1"
    (fresh,) = aeb_linear.rows_of({cell: [score(11, 3, 3, 3.0)]})
    assert fresh["name"] == "sa/0.1/1/data-from-11"  # not the data sets of the table
    assert len(aeb_linear.SETTINGS) == 4


@pytest.mark.slow
def test_fifteen_hundred_steps_select_the_true_coefficients_and_no_other(monkeypatch):
    monkeypatch.setattr(aeb_linear, "SETTINGS", ((0.1, 2.0), (0.1, 1.0)))
    scores, _ = aeb_linear.run((1,), ("sa", "sgld"), 1_500, compiled=False)
    for scale in (1.0, 2.0):
        (adaptive,), (fixed,) = (scores[method, 0.1, scale] for method in ("sa", "sgld"))
        assert adaptive["mse"] < 4.2
        assert adaptive["true_selected"] == adaptive["selected"] == 3
        assert fixed["mse"] > 10 * adaptive["mse"]
