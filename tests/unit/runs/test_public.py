"""`bayesieve.runs`: every command in Python, with the words and the numbers of the command line."""

import inspect
import json
import pkgutil
import shutil

import pytest
import torch

import bayesieve.runs
from bayesieve import runs
from bayesieve.cli import commands
from bayesieve.runs.config import keywords
from commands import as_json

TINY = {"data": "digits", "net": "mlp:8", "epochs": 1, "device": "cpu", "figures": False}
FLAGS = ("--data", "digits", "--net", "mlp:8", "--epochs", "1")
ALIKE = [
    "attack", "certify", "compact", "compare", "demo", "evaluate", "export", "fit_table",
    "predict", "profile", "prune", "report", "select", "sieve", "sweep", "train", "verify",
    "watch",
]  # fmt: skip


def timeless(values):
    """Plain data without times, command lines and places, which differ between two runs."""
    if isinstance(values, dict):
        left_out = ("seconds", "commands", "arguments", "report", "run")
        return {k: timeless(v) for k, v in values.items() if k not in left_out}
    return [timeless(value) for value in values] if isinstance(values, list) else values


def parameters(function, *left_out):
    """Names and defaults, paths as text."""
    every = inspect.signature(function).parameters.values()
    return {
        p.name: p.default if p.default in (p.empty, None) else str(p.default)
        for p in every
        if p.name not in left_out and p.kind is not p.VAR_KEYWORD
    }


@pytest.fixture(scope="module")
def chains(tmp_path_factory):
    """A run of two short chains, made by Python."""
    out = tmp_path_factory.mktemp("runs") / "chains"
    runs.train(out=out, engine="sgld", chains=2, draws=3, **TINY)
    return out


# --- names


def test_no_function_has_the_name_of_a_module():
    modules = {module.name for module in pkgutil.iter_modules(bayesieve.runs.__path__)}
    assert not modules & {*runs.__all__}  # loading the module would hide the function
    assert all(hasattr(runs, name) for name in runs.__all__)


@pytest.mark.parametrize("name", ALIKE)
def test_a_function_takes_what_its_command_takes(name):
    command = getattr(commands, name)
    flags = parameters(
        command, "json", "help_all", *(keywords() if name in ("train", "sweep") else ())
    )
    assert flags == parameters(getattr(runs, name), "arguments")


def test_a_function_documents_its_arguments():
    assert runs.verify.__name__ == "verify"
    assert "against: Run or bundle that must give the same outputs." in runs.verify.__doc__
    with pytest.raises(TypeError, match="zero"):
        runs.prune("a", "b", zero=0.5)


def test_settings_have_the_names_of_their_flags():
    flags = inspect.signature(commands.train).parameters
    aliases = {"chains", "em_iters"}
    assert {*keywords()} - aliases <= {*flags}


def test_an_unknown_setting_is_named_with_the_nearest(tmp_path):
    with pytest.raises(TypeError, match=r"'epoch'.*epochs"):
        runs.train(out=tmp_path, data="digits", epoch=3)


# --- the same results as the command line


def test_training_is_that_of_the_command_line(tmp_path):
    ours = runs.train(out=tmp_path / "a", zeros=0.5, **TINY)
    theirs = as_json(
        "train", *FLAGS, "--zeros", "0.5", "--device", "cpu", "--no-figures",
        "--out", tmp_path / "b",
    )  # fmt: skip
    assert timeless(ours) == timeless(theirs)
    a, b = (runs.load(tmp_path / name, device="cpu").posterior for name in "ab")
    assert torch.equal(a.mean, b.mean)
    config = [json.loads((tmp_path / name / "config.json").read_text()) for name in "ab"]
    assert timeless(config[0]) == timeless(config[1])


def test_settings_come_from_an_object_a_mapping_or_a_file(tmp_path):
    nested = {"data": {"name": "digits"}, "training": {"epochs": 7}}
    (tmp_path / "run.json").write_text(json.dumps(nested))
    config = runs.RunConfig()
    for given in (nested, tmp_path / "run.json", config):
        planned = runs.train(given, dry_run=True, **{**TINY, "epochs": 3})
        assert planned["config"]["training"]["epochs"] == 3
        assert planned["config"]["net"]["name"] == "mlp:8"


def test_a_run_is_reopened(chains):
    run = runs.load(chains)
    assert run.config.engine.name == "sgld"
    assert len(run.models()) == 2
    assert len(run.posterior.draws) == 3
    assert repr(run) == f"Run({chains}: sgld on digits, mlp:8)"


def test_chains_are_pooled(chains):
    pooled = runs.load(chains).pooled()
    assert len(pooled.draws) == 6
    ours = runs.evaluate(chains, samples=6, device="cpu")
    assert ours == as_json("evaluate", chains, "--samples", "6", "--device", "cpu")
    assert ours["error"] != runs.evaluate(chains, samples=3, member=0, device="cpu")["error"]


def test_methods_are_compared(tmp_path):
    options = {"n_train": 100, "seeds": 1, "attack": 0, "figures": False}
    ours = runs.compare(
        tmp_path / "a", data="digits", net="mlp:8", epochs=1, methods=["map", "sbnn"], zeros=(),
        **options,
    )  # fmt: skip
    theirs = as_json(
        "compare", *FLAGS, "--methods", "map,sbnn", "--zeros", "", "--n-train", "100", "--seeds",
        "1", "--attack", "0", "--no-figures", "--out", tmp_path / "b",
    )  # fmt: skip
    for result in (ours, theirs):
        result.pop("table")  # has seconds
    assert timeless(json.loads(json.dumps(ours))) == timeless(theirs)


def test_settings_are_swept(tmp_path):
    pytest.importorskip("optuna")
    ours = runs.sweep(out=tmp_path / "a", trials=2, engine="map", **TINY)
    theirs = as_json(
        "sweep", *FLAGS, "--engine", "map", "--device", "cpu", "--trials", "2", "--no-figures",
        "--out", tmp_path / "b",
    )  # fmt: skip
    assert timeless(ours) == timeless(theirs)


def test_the_whole_way_in_python(tmp_path, chains):
    pruned = runs.prune(chains, tmp_path / "b", zeros=0.5, figures=False, device="cpu")
    assert pruned["zeros"] == pytest.approx(0.5, abs=0.01)
    runs.compact(tmp_path / "b", tmp_path / "c")
    assert runs.verify(tmp_path / "c", tmp_path / "b")["ok"]
    written = runs.export(tmp_path / "c", "bundle", tmp_path / "d")
    assert written == {**written, "to": "bundle", "masked": False}


# --- networks by name


def test_an_mlp_without_widths_has_hidden_layers(tmp_path):
    planned = runs.train(dry_run=True, **{**TINY, "net": "mlp"})
    assert planned["config"]["net"]["name"] == "mlp:400,400"
    tanh = runs.train(dry_run=True, **{**TINY, "net": "mlp::tanh"})
    assert tanh["config"]["net"]["name"] == "mlp:400,400:tanh"
    linear = runs.train(dry_run=True, **{**TINY, "net": "linear"})
    assert linear["parameters"] == 650


def test_an_old_run_with_an_mlp_without_widths_is_the_linear_model_it_was(tmp_path):
    runs.train(out=tmp_path / "new", **{**TINY, "net": "linear"})
    shutil.copytree(tmp_path / "new", tmp_path / "old")
    file = tmp_path / "old" / "config.json"
    config = json.loads(file.read_text())
    config["net"]["name"] = "mlp"  # what version 0.1 wrote
    file.write_text(json.dumps(config))
    (tmp_path / "old" / ".bayesieve.json").unlink()  # which version 0.1 did not write
    new, old = (runs.load(tmp_path / name, device="cpu") for name in ("new", "old"))
    assert old.config.net.name == "linear"
    assert torch.equal(old.posterior.mean, new.posterior.mean)
    assert runs.train(file, dry_run=True, figures=False)["parameters"] == 650
