"""Config, data, checkpoint and posterior of different runs, and networks without weights."""

import json
import shutil
from contextlib import chdir
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from bayesieve.core.storage import file_bytes
from bayesieve.runs.owned import MARKER
from commands import as_json, call, forked_command, ok
from faults.injectors import contents
from faults.rows import cases
from faults.work import DATA

ROWS = [(i, (i * 7) % 11, i % 5 + 0.25 * i) for i in range(40)]
# Tables that take the place of t.csv, which has columns a, b and the real target y.
TABLES = {
    "a column more": ("a,b,c,y", [(a, b, 1, y) for a, b, y in ROWS]),
    "a column less": ("a,y", [(a, y) for a, b, y in ROWS]),
    "other names": ("u,v,y", ROWS),
    "no target": ("a,b,z", ROWS),
    "classes as target": ("a,b,y", [(a, b, "xyz"[a % 3]) for a, b, _ in ROWS]),
    "words in a column": ("a,b,y", [(a, "many words here"[: a % 3 + 1], y) for a, b, y in ROWS]),
    "no rows": ("a,b,y", []),
    "one row": ("a,b,y", ROWS[:1]),
}
RUN_COMMANDS = {
    "evaluate": "evaluate a",
    "prune": "prune a --zeros 0.5 --no-figures --out new",
    "resume": "train --resume --no-figures --out unfinished",
    "report": "report a -o new.html --test-examples 4",
    "sieve": "compact b --out new",
}
DRAWN = cases(["evaluate", "resume"], list(RUN_COMMANDS))


@pytest.fixture(scope="module")
def homes(work, tmp_path_factory):
    """A home with an unfinished run, and runs of other networks and data."""
    home = tmp_path_factory.mktemp("mismatch") / "home"
    shutil.copytree(work.home, home)
    with chdir(home):
        shutil.copytree("a", "unfinished")
        for name in ("metrics.json", "posterior.safetensors", "report.md"):
            Path("unfinished", name).unlink()
        ok("train", *DATA[:-1], "mlp:5", "--steps", "2", "--no-figures", "--out", "wide")
        Path("k.csv").write_text(text("classes as target"))
        ok("train", "--data", "csv:k.csv", *DATA[2:], "--steps", "2", "--no-figures", "--out", "k")
    return home


@pytest.fixture
def home(homes, tmp_path):
    with chdir(shutil.copytree(homes, tmp_path / "home")):
        yield tmp_path / "home"


def text(name):
    head, rows = TABLES[name]
    return "\n".join([head, *(",".join(map(str, row)) for row in rows)]) + "\n"


def check_refused(tally, home, command, words, said=()):
    """The command is refused by one line, and changes nothing that was there."""
    before = contents(home)
    result = call(*command.split())
    tally.injected()
    lines = result.stderr.strip().splitlines()
    if result.exit_code == 0:
        tally.found("silent wrong answers", f"{words}, then {command}: {result.stdout[-200:]}")
    elif not lines or not lines[-1].startswith("error: "):
        tally.found("other failures", f"{words}, then {command}: {result.stderr!r}")
    elif missing := [word for word in said if word not in lines[-1]]:
        tally.found("other failures", f"{words}, then {command}: no {missing} in {lines[-1]!r}")
    after = contents(home)
    changed = [name for name in before if after.get(name) != before[name]]
    if lost := [name for name in changed if not name.endswith(MARKER)]:
        tally.found("lost files", f"{words}, then {command}: {lost}")


@pytest.mark.parametrize("table", cases(["other names", "classes as target"], list(TABLES)))
def test_data_that_are_not_those_of_the_run(work, home, tally, table):
    path = work.home / "t.csv"  # configs name it by its whole path
    before = path.read_text()
    path.write_text(text(table))
    try:
        for name in DRAWN:
            check_refused(tally, home, RUN_COMMANDS[name], table)
    finally:
        path.write_text(before)


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("net", "name", "mlp:5"), ("net", "name", "mlp:4,4"), ("net", "name", 7),
        ("data", "name", "digits"), ("data", "target", "a"), ("data", "name", "csv:k.csv"),
        ("engine", "name", "tdamp"), ("engine", "lr", "high"), ("training", "batch_size", -3),
    ],
)  # fmt: skip
def test_a_config_of_something_else(home, tally, section, key, value):
    for run in ("a", "b", "unfinished"):
        (home / run / MARKER).unlink(missing_ok=True)  # as an earlier version left it
        config = json.loads((home / run / "config.json").read_text())
        config[section][key] = value
        (home / run / "config.json").write_text(json.dumps(config))
    words = f"{section}.{key} = {value}"
    names = DRAWN if section in ("net", "data") else ["resume"]
    for name in names:
        check_refused(tally, home, RUN_COMMANDS[name], words)


def rewritten(path, change):
    """Store a changed copy of the tensors of a file, with sums that fit."""
    from safetensors import safe_open

    with safe_open(path, "pt") as file:
        metadata = {k: v for k, v in (file.metadata() or {}).items() if k != "sha256"}
    tensors = {name: change(name, value) for name, value in load_file(path).items()}
    path.write_bytes(file_bytes({k: v for k, v in tensors.items() if v is not None}, metadata))


CHANGES = {
    "one value less": lambda name, value: value[..., :-1] if name == "mean" else value,
    "another dtype": lambda name, value: value.to(torch.int32) if name == "mean" else value,
    "no std": lambda name, value: None if name == "std" else value,
    "negative std": lambda name, value: -value if name == "std" else value,
    "mean of NaN": lambda name, value: value * torch.nan if name == "mean" else value,
    "infinite mean": lambda name, value: value + torch.inf if name == "mean" else value,
}


@pytest.mark.parametrize("change", cases(["negative std", "another dtype"], list(CHANGES)))
def test_a_posterior_with_other_tensors(home, tally, change):
    rewritten(home / "a" / "posterior.safetensors", CHANGES[change])
    for command in (RUN_COMMANDS["evaluate"], RUN_COMMANDS["prune"]):
        check_refused(tally, home, command, change, ["posterior.safetensors"])


@pytest.mark.parametrize("other", ["wide", "k"])
def test_files_of_another_run(home, tally, other):
    for file in ("posterior.safetensors", "config.json"):
        broken = shutil.copytree(home / "a", home / "mixed")
        shutil.copy(home / other / file, broken / file)
        check_refused(tally, home, "evaluate mixed", f"{file} of {other}")
        shutil.rmtree(broken)
    for path in (home / "unfinished" / "checkpoints").iterdir():
        path.unlink()
    for path in (home / other / "checkpoints").iterdir():
        shutil.copy(path, home / "unfinished" / "checkpoints")
    check_refused(tally, home, RUN_COMMANDS["resume"], f"checkpoint of {other}")


def test_predicting_rows_that_do_not_fit(home, tally):
    ok("compact", "b", "--out", "bundle")
    for table in ("a column less", "other names", "words in a column", "no rows"):
        (home / "new.csv").write_text(text(table))
        check_refused(tally, home, "predict bundle new.csv --out said.csv", table)


def test_a_run_goes_on_under_another_torch_with_other_threads(home, tally, monkeypatch):
    monkeypatch.setattr(torch, "__version__", "99.0")
    # In a copy: a process that has had two threads of OpenMP cannot be copied by later tests.
    arguments = ("train", "--resume", "--no-figures", "--threads", "2", "--out", "unfinished")
    process = forked_command(home.with_name("errors.txt"), *arguments)
    assert process.wait(300) == 0, process.errors
    tally.injected(2)
    one, two = (home / run / "posterior.safetensors" for run in ("a", "unfinished"))
    assert one.read_bytes() == two.read_bytes()


@pytest.mark.skipif(torch.cuda.is_available(), reason="the device is there")
@pytest.mark.parametrize("device", ["cuda", "cuda:7", "tpu"])
def test_a_device_that_is_missing(home, tally, device):
    check_refused(
        tally, home, f"train --resume --device {device} --out unfinished", device, [device]
    )


# ------------------------------------------------------------------------------ nothing is left


def test_a_network_without_weights(home, tally):
    """Every delivery of a network whose weights are all 0 says the same."""
    result = call("prune", "a", "--zeros", "1", "--no-figures", "--out", "empty")
    tally.injected()
    if result.exit_code != 0:  # some weight must stay: as few as it allows
        assert "smallest fraction that can be reached" in result.stderr
        ok("prune", "a", "--zeros", "0.72", "--no-figures", "--out", "empty")
    rewritten(
        home / "empty" / "posterior.safetensors",
        lambda name, value: torch.zeros_like(value) if name in ("keep", "mean", "std") else value,
    )
    for command in (
        "evaluate empty", "certify empty --resamples 20", "compact empty --out small",
        "export empty --to c --masked-ok --out e.h", *cases((), ("report empty -o e.html",)),
        "export empty --to bundle --masked-ok --out full", "predict full t.csv --out full.csv",
        "predict small t.csv --out small.csv",
    ):  # fmt: skip
        result = call(*command.split())
        tally.injected()
        if result.exit_code not in (0, 1, 2) or (result.exit_code and not result.stderr.strip()):
            tally.found("other failures", f"{command}: {result.exit_code} {result.stderr}")
    said = [Path(f"{name}.csv") for name in ("full", "small")]
    if all(path.exists() for path in said):
        one, two = (path.read_text() for path in said)
        assert "nan" not in one.lower()
        assert one.splitlines()[0] == two.splitlines()[0]
    assert as_json("evaluate", "empty")["weights"] == 0
