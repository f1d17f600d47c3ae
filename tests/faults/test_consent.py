"""A run folder or a configuration never runs code by itself: a user's factory needs consent."""

import ast
import functools
import json
import shutil
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from bayesieve import runs
from bayesieve.errors import DamagedFileError
from bayesieve.nets.importing import source_file
from bayesieve.runs.folder import NETWORK
from bayesieve.runs.owned import MARKER
from commands import as_json, call, ok, refused, write_table

MODULE = "payload_of_a_stranger"
NET = f"module:{MODULE}.make"
SOURCE = """
from pathlib import Path
import torch
from torch import nn

Path("executed").touch()

class Branching(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(2, 1)
    def forward(self, x):
        return self.out(x) if float(x.sum()) > -1e9 else self.out(-x)

class Dropping(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(2, 1)
    def forward(self, x):
        return self.out(nn.functional.dropout(x, 0.5, self.training))

def make(input_shape, n_outputs):
    return nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, n_outputs))

def one_layer(input_shape, n_outputs):
    return nn.Linear(2, n_outputs)

def branching(input_shape, n_outputs):
    return Branching()

def dropping(input_shape, n_outputs):
    return Dropping()
"""
# Every command that reads a run (a, trained; b, pruned; c, its bundle) or a configuration file.
GRAPH_SUFFICES = {
    "evaluate": "evaluate a",
    "evaluate draws": "evaluate a --samples 4",
    "prune": "prune a --zeros 0.2 --no-figures --out new",
    "finetune": "prune a --zeros 0.2 --finetune 1 --no-figures --out new",
    "certify": "certify b --resamples 20",
    "compact": "compact b --out new",
    "verify": "verify c --against b",
    "export": "export b --to c --masked-ok --out new.h",
    "export bundle": "export a --to bundle --masked-ok --out new",
    "report": "report a b -o new.html",
    "before": "report b --before a -o new.html",
    "profile": "profile a --rounds 1",
}
SLOW = ("before", "profile", "export bundle")  # tried only without a graph, which costs nothing
NEEDS_CODE = {
    "resume": "train --resume --no-figures --out unfinished",
    "config": "train --config a/config.json --no-figures --out new",
    "yaml": "train --config own.yaml --no-figures --out new",
    "sweep": "sweep --config a/config.json --trials 1 --no-figures --out new",
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with the factory, a table, and runs of it."""
    home = tmp_path_factory.mktemp("consent")
    (home / f"{MODULE}.py").write_text(SOURCE)
    write_table(home / "t.csv")
    (home / "own.yaml").write_text(
        f"data: {{name: 'csv:t.csv', target: y}}\nnet: {{name: '{NET}'}}\ntraining: {{steps: 2}}\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        train(NET, "a")
        ok("prune", "a", "--zeros", "0.2", "--no-figures", "--out", "b")
        ok("compact", "b", "--out", "c")
        shutil.copytree("a", "unfinished")
        for name in ("metrics.json", "posterior.safetensors"):
            Path("unfinished", name).unlink()
    return home


@pytest.fixture
def place(made, tmp_path, monkeypatch):
    """A copy of it, as a stranger would send it; nothing is imported yet."""
    home = tmp_path / "received"
    shutil.copytree(made, home)
    monkeypatch.chdir(home)
    forget()
    return home


def train(net, out):
    return as_json("train", "--data", "csv:t.csv", "--target", "y", "--net", net, "--steps", "2",
                   "--no-figures", "--out", out)  # fmt: skip


def forget():
    sys.modules.pop(MODULE, None)
    Path("executed").unlink(missing_ok=True)


def executed():
    return Path("executed").exists() or MODULE in sys.modules


@pytest.mark.parametrize(
    "command", [GRAPH_SUFFICES[name] for name in GRAPH_SUFFICES if name not in SLOW],
    ids=[name for name in GRAPH_SUFFICES if name not in SLOW],
)  # fmt: skip
def test_a_run_is_used_by_its_graph_and_runs_no_code(place, command):
    ran = call(*command.split())
    assert ran.exit_code == 0 or command.startswith("certify"), (ran.stderr, ran.exception)
    assert not executed()


@pytest.mark.parametrize(
    "command", [c for name, c in GRAPH_SUFFICES.items() if name != "verify"],
    ids=[name for name in GRAPH_SUFFICES if name != "verify"],
)  # fmt: skip
def test_without_a_graph_it_is_refused(place, command):
    for run in "ab":
        (place / run / NETWORK).unlink()
    before = sorted(place.rglob("*"))
    message = refused(2, *command.split())
    for word in (NET, f"{MODULE}.py", NETWORK, "--trust"):
        assert word in message
    assert not executed()
    assert sorted(place.rglob("*")) == before


@pytest.mark.filterwarnings("ignore:fit. of 26 weights")  # the network is mostly a norm
@pytest.mark.parametrize("command", NEEDS_CODE.values(), ids=NEEDS_CODE)
def test_a_file_of_settings_needs_consent(place, command):
    message = refused(2, *command.split())
    assert f"--net {NET}" in message
    assert "--trust" in message
    assert not executed()
    assert not (place / "new").exists()
    ok(*command.split(), "--trust")
    assert executed()


def test_naming_the_factory_again_is_consent(place):
    ok("train", "--resume", "--net", NET, "--no-figures", "--out", "unfinished")
    assert executed()


def test_settings_made_in_python_are_the_callers_own(place):
    data = {"name": "csv:t.csv", "target": "y"}
    runs.train(config={"data": data, "net": {"name": NET}}, steps=1, figures=False, out="new")
    assert executed()


def test_trusted_code_and_the_graph_give_the_same_numbers(place):
    for run in "ab":
        by_graph = as_json("evaluate", run, "--samples", "8")
        assert not executed()
        assert as_json("evaluate", run, "--samples", "8", "--trust") == by_graph
        assert executed()
        forget()
    tuned = ["prune", "a", "--zeros", "0.2", "--finetune", "2", "--no-figures", "--out"]
    first, second = as_json(*tuned, "d"), as_json(*tuned, "e", "--trust")
    assert first == second


@pytest.mark.parametrize("command", ["evaluate a", "prune a --zeros 0.2 --out new", "evaluate b",
                                     "train --resume --out unfinished"])  # fmt: skip
def test_changed_code_is_not_imported_even_with_consent(place, command):
    (place / f"{MODULE}.py").write_text(SOURCE + "\nimport os\n")
    message = refused(2, *command.split(), "--trust")
    assert f"{MODULE}.py is not the file" in message
    (place / f"{MODULE}.py").unlink()
    assert f"{MODULE}.py cannot be found" in refused(2, *command.split(), "--trust")
    assert not executed()


def test_a_module_that_is_one_layer_has_a_graph(place):
    train(f"module:{MODULE}.one_layer", "d")
    forget()
    by_graph = as_json("evaluate", "d")
    assert not executed()
    assert as_json("evaluate", "d", "--trust") == by_graph


def test_a_network_that_cannot_be_traced_says_so_at_training(place):
    run = ok("train", "--data", "csv:t.csv", "--target", "y", "--net", f"module:{MODULE}.branching",
             "--steps", "2", "--no-figures", "--out", "d")  # fmt: skip
    assert "commands on this run will need --trust" in run.stderr
    forget()
    assert "--trust" in refused(2, "evaluate", "d")
    assert not executed()
    ok("evaluate", "d", "--trust")


def test_a_graph_without_the_noise_of_training_is_not_trained(place):
    train(f"module:{MODULE}.dropping", "d")
    forget()
    as_json("evaluate", "d")
    message = refused(2, "prune", "d", "--zeros", "0.2", "--finetune", "1", "--out", "e")
    assert "in training" in message
    assert not executed()
    ok("prune", "d", "--zeros", "0.2", "--finetune", "1", "--no-figures", "--out", "e", "--trust")


def test_an_older_run_without_a_hash_still_opens_with_consent(place):
    config = json.loads((place / "a/config.json").read_text())
    del config["record"]["factory"]
    (place / "a/config.json").write_text(json.dumps(config))
    (place / "a" / NETWORK).unlink()
    (place / "a" / MARKER).unlink()
    assert "--trust" in refused(2, "evaluate", "a")
    ok("evaluate", "a", "--trust")


@pytest.mark.parametrize("change", ["posterior of another run", "outputs", "no description"])
def test_a_wrong_graph_is_refused(place, change):
    from safetensors.torch import load_file, save_file

    path = place / "a" / NETWORK
    if change == "posterior of another run":
        train(f"module:{MODULE}.one_layer", "d")
        shutil.copy("d/posterior.safetensors", "a/posterior.safetensors")
        forget()
        with pytest.raises(ValueError, match="is of another network"):
            runs.load("a", device="cpu")
    elif change == "outputs":
        shutil.copytree("a", "d")
        (place / "wide.csv").write_text("a,b,z,y\n" + "1,2,3,4.5\n2,3,4,5.5\n" * 20)
        config = json.loads((place / "d/config.json").read_text())
        config["data"]["name"] = f"csv:{place / 'wide.csv'}"
        del config["record"]["names"]
        (place / "d/config.json").write_text(json.dumps(config))
        (place / "d" / MARKER).unlink()
        with pytest.raises(DamagedFileError, match=r"network\.safetensors"):
            runs.load("d", device="cpu")
    else:
        save_file(load_file(path), path)
        with pytest.raises(DamagedFileError, match="its description"):
            runs.load("a", device="cpu")
    assert not executed()


def test_finding_the_file_of_a_factory_imports_nothing(tmp_path, monkeypatch):
    package = tmp_path / "outer_of_a_stranger" / "inner"
    package.mkdir(parents=True)
    for folder in (package.parent, package):
        (folder / "__init__.py").write_text("from pathlib import Path\nPath('executed').touch()")
    (package / "nets.py").write_text("raise SystemExit")
    monkeypatch.chdir(tmp_path)
    assert source_file("module:outer_of_a_stranger.inner.nets.make") == package / "nets.py"
    assert source_file("module:outer_of_a_stranger.inner.none.make") is None
    assert source_file("module:no_such_package_here.nets.make") is None
    assert source_file("module:sys.exit") is None
    assert not Path("executed").exists()
    assert not any(name.startswith("outer_of_a_stranger") for name in sys.modules)


# ------------------------------------------------------------- every place that could run code
# What could turn a name or bytes of a file into code, and why it does not.
DANGEROUS = {
    "eval", "exec", "compile", "__import__", "import_module", "exec_module", "load_module",
    "entry_points", "run_path", "run_module", "CDLL", "popen", "Popen", "unsafe_load", "full_load",
    "register_custom_ops_library",
}  # fmt: skip
MODULES = {"pickle", "marshal", "shelve", "dill", "joblib", "cloudpickle", "subprocess", "runpy"}
ALLOWED = {
    "__init__.py": {"import_module": "names of our own modules, in a table"},
    "cli/flags.py": {"eval": "annotations in the source of the package, as an import would"},
    "deliver/huggingface.py": {"import_module": "transformers, by name"},
    "deliver/onnx.py": {"import_module": "onnx and onnxruntime, by name"},
    "fast/native.py": {
        "CDLL": "C of the package, compiled into a folder that only the user can write",
        "subprocess": "the system's C compiler, on C of the package",
    },
    "engines/recipes.py": {"import_module": "bayesieve itself"},
    "files.py": {"CDLL": "the C library of this process, for renameat2"},
    "nets/importing.py": {"import_module": "the factory; `runs.consent` asks before"},
    "runs/__init__.py": {"import_module": "names of our own modules, in a table"},
}


@functools.cache
def calls_and_imports():
    """Called functions as (owner, name, keywords), and imported modules, by file of the package.

    The work of `compare` and `sweep` is in `studies`, and belongs to it.
    """
    home, table = Path(runs.__file__).parents[1], {}
    studies = home.parents[1] / "studies"
    files = [*home.rglob("*.py"), *(studies / "comparison").glob("*.py"), studies / "search.py"]
    for path in files:
        calls, modules = [], set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                f = node.func
                owner = ast.unparse(f.value) if isinstance(f, ast.Attribute) else None
                name = f.attr if isinstance(f, ast.Attribute) else getattr(f, "id", "")
                calls.append((owner, name, node.keywords))
            elif isinstance(node, ast.Import):
                modules |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                modules.add(node.module)
        place = home if path.is_relative_to(home) else home.parents[1]
        table[path.relative_to(place).as_posix()] = calls, modules
    return table


def could_run_code(owner, name, keywords):
    if any(k.arg == "allow_pickle" and getattr(k.value, "value", True) for k in keywords):
        return True
    if name in ("eval", "exec", "compile"):
        return owner is None  # not module.eval() or re.compile()
    if name in ("load", "loads"):
        return owner in ("torch", "yaml")
    return name in DANGEROUS


def test_every_place_that_could_run_code_is_known():
    found = {}
    for file, (calls, modules) in calls_and_imports().items():
        names = {name for owner, name, keywords in calls if could_run_code(owner, name, keywords)}
        if names := names | (modules & MODULES):
            found[file] = names
    assert found == {file: set(reasons) for file, reasons in ALLOWED.items()}


def test_factories_are_called_only_where_consent_was_asked_for():
    building = {"from_path", "build_net", "build_module", "build_network"}
    callers = {
        file
        for file, (calls, _) in calls_and_imports().items()
        if building & {name for _, name, _ in calls}
    }
    assert callers == {
        "runs/build.py",  # the functions themselves, and `make_plan`
        "runs/consent.py",  # trusted
        "runs/tables.py",  # a multilayer perceptron for columns
        "runs/run.py",  # widths of an mlp, on the meta device
        "runs/sparse.py",  # `prune --finetune`: trusted, or one of our networks
        "studies/comparison/compare.py",  # --net of the command
    }
    planning = {file for file, (calls, _) in calls_and_imports().items()
                if "make_plan" in {name for _, name, _ in calls}}  # fmt: skip
    assert planning == {
        "runs/learn.py",  # `check_named` comes first
        "studies/search.py",  # the same
        "runs/sparse.py",  # `sieve`: --net of the command
        "runs/showcase.py",  # our networks
    }


def test_a_stored_state_dict_is_never_unpickled(tmp_path):
    """A torch pickle under the name of safetensors is refused as damaged."""

    class Payload(nn.Module):
        def __reduce__(self):
            return (Path.touch, (Path(tmp_path, "executed"),))

    file = tmp_path / "w.safetensors"
    torch.save(Payload(), file)
    message = refused(
        2, "sieve", file, "--net", "mlp:4", "--data", "digits", "--out", tmp_path / "o"
    )
    assert "cannot be read as safetensors" in message
    assert not (tmp_path / "executed").exists()
