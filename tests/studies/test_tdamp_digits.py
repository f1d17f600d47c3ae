"""The study of convolutions runs end to end on a few images, and splits without overlap."""

import dataclasses
import json

import pytest
import torch

from bayesieve.data import load_data
from studies import tdamp_digits


@pytest.fixture(autouse=True)
def _few_images(monkeypatch):
    whole = load_data("digits")
    train, test = whole.train.subset(torch.arange(60)), whole.test.subset(torch.arange(20))
    few = dataclasses.replace(whole, train=train, test=test)
    monkeypatch.setattr(tdamp_digits, "load_data", lambda name: few)


def test_every_row_is_scored(tmp_path):
    out = tmp_path / "digits.json"
    assert tdamp_digits.main(["--seeds", "1", "--passes", "2", "--out", str(out)]) == 0
    result = json.loads(out.read_text())
    assert [row["name"] for row in result["rows"]] == list(tdamp_digits.ROWS)
    assert (result["scored_on"], result["settings"]["n_scored"]) == ("test", 20)
    for row in result["rows"]:
        assert 0 <= row["metrics"]["accuracy"] <= 1
        assert ("draws_nll" in row["metrics"]) is row["name"].startswith("tdamp")


def test_held_out_images_are_training_images_not_learned_from():
    train, held = tdamp_digits.splits(held_out=True)
    assert (len(train), len(held)) == (48, 12)
    assert train.x.mean(0).abs().max() < 1e-5
    assert train.x.square().mean().item() == pytest.approx(1, rel=1e-4)
