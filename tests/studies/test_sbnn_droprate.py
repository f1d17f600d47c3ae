"""The study of one-shot pruning, at the size of a toy."""

import json

import pytest
import torch

from bayesieve.data import load_data
from pages.studies import one_shot_table
from records import record_of
from studies import sbnn_droprate
from studies.record import make_row, write
from studies.reproduce.table import read_findings
from studies.sbnn_droprate import SETTINGS, Setting, curve, engine, run_setting


@pytest.fixture
def digits(monkeypatch):
    data = load_data("digits")
    monkeypatch.setattr(sbnn_droprate, "load_data", lambda name: data)
    monkeypatch.setattr(sbnn_droprate, "DROPRATES", (0.5, 0.95, 0.98))  # what a toy can reach
    return data


@pytest.mark.parametrize("method", ["sbnn", "bbb"])
def test_a_curve_begins_at_the_dense_error_and_ends_at_chance(digits, method):
    setting = Setting("32", method=method, epochs=30, kl=0.1, start="he")
    row = run_setting("toy", setting, digits, 2, "cpu")
    assert bool(curve(row, "inclusion")) == (method == "sbnn")
    errors, result = curve(row, "snr"), row["metrics"]
    assert result["error"] < 0.3
    assert abs(errors[0.5] - result["error"]) < 0.1  # half the weights are not missed
    assert errors[0.98] > 0.4
    assert len(row["each"]) == 2
    assert 0 <= result["below_a_quarter"] <= 1


def test_training_images_may_be_moved_and_the_scored_ones_stay(digits, monkeypatch):
    seen = []

    class Watched(sbnn_droprate.Augment):
        def __call__(self, x, generator):
            seen.append(len(x))
            return super().__call__(x, generator)

    monkeypatch.setattr(sbnn_droprate, "Augment", Watched)
    still = run_setting("toy", Setting("32", epochs=1), digits, 1, "cpu")
    assert not seen
    moved = run_setting("toy", Setting("32", epochs=1, shift=1), digits, 1, "cpu")
    assert sum(seen) == len(digits.train)
    assert moved["metrics"]["error"] != still["metrics"]["error"]


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
    assert record["settings"]["quick"] is True
    assert "m400" in capsys.readouterr().out
    result = read_findings(tmp_path, quick=True)
    assert result["sbnn-droprate", "m400", "snr-98"].seeds == 1
    assert torch.tensor([one.value for one in result.values()]).isfinite().all()


def test_the_kl_weight_is_chosen_on_held_out_images(digits, tmp_path, monkeypatch):
    monkeypatch.setattr(sbnn_droprate, "SETTINGS", {"m1200-close": Setting("32", prior=3)})
    monkeypatch.setattr(sbnn_droprate, "published", lambda name: {0: 1.0, 50: 1.0})
    monkeypatch.setattr("studies.harness.HELD_OUT", 300)
    out, kls = tmp_path / "record.json", ["--kl", "0.1,100"]
    sbnn_droprate.main(["--quick", *kls, "--settings", "m1200-close", "--device", "cpu", "--choose",
                        "--out", str(out)])  # fmt: skip
    (row,) = json.loads(out.read_text())["rows"]
    tried = row["detail"]["held_out"]
    assert tried.keys() == {"0.1", "100"}
    assert row["setting"]["kl"] == float(min(tried, key=tried.get))
    with pytest.raises(SystemExit):
        sbnn_droprate.main(["--choose", "--kl", "0.1", "--settings", "m1200-close"])


def test_records_are_drawn_beside_the_paper(tmp_path):
    errors = {f"snr-{100 * rate:g}": rate / 50 for rate in (0.5, 0.9, 0.999)}
    row = make_row("l5-set2", {}, [], seeds=3, metrics={"error": 0.01, **errors})
    path = tmp_path / "record.json"
    write(path, record_of("sbnn_droprate", [row, {**row, "name": "unknown"}]))
    sbnn_droprate.main(["--draw", str(path), "--figures", str(tmp_path)])
    assert (tmp_path / "sbnn_droprate.png").stat().st_size > 10_000
    write(path, record_of("sbnn_droprate", [{**row, "name": "unknown"}]))
    with pytest.raises(ValueError, match="no record of m1200"):
        sbnn_droprate.main(["--draw", str(path), "--figures", str(tmp_path)])


def table_row(name, *scores):
    rates = (0.5, 0.75, 0.9, 0.95, 0.98, 0.982, 0.99, 0.995)
    errors = {f"{score}-{100 * rate:g}": rate / 10 for score in scores for rate in rates}
    return make_row(name, {}, [], seeds=3, metrics={"error": 0.0123, **errors})


def test_ours_by_every_ranking_then_the_papers():
    rows = [table_row("m1200-bbb", "snr"), table_row("m1200", "inclusion", "snr"),
            table_row("m400", "snr"), table_row("l300-set1", "snr")]  # fmt: skip
    text = one_shot_table(rows)
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()[2:]]
    assert [(line[0], line[1]) for line in lines] == [
        ("MNIST, 2 x 400", "sBNN, signal to noise"),
        ("MNIST, 2 x 400", "*the paper*"),
        ("MNIST, 2 x 1200", "sBNN, inclusion"),
        ("MNIST, 2 x 1200", "sBNN, signal to noise"),
        ("MNIST, 2 x 1200", "*the paper*"),
        ("MNIST, 2 x 1200", "Bayes by backprop"),
        ("MNIST, 2 x 1200", "*the paper*"),
        ("LeNet-300-100, prior set 1", "sBNN, signal to noise"),
    ]
    assert lines[0][2:] == ["1.23", "5.00", "7.50", "9.00", "9.50", "9.80", "9.90", "9.95"]
    assert lines[1][2:] == ["1.45", "", "", "", "", "", "", ""]
    assert lines[6][2:] == ["1.24", "1.24", "1.24", "", "1.29", "1.39", "", ""]
    assert one_shot_table([]) == ""
