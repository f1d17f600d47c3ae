"""The study's choice and records, on images small in number and easy to tell apart."""

import json
from dataclasses import replace

import pytest
import torch

from bayesieve.data.examples import DataSet, Examples
from bayesieve.studies import bmr_mnist, laplace_bmr, records
from bayesieve.studies.bmr_mnist import ROWS, Candidate, choose, main, run_row
from problems import normal, seeded


def examples(n, seed):
    """Ten prototypes of 28x28 pixels and noise."""
    prototypes = normal(10, 1, 28, 28, seed=0, dtype=torch.float32)
    y = torch.randint(10, (n,), generator=seeded(seed))
    return Examples(prototypes[y] + 0.3 * normal(n, 1, 28, 28, seed=seed, dtype=torch.float32), y)


DATA = DataSet("mnist", examples(300, 1), examples(100, 2), "classification", tuple("0123456789"))


def test_every_candidate_can_prune():
    for row in ROWS.values():
        for own in row.candidates.values():
            assert own.reduction is not None or own.top_up != "none"
            assert 0 <= own.prune_epochs[0] < own.prune_epochs[1] < row.epochs


def test_the_sparsest_is_taken_when_none_is_sparse_enough():
    tried = {
        "a": {"error_mean": 0.3, "zeros_min": 0.8},
        "b": {"error_mean": 0.1, "zeros_min": 0.5},
    }
    assert choose(tried, 0.9) == "a"
    assert choose(tried, 0.4) == "b"


def test_a_row_is_chosen_on_held_out_images_and_tested_once(monkeypatch):
    monkeypatch.setattr(records, "HELD_OUT", 60)
    ways = {"one": Candidate(prune_epochs=(1, 2)), "two": Candidate("none", prune_epochs=(1, 2))}
    row = replace(ROWS["l300-98.5"], zeros=0.9, epochs=3, candidates=ways, target=1.0)
    record = run_row("small", row, (DATA.train, DATA.test), 2, "cpu", final=True)
    assert record["held_out"].keys() == ways.keys()
    assert record["chosen"] in ways
    assert len(record["test"]["seeds"]) == 2
    assert record["test"]["zeros_min"] >= 0.9 - 1e-4
    assert record["met"]
    for seed in record["test"]["seeds"]:
        assert sum(seed["kept"].values()) <= 26_661
    json.dumps(record)


def test_the_command_writes_what_it_did(monkeypatch, tmp_path):
    monkeypatch.setattr(records, "HELD_OUT", 60)
    monkeypatch.setattr(bmr_mnist, "load_data", lambda name: DATA)
    out = tmp_path / "x.json"
    arguments = ["--quick", "--held-out", "--device", "cpu", "--out", str(out)]
    assert main(arguments) == 0
    result = json.loads(out.read_text())
    assert "test" not in result["records"][0]
    assert "--held-out" in result["command"]
    with pytest.raises(ValueError, match=r"^bmr_mnist: setting must be one of"):
        main(["--settings", "l300-97"])


def test_the_sieve_of_trained_networks(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(laplace_bmr, "load_data", lambda name: DATA)
    out = tmp_path / "x.json"
    assert laplace_bmr.main(["--quick", "--device", "cpu", "--out", str(out)]) == 0
    result = json.loads(out.read_text())
    ways = result["means"]
    assert ways.keys() == {"magnitude", "evidence", "unit, kept means", "unit"}
    assert all(len(own["error"]) == len(result["zeros"]) for own in ways.values())
    assert ways["unit"]["nll"][-1] < ways["magnitude"]["nll"][-1]
    assert "magnitude" in capsys.readouterr().out
