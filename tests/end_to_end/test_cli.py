"""The command line from data to report: what it writes, prints and returns."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import bayesieve as bs
from bayesieve.assess.figures import style
from bayesieve.runs import summary
from commands import as_json, call, ok, refused

SRC = Path(__file__).parents[2] / "src"
TINY = ["--data", "digits", "--net", "mlp:8", "--epochs", "2", "--device", "cpu", "--no-figures"]
FRACTIONS = ("error", "ece", "zeros", "removed")


def process(*arguments):
    path = os.pathsep.join([str(SRC), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "bayesieve", *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": path}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def dense(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "dense"
    ok("train", *TINY, "--lr", "1e-2", "--val-fraction", "0.2", "--out", out)
    return out


# --- start-up, help, small commands


def test_importing_the_command_line_loads_no_torch():
    code = "import sys, bayesieve.cli.main; print(*{'torch', 'numpy', 'sklearn'} & {*sys.modules})"
    path = os.pathsep.join([str(SRC), os.environ.get("PYTHONPATH", "")])
    found = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.strip() == ""


def test_help_of_the_program():
    result = process("--help")
    assert result.returncode == 0
    assert "demo" in result.stdout


@pytest.mark.parametrize(
    "command",
    ["train", "prune", "sieve", "evaluate", "certify", "attack", "demo", "doctor", "version",
     "data list", "data info", "data fetch", "compact", "verify", "export", "predict", "profile",
     "compare", "sweep", "report", "open", "watch", "reproduce", "fit-table", "select",
     "scratch train"],
)  # fmt: skip
def test_help_has_an_example_and_json(command):
    text = ok(*command.split(), "--help").stdout
    assert f"bayesieve {command}" in text
    assert "--json" in text


def test_version_and_doctor():
    version = as_json("version")["version"]
    facts = as_json("doctor")
    assert facts["versions"]["bayesieve"] == version == ok("version").stdout.strip()
    assert facts["versions"]["torch"] == torch.__version__
    assert "digits" in facts["data_found"]
    assert "data folder" in ok("doctor").stdout


def test_data_commands(tmp_path, monkeypatch):
    monkeypatch.setenv("BAYESIEVE_DATA", str(tmp_path))
    sets = {row["name"]: row for row in as_json("data", "list")["sets"]}
    assert sets["digits"]["found"]
    assert not sets["mnist"]["found"]
    assert as_json("data", "info", "mnist")["files"]
    assert "bayesieve data fetch mnist" in ok("data", "info", "mnist").stdout
    assert as_json("data", "fetch", "digits")["name"] == "digits"
    assert "Did you mean 'mnist'" in refused(2, "data", "info", "mnits")


# --- train


def test_train_writes_a_run_folder(dense):
    names = {path.name for path in dense.iterdir()}
    files = {"config.json", "metrics.json", "metrics.jsonl", "posterior.safetensors", "report.md"}
    assert files <= names
    config = json.loads((dense / "config.json").read_text())
    assert config["engine"]["slab_prob"] == 0.5
    assert config["training"]["device"] == "cpu"
    assert config["record"]["versions"]["torch"] == torch.__version__
    rows = [json.loads(line) for line in (dense / "metrics.jsonl").read_text().splitlines()]
    assert [row["epoch"] for row in rows] == [1, 2]
    assert "val_error" in rows[0]
    metrics = json.loads((dense / "metrics.json").read_text())
    assert all(0 <= metrics[name] <= 1 for name in FRACTIONS)
    assert metrics["sampled"]["epistemic"] > 0


def test_train_with_pruning_and_pictures(tmp_path):
    arguments = [*TINY[:-1], "--zeros", "0.6", "--seed", "3"]
    lines = ok("train", *arguments, "--out", tmp_path / "a").stdout.splitlines()
    result = json.loads((tmp_path / "a" / "metrics.json").read_text())
    assert (tmp_path / "a" / "report.html").is_file()
    assert lines[-3] == f"open in a browser: {tmp_path / 'a' / 'report.html'}"
    assert re.search("zeros: [▁-█]+ ", lines[-2])
    said = f"result: error {100 * result['error']:.2f} % (mean weights) on 364 test examples, "
    assert lines[-1].startswith(said)
    assert result["zeros"] == pytest.approx(0.6, abs=2e-3)
    kept = load_file(tmp_path / "a" / "posterior.safetensors")["keep"]
    assert int(kept.sum()) == result["weights"]
    report = (tmp_path / "a" / "report.md").read_text()
    drawn = {path.name for path in (tmp_path / "a" / "figures").glob("*.png")}
    assert drawn == {"training.png", "reliability.png", "sparsity.png"}
    assert all(f"figures/{name}" in report for name in drawn)
    assert "as if there were 10 times as much data" in report
    assert as_json("evaluate", tmp_path / "a")["kl"] == 0.1


def test_only_pictures_that_are_there_are_announced(tmp_path, dense):
    pruned = ("prune", dense, "--zeros", "0.5", "--out", tmp_path / "b")
    assert "pictures and report: " in ok(*pruned).stdout
    plain = ok(*pruned, "--no-figures", "--force").stdout.splitlines()
    assert f"report: {tmp_path / 'b' / 'report.md'}" in plain


def test_the_same_command_gives_the_same_weights(tmp_path, dense):
    ok("train", "--config", dense / "config.json", "--no-figures", "--out", tmp_path / "again")
    first, second = (load_file(p / "posterior.safetensors") for p in (dense, tmp_path / "again"))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_flags_override_the_configuration_file(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text("data: {name: digits}\nengine: {name: map, lr: 1e-3}\ntraining: {epochs: 9}\n")
    facts = as_json("train", "--config", file, "--lr", "0.5", "--dry-run")
    engine = facts["config"]["engine"]
    assert (engine["name"], engine["lr"]) == ("map", 0.5)
    assert facts["steps"] == 9 * facts["steps_per_epoch"]


def test_dry_run_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = ok("train", *TINY, "--zeros", "0.5", "--out", "a", "--dry-run")
    assert "parameters" in result.stdout
    assert "memory" in result.stdout
    assert not list(tmp_path.iterdir())
    assert as_json("train", *TINY, "--dry-run")["parameters"] == 64 * 8 + 8 + 8 * 10 + 10


def test_population(tmp_path):
    lrs = ["--n-models", "2", "--lr", "1e-3,1e-2"]
    result = as_json("train", *TINY, *lrs, "--engine", "map", "--out", tmp_path / "a")
    assert len(result["models"]) == 2
    first = as_json("evaluate", tmp_path / "a")
    second = as_json("evaluate", tmp_path / "a", "--member", "1")
    assert first["nll"] == pytest.approx(result["models"][0]["nll"])
    assert second["nll"] == pytest.approx(result["models"][1]["nll"])
    assert first["nll"] != second["nll"]


def test_self_distillation_is_labelled(tmp_path):
    result = as_json(
        "train", *TINY, "--distill", "2", "--distill-epochs", "1", "--out", tmp_path / "a"
    )
    assert 0 <= result["error"] <= 1
    assert len(list((tmp_path / "a" / "teachers").glob("posterior-*.safetensors"))) == 2
    assert "Self-distillation from 2 dense teachers" in (tmp_path / "a" / "report.md").read_text()


def test_regression_on_a_table(tmp_path):
    rows = [f"{i % 13},{i % 7},{2 * (i % 13) + (i % 7) * 0.5}" for i in range(91)]
    (tmp_path / "house.csv").write_text("size,age,price\n" + "\n".join(rows) + "\n")
    table = ["--data", f"csv:{tmp_path / 'house.csv'}", "--target", "price"]
    run = ["--net", "mlp:16:tanh", "--epochs", "30", "--lr", "1e-2", "--batch-size", "16"]
    result = as_json("train", *table, *run, "--out", tmp_path / "a")
    assert {"rmse", "log_lik"} <= result.keys()
    assert (tmp_path / "a" / "figures" / "fit.png").exists()
    pruned = as_json("prune", tmp_path / "a", "--zeros", "0.3", "--finetune", "2", "--no-figures",
                     "--out", tmp_path / "b")  # fmt: skip
    assert pruned["zeros"] == pytest.approx(0.3, abs=0.02)
    assert as_json("evaluate", tmp_path / "b", "--samples", "5")["rmse"] > 0


def test_image_folder_and_own_network(tmp_path, monkeypatch):
    for name, level in (("dark", 10), ("light", 240)):
        folder = tmp_path / "pictures" / name
        folder.mkdir(parents=True)
        for i in range(10):
            Image.new("L", (12, 12), level + i).save(folder / f"{i}.png")
    (tmp_path / "my_small_net.py").write_text(
        "from torch import nn\n"
        "def net(input_shape, n_outputs):\n"
        "    n = input_shape[0] * input_shape[1] * input_shape[2]\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(n, n_outputs))\n"
    )
    monkeypatch.chdir(tmp_path)
    result = as_json(
        "train", "--data", "images:pictures", "--image-size", "8", "--net",
        "module:my_small_net.net", "--epochs", "2", "--no-figures", "--out", "a",
    )  # fmt: skip
    assert result["n_examples"] == 4


# --- prune and evaluate


def test_prune_and_evaluate(tmp_path, dense):
    result = as_json("prune", dense, "--zeros", "0.5", "--no-figures", "--out", tmp_path / "b")
    assert result["zeros"] == pytest.approx(0.5, abs=2e-3)
    assert result["dense"]["zeros"] == 0
    zeros = [point["zeros"] for point in result["curve"]]
    assert zeros == sorted(zeros)
    assert zeros[0] == 0
    assert result["curve"][0]["error"] == result["dense"]["error"]
    again = as_json("evaluate", tmp_path / "b")
    for name in (*FRACTIONS, "nll", "brier", "weights", "parameters", "bytes"):
        assert again[name] == pytest.approx(result[name]), name
    assert as_json("evaluate", tmp_path / "b", "--split", "train")["n_examples"] == 1146


def test_finetuning_keeps_the_mask_and_helps(tmp_path, dense):
    plain = as_json("prune", dense, "--zeros", "0.5", "--no-figures", "--out", tmp_path / "b")
    tuned = as_json("prune", dense, "--zeros", "0.5", "--finetune", "2", "--no-figures",
                    "--out", tmp_path / "c")  # fmt: skip
    first, second = (load_file(tmp_path / n / "posterior.safetensors") for n in "bc")
    assert torch.equal(first["keep"], second["keep"])
    assert not (second["mean"] * ~second["keep"]).any()
    assert tuned["nll"] < plain["nll"]


@pytest.mark.parametrize(
    ("way", "holds"),
    [
        (["--threshold", "0.5"], lambda r: 0 <= r["zeros"] < 1),
        (["--n-of-m", "2:4"], lambda r: 0.4 < r["removed"] <= 0.6),
        (["--zeros", "0.5", "--score", "inclusion", "--scope", "layer"],
         lambda r: abs(r["zeros"] - 0.5) < 0.01),
    ],
)  # fmt: skip
def test_ways_to_prune(tmp_path, dense, way, holds):
    result = as_json("prune", dense, *way, "--no-figures", "--out", tmp_path / "b")
    assert holds(result), result


def test_samples_and_temperature(dense):
    plain = as_json("evaluate", dense)
    drawn = as_json("evaluate", dense, "--samples", "8", "--temperature")
    assert drawn["samples"] == 8
    assert drawn["temperature"] > 0
    assert drawn["nll"] != plain["nll"]
    settled = as_json("evaluate", dense, "--samples", "auto")
    assert settled["samples"] == settled["draws"] >= 32
    assert settled["nll_mc_error"] <= 0.02 * settled["nll"] or settled["draws"] == 256
    shown = ok("evaluate", dense).stdout
    assert "NLL" in shown
    assert "epistemic uncertainty" not in shown  # nothing was drawn
    assert not any(key in shown for key in ("epistemic", "stuck_in_slab", "ece_equal_mass"))
    assert "epistemic uncertainty" in ok("evaluate", dense, "--samples", "8").stdout


def test_demo_replaces_an_earlier_demo_only(tmp_path, dense, monkeypatch):
    assert "holds a finished run" in refused(2, "demo", "--out", dense)
    result = ok("demo", "--epochs", "3", "--out", tmp_path / "demo")
    assert "dense" in result.stdout
    assert "weights kept" in result.stdout
    assert (tmp_path / "demo" / "figures" / "sparsity.png").exists()
    assert "figures/reliability.png" in (tmp_path / "demo" / "report.md").read_text()
    assert as_json("evaluate", tmp_path / "demo")["zeros"] == pytest.approx(0.9, abs=2e-3)
    bundle = bs.load(tmp_path / "demo" / "model")
    monkeypatch.setattr(style, "save", lambda figure, path: path)  # drawn already, just above
    monkeypatch.setattr(summary, "draw_run", lambda *_: [])
    again = as_json("demo", "--epochs", "1", "--out", tmp_path / "demo")
    assert "dense" in again
    assert again["delivered"]["changed_predictions"] == 0
    before, after = again["delivered"]["parameters"]
    assert after < before == 12_060
    assert sum(p.numel() for p in bundle.parameters()) < before


# --- refusals: one line, an exit code, nothing written


@pytest.mark.parametrize(
    ("code", "change", "message"),
    [
        (2, ["--engine", "sbn"], "Did you mean 'sbnn'"),
        (2, ["--net", "lenet-300"], "Did you mean 'lenet-300-100'"),
        (2, ["--data", "mnits"], "Did you mean 'mnist'"),
        (1, ["--data", "mnist"], "bayesieve data fetch mnist"),
        (2, ["--data", "csv:none.csv", "--target", "y"], "none.csv"),
        (2, ["--lr", "-1"], "lr must be > 0, got -1.0"),
        (2, ["--lr", "fast"], "--lr must be a number"),
        (2, ["--zeros", "1.2"], "zeros must be strictly between 0 and 1, got 1.2"),
        (2, ["--momentum", "0.9"], "has no --momentum"),
        (2, ["--likelihood", "gaussian"], "is for regression, but digits is a classification"),
        (2, ["--steps", "5"], "either --epochs or --steps"),
        (2, ["--config", "none.yaml"], "no such configuration file"),
        (2, ["--target", "x"], "target cannot be used with 'digits'"),
        (2, ["--resume"], "no config.json"),
    ],
)
def test_refused_settings(tmp_path, monkeypatch, code, change, message):
    monkeypatch.setenv("BAYESIEVE_DATA", str(tmp_path / "empty"))
    monkeypatch.chdir(tmp_path)
    assert message in refused(code, "train", *TINY, *change, "--out", "a")
    assert not (tmp_path / "a").exists()


def test_wrong_target_column(tmp_path):
    (tmp_path / "t.csv").write_text("size,price\n" + "\n".join(f"{i},{i}" for i in range(20)))
    table = ["--data", f"csv:{tmp_path / 't.csv'}", "--target", "prise", "--out", tmp_path / "a"]
    assert "'price'" in refused(2, "train", *table)


def test_unknown_key_names_file_and_key(tmp_path):
    (tmp_path / "run.toml").write_text("[engine]\nlearningrate = 1\n")
    line = refused(2, "train", *TINY, "--config", tmp_path / "run.toml", "--out", tmp_path / "a")
    assert "run.toml: unknown key 'engine.learningrate'" in line


def test_a_finished_run_is_not_overwritten(dense, tmp_path):
    before = (dense / "posterior.safetensors").read_bytes()
    assert "holds a finished run" in refused(2, "train", *TINY, "--out", dense)
    assert "must differ" in refused(2, "prune", dense, "--zeros", "0.5", "--out", dense)
    assert (dense / "posterior.safetensors").read_bytes() == before
    (tmp_path / "file").write_text("mine")
    assert "is a file" in refused(2, "train", *TINY, "--out", tmp_path / "file")


def test_force_replaces_the_run_and_nothing_else(tmp_path):
    ok("train", *TINY, "--seed", "1", "--out", tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    ok("train", *TINY, "--seed", "2", "--force", "--out", tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["training"]["seed"] == 2
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_resume_of_a_finished_run_and_with_other_settings(dense):
    result = call("train", "--resume", "--json", "--out", dense)
    assert result.exit_code == 0
    assert "finished already" in result.stderr
    assert "error" in json.loads(result.stdout)


def test_damaged_files_are_named(tmp_path, dense):
    for name in ("config.json", "posterior.safetensors", "metrics.json"):
        (tmp_path / name).write_bytes((dense / name).read_bytes())
    weights = tmp_path / "posterior.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    assert "posterior.safetensors is damaged" in refused(1, "evaluate", tmp_path)
    weights.unlink()
    assert "posterior.safetensors is missing" in refused(1, "evaluate", tmp_path)
    (tmp_path / "config.json").write_text("{")
    assert "config.json is damaged" in refused(1, "evaluate", tmp_path)
    assert "not a run folder" in refused(2, "evaluate", tmp_path / "none")


@pytest.mark.parametrize(
    ("code", "change", "message"),
    [
        (2, [], "give one of --zeros, --threshold, --n-of-m, --keep-units"),
        (2, ["--zeros", "1.2"], "zeros must be between 0 and 1"),
        (2, ["--zeros", "0.5", "--score", "snrr"], "Did you mean 'snr'"),
        (2, ["--zeros", "0.9999"], "smallest fraction"),
        (2, ["--n-of-m", "2"], "must read N:M"),
        (2, ["--threshold", "0.5", "--score", "snr"], "leave out --score"),
    ],
)
def test_refused_pruning(tmp_path, dense, code, change, message):
    assert message in refused(code, "prune", dense, *change, "--out", tmp_path / "b")
    assert not (tmp_path / "b").exists()


def test_refused_evaluation(tmp_path, dense):
    assert "--split must be" in refused(2, "evaluate", dense, "--split", "all")
    assert "number of draws or auto" in refused(2, "evaluate", dense, "--samples", "-1")


def test_exit_codes_of_a_real_process(tmp_path):
    wrong = process("train", *TINY, "--engine", "sbn", "--out", tmp_path / "a")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "Traceback" not in wrong.stderr
    unknown = process("train", "--nonsense")
    assert unknown.returncode == 2


def test_images_may_be_changed_at_random_and_chains_are_compared(tmp_path):
    out = tmp_path / "chains"
    result = as_json(
        "train", *TINY, "--engine", "sghmc", "--chains", "2", "--draws", "4", "--shift", "1",
        "--flip", "--out", out,
    )  # fmt: skip
    chains = json.loads((out / "chains.json").read_text())
    assert result["chains"] == chains
    assert (chains["n_chains"], chains["n_draws"]) == (2, 4)
    assert 0 <= chains["still"] < 1
    (tmp_path / "t.csv").write_text("a,y\n" + "\n".join(f"{i},{2 * i}" for i in range(40)))
    table = ("--data", f"csv:{tmp_path / 't.csv'}", "--target", "y", "--net", "mlp:2")
    line = refused(2, "train", *table, "--flip", "--out", tmp_path / "t")
    assert "are for images" in line
    assert not (tmp_path / "t").exists()
