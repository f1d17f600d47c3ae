"""`bayesieve compare` as a user runs it."""

import csv
import json

import pytest
from PIL import Image
from safetensors.torch import load_file

from commands import as_json, ok, refused

NET = ("--data", "digits", "--net", "mlp:8")
COMPARE = (
    *NET, "--epochs", "1", "--seeds", "2", "--zeros", "0.5", "--finetune", "1", "--n-train", "300",
)  # fmt: skip
QUICK = (*NET, "--epochs", "1", "--seeds", "1", "--zeros", "", "--n-train", "100", "--attack", "0")


def test_a_comparison_has_numbers_words_and_a_table(tmp_path):
    out = tmp_path / "compare"
    arguments = (*COMPARE, "--methods", "map,dropout,ensemble,sbnn", "--out", out)
    result = as_json("compare", *arguments)
    assert json.loads((out / "compare.json").read_text()) == result
    assert [method["name"] for method in result["methods"]] == [
        "map",
        "dropout",
        "ensemble",
        "sbnn",
    ]
    assert len(result["reading"]) == 5 + 1
    assert len(result["standings"]) == 5
    rows = list(csv.DictReader((out / "compare.csv").read_text().splitlines()))
    assert len(rows) == 4 * 2 * 5
    assert rows[0].keys() == {"method", "seed", "place", "metric", "value"}
    page = (out / "compare.md").read_text()
    assert "| sbnn |" in page
    assert "by magnitude (map, dropout, ensemble) and signal to noise (sbnn)." in page
    assert "ensemble shares its passes among 5 networks: each had 1" in page
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
    assert [method["name"] for method in result["methods"]] == ["map"]
    (left_out,) = result["left_out"]
    assert left_out["name"] == "tdamp"
    assert "Tanh" in left_out["reason"]


def part(folder, *arguments):
    return as_json("compare", *QUICK, "--no-figures", *arguments, "--out", folder)


def test_parts_by_method_join_to_what_one_call_gives(tmp_path):
    whole = part(tmp_path / "whole", "--methods", "map,sbnn")
    part(tmp_path / "b", "--methods", "sbnn")
    part(tmp_path / "a", "--methods", "map")
    folders = (tmp_path / "b", tmp_path / "a" / "compare.json")
    joined = as_json("compare", *folders, "--no-figures", "--out", tmp_path / "joined")
    assert json.loads((tmp_path / "joined" / "compare.json").read_text()) == joined
    for key in ("standings", "reading", "budget", "data"):
        assert joined[key] == whole[key]
    assert [method["name"] for method in joined["methods"]] == ["map", "sbnn"]


def test_parts_by_seed_give_a_method_all_of_them(tmp_path):
    for seed in ("0", "1", "2"):
        part(tmp_path / seed, "--methods", "map", "--seed", seed)
    part(tmp_path / "b", "--methods", "dropout")
    folders = [tmp_path / name for name in ("0", "1", "2", "b")]
    joined = as_json("compare", *folders, "--no-figures", "--out", tmp_path / "joined")
    first, second = joined["methods"]
    assert first["repetitions"] == [[0, 0], [1, 0], [2, 0]]
    assert len({method["error"] for method in first["seeds"]} | {0}) > 2
    assert len(second["seeds"]) == 1
    page = (tmp_path / "joined" / "compare.md").read_text()
    assert "| map | 3 |" in page  # uneven, so the table counts them
    assert "1 to 3 seeds" in page
    assert "## Ranks" not in page  # one seed of dropout ranks nothing


def test_what_a_comparison_that_died_has_measured_can_be_joined(tmp_path):
    part(tmp_path / "a", "--methods", "map")
    (tmp_path / "a" / "compare.json").rename(tmp_path / "a" / "compare.partial.json")
    joined = as_json("compare", tmp_path / "a", "--no-figures", "--out", tmp_path / "joined")
    assert [method["name"] for method in joined["methods"]] == ["map"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("--epochs", "2"), "differ in epochs: 1 and 2"),
        (("--n-train", "90"), "differ in n_train: 100 and 90"),
        ((), "map with seed 0 is in an earlier part already"),
        (("--seed", "1", "--set", "map.engine.lr=0.5"), "map has another engine"),
    ],
)
def test_parts_that_do_not_belong_together(tmp_path, change, words):
    part(tmp_path / "a", "--methods", "map")
    part(tmp_path / "b", "--methods", "map", *change)
    folders = (tmp_path / "a", tmp_path / "b")
    assert words in refused(2, "compare", *folders, "--out", tmp_path / "joined")
    assert not (tmp_path / "joined").exists()


def test_what_cannot_be_joined(tmp_path):
    out = ("--out", tmp_path / "joined")
    assert "give --data to train, or" in refused(2, "compare", *out)
    assert "give --data to train, or" in refused(2, "compare", tmp_path, *QUICK, *out)
    nothing = refused(2, "compare", tmp_path, *out)
    assert "there is no compare.json or compare.partial.json" in nothing
    (tmp_path / "compare.json").write_text('{"format": 1}')
    assert "was not written by `bayesieve compare`" in refused(2, "compare", tmp_path, *out)


def test_the_precision_of_training_is_passed_on_and_named(tmp_path):
    methods = ("--methods", "map,dropout")
    plain = part(tmp_path / "a", *methods)
    half = part(tmp_path / "b", *methods, "--precision", "bf16")
    assert "bfloat16" in (tmp_path / "b" / "compare.md").read_text()
    assert "bfloat16" not in (tmp_path / "a" / "compare.md").read_text()
    for one, other in zip(plain["methods"], half["methods"], strict=True):
        assert one["seeds"][0]["NLL"] != other["seeds"][0]["NLL"]
        assert one["seeds"][0]["NLL"] == pytest.approx(other["seeds"][0]["NLL"], rel=0.05)


def test_a_setting_of_one_method_can_be_changed(tmp_path):
    (method,) = part(tmp_path / "a", "--methods", "map", "--set", "map.engine.lr=0.5")["methods"]
    assert "lr=0.5" in method["engine"]


def test_a_method_alone_has_nothing_to_be_read(tmp_path):
    part(tmp_path, "--methods", "map", "--seeds", "2")
    assert "## Reading" not in (tmp_path / "compare.md").read_text()


def test_held_out_examples_stand_in_for_the_test_split(tmp_path):
    found = part(tmp_path / "a", "--methods", "map", "--held-out", "0.25", "--n-test", "50")
    assert found["data"]["n_train"] == 100
    assert found["data"]["n_scored"] == 50
    assert "50 held-out training examples" in (tmp_path / "a" / "compare.md").read_text()


def test_a_method_that_diverges_is_named_and_the_others_go_on(tmp_path):
    changes = ("--set", "map.engine.lr=1e30", "--methods", "map,dropout", "--batch-size", "20")
    found = part(tmp_path / "a", *changes)
    assert [method["name"] for method in found["methods"]] == ["dropout"]
    assert "not finite" in found["left_out"][0]["reason"]


def test_a_fraction_of_zeros_that_a_network_cannot_reach_is_named_and_the_others_go_on(tmp_path):
    # Of 8 · 64 + 8 + 10 · 8 + 10 = 610 parameters a path of 2 weights and 1 + 10 biases stay.
    arguments = (*COMPARE[:-6], "--methods", "map,dropout", "--n-train", "100", "--finetune", "1")
    arguments = (*arguments, "--zeros", "0.9,0.98", "--no-figures", "--out", tmp_path)
    printed = " ".join(ok("compare", *arguments).stdout.split())
    reason = "12 of 610 parameters may stay, but 13 always do: at most 97.86 % can be 0."
    assert f"- 98 % zeros left out: {reason}" in printed
    found = json.loads((tmp_path / "compare.json").read_text())
    assert found["left_out"] == [{"name": "98 % zeros", "reason": reason}]
    assert found["budget"]["zeros"] == [0.9]
    assert [name for name in found["table"][0] if "zeros" in name] == ["error at 90 % zeros"]
    assert [method["name"] for method in found["methods"]] == ["map", "dropout"]
    assert f"- 98 % zeros left out: {reason}" in (tmp_path / "compare.md").read_text()
    joined = as_json("compare", tmp_path, "--no-figures", "--out", tmp_path / "joined")
    assert joined["left_out"] == found["left_out"]


def grey_images(folder, size):
    for split in ("train", "test"):
        for label in ("a", "b"):
            home = folder / split / label
            home.mkdir(parents=True)
            for i in range(3):
                Image.new("L", (size, size), 100 + 20 * i).save(home / f"{i}.png")
    return f"images:{folder}"


def test_foreign_images_are_padded_to_the_size_of_the_own(tmp_path):
    small, large = (grey_images(tmp_path / str(size), size) for size in (6, 9))
    found = part(tmp_path / "a", "--methods", "map", "--outside", small)
    score = found["methods"][0]["seeds"][0]["out-of-distribution AUROC"]
    assert 0 <= score <= 1
    line = refused(2, "compare", *QUICK, "--outside", large, "--out", tmp_path / "b")
    assert "shape (1, 9, 9), which cannot be padded to the (1, 8, 8) of digits" in line


def test_fine_tuning_keeps_exactly_the_weights_that_were_kept(tmp_path):
    ok("train", *NET, "--engine", "bmr", "--epochs", "3", "--no-figures", "--out", tmp_path / "a")
    cut = ("prune", tmp_path / "a", "--zeros", "0.5", "--no-figures")
    plain = as_json(*cut, "--out", tmp_path / "b")
    tuned = as_json(*cut, "--finetune", "10", "--out", tmp_path / "c")
    assert tuned["weights"] == plain["weights"]
    stored = load_file(tmp_path / "c" / "posterior.safetensors")
    assert int((stored["mean"] != 0).sum()) == int(stored["keep"].sum()) == tuned["weights"]
