"""The study of one-shot pruning, at the size of a toy."""

import json

import pytest
import torch

from bayesieve.data import load_data
from studies import sbnn_droprate
from studies.reproduce import read_findings
from studies.sbnn_droprate import SETTINGS, Setting, engine, run_setting


@pytest.fixture
def digits(monkeypatch):
    data = load_data("digits")
    monkeypatch.setattr(sbnn_droprate, "load_data", lambda name: data)
    monkeypatch.setattr(sbnn_droprate, "DROPRATES", (0.5, 0.95, 0.98))  # what a toy can reach
    return data


@pytest.mark.parametrize("method", ["sbnn", "bbb"])
def test_a_curve_begins_at_the_dense_error_and_ends_at_chance(digits, method):
    setting = Setting("32", method=method, epochs=30, kl=0.1, start="he")
    record = run_setting("toy", setting, digits.train, digits.test, 2, "cpu")
    assert set(record["curves"]) == ({"snr"} if method == "bbb" else {"inclusion", "snr"})
    curve = record["curves"]["snr"]
    assert record["error_mean"] < 0.3
    assert abs(curve[0]["error"] - record["error_mean"]) < 0.1  # half the weights are not missed
    assert curve[-1]["error"] > 0.4
    assert len(record["seeds"]) == 2
    assert 0 <= record["below_a_quarter"] <= 1


def test_the_two_priors_are_the_papers():
    for name, numbers in (("l5-set1", (1.0, 0.0067379)), ("l5-set2", (0.3678794, 0.0497871))):
        prior = engine(SETTINGS[name]).prior
        assert (prior.slab_std, prior.spike_std) == pytest.approx(numbers, rel=1e-4)


def test_the_command_writes_a_record_that_reproduce_reads(digits, tmp_path, monkeypatch, capsys):
    small = {"m400": Setting("32", epochs=1), "l300-set1": Setting("8", prior=1)}
    monkeypatch.setattr(sbnn_droprate, "SETTINGS", small)
    out = tmp_path / "record.json"
    arguments = ["--quick", "--settings", "m400", "--device", "cpu", "--out", str(out)]
    assert sbnn_droprate.main(arguments) == 0
    record = json.loads(out.read_text())
    assert record["quick"] is True
    assert "m400" in capsys.readouterr().out
    found = read_findings(tmp_path, quick=True)
    assert found["sbnn-droprate", "m400", "snr-98"].seeds == 1
    assert torch.tensor([own.value for own in found.values()]).isfinite().all()
    with pytest.raises(ValueError, match="setting"):
        sbnn_droprate.main(["--settings", "m4"])


def test_records_are_drawn_beside_the_paper(tmp_path):
    record = {
        "name": "l5-set2",
        "error_mean": 0.01,
        "curves": {"snr": [{"droprate": r, "error": r / 50} for r in (0.5, 0.9, 0.999)]},
    }
    path = tmp_path / "record.json"
    path.write_text(json.dumps({"records": [record, {**record, "name": "unknown"}]}))
    sbnn_droprate.main(["--draw", str(path), "--figures", str(tmp_path)])
    assert (tmp_path / "sbnn_droprate.png").stat().st_size > 10_000
    path.write_text(json.dumps({"records": [{**record, "name": "unknown"}]}))
    with pytest.raises(ValueError, match="no record of m1200"):
        sbnn_droprate.main(["--draw", str(path), "--figures", str(tmp_path)])
    with pytest.raises(ValueError, match="--figures FOLDER"):
        sbnn_droprate.main(["--draw", str(path)])
