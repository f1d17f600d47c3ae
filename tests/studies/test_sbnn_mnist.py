"""The study's records, on images small in number and easy to tell apart."""

import json
from dataclasses import replace

import pytest
import torch

from bayesieve.data.examples import Examples
from problems import few_images
from studies import sbnn_mnist
from studies.sbnn_mnist import SETTINGS, Setting, build, engine, main, run_setting

SMALL = Setting("l300", zeros=0.9, epochs=4, prune_epochs=(1, 3), teacher_epochs=1)
SEED_FIELDS = {"error", "nll", "ece", "zeros", "weights", "mc_error", "mc_nll", "mc_ece"}


DATA = few_images(name="mnist")
TRAIN, TEST = DATA.train, DATA.test


@pytest.fixture(scope="module")
def row():
    return run_setting("small", replace(SMALL, target=0.5), TRAIN, TEST, 2, "cpu")


def test_a_row_has_every_number_and_goes_into_json(row):
    assert [one.keys() for one in row["each"]] == [SEED_FIELDS] * 2
    assert row["metrics"].keys() == SEED_FIELDS | {"error_standard_error", "fit_seconds"}
    again = json.loads(json.dumps(row))
    assert again["setting"] == {**row["setting"], "prune_epochs": [1, 3]}
    assert row["detail"]["engine"] == repr(engine())


def test_zeros_are_strict(row):
    size = 266_610  # biases counted
    for one in row["each"]:
        assert one["zeros"] >= 0.9
        assert one["zeros"] == 1 - one["weights"] / size
        assert round(0.1 * size) - 3 <= one["weights"] <= round(0.1 * size)


def test_summaries_follow_from_the_seeds(row):
    errors, numbers = [one["error"] for one in row["each"]], row["metrics"]
    assert numbers["error"] == pytest.approx(sum(errors) / 2)
    assert numbers["error_standard_error"] == pytest.approx(abs(errors[0] - errors[1]) / 2)
    assert 0 < numbers["fit_seconds"] <= row["seconds"]


def test_distilled_rows_say_so():
    setting = replace(SMALL, epochs=2, prune_epochs=(0, 1), teachers=1, soft=True)
    row = run_setting("kd", setting, TRAIN, TEST, 1, "cpu")
    assert row["setting"]["teachers"] == 1
    assert row["metrics"]["error_standard_error"] is None


def test_main_writes_one_file_and_prints_one_line_per_setting(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sbnn_mnist, "load_data", lambda name: {"mnist": DATA}[name])
    monkeypatch.setitem(SETTINGS, "small", replace(SMALL, epochs=2, prune_epochs=(0, 1)))
    out = tmp_path / "result.json"
    assert main(["--settings", "small", "--seeds", "1", "--device", "cpu", "--out", str(out)]) == 0
    result = json.loads(out.read_text())
    assert result["study"] == "sbnn_mnist"
    assert (result["scored_on"], result["data"]) == ("test", "mnist")
    assert result["command"].startswith("python -m studies.sbnn_mnist --settings small")
    assert result["machine"]["torch"] == torch.__version__
    assert [row["name"] for row in result["rows"]] == ["small"]
    line = capsys.readouterr().out
    assert line.startswith("small ")
    assert "zeros 0.9 " in line


def test_timing_compares_one_run_with_many(monkeypatch):
    seconds = {"first": 3.0, "one": 2.0, "many": 5.0}
    sizes = []

    def pretend(name, setting, train, score_on, seeds, device):
        sizes.append(seeds)
        return {"metrics": {"fit_seconds": seconds[name]}}

    monkeypatch.setattr(sbnn_mnist, "run_setting", pretend)
    data = Examples(torch.zeros(1000, 1, 28, 28), torch.zeros(1000, dtype=torch.int64))
    rows = sbnn_mnist.timing(data, "cpu", 160, 8)
    assert sizes == [1, 1, 8]
    assert rows["ratio"] == 2.5


@pytest.mark.parametrize(
    ("net", "size"), [("l300", 266_610), ("l5", 431_080), ("m1200", 2_395_210)]
)
def test_networks_have_the_papers_sizes(net, size):
    model = build(net)
    assert sum(p.numel() for p in model.parameters()) == size
    assert model(TEST.x[:2]).shape == (2, 10)


def test_settings_can_be_built_and_name_what_they_do():
    for name, setting in SETTINGS.items():
        assert name.startswith(f"{setting.net}-{100 * setting.zeros:.4g}"), name
        assert ("kd" in name.split("-")) == (setting.teachers > 0), name
        first, last = setting.prune_epochs
        assert 0 <= first < last < setting.epochs
