"""Config, data, checkpoint and posterior of different runs, and networks without weights."""

import json
import math
import shutil
from contextlib import chdir
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from bayesieve.core.storage import file_bytes
from bayesieve.runs.owned import MARKER
from commands import as_json, call, forked_command, ok, refused, write_table
from faults.injectors import contents
from faults.rows import cases
from faults.work import DATA, TRAIN

ROWS = [(i, (i * 7) % 11, i % 5 + 0.25 * i) for i in range(40)]
RUN_COMMANDS = {
    "evaluate": "evaluate a",
    "prune": "prune a --zeros 0.5 --no-figures --out new",
    "resume": "train --resume --no-figures --out unfinished",
    "report": "report a -o new.html --test-examples 4",
    "compact": "compact b --out new",
}
DRAWN = cases(["evaluate", "resume"], list(RUN_COMMANDS))


def classes(letters="uvw"):
    """The table with labels in place of numbers."""
    return "a,b,y", [(a, b, letters[a % 3]) for a, b, _ in ROWS]


@pytest.fixture(scope="module")
def homes(work, tmp_path_factory):
    """Runs a and b, an unfinished one, and runs of other networks, numbers and targets."""
    home = tmp_path_factory.mktemp("mismatch") / "home"
    shutil.copytree(work.home, home)
    with chdir(home):
        write(home / "k.csv", *classes())
        for out, data, *more in (
            ("wide", "t", "--net", "mlp:5"), ("double", "t", "--dtype", "float64"),
            ("classes", "k"),
        ):  # fmt: skip
            given = ("--data", f"csv:{data}.csv", *DATA[2:], *more)
            ok("train", *given, *TRAIN[-5:], "--out", out)
    for path in (*home.glob(f"*/{MARKER}"), *home.glob("*/config.json")):
        if path.name == MARKER:
            path.unlink()  # checksums would speak first
        else:
            path.write_text(path.read_text().replace(str(work.home), str(home)))
    shutil.copytree(home / "a", home / "unfinished")
    for name in ("metrics.json", "posterior.safetensors", "report.md"):
        (home / "unfinished" / name).unlink()
    return home


@pytest.fixture
def home(homes, tmp_path):
    """A copy of them, whose configs name its own data."""
    home = shutil.copytree(homes, tmp_path / "home")
    for path in home.glob("*/config.json"):
        path.write_text(path.read_text().replace(str(homes), str(home)))
    with chdir(home):
        yield home


def write(path, head, rows):
    return write_table(path, len(rows), head, lambda i: rows[i])


def check_refused(tally, home, command, words, said=""):
    """The command is refused by one line, and changes nothing; the line has one of the words."""
    before = contents(home)
    result = call(*command.split())
    tally.injected()
    lines = result.stderr.strip().splitlines()
    if result.exit_code == 0:
        tally.found("silent wrong answers", f"{words}, then {command}: {result.stdout[-200:]}")
    elif not lines or not lines[-1].startswith("error: "):
        tally.found("other failures", f"{words}, then {command}: {result.stderr!r}")
    elif not any(part in lines[-1] for part in said.split("|")):
        tally.found("other failures", f"{words}, then {command}: no {said} in {lines[-1]!r}")
    after = contents(home)
    changed = [name for name in before if after.get(name) != before[name]]
    if lost := [name for name in changed if not name.endswith(MARKER)]:
        tally.found("lost files", f"{words}, then {command}: {lost}")


# ------------------------------------------------------------------------------------ other data

OTHER_DATA = {  # the table that takes the place of that of run a, and what `evaluate` says
    "a column more": ("z,a,b,y", [(1, *row) for row in ROWS], "number 1 was 'a', now it"),
    "a column less": ("b,y", [row[1:] for row in ROWS], "number 1 was 'a', now it is 'b'"),
    "another order": ("b,a,y", [(b, a, y) for a, b, y in ROWS], "number 1 was"),
    "other names": ("u,v,y", ROWS, "number 1 was 'a', now it is 'u'"),
    "text": (
        "a,b,y",
        [(f"q{a % 7}", b, y) for a, b, y in ROWS],
        "number 1 was 'a', now it is 'a=q0'",
    ),
    "another target": ("a,b,z", ROWS, "target must name a column"),
    "classes as target": (*classes(), "is for regression|is of another network"),
    "no rows": ("a,b,y", [], "must have rows"),
    "one row": ("a,b,y", ROWS[:1], ""),
}
OTHER_CLASSES = {
    "a renamed class": ("xvw", "number 1 was 'u', now it is 'v'"),
    "another class": ("uvwz", "number 4 was None, now it is"),
    "a class less": ("uvv", "number 3 was 'w', now it is None"),
}


@pytest.mark.parametrize("table", OTHER_DATA)
def test_data_that_are_not_those_of_the_run(home, tally, table):
    head, rows, said = OTHER_DATA[table]
    write(home / "t.csv", head, rows)
    for name in DRAWN:
        check_refused(tally, home, RUN_COMMANDS[name], table, said if name == "evaluate" else "")


@pytest.mark.parametrize("change", OTHER_CLASSES)
def test_classes_that_are_not_those_of_the_run(home, tally, change):
    letters, said = OTHER_CLASSES[change]
    rows = [(a, b, letters[a % len(letters)]) for a, b, _ in ROWS]
    write(home / "k.csv", "a,b,y", rows)
    check_refused(tally, home, "evaluate classes", change, said)


def test_runs_of_earlier_versions_have_no_names(home):
    path = home / "a" / "config.json"
    path.write_text(path.read_text().replace('"names"', '"other"'))
    as_json("evaluate", "a")


def test_predicting_rows_that_do_not_fit(home, tally):
    ok("compact", "b", "--out", "bundle")
    for table in ("a column less", "other names", "text", "no rows"):
        write(home / "new.csv", *OTHER_DATA[table][:2])
        check_refused(tally, home, "predict bundle new.csv --out said.csv", table)


# ----------------------------------------------------------------------------- parts of other runs


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
        config = json.loads((home / run / "config.json").read_text())
        config[section][key] = value
        (home / run / "config.json").write_text(json.dumps(config))
    for name in DRAWN if section in ("net", "data") else ["resume"]:
        check_refused(tally, home, RUN_COMMANDS[name], f"{section}.{key} = {value}")


MIXED = [  # the run, whose part, which part, what the message says
    ("a", "classes", "posterior.safetensors", "is of another network"),
    ("a", "wide", "posterior.safetensors", "is of another network than mlp:4"),
    ("a", "wide", "config.json", "is of another network than mlp:5"),
    ("a", "double", "posterior.safetensors", "holds float64 weights"),
    ("double", "a", "posterior.safetensors", "holds float32 weights"),
    ("a", "double", "config.json", "holds float32 weights"),
    ("classes", "a", "config.json", "is of another network"),
]


@pytest.mark.parametrize(("run", "other", "part", "said"), MIXED)
def test_a_part_of_another_run(home, run, other, part, said):
    shutil.copy(home / other / part, home / run / part)
    message = refused(2, "evaluate", run)
    assert said in message
    assert f"{run}/posterior.safetensors" in message


@pytest.mark.parametrize(
    ("other", "said"),
    [("classes", "the checkpoint was made with engine|other data"),
     ("double", "is torch.float64|other data"),
     ("wide", "has shape (1, 22) in the checkpoint and (1, 18) here|other data")],
)  # fmt: skip
def test_checkpoints_of_another_run(home, tally, other, said):
    shutil.rmtree(home / "unfinished" / "checkpoints")
    shutil.copytree(home / other / "checkpoints", home / "unfinished" / "checkpoints")
    check_refused(tally, home, RUN_COMMANDS["resume"], f"checkpoint of {other}", said)


def rewritten(path, change):
    """Store a changed copy of the tensors of a file, with sums that fit."""
    with safe_open(path, "pt") as file:
        metadata = {k: v for k, v in (file.metadata() or {}).items() if k != "sha256"}
    tensors = {name: change(name, value) for name, value in load_file(path).items()}
    path.write_bytes(file_bytes({k: v for k, v in tensors.items() if v is not None}, metadata))


def only(wanted, change):
    return lambda name, value: change(value) if name == wanted else value


NOT_FINITE = "has numbers that are not finite"
CHANGES = {
    "one value less": (only("mean", lambda mean: mean[..., :-1]), ""),
    "another dtype": (only("mean", lambda mean: mean.to(torch.int32)), ""),
    "no std": (only("std", lambda std: None), ""),
    "negative std": (only("std", lambda std: -std), ""),
    "mean of NaN": (only("mean", lambda mean: mean * math.nan), f"its mean {NOT_FINITE}"),
    "infinite mean": (only("mean", lambda mean: mean - math.inf), f"its mean {NOT_FINITE}"),
    "infinite std": (only("std", lambda std: std + math.inf), f"its std {NOT_FINITE}"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_posterior_with_other_tensors(home, tally, change):
    change_, said = CHANGES[change]
    rewritten(home / "a" / "posterior.safetensors", change_)
    for command in ("evaluate", "prune")[: cases(1, 2)]:
        check_refused(tally, home, RUN_COMMANDS[command], change, said or "posterior.safetensors")


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
    command = f"train --resume --device {device} --out unfinished"
    check_refused(tally, home, command, device, device)


# ------------------------------------------------------------------------------ nothing is left


@pytest.mark.parametrize(
    "rule",
    ["--zeros 1", "--zeros 1 --allow-empty-layers", "--zeros 0.99 --allow-empty-layers",
     "--target-macs 0", "--target-latency 1e-9"],
)  # fmt: skip
def test_more_than_can_go_is_refused_with_what_can(home, rule):
    message = refused(2, "prune", "a", *rule.split(), "--no-figures", "--out", "p")
    assert "can" in message
    assert "reached" in message
    assert not Path("p").exists()


@pytest.mark.parametrize("run", ["a", "classes"])
@pytest.mark.parametrize(
    "rule", ["--threshold 1 --allow-empty-layers", "--keep-units 0", "by hand"]
)
def test_a_network_of_which_nothing_is_left_still_works(home, run, rule):
    """Every delivery of it says the same, in finite numbers."""
    by_hand = rule == "by hand"
    asked = ["--zeros", "0.5"] if by_hand else rule.split()
    pruned = as_json("prune", run, *asked, "--no-figures", "--out", "p")
    if by_hand:
        gone = {"keep", "mean", "std"}
        rewritten(
            home / "p" / "posterior.safetensors",
            lambda name, value: torch.zeros_like(value) if name in gone else value,
        )
    again, score = as_json("evaluate", "p"), "rmse" if run == "a" else "error"
    assert again[score] == pruned[score] or by_hand
    assert math.isfinite(again[score])
    assert (again["weights"] == 0) >= by_hand
    ok("compact", "p", "--out", "small")
    ok("verify", "small", "--against", "p")
    ok("export", "p", "--to", "bundle", "--masked-ok", "--out", "full")
    ok("export", "p", "--to", "c", "--masked-ok", "--out", "p.h")
    assert call("certify", "p", "--resamples", "20").exit_code in (0, 1)
    said = []
    for bundle in ("small", "full"):
        ok("predict", bundle, "t.csv", "--out", f"{bundle}.csv")
        said.append(Path(f"{bundle}.csv").read_text())
        assert "nan" not in said[-1]
        assert len(said[-1].splitlines()) == 41
    assert said[0].splitlines()[0] == said[1].splitlines()[0]
