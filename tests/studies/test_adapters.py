"""The study of adapters, on texts and images made here."""

import json

import pytest
import torch
from safetensors.torch import save_file

from bayesieve.data.examples import Examples
from problems import few_images
from studies import adapters as study
from studies.pretrained_resnet import ResNet


@pytest.fixture
def data(tmp_path, monkeypatch):
    """A folder with a text and the weights of a ResNet-56, and a few small images."""
    (tmp_path / "text").mkdir()
    (tmp_path / "pretrained").mkdir()
    (tmp_path / "text" / "tinyshakespeare.txt").write_text("to be or not to be, " * 800)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        path = tmp_path / "pretrained" / "resnet56-cifar10.safetensors"
        save_file(ResNet(56).state_dict(), path)
    images = few_images(60, 60, (1, 4, 4))
    monkeypatch.setattr(study, "data_root", lambda: tmp_path)
    monkeypatch.setattr(study, "load_data", lambda name: images)
    return tmp_path


def test_every_row_is_tuned_scored_and_merged(data):
    out = data / "adapters.json"
    rows = "text/adamw,text/ranks,images/flat_vi"
    assert study.main(["--quick", "--held-out", "--rows", rows, "--out", str(out)]) == 0
    record = json.loads(out.read_text())
    adamw, ranks, images = (row["metrics"] for row in record["rows"])
    assert ranks["ranks"] == adamw["ranks"] / 2  # half of them are gone
    assert images["ranks"] == 4 * 4  # rank 4 beside four convolutions
    assert all(row["merged"] < 1e-5 for row in (adamw, ranks, images))
    assert {"mc_nll", "mc_ece", "accuracy"} <= images.keys()
    assert record["notes"]["text before"]["nll"] > 0
    joined = data / "joined.json"
    assert study.main(["--quick", "--join", str(out), "--out", str(joined)]) == 0
    assert len(json.loads(joined.read_text())["rows"]) == 3


def test_held_out_examples_are_not_learned():
    data = Examples(torch.arange(20.0)[:, None], torch.zeros(20))
    setting = study.setting_of("images/adamw")
    setting = study.replace(setting, n=5, n_scored=6)
    order = torch.arange(20)
    train, held = study._parts(data, order, setting, held_out=True)
    assert held.x.flatten().tolist() == list(range(5, 11))
    train, test = study._parts(data, order, setting, held_out=False)
    assert train.x.flatten().tolist() == [0, 1, 2, 3, 4]
    assert test.x.flatten().tolist() == list(range(14, 20))
