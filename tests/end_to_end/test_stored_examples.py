"""Folders written by an older version still load, and predict what they predicted then.

tests/data/version_0_1 and version_0_2 hold, as those versions wrote them: a trained run, the run
after `prune`, the bundle of `compact --posterior`, six digits, and the predictions of the bundle
for them.
"""

import json
from pathlib import Path

import pytest
import torch

from bayesieve.deliver.bundle import read_bundle
from commands import as_json, ok, rows_of

DATA = Path(__file__).parents[1] / "data"
VERSIONS = pytest.mark.parametrize("old", ["version_0_1", "version_0_2"])


@VERSIONS
@pytest.mark.parametrize("name", ["run", "pruned"])
def test_an_old_run_folder_evaluates_as_it_did(old, name):
    folder = DATA / old
    then = json.loads((folder / name / "metrics.json").read_text(encoding="utf-8"))
    now = as_json("evaluate", folder / name, "--device", "cpu")
    for key in ("error", "nll", "ece", "zeros", "weights", "parameters"):
        assert now[key] == pytest.approx(then[key], rel=1e-5), key


# Draws come in pairs since version 0.1, so those of equal seeds differ: 1,000 of them are near 8.
@VERSIONS
@pytest.mark.parametrize(("flags", "then", "near"), [
    ((), "mean.csv", 1e-6), (("--samples", 1000), "drawn.csv", 0.08)])  # fmt: skip
def test_an_old_bundle_predicts_as_it_did(tmp_path, old, flags, then, near):
    folder = DATA / old
    ok("predict", folder / "bundle", folder / "inputs.npz", *flags, "--out", tmp_path / "now.csv")
    for now, before in zip(rows_of(tmp_path / "now.csv"), rows_of(folder / then), strict=True):
        assert now["class"] == before["class"]
        for key in ("probability", "entropy", "aleatoric", "epistemic"):
            assert float(now[key]) == pytest.approx(float(before[key]), rel=1e-4, abs=near), key


@VERSIONS
def test_an_old_bundle_passes_its_checks(old):
    assert as_json("verify", DATA / old / "bundle")["ok"]


@VERSIONS
def test_an_old_pruned_run_makes_the_same_bundle_again(tmp_path, old):
    folder = DATA / old
    ok("compact", folder / "pruned", "--posterior", "--out", tmp_path / "again")
    old, new = read_bundle(folder / "bundle"), read_bundle(tmp_path / "again")
    assert old.config["graph"]["modules"] == new.config["graph"]["modules"]
    assert old.config["check"] == pytest.approx(new.config["check"], rel=1e-5)
    assert torch.equal(old.keep, new.keep)
    assert torch.equal(old.posterior.mean, new.posterior.mean)
    assert torch.equal(old.posterior.std, new.posterior.std)


@VERSIONS
def test_an_old_run_trains_on_after_pruning(tmp_path, old):
    """Its settings of an engine are those that are built again."""
    out, run = tmp_path / "tuned", DATA / old / "run"
    ok("prune", run, "--zeros", 0.8, "--finetune", 1, "--no-figures", "--out", out)
    assert json.loads((out / "config.json").read_text(encoding="utf-8"))["engine"]["lr"] > 0
