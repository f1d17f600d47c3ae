"""From a trained run to a narrower one, and both measured, through the command line."""

import json
import re
import sys

import pytest

from bayesieve.deliver import runtime
from bayesieve.fast.native import KernelUnavailableError
from bayesieve.graph import costs
from bayesieve.runs.config import RECORD
from commands import ok


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(costs, "_BURST", 1e-5)
    monkeypatch.setattr(runtime, "_ROUNDS", 1)


@pytest.fixture
def without_onnx(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxscript", None)  # as if it were not installed


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "a"
    ok("train", "--data", "digits", "--engine", "sbnn", "--epochs", 5, "--no-figures",
         "--out", folder)  # fmt: skip
    return folder


@pytest.fixture(scope="module")
def narrowed(trained):
    folder = trained.parent / "b"
    ok("prune", trained, "--keep-units", 0.25, "--finetune", 2, "--no-figures", "--out", folder)
    return folder


def test_a_cut_that_breaks_a_network_says_so_and_what_would_help(trained, tmp_path):
    said = ok("prune", trained, "--zeros", 0.98, "--no-figures", "--out", tmp_path / "b").stderr
    assert re.search(
        r"prune: the network lost \d.* nats per example with 98\.0% zeros \(error", said
    )
    assert "zeros cost less than 0.05 nats" in said
    assert "--finetune 5" in said
    assert "`bayesieve train --zeros 0.980`" in said


def test_few_zeros_in_units_in_use_are_explained_by_compact(trained, tmp_path):
    ok("prune", trained, "--zeros", 0.7, "--no-figures", "--out", tmp_path / "b")
    said = " ".join(ok("compact", tmp_path / "b", "--out", tmp_path / "c").stderr.split())
    assert "70% of the parameters are 0, but only" in said
    assert "`bayesieve prune --keep-units`" in said


def test_units_go_and_the_network_still_learns(narrowed):
    metrics = json.loads((narrowed / "metrics.json").read_text())
    assert metrics["weights"] == 64 * 100 + 100 * 100 + 100 * 10 + 210  # 64-100-100-10
    assert metrics["error"] < 0.3
    record = json.loads((narrowed / "config.json").read_text())[RECORD]
    assert record["rule"] == {"keep_units": 0.25, "finetune": 2}


def test_multiply_adds_reach_their_target(trained, tmp_path, without_onnx):
    out = tmp_path / "c"
    ok("prune", trained, "--target-macs", 0.2, "--no-figures", "--out", out)
    rows = json.loads(ok("profile", trained, out, "--rounds", 1, "--json").stdout)["rows"]
    macs = {row["name"].rpartition(" ")[2]: row["macs"] for row in rows}
    assert macs["compact"] <= 0.2 * macs["dense"]
    assert macs["compact"] > 0.15 * macs["dense"]


def test_a_latency_that_holds_already_removes_nothing(trained, tmp_path):
    out = tmp_path / "d"
    ok("prune", trained, "--target-latency", 1000, "--no-figures", "--out", out)
    assert json.loads((out / "metrics.json").read_text())["zeros"] < 0.01


def test_profile_measures_every_form(trained, narrowed, without_onnx):
    result = json.loads(ok("profile", trained, narrowed, "--rounds", 1, "--json").stdout)
    rows = {row["name"]: row for row in result["rows"]}
    assert result["clock"] == "wall"
    assert [text.partition(":")[0] for text in result["left_out"]] == [
        f"{trained} onnxruntime", f"{narrowed} onnxruntime",
    ]  # fmt: skip
    assert set(rows) >= {
        f"{trained} dense", f"{trained} runtime", f"{narrowed} masked", f"{narrowed} compact",
        f"{narrowed} runtime",
    }  # fmt: skip
    masked, compact = rows[f"{narrowed} masked"], rows[f"{narrowed} compact"]
    assert masked["parameters"] == rows[f"{trained} dense"]["parameters"]
    assert masked["zeros"] > 0.9 * masked["parameters"]
    assert masked["removed_units"] == 0
    assert compact["removed_units"] == 600
    assert compact["nonzero_macs"] == masked["nonzero_macs"]
    assert compact["bytes"] < masked["bytes"] / 8


@pytest.fixture(scope="module")
def sparse(trained):
    folder = trained.parent / "sparse"
    ok("prune", trained, "--zeros", 0.7, "--no-figures", "--out", folder)
    return folder


def test_profile_measures_int8_and_says_what_it_changes(trained, sparse, without_onnx):
    try:
        runtime.library()
    except KernelUnavailableError as error:
        pytest.skip(str(error))
    result = json.loads(ok("profile", trained, sparse, "--rounds", 1, "--json").stdout)
    rows = {row["name"]: row for row in result["rows"]}
    assert f"{trained} int8" not in rows  # a dense network has no zeros to skip
    int8 = rows[f"{sparse} int8"]
    assert int8["latency_ms_batch_64"] > 0
    assert int8["rounding"]["examples"] == 500
    assert int8["rounding"]["weights"] == 1
    assert 0 < int8["rounding"]["error"] < 0.1
    assert 0 <= int8["rounding"]["changed"] < 50
    assert set(int8["rounding"]["batches"]) <= {1, 64}
    assert all(row["rounding"] is None for name, row in rows.items() if name != int8["name"])
    text = " ".join(ok("profile", sparse, "--rounds", 1).stdout.split())
    assert "int8: 100% of the weights have 8 bits; on 500 examples the largest error is" in text


def test_profile_leaves_int8_out_where_nothing_compiles(sparse, without_onnx, monkeypatch):
    def missing():
        raise KernelUnavailableError("no C compiler (cc, gcc or clang) on the path")

    monkeypatch.setattr(runtime, "library", missing)
    result = json.loads(ok("profile", sparse, "--rounds", 1, "--json").stdout)
    assert f"{sparse} int8: no C compiler (cc, gcc or clang) on the path" in result["left_out"]
    assert f"{sparse} int8" not in {row["name"] for row in result["rows"]}


def test_profile_prints_a_table_for_each_folder(trained, narrowed, without_onnx):
    text = ok("profile", trained, narrowed, "--rounds", 1, "--clock", "cpu").stdout
    assert text.count("removed units") == 2
    assert "cpu time, 1 thread" in text


def test_onnxruntime_takes_part_where_it_is_installed(narrowed):
    for name in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(name)
    rows = json.loads(ok("profile", narrowed, "--rounds", 1, "--json").stdout)["rows"]
    onnx = next(row for row in rows if row["name"].endswith("onnxruntime"))
    assert onnx["bytes"] > 4 * onnx["parameters"]
    assert onnx["latency_ms_batch_64"] > 0
