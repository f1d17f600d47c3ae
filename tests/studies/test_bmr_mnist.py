"""The study's choice and records, on images small in number and easy to tell apart."""

import json
from dataclasses import replace

import pytest
import torch
from studies.bmr_training import pruned_fraction
from studies.bmr_ways import ROWS, Candidate, Numbers, together
from torch import nn

from bayesieve.core.likelihoods import Gaussian
from bayesieve.core.network import Network
from bayesieve.core.posterior import Factorised, SparseModel
from bayesieve.data.examples import DataSet, Examples
from problems import normal, seeded
from studies import bmr_mnist, laplace_bmr, records
from studies.bmr_mnist import choose, main, run_row, train


def examples(n, seed):
    """Ten prototypes of 28x28 pixels and noise."""
    prototypes = normal(10, 1, 28, 28, seed=0, dtype=torch.float32)
    y = torch.randint(10, (n,), generator=seeded(seed))
    return Examples(prototypes[y] + 0.3 * normal(n, 1, 28, 28, seed=seed, dtype=torch.float32), y)


DATA = DataSet("mnist", examples(300, 1), examples(100, 2), "classification", tuple("0123456789"))


def test_every_candidate_prunes_within_its_run():
    for row in ROWS.values():
        for own in row.candidates.values():
            assert own.reduction is not None or own.pruning(row.zeros, row.epochs) is not None
            assert 0 <= own.prune_epochs[0] < own.prune_epochs[1] < row.epochs
    with pytest.raises(ValueError, match="must prune by itself or be topped up"):
        Candidate("none", "none")
    with pytest.raises(ValueError, match="SBNN does not prune by itself"):
        Candidate(prior="spike-slab")


def test_the_weight_of_the_kl_is_turned_by_the_engine_where_it_prunes():
    own = Candidate(kl=0.1, kl_after=0.5, prune_epochs=(2, 6))
    engine = own.engine(10)
    assert (engine.reduction.start, engine.reduction.end) == (0.2, 0.6)
    assert engine.reduction.kl * own.schedule().kl == pytest.approx(0.1)
    left = replace(own, own="none")
    assert left.engine(10).reduction is None
    assert (left.schedule().kl, left.schedule().kl_after) == (0.1, 0.5)


def test_spikes_are_ranked_by_the_evidence_under_their_own_prior():
    own = Candidate("none", "evidence", prior="spike-slab", numbers=Numbers(1e-3, 0.02, 0.4))
    engine = own.engine(10)
    assert (engine.prior.slab_std, engine.prior.spike_std) == (0.4, Numbers().spike)
    assert own.pruning(0.9, 160).score == "evidence"
    assert replace(own, prior="layers").pruning(0.9, 160).score.prior_std == "empirical"


def test_candidates_that_differ_in_numbers_are_one_population_with_their_own_numbers():
    ways = {"a": Candidate(), "b": Candidate(kl=0.3), "c": Candidate(numbers=Numbers(1e-4))}
    assert together(ways) == [["a", "c"], ["b"]]
    row = replace(ROWS["l300-98.5"], zeros=0.9, epochs=8)
    run = train(row, [replace(ways[n], prune_epochs=(1, 2)) for n in "ac"], DATA.train, 2, "cpu")
    assert run.n_models == 4
    assert run.engine.lr == (1e-2, 1e-2, 1e-4, 1e-4)


def test_the_sparsest_is_taken_when_none_is_sparse_enough():
    tried = {
        "a": {"mc_nll_mean": 0.3, "zeros_min": 0.8},
        "b": {"mc_nll_mean": 0.1, "zeros_min": 0.5},
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


def test_a_chosen_candidate_is_tested_without_another_comparison():
    ways = {"one": Candidate(prune_epochs=(1, 2)), "two": Candidate("none", prune_epochs=(1, 2))}
    row = replace(ROWS["l300-98.5"], zeros=0.9, epochs=3, candidates=ways, target=0.0)
    record = run_row("x", row, (DATA.train, DATA.test), 1, "cpu", final=True, chosen="two")
    assert (record["chosen"], record["held_out"]) == ("two", {})
    assert len(record["test"]["seeds"]) == 1
    assert record["test"]["seeds"][0]["layers"].keys() == record["test"]["seeds"][0]["kept"].keys()


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


def test_the_pruned_fraction_of_the_reference_by_hand():
    # Layers 3-4-2: 16 entries of the first with its biases, 8 weights of the last.
    network = Network.of(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)), Gaussian())
    posterior = Factorised(network, torch.ones(26), torch.ones(26))
    keep = torch.ones(26, dtype=torch.bool)
    assert pruned_fraction(SparseModel(posterior, keep)) == 0
    keep[:3] = False  # the first row, but not its bias: 3 zeros
    assert pruned_fraction(SparseModel(posterior, keep)) == pytest.approx(3 / 24)
    keep[20] = False  # now the unit is silent: 4 zeros and 2 weights that read it
    assert pruned_fraction(SparseModel(posterior, keep)) == pytest.approx(6 / 24)
    keep[13] = False  # a weight of the last layer that reads a live unit does not count
    assert pruned_fraction(SparseModel(posterior, keep)) == pytest.approx(6 / 24)
