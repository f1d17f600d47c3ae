"""Noise of every kind from `train` to `predict`, by the command line."""

import csv
import json

import pytest

from commands import as_json, ok, refused


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    path = tmp_path_factory.mktemp("noise") / "t.csv"
    rows = [f"{i % 13},{i % 7},{3 * (i % 13) - (i % 7) + (i * i) % 5}" for i in range(80)]
    path.write_text("\n".join(["a,b,y", *rows]))
    return path


@pytest.mark.parametrize("likelihood", ["gaussian", "student-t", "heteroscedastic"])
def test_a_delivered_model_states_its_uncertainty(table, tmp_path, likelihood):
    ok("train", "--data", f"csv:{table}", "--target", "y", "--task", "regression", "--net", "mlp:6",
       "--epochs", "3", "--likelihood", likelihood, "--no-figures", "--out",
       tmp_path / "a")  # fmt: skip
    trained = json.loads((tmp_path / "a" / "config.json").read_text())["net"]
    assert trained["likelihood"] == likelihood
    ok("prune", tmp_path / "a", "--zeros", "0.3", "--no-figures", "--out", tmp_path / "b")
    ok("compact", tmp_path / "b", "--posterior", "--out", tmp_path / "c")
    ok("export", tmp_path / "c", "--to", "onnx", "--out", tmp_path / "m.onnx")
    before = as_json("evaluate", tmp_path / "b")
    widths = []
    for model in ("c", "m.onnx"):
        ok("predict", tmp_path / model, table, "--out", tmp_path / "p.csv", "--force")
        with (tmp_path / "p.csv").open() as stream:
            rows = list(csv.DictReader(stream))
        assert len(rows) == 80
        widths.append([float(row["upper_90"]) - float(row["lower_90"]) for row in rows])
    assert min(widths[0]) > 0
    assert widths[1] == pytest.approx(widths[0], rel=1e-4)
    same = max(widths[0]) < 1.0001 * min(widths[0])
    assert same != (likelihood == "heteroscedastic")
    if same:  # the report of the run has the width of all of its intervals
        assert widths[0][0] == pytest.approx(before["interval_width_90"], rel=1e-4)


def test_noise_that_does_not_fit_is_refused(table, tmp_path):
    start = ("train", "--data", f"csv:{table}", "--target", "y", "--task", "regression", "--out",
             tmp_path / "a", "--likelihood")  # fmt: skip
    assert "comes from the network" in refused(2, *start, "heteroscedastic", "--learn-noise")
    labels = ("train", "--data", "digits", "--out", tmp_path / "a", "--likelihood", "categorical")
    assert "not categorical" in refused(2, *labels, "--noise-std", "1")
    assert "Did you mean 'student-t'" in refused(2, *start, "student")
