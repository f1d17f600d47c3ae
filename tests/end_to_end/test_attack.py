"""`bayesieve attack` on small runs: what it writes, prints and refuses."""

import json

import numpy as np
import pytest
import torch

from bayesieve.data.images import PixelScale
from bayesieve.runs import load
from bayesieve.uncertainty.robustness import Attacked, fgsm_curve
from commands import as_json, ok, refused

TRAIN = ("train", "--device", "cpu", "--no-figures", "--epochs", "3")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "digits"
    ok(*TRAIN, "--data", "digits", "--net", "mlp:16", "--lr", "1e-2", "--out", out)
    return out


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tables")
    source = np.random.default_rng(0)
    for name, last in (("classes", source.integers(0, 2, 80)), ("real", source.normal(size=80))):
        rows = np.column_stack([source.normal(size=(80, 3)), last])
        text = "a,b,c,y\n" + "\n".join(",".join(map(str, row)) for row in rows)
        (folder / f"{name}.csv").write_text(text)
    return folder


def test_curves_begin_with_untouched_images_and_fall(run):
    result = as_json("attack", run, "--fgsm", "0.1,0.5", "--pgd", "0.1", "--shift", "noise:0.5",
                     "--shift", "rotation:45", "--samples", "4", "--device", "cpu")  # fmt: skip
    assert list(result["curves"]) == ["fgsm", "pgd", "noise", "rotation"]
    assert result["samples"] == 4
    assert [p["strength"] for p in result["curves"]["fgsm"]] == [0.0, 0.1, 0.5]
    untouched = {points[0]["accuracy"] for points in result["curves"].values()}
    assert len(untouched) == 1
    for points in result["curves"].values():
        assert points[-1]["accuracy"] < points[0]["accuracy"]
        assert points[-1]["nll"] > points[0]["nll"]
    assert json.loads((run / "attack.json").read_text())["curves"] == result["curves"]
    assert (run / "figures" / "attack.png").stat().st_size > 1000


def test_numbers_are_those_of_the_library_in_pixels(run):
    result = as_json("attack", run, "--fgsm", "0.2", "--examples", "50", "--device", "cpu",
                     "--no-figures")  # fmt: skip
    opened = load(run, device="cpu")
    scale = PixelScale.of(opened.data.preprocessing)
    x, y = opened.data.test.x[:50], opened.data.test.y[:50]
    attacked = Attacked(opened.model, 32, scale=scale)
    points = fgsm_curve(attacked, x, y, (0.0, 0.2))
    assert result["samples"] == 32
    assert result["n_examples"] == 50
    assert [p["accuracy"] for p in result["curves"]["fgsm"]] == [p["accuracy"] for p in points]
    moved = scale.pixels(attacked.fgsm(x, 0.2))
    change = (moved - scale.pixels(x)).abs()
    torch.testing.assert_close(change.max(), torch.tensor(0.2))
    assert moved.min() >= 0
    assert moved.max() <= 1


def test_nothing_chosen_is_the_papers_attack_into_another_folder(run, tmp_path):
    text = ok("attack", run, "--samples", "0", "--out", tmp_path / "a", "--no-figures")
    assert "0.5" in text.stdout
    result = json.loads((tmp_path / "a" / "attack.json").read_text())
    assert [p["strength"] for p in result["curves"]["fgsm"]] == [0.0, 0.1, 0.2, 0.3, 0.4, 0.5]
    assert not (tmp_path / "a" / "figures").exists()


def test_chains_are_attacked_together_or_one_by_one(tmp_path):
    ok(*TRAIN, "--data", "digits", "--net", "mlp:4", "--engine", "sghmc", "--chains", "2",
       "--draws", "3", "--out", tmp_path)  # fmt: skip
    flags = ("--fgsm", "0.1", "--no-figures", "--device", "cpu")
    assert as_json("attack", tmp_path, *flags)["samples"] == 6
    assert as_json("attack", tmp_path, *flags, "--member", "1")["samples"] == 3
    mean = as_json("attack", tmp_path, *flags, "--samples", "0")
    first = as_json("attack", tmp_path, *flags, "--samples", "0", "--member", "0")
    assert mean["curves"] == first["curves"]  # the mean over two modes is neither
    assert mean["curves"]["fgsm"][0]["nll"] == pytest.approx(as_json("evaluate", tmp_path)["nll"])


def test_a_new_run_in_the_folder_removes_the_old_attack(tmp_path):
    train = (*TRAIN, "--data", "digits", "--net", "mlp:4", "--out", tmp_path)
    ok(*train)
    ok("attack", tmp_path, "--fgsm", "0.1", "--samples", "0")
    ok(*train, "--force")
    assert not (tmp_path / "attack.json").exists()
    assert not (tmp_path / "figures" / "attack.png").exists()


def test_tables_and_regressions_are_refused(table, tmp_path):
    for name, task in (("classes", "classification"), ("real", "regression")):
        ok(*TRAIN, "--data", f"csv:{table / name}.csv", "--target", "y", "--task", task, "--net",
           "mlp:4", "--out", tmp_path / name)  # fmt: skip
    assert "attack needs images" in refused(2, "attack", tmp_path / "classes")
    assert "attack needs class labels" in refused(2, "attack", tmp_path / "real")
    assert not (tmp_path / "real" / "attack.json").exists()
