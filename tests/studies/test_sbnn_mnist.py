"""The study's records, on images small in number and easy to tell apart."""

import json
from dataclasses import replace

import pytest
import torch

from bayesieve.data.examples import DataSet, Examples
from problems import normal, seeded
from studies import sbnn_mnist
from studies.sbnn_mnist import SETTINGS, Setting, build, engine, main, run_setting

SMALL = Setting("l300", zeros=0.9, epochs=4, prune_epochs=(1, 3), teacher_epochs=1)
FIELDS = {
    "name", "setting", "engine", "self_distillation", "error_mean", "error_min", "error_max",
    "error_standard_error", "mc_error_mean", "zeros_min", "target", "met", "seeds", "fit_seconds",
    "total_seconds",
}  # fmt: skip
SEED_FIELDS = {"error", "nll", "ece", "zeros", "weights", "mc_error", "mc_nll", "mc_ece"}


def examples(n, seed):
    """Ten prototypes of 28x28 pixels and noise."""
    prototypes = normal(10, 1, 28, 28, seed=0, dtype=torch.float32)
    y = torch.randint(10, (n,), generator=seeded(seed))
    return Examples(prototypes[y] + 0.3 * normal(n, 1, 28, 28, seed=seed, dtype=torch.float32), y)


TRAIN, TEST = examples(300, 1), examples(100, 2)
CLASSES = tuple(str(digit) for digit in range(10))
DATA = DataSet("mnist", TRAIN, TEST, "classification", CLASSES)


@pytest.fixture(scope="module")
def record():
    return run_setting("small", replace(SMALL, target=0.5), TRAIN, TEST, 2, "cpu")


def test_a_record_has_every_field_and_goes_into_json(record):
    assert record.keys() == FIELDS
    assert [row.keys() for row in record["seeds"]] == [SEED_FIELDS] * 2
    again = json.loads(json.dumps(record))
    assert again["setting"] == {**record["setting"], "prune_epochs": [1, 3]}
    assert record["engine"] == repr(engine())
    assert not record["self_distillation"]


def test_zeros_are_strict(record):
    size = 266_610  # biases counted
    for row in record["seeds"]:
        assert row["zeros"] >= 0.9
        assert row["zeros"] == 1 - row["weights"] / size
        assert round(0.1 * size) - 3 <= row["weights"] <= round(0.1 * size)
    assert record["zeros_min"] == min(row["zeros"] for row in record["seeds"])


def test_summaries_follow_from_the_seeds(record):
    errors = [row["error"] for row in record["seeds"]]
    assert record["error_mean"] == pytest.approx(sum(errors) / 2)
    assert (record["error_min"], record["error_max"]) == (min(errors), max(errors))
    assert record["error_standard_error"] == pytest.approx(abs(errors[0] - errors[1]) / 2)
    assert 0 < record["fit_seconds"] <= record["total_seconds"]
    assert record["met"] == (record["error_mean"] <= 0.5)


@pytest.mark.parametrize(("target", "met"), [(1.0, True), (-0.1, False), (None, None)])
def test_met_compares_the_mean_error_with_the_target(target, met):
    setting = replace(SMALL, epochs=2, prune_epochs=(0, 1), target=target)
    one = run_setting("small", setting, TRAIN, TEST, 1, "cpu")
    assert one["met"] is met
    assert one["error_standard_error"] is None


def test_distilled_rows_say_so():
    setting = replace(SMALL, epochs=2, prune_epochs=(0, 1), teachers=1, soft=True)
    assert run_setting("kd", setting, TRAIN, TEST, 1, "cpu")["self_distillation"]


def test_main_writes_one_file_and_prints_one_line_per_setting(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sbnn_mnist, "load_data", lambda name: {"mnist": DATA}[name])
    monkeypatch.setitem(SETTINGS, "small", replace(SMALL, epochs=2, prune_epochs=(0, 1)))
    out = tmp_path / "result.json"
    assert main(["--settings", "small", "--seeds", "1", "--device", "cpu", "--out", str(out)]) == 0
    result = json.loads(out.read_text())
    assert result["study"] == "sbnn_mnist"
    assert result["scored_on"] == f"{len(TEST)} test images"
    assert result["command"].startswith("python -m studies.sbnn_mnist --settings small")
    assert result["machine"]["torch"] == torch.__version__
    assert [row["name"] for row in result["records"]] == ["small"]
    line = capsys.readouterr().out
    assert line.startswith("small ")
    assert "zeros 90.00 %" in line


def test_timing_compares_one_run_with_many(monkeypatch):
    seconds = {"first": 3.0, "one": 2.0, "many": 5.0}
    sizes = []

    def pretend(name, setting, train, score_on, seeds, device):
        sizes.append(seeds)
        return {"fit_seconds": seconds[name]}

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
