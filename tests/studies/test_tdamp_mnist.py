"""The study's table, files and pictures, on images small in number and easy to tell apart."""

import json

import pytest
import torch

from bayesieve.core.likelihoods import Categorical
from bayesieve.core.network import Network
from bayesieve.core.storage import load_sparse
from bayesieve.nets import mlp
from problems import few_images
from studies import tdamp_mnist

PICTURES = {"accuracy", "scores", "units", "sparsity"}


DATA = few_images(400, 200, name="mnist")


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(tdamp_mnist, "load_data", lambda name: DATA)


def test_the_quick_study_writes_everything(small, tmp_path, capsys):
    out, folder = tmp_path / "x.json", tmp_path / "run"
    arguments = ["--quick", "--passes", "7", "--out", str(out), "--folder", str(folder)]
    assert tdamp_mnist.main(arguments) == 0
    result = json.loads(out.read_text())
    usual = [name for name in tdamp_mnist.cases(7) if name != "tdamp-64-of-128-long"]
    assert [row["name"] for row in result["rows"]] == usual
    pruned, dense = (row["metrics"] for row in result["rows"][:2])
    assert (pruned["units"], dense["units"]) == (64, 128)
    assert pruned["accuracy"] > 0.95
    assert result["command"].endswith(str(folder))
    assert {path.stem for path in folder.glob("*.png")} == PICTURES
    assert sum(len(row["each"][0]["history"]) for row in result["rows"]) == 6 * 7
    network = Network.of(mlp((1, 28, 28), 10, widths=(128,)), Categorical())
    sparse = load_sparse(folder / "posterior.safetensors", network)
    assert sparse.zeros == pytest.approx(64 * (784 + 1 + 10) / sparse.layout.size)
    assert "tdamp-64-of-128" in capsys.readouterr().out


def test_inputs_are_centred_by_the_training_images_and_splits_do_not_overlap(small):
    data = tdamp_mnist.splits(150)
    assert (len(data.train), len(data.watch), len(data.test)) == (150, 150, 200)
    torch.testing.assert_close(data.train.x.mean(0), torch.zeros(1, 28, 28), atol=1e-5, rtol=0)
    assert data.train.x.square().mean().item() == pytest.approx(1.0, rel=1e-5)
    assert torch.equal(data.watch.y, DATA.train.y[150:300])
    everything = tdamp_mnist.splits(None)
    assert len(everything.train) == 400
    assert everything.watch is everything.test


def test_rows_of_all_images_are_told_apart_by_their_name(small, tmp_path):
    out = tmp_path / "x.json"
    call = ["--full", "--seeds", "1", "--passes", "4", "--rows", "adam-64", "--out", str(out)]
    assert tdamp_mnist.main(call) == 0
    (row,) = json.loads(out.read_text())["rows"]
    assert (row["name"], row["metrics"]["passes"]) == ("adam-64/400", 4)
