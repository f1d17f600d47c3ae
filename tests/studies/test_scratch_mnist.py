"""The study on images small in number and easy to tell apart, its tables, its page, its command."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import commands
from bayesieve.scratch import ReLU, Sigmoid, Tanh
from pages.scratch import (
    account_table,
    better_table,
    machine_note,
    same_accuracy,
    same_loss,
    source_table,
)
from problems import few_images
from studies import scratch_mnist
from studies.scratch_mnist import (
    SETTINGS,
    SOURCE,
    Twin,
    build,
    draw_losses,
    main,
    make_plan,
    prepare,
    run_setting,
    run_study,
)

ROOT = Path(__file__).parents[2]
RESULT = ROOT / "results" / "scratch_mnist.json"


DATA = few_images(360, 60, (1, 4, 4), noise=0.1)


@pytest.fixture(scope="module")
def result():
    return json.loads(json.dumps(run_study(DATA, quick=True)))


def test_a_sixth_is_held_out_and_training_statistics_standardise():
    splits = prepare(DATA)
    assert [len(entry.y) for entry in (splits.train, splits.val, splits.test)] == [300, 60, 60]
    assert splits.train.x.mean() == pytest.approx(0, abs=1e-5)
    assert splits.train.x.std() == pytest.approx(1, abs=1e-2)
    assert abs(splits.test.x.mean()) > 1e-5  # not its own mean
    assert len(prepare(DATA, 100).train.y) == 100


def test_every_row_of_the_source_has_a_setting_with_its_numbers():
    ours = {entry.like for entry in SETTINGS.values() if entry.group == "source"}
    assert ours == SOURCE.keys() - {"torch"}  # that one is the twin
    for entry in SETTINGS.values():
        if entry.group == "source":
            assert (entry.lr, entry.optimiser, entry.decay) == (0.01, "gd", False)
    assert SETTINGS["relu-l2"].l2 == 1e-4


@pytest.mark.parametrize("hidden", [Sigmoid(), Tanh(), ReLU()], ids=repr)
def test_the_twin_takes_the_same_steps(hidden):
    setting = replace(SETTINGS["relu-l2"], lr=0.1, l2=0.01)
    splits = prepare(DATA)
    net = build(setting, seed=0, n_inputs=16)
    net.hidden = hidden
    plan = make_plan(setting, epochs=3, seed=4)
    twin = Twin(net, setting.lr, setting.l2)
    np.testing.assert_allclose(net.outputs(splits.test.x), twin.outputs(splits.test.x), atol=1e-6)
    history = net.train(*splits.train, plan, splits.val)
    losses = list(twin.epochs(splits.train, plan, splits.val))[-1]
    np.testing.assert_allclose(net.outputs(splits.test.x), twin.outputs(splits.test.x), atol=1e-4)
    np.testing.assert_allclose([entry[0] for entry in losses], history.train_loss, rtol=1e-4)
    np.testing.assert_allclose([entry[1] for entry in losses], history.val_loss, rtol=1e-4)


def test_only_the_relu_row_has_a_twin_and_candidates_see_no_test_images():
    splits = prepare(DATA)
    for name in ("relu", "relu-0.001", "adam-decay-l2"):
        numbers, _ = run_setting(SETTINGS[name], splits, epochs=1, seed=0)
        assert ("twin/seconds" in numbers) == (name == "relu")
        assert ("test/accuracy" in numbers) == (name != "adam-decay-l2")


def test_the_result_holds_what_the_tables_need(result):
    *rows, chosen = result["rows"]
    assert [row["name"] for row in rows] == [
        name for name, one in SETTINGS.items() if one.group != "account"
    ]
    assert chosen["name"] == "recommended"
    assert chosen["seeds"] == list(scratch_mnist.SEEDS)
    assert all("test/accuracy" in one for one in chosen["each"])
    assert result["settings"]["images"] == {"train": 300, "val": 60, "test": 60}
    best = max(
        (row for row in rows if row["setting"]["group"] == "better"),
        key=lambda row: row["metrics"]["val/accuracy"],
    )
    assert chosen["detail"]["chosen"] == best["name"]
    assert source_table(result).count("\n") == 1 + 5  # the twin has its own row
    assert account_table(result).count("\n") == 1 + 4


def test_the_curves_are_drawn(result, tmp_path):
    assert draw_losses(result, tmp_path / "loss.png").read_bytes()[1:4] == b"PNG"


def test_when_a_row_counts_as_reproduced():
    record = {"train/accuracy": 0.852, "test/accuracy": 0.861, "val/loss": 0.46}
    assert same_accuracy(record, SOURCE["sigmoid"])
    assert same_loss(record, SOURCE["sigmoid"])
    assert same_loss(record, SOURCE["relu-l2"]) is None
    assert not same_loss({"val/loss": 0.55}, SOURCE["sigmoid"])
    assert not same_accuracy({**record, "test/accuracy": 0.88}, SOURCE["sigmoid"])
    assert not same_accuracy({**record, "train/accuracy": 0.83}, SOURCE["sigmoid"])


def test_main_writes_a_result_and_reads_it_again(tmp_path, monkeypatch):
    monkeypatch.setattr(scratch_mnist, "load_data", lambda name: DATA)
    out, figure = tmp_path / "r.json", tmp_path / "loss.png"
    assert main(["--quick", "--out", str(out)]) == 0
    assert main(["--from-result", str(out), "--figure", str(figure)]) == 0
    assert figure.read_bytes()[1:4] == b"PNG"
    numbers = json.loads(out.read_text())
    assert "| sigmoid |" in source_table(numbers)
    assert "not looked at" in better_table(numbers)
    assert "thread(s)" in machine_note(numbers)


def test_a_stopped_study_goes_on_where_it_was(result, tmp_path, monkeypatch):
    out, part = tmp_path / "r.json", json.loads(json.dumps(result))
    part["rows"] = part["rows"][:-2]  # the last candidate and the recommendation
    out.write_text(json.dumps(part))
    trained = []

    def spy(setting, *rest, **options):
        trained.append(setting)
        return run_setting(setting, *rest, **options)

    monkeypatch.setattr(scratch_mnist, "run_setting", spy)
    again = run_study(DATA, quick=True, out=out)
    assert trained[0] == SETTINGS[result["rows"][-2]["name"]]
    assert set(trained[1:]) == {SETTINGS[again["rows"][-1]["detail"]["chosen"]]}
    for ours, other in zip(again["rows"], result["rows"], strict=True):
        assert ours["metrics"]["val/accuracy"] == other["metrics"]["val/accuracy"]
    trained.clear()
    rows = run_study(DATA, quick=True, out=out)["rows"]
    assert [row["metrics"] for row in rows] == [row["metrics"] for row in again["rows"]]
    assert not trained


@pytest.mark.skipif(not RESULT.is_file(), reason="no results/scratch_mnist.json: run the study")
def test_the_published_result_reaches_the_source_in_every_row():
    numbers = json.loads(RESULT.read_text(encoding="utf-8"))
    assert (numbers["settings"]["epochs"], numbers["settings"]["images"]["train"]) == (15, 50_000)
    rows = {row["name"]: row for row in numbers["rows"]}
    for row in rows.values():
        if row["setting"]["group"] == "source":
            source = SOURCE[row["setting"]["like"]]
            for part in ("train", "test"):
                assert row["metrics"][f"{part}/accuracy"] >= (source[part] or 0)
            assert row["seconds"] <= 90
    twin = rows["relu"]["metrics"]
    assert twin["twin/epoch_time_ratio"] <= 1.3
    assert twin["twin/test_accuracy"] >= SOURCE["torch"]["test"]
    assert all(one["test/accuracy"] >= 0.98 for one in rows["recommended"]["each"])


def call(*arguments):
    return commands.call("scratch", *arguments)


def test_the_command_trains_and_reports(tmp_path):
    done = call("train", "--units", "20", "--epochs", "3", "--figure", tmp_path / "loss.png")
    assert done.exit_code == 0, done.stderr
    assert "weighted avg" in done.stdout
    assert (tmp_path / "loss.png").is_file()


@pytest.mark.parametrize(
    "options",
    [
        ("--activation", "tanh", "--optimiser", "gd", "--l2", 1e-4, "--no-decay", "--lr", 0.1),
        ("--activation", "sigmoid", "--loss", "squared-error", "--initialiser", "gaussian"),
        ("--activation", "linear", "--l1", 1e-4, "--dtype", "float64", "--units", "10,10"),
    ],
)
def test_the_command_takes_every_choice(options):
    done = call("train", "--units", "20", "--epochs", 1, "--json", *options)
    assert done.exit_code == 0, done.stderr
    numbers = json.loads(done.stdout)
    assert numbers.keys() == {"net", "accuracy", "train_loss", "val_loss"}


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (("--activation", "rel"), 2, "activation must be one of relu"),
        (("--units", "a,b"), 2, "--units must be whole numbers"),
        (("--units", "10,0"), 2, "hidden_units[1] must be > 0, got 0"),
        (("--l1", 1, "--l2", 1), 2, "--l1 and --l2 cannot be used together"),
        (("--lr", 0), 2, "lr must be > 0, got 0"),
        (("--optimiser", "sgd"), 2, "optimiser must be one of gd, adam"),
        (("--data", "nothing"), 2, "spec must be one of"),
    ],
)
def test_the_command_refuses_in_one_line(options, code, message):
    done = call("train", *options)
    assert done.exit_code == code
    assert message in done.stderr
    assert done.stderr.splitlines()[-1].startswith("error: ")
