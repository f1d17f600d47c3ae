"""The study's choice and records, on images small in number and easy to tell apart."""

import json
from dataclasses import replace
from functools import partial

import pytest

from bayesieve.nets import mlp
from problems import few_images
from studies import bmr_mnist, harness, laplace_bmr
from studies.bmr_mnist import (
    ROWS,
    Candidate,
    Numbers,
    choose,
    compare,
    final,
    main,
    together,
    train,
)

DATA = few_images(300, 100, name="mnist")


def test_every_candidate_prunes_within_its_run():
    for goal in ROWS.values():
        for one in goal.candidates.values():
            assert one.reduction is not None or one.pruning(goal.zeros, goal.epochs) is not None
            assert 0 <= one.prune_epochs[0] < one.prune_epochs[1] < goal.epochs
    with pytest.raises(ValueError, match="must prune by itself or be topped up"):
        Candidate("none", "none")
    with pytest.raises(ValueError, match="SBNN does not prune by itself"):
        Candidate(prior="spike-slab")


def test_the_weight_of_the_kl_is_turned_by_the_engine_where_it_prunes():
    one = Candidate(kl=0.1, kl_after=0.5, prune_epochs=(2, 6))
    engine = one.engine(10)
    assert (engine.reduction.start, engine.reduction.end) == (0.2, 0.6)
    assert engine.reduction.kl * one.schedule().kl == pytest.approx(0.1)
    left = replace(one, prunes="none")
    assert left.engine(10).reduction is None
    assert (left.schedule().kl, left.schedule().kl_after) == (0.1, 0.5)


def test_spikes_are_ranked_by_the_evidence_under_their_own_prior():
    one = Candidate("none", "evidence", prior="spike-slab", numbers=Numbers(1e-3, 0.02, 0.4))
    engine = one.engine(10)
    assert (engine.prior.slab_std, engine.prior.spike_std) == (0.4, Numbers().spike)
    assert one.pruning(0.9, 160).score == "evidence"
    assert replace(one, prior="layers").pruning(0.9, 160).score.prior_std == "empirical"


def test_candidates_that_differ_in_numbers_are_one_population_with_their_own_numbers():
    choices = {"a": Candidate(), "b": Candidate(kl=0.3), "c": Candidate(numbers=Numbers(1e-4))}
    assert together(choices) == [["a", "c"], ["b"]]
    row = replace(ROWS["l300-98.5"], zeros=0.9, epochs=3)
    run = train(row, [replace(choices[n], prune_epochs=(1, 2)) for n in "ac"], DATA.train, 2, "cpu")
    assert run.n_models == 4
    assert run.engine.lr == (1e-2, 1e-2, 1e-4, 1e-4)


def test_the_sparsest_is_taken_when_none_is_sparse_enough():
    tried = {
        "a": {"metrics": {"mc_nll": 0.3, "zeros_min": 0.8}},
        "b": {"metrics": {"mc_nll": 0.1, "zeros_min": 0.5}},
    }
    assert choose(tried, 0.9) == "a"
    assert choose(tried, 0.4) == "b"


def test_a_row_is_chosen_on_held_out_images_and_tested_once(monkeypatch):
    monkeypatch.setattr(harness, "HELD_OUT", 60)
    choices = {"one": Candidate(prune_epochs=(1, 2)), "two": Candidate("none", prune_epochs=(1, 2))}
    goal = replace(ROWS["l300-98.5"], zeros=0.9, epochs=3, candidates=choices, target=1.0)
    tried = compare("small", goal, DATA, 2, "cpu")
    assert tried.keys() == choices.keys()
    assert {row["scored_on"] for row in tried.values()} == {"held-out"}
    row = final("small", goal, choose(tried, 0.9), DATA, 2, "cpu")
    assert len(row["each"]) == 2
    assert row["metrics"]["zeros_min"] >= 0.9 - 1e-4
    for one in row["each"]:
        assert sum(one["kept"].values()) <= 26_661
    json.dumps([row, *tried.values()])


def test_a_chosen_candidate_is_tested_without_another_comparison(monkeypatch, tmp_path):
    choices = {"one": Candidate(prune_epochs=(1, 2)), "two": Candidate("none", prune_epochs=(1, 2))}
    goal = replace(ROWS["l300-98.5"], zeros=0.9, epochs=3, candidates=choices, target=0.0)
    monkeypatch.setitem(ROWS, "small", goal)
    monkeypatch.setattr(bmr_mnist, "load_data", lambda name: DATA)
    out = tmp_path / "x.json"
    call = ["--settings", "small", "--seeds", "1", "--device", "cpu", "--chosen", "two"]
    assert main([*call, "--out", str(out)]) == 0
    (row,) = json.loads(out.read_text())["rows"]
    assert (row["name"], row["setting"]["label"]) == ("small", "two")


def test_the_command_writes_what_it_did(monkeypatch, tmp_path):
    monkeypatch.setattr(harness, "HELD_OUT", 60)
    monkeypatch.setattr(bmr_mnist, "load_data", lambda name: DATA)
    out = tmp_path / "x.json"
    arguments = ["--quick", "--held-out", "--device", "cpu", "--out", str(out)]
    assert main(arguments) == 0
    result = json.loads(out.read_text())
    assert [row["name"] for row in result["rows"]] == ["l300-97.6/savage-dickey, topped up"]
    assert (result["scored_on"], result["test_reads"]) == ("held-out", "never")
    assert "--held-out" in result["command"]
    assert main(arguments) == 0  # nothing is left to do
    assert json.loads(out.read_text())["rows"] == result["rows"]


def test_the_sieve_of_trained_networks(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(laplace_bmr, "load_data", lambda name: DATA)
    monkeypatch.setattr(laplace_bmr, "lenet_300_100", partial(mlp, widths=(30, 20)))
    out = tmp_path / "x.json"
    assert laplace_bmr.main(["--quick", "--device", "cpu", "--out", str(out)]) == 0
    result = json.loads(out.read_text())
    rows = {row["name"]: row["metrics"] for row in result["rows"]}
    methods = ("magnitude", "evidence", "unit, kept means", "unit")
    assert rows.keys() == {"dense", *(f"{m}/{z}" for m in methods for z in ("0.5", "0.8", "0.9"))}
    assert rows["unit/0.9"]["nll"] < rows["magnitude/0.9"]["nll"]
    assert "magnitude" in capsys.readouterr().out
