"""`bayesieve sweep` and `bayesieve compare` as a user runs them."""

import csv
import json

import pytest
from safetensors.torch import load_file

from bayesieve.cli.config_files import UsageError, read_config
from bayesieve.cli.sweeping import Dimension
from commands import as_json, ok, refused

NET = ("--data", "digits", "--net", "mlp:8")
SWEEP = (*NET, "--engine", "map", "--epochs", "1", "--no-figures")
COMPARE = (
    *NET, "--epochs", "1", "--seeds", "2", "--zeros", "0.5", "--finetune", "1", "--n-train", "300",
)  # fmt: skip


def test_a_search_is_continued_and_its_front_can_be_trained(tmp_path):
    pytest.importorskip("optuna")
    first = as_json("sweep", *SWEEP, "--trials", "2", "--out", tmp_path)
    assert [row["number"] for row in first["trials"]] == [0, 1]
    assert set(first["trials"][0]["settings"]) == {"engine.lr", "pruning.zeros"}
    second = as_json("sweep", *SWEEP, "--trials", "1", "--out", tmp_path)
    assert second["trials"][:2] == first["trials"]
    assert json.loads((tmp_path / "sweep.json").read_text()) == second
    front = second["front"]
    assert front
    for row in front:  # nothing is better in both
        assert not any(
            other["score"] < row["score"] and other["weights"] < row["weights"]
            for other in second["trials"]
        )
    file = tmp_path / "front" / f"{front[0]['number']}.json"
    assert read_config(file).engine.lr == front[0]["settings"]["engine.lr"]
    ok("train", "--config", file, "--no-figures", "--out", tmp_path / "run")
    other = refused(2, "sweep", *SWEEP, "--batch-size", "7", "--out", tmp_path)
    assert "begun with other settings" in other


def test_what_to_search_can_be_said(tmp_path):
    pytest.importorskip("optuna")
    result = as_json(
        "sweep", *SWEEP, "--trials", "1", "--out", tmp_path, "--zeros", "0.5",
        "--search", "engine.optimizer=adamw|sgd", "--search", "engine.lr=0.01:0.1:log",
    )  # fmt: skip
    (row,) = result["trials"]
    assert row["settings"]["engine.optimizer"] in ("adamw", "sgd")
    assert 0.01 <= row["settings"]["engine.lr"] <= 0.1


@pytest.mark.parametrize(
    "text", ["lr=1:2", "engine.lr", "engine.lr=2:1", "engine.lr=0:1:log", "engine.lr=1:2:3"]
)
def test_searches_that_cannot_be_meant(text):
    with pytest.raises(UsageError, match="--search"):
        Dimension.parse(text)


def test_a_search_fails_before_it_trains(tmp_path):
    pytest.importorskip("optuna")
    line = refused(2, "sweep", *SWEEP, "--search", "engine.l=1:2", "--out", tmp_path / "a")
    assert "unknown key 'engine.l'" in line
    assert not (tmp_path / "a").exists()
    assert "--trials" in refused(2, "sweep", *SWEEP, "--trials", "0", "--out", tmp_path / "a")


def test_a_comparison_has_numbers_words_and_a_table(tmp_path):
    out = tmp_path / "compare"
    arguments = (*COMPARE, "--methods", "map,dropout,ensemble,sbnn", "--out", out)
    result = as_json("compare", *arguments)
    assert json.loads((out / "compare.json").read_text()) == result
    assert [own["name"] for own in result["methods"]] == ["map", "dropout", "ensemble", "sbnn"]
    assert len(result["reading"]) == len(result["standings"]) == 5
    rows = list(csv.DictReader((out / "compare.csv").read_text().splitlines()))
    assert len(rows) == 4 * 2 * 5
    page = (out / "compare.md").read_text()
    assert "| sbnn |" in page
    assert "critical difference" in page
    assert (out / "compare.png").exists()
    assert not (out / "compare.partial.json").exists()
    assert "holds a comparison already" in refused(2, "compare", *arguments)


def test_a_method_that_does_not_apply_is_named_with_the_reason(tmp_path):
    net = ("--data", "digits", "--net", "mlp:8:tanh", "--epochs", "1", "--seeds", "1")
    result = as_json(
        "compare", *net, "--zeros", "", "--n-train", "100", "--no-figures", "--methods",
        "map,tdamp", "--out", tmp_path,
    )  # fmt: skip
    assert [own["name"] for own in result["methods"]] == ["map"]
    (left_out,) = result["left_out"]
    assert left_out["name"] == "tdamp"
    assert "Tanh" in left_out["reason"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("--methods", "sbn"), "Did you mean 'sbnn'"),
        (("--zeros", "most"), "--zeros must be numbers"),
        (("--n-train", "9999999"), "--n-train must be 1 to"),
    ],
)
def test_comparisons_that_cannot_be_meant(tmp_path, change, words):
    line = refused(2, "compare", *NET, *change, "--out", tmp_path / "a")
    assert words in line
    assert not (tmp_path / "a").exists()


def test_fine_tuning_keeps_exactly_the_weights_that_were_kept(tmp_path):
    ok("train", *NET, "--engine", "bmr", "--epochs", "3", "--no-figures", "--out", tmp_path / "a")
    cut = ("prune", tmp_path / "a", "--zeros", "0.5", "--no-figures")
    plain = as_json(*cut, "--out", tmp_path / "b")
    tuned = as_json(*cut, "--finetune", "10", "--out", tmp_path / "c")
    assert tuned["weights"] == plain["weights"]
    stored = load_file(tmp_path / "c" / "posterior.safetensors")
    assert int((stored["mean"] != 0).sum()) == int(stored["keep"].sum()) == tuned["weights"]
