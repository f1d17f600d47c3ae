"""The simulated experiments, at a size that takes seconds."""

import itertools
import json
import math

import pytest
import torch
from torch import nn

from bayesieve import likelihoods, priors
from bayesieve.core.network import Network
from bayesieve.core.posterior import Factorised
from bayesieve.select import select_fdr
from bayesieve.select.selection import RULES
from problems import seeded
from records import record_of
from studies import sbnn_simulations as sims
from studies import sbnn_tables as study
from studies.record import check

TINY = sims.Scale(2, (2,), (10,), (0.3,), 2, 2, 4, 4, 2, at_once=64)


def test_tables_stack_the_simulations():
    tables = sims.Tables.of([sims.additive(50, 4, 0.5, seed=i) for i in range(3)])
    assert tables.x.shape == (120, 4)
    assert [rows.tolist()[0] for rows in tables.rows] == [0, 40, 80]
    torch.testing.assert_close(tables.x[tables.rows[1]], tables.sims[1].data.train.x)


def test_linear_error_is_that_of_least_squares():
    tables = sims.Tables.of([sims.additive(500, 3, 1.0, nonlinear=False, seed=0)])
    # y = Σ j/2 x_j + ε: the noise is all a linear model leaves, 1 of 1 + (1 + 4 + 9) / 4
    assert sims._linear_error(tables) == pytest.approx(1 / 4.5, rel=0.3)


def test_rates_by_hand():
    keep = torch.tensor([[True, True, False], [False, False, False]])
    active = torch.tensor([[True, False, True], [True, True, True]])
    result = sims._rates(keep, active)
    assert (result["fdr"], result["power"], result["kept"]) == (0.25, 0.25, 1.0)


@pytest.mark.parametrize("net", ["20-10", "additive"])
def test_fixed_fraction_reports_every_alpha(net):
    (row,) = sims.fixed_fraction_accuracy(TINY, net, 10)
    assert 0 <= row["lowest"] <= row["accuracy"] <= 1
    assert row["oracle"] >= 0.7


def test_an_additive_network_finds_the_inputs_in_seconds():
    scale = sims.Scale(2, (2,), (20,), additive_epochs=20, at_once=8)
    (row,) = sims.fixed_fraction_accuracy(scale, "additive", 20)
    assert row["accuracy"] >= row["oracle"] - 0.06


def test_cross_validated_record_has_every_rule_and_every_network():
    record = sims.cross_validated_accuracy(TINY, 0.3, d=6)
    assert {*RULES, "fixed"} <= record.keys()
    assert set(record["mse"]) == {
        "refit", "full BNN", "NN", "NN + dropout", "additive refit", "linear",
    }  # fmt: skip
    assert len(record["path"]) == len(record["proportions"])


def test_the_study_writes_json_figures_and_a_page(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(study, "QUICK", TINY)
    out, folder = tmp_path / "r.json", tmp_path / "figs"
    arguments = ["--quick", "--only", "e3", "--device", "cpu"]
    assert study.main([*arguments, "--out", str(out), "--folder", str(folder)]) == 0
    stored = json.loads(out.read_text())
    assert stored["settings"]["n_sets"] == 2
    lines = [row for row in stored["rows"] if not row.get("derived")]
    assert [row["name"] for row in lines] == ["e3/20-10/10/2", "e3/additive/10/2"]
    assert {row["name"] for row in stored["rows"] if row.get("derived")} == {
        "selection", "selection-additive",
    }  # fmt: skip
    assert (folder / "figure_4.png").is_file()
    assert "| e3/20-10/10/2 |" in capsys.readouterr().out


def test_figures_and_page_of_a_whole_record(tmp_path):
    cv = {"share": 0.2, "d": 4, "proportions": [0.5, 1.0], "path": [0.4, 0.5],
          "mse": {"refit": 0.2, "full BNN": 0.4}, "fixed": {"accuracy": 0.9}}  # fmt: skip
    cv |= {rule: {"accuracy": 0.9, "proportion": 0.25} for rule in RULES}
    rates = {"fdr": 0.05, "power": 0.9, "fdr_standard_error": 0.01, "power_standard_error": 0.01,
             "kept": 18.0}  # fmt: skip
    lines = {
        "e1": [{"mix": 0.0, "share": 0.0, "psi_1": 0.3, "psi_2": 0.1},
               {"mix": 1.0, "share": 0.5, "psi_1": 0.1, "psi_2": 0.3}],
        "e2": [{"d": 20, "nonlinear": n, "alpha": 1, "net": "20-10", "correlation": 0.9}
               for n in (False, True)],
        "e3-cv": [cv],
        "e4": [{"share": 0.2, "removed": 0.5, "mse": 0.4}],
        "fdr": [{"level": 0.1, "n_sets": 4, "d": 100, "posterior": rates, "knockoffs": rates}],
    }  # fmt: skip
    scale = {"n_sets": 4, "fdr_sets": 4, "n_folds": 3, "fold_epochs": 2}
    rows = [study.row_of(name, line, scale) for name, some in lines.items() for line in some]
    record = record_of("sbnn_tables", rows, settings={"n_sets": 4})
    check(record, "test")
    result = study.found_in(record)
    study.draw(result, tmp_path)
    names = {f"figure_{i}.png" for i in (1, 2, 3, 6, 7, 8, 9, 10)} | {"path.png"}
    assert {path.name for path in tmp_path.iterdir()} == names
    numbers = study.findings(result)
    assert numbers["figure-1"]["correlation"] == pytest.approx(1.0)
    assert numbers["refit"]["ratio"] == pytest.approx(0.5)
    assert numbers["fdr-posterior"] == {"fdr": 0.05, "power": 0.9}
    text = study.page(record)
    assert "| e2/20-10/20/False/1 | 0.9 |" in text
    assert "posterior/fdr_standard_error" in text


def test_what_predicts_learns_its_noise_and_what_ranks_does_not():
    tables = sims.Tables.of([sims.additive(60, 5, 0.4, seed=1)])
    ranks = sims.fits_of(tables, "20-10", TINY)
    predicts = sims.fits_of(tables, "20-10", TINY, learned_noise=True)
    assert list(ranks.likelihood.parameters()) == []
    assert list(predicts.likelihood.parameters()) == ["log_noise_std"]


def test_feature_evidence_sums_over_which_weights_matter():
    mean = torch.tensor([[0.3, 0.0], [-0.2, 0.1], [0.1, 0.4]], dtype=torch.float64)
    std = torch.linspace(0.1, 0.5, 9, dtype=torch.float64)
    out = torch.tensor([[0.5, 0.5, 0.5]], dtype=torch.float64)
    layers = [nn.Linear(2, 3, bias=False), nn.Linear(3, 1, bias=False)]
    network = Network.of(nn.Sequential(*layers).double(), likelihoods.Gaussian())
    flat = torch.cat([mean.flatten(), out.flatten()])
    posterior = Factorised(network, flat, std, priors.Normal(0.5))
    zero, prior = torch.zeros(3, dtype=torch.float64), torch.distributions.Normal(0.0, 0.5)
    for j in range(2):
        q = torch.distributions.Normal(mean[:, j], std[:6].view(3, 2)[:, j])
        factor = (prior.log_prob(zero) - q.log_prob(zero)).exp()
        cases = [c for c in itertools.product((0, 1), repeat=3) if any(c)]
        chances = [(1 / 3) ** sum(c) * (2 / 3) ** (3 - sum(c)) for c in cases]
        products = [math.prod(f for f, present in zip(factor.tolist(), c, strict=True) if present)
                    for c in cases]  # fmt: skip
        pairs = zip(chances, products, strict=True)
        odds = sum(a * b for a, b in pairs) / sum(chances) * 0.2 / 0.8
        actual = sims.feature_evidence(posterior, 0.2)[j].item()
        assert actual == pytest.approx(odds / (1 + odds), rel=1e-6)


def test_evidence_of_many_nats_neither_overflows_nor_vanishes():
    evidence = torch.tensor([[2000.0, -5.0], [-700.0, -700.0], [0.0, 0.0]])
    actual = sims.log_bayes_factor(evidence)
    # of two, each with chance 1/2: (1/4) (e^a + e^b + e^(a+b)) / (3/4)
    assert actual[0].item() == pytest.approx(
        2000 - math.log(3) + math.log1p(math.exp(-5)), rel=1e-6
    )
    assert actual[2].item() == pytest.approx(0.0, abs=1e-6)
    assert actual[1].item() < -30


def test_weights_that_see_nothing_are_no_evidence():
    evidence = torch.tensor([[3.0, -1.0, 9.0], [4.0, 9.0, 9.0], [9.0, 9.0, 9.0]])
    present = torch.tensor([[True, True, False], [True, False, False], [False, False, False]])
    actual = sims.log_bayes_factor(evidence, present)
    assert actual[0].item() == pytest.approx(sims.log_bayes_factor(evidence[:1, :2]).item())
    assert actual[1:].tolist() == [4.0, -math.inf]


def test_the_share_of_inputs_that_matter_is_estimated():
    source = seeded(20)
    matters = torch.rand(400, generator=source) < 0.3
    # Log odds of N(2, 1) against N(0, 1): calibrated when the share is known
    z = torch.randn(400, generator=source) + 2.0 * matters
    probability = sims.probability_from_evidence(2 * z - 2)
    assert probability.mean().item() == pytest.approx(matters.float().mean().item(), abs=0.09)
    keep = select_fdr(probability, 0.1)
    assert float((keep & ~matters).sum()) / int(keep.sum()) < 0.16
