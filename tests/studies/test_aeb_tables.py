"""The studies of the samplers on tables: logistic regression and UCI, in a few steps."""

import json

import pytest
import torch
from torch import Generator
from torch.nn import functional as F

from bayesieve.core.priors_laplace import GaussianLaplace
from bayesieve.data.examples import DataSet, Examples
from bayesieve.engines.map import MAP
from bayesieve.engines.sgmcmc import SGHMC
from studies import aeb_logistic, aeb_uci


def test_logistic_data_have_the_stated_distribution():
    x, y, truth = aeb_logistic.logistic_data((1, 2))
    assert x.shape == (2, 2300, 1000)
    assert y.unique().tolist() == [0.0, 1.0]
    score = x[0] @ truth[0]
    near = (score > 0.5) & (score < 1.5)  # labels follow the logistic curve
    expected = torch.sigmoid(score[near]).mean()
    bound = 4 * 0.5 / near.sum().sqrt()
    assert (y[0][near].mean() - expected).abs() < bound
    assert (truth[:, 3:] == 0).all()


def test_logistic_chains_run_as_one(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(aeb_logistic, "N", 40)
    monkeypatch.setattr(aeb_logistic, "N_TEST", 50)
    out = tmp_path / "x.json"
    aeb_logistic.main(["--steps", "60", "--out", str(out)])
    record = json.loads(out.read_text())
    assert [len(row["each"]) for row in record["rows"]] == [2] * 4  # 4 methods, 2 data sets
    for row in record["rows"]:
        for one in row["each"]:
            assert 0 <= one["accuracy"] <= 1
            assert one["true_selected"] <= min(3, one["selected"])
            assert one["selected"] == 0 or row["name"] != "sgld"
    assert "| sa |" in capsys.readouterr().out


def test_gains_are_those_of_fits_with_one_more_variable():
    source = Generator().manual_seed(3)
    x = torch.randn(400, 4, generator=source, dtype=torch.float64)
    truth = torch.tensor([1.0, -1.0, 0.3, 0.0], dtype=torch.float64)
    y = (torch.rand(400, generator=source) < torch.sigmoid(x @ truth)).double()

    def best(columns):
        w = torch.zeros(len(columns), dtype=torch.float64, requires_grad=True)
        search = torch.optim.LBFGS([w], max_iter=100, line_search_fn="strong_wolfe")

        def loss():
            search.zero_grad()
            value = F.binary_cross_entropy_with_logits(x[:, columns] @ w, y, reduction="sum")
            value.backward()
            return value

        search.step(loss)
        return -loss().item()

    numbers = aeb_logistic.gains(x, y)
    exact = [best([0, 1, extra]) - best([0, 1]) for extra in (2, 3)]
    assert numbers.tolist() == pytest.approx(exact, rel=0.05, abs=0.01)
    assert numbers[0] > 1


def test_logistic_search_is_cold_and_its_omega_counts_in_runs(monkeypatch):
    engines = {}

    def keep(problem, engine, **options):
        engines[len(engines)] = engine

    monkeypatch.setattr(aeb_logistic, "fit", keep)
    x, y, _ = aeb_logistic.logistic_data((1,))
    for method in ("sa", "paper"):
        aeb_logistic.run_method(method, x, y, 0.03, 4000)
    ours, paper = engines[0], engines[1]
    assert (ours.chain.warming, paper.chain.warming) == (400, 0)
    assert (ours.prior.penalty, paper.prior.penalty) == (9, 1)
    for step in (0.0, 400.0, 4000.0):
        entry = 10 / 4000 * (1 + 5 * step / 4000) ** -0.7
        assert ours.averaging.omega(torch.tensor(step)).item() == pytest.approx(entry, rel=1e-5)
        entry = 10 * (1000 + step) ** -0.7
        assert paper.averaging.omega(torch.tensor(step)).item() == pytest.approx(entry, rel=1e-5)


@pytest.mark.slow
def test_logistic_sa_beats_fixed_penalties():
    x, y, truth = aeb_logistic.logistic_data((1,))
    scores = {
        method: aeb_logistic.score(aeb_logistic.run_method(method, x, y, 0.1, 1000), x, y, truth)[0]
        for method in ("paper", "sgld")
    }
    assert scores["paper"]["accuracy"] > scores["sgld"]["accuracy"] + 0.1
    assert scores["paper"]["true_selected"] >= 2


def line_set(spec, *, split=0):
    """y = x1 - x2 with a little noise; targets in hundreds."""
    source = Generator().manual_seed(split)
    x = torch.randn(120, 3, generator=source)
    y = x[:, 0] - x[:, 1] + 0.1 * torch.randn(120, generator=source)
    unit = (torch.tensor(5.0), torch.tensor(100.0))
    train, test = Examples(x[:100], y[:100], *unit), Examples(x[100:], y[100:], *unit)
    return DataSet(spec, train, test, "regression", None, ("a", "b", "c"), n_splits=2)


def test_all_splits_of_a_uci_set_learn_together(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(aeb_uci, "load_data", line_set)
    out = tmp_path / "x.json"
    aeb_uci.main(["--sets", "yacht", "--splits", "2", "--steps", "400", "--out", str(out)])
    rows = json.loads(out.read_text())["rows"]
    assert [row["setting"]["method"] for row in rows] == list(aeb_uci.METHODS)
    for row in rows:
        assert len(row["each"]) == 2
        assert row["metrics"]["rmse"] < 70  # predicting the mean has 140
        plain = row["setting"]["method"] in ("map", "sghmc")
        assert (row["metrics"]["included"] is None) == plain
    assert "| yacht/map " in capsys.readouterr().out


def test_uci_engines_cool_to_a_thousandth():
    engine = aeb_uci.engine("sghmc-em", 500, 4000)
    assert isinstance(engine, SGHMC)
    assert isinstance(engine.prior, GaussianLaplace)
    assert engine.adapt == "em"
    assert engine.chain.cooling**4000 == pytest.approx(1e-3, rel=1e-6)
    assert engine.step_size == 1e-5
    short = aeb_uci.engine("sghmc", 500, 100)
    assert isinstance(short, SGHMC)
    assert short.chain.cooling == pytest.approx(1 / 1.003)  # no faster than the authors
    assert isinstance(aeb_uci.engine("map", 500, 100), MAP)
