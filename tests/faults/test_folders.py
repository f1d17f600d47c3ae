"""Nothing that we did not write is ever replaced or removed."""

import json
import os
import shutil

import pytest
from torch import nn

from bayesieve import runs
from bayesieve.deliver.bundle import save_bundle
from bayesieve.errors import DamagedFileError, UsageError
from bayesieve.lock import LOCK
from bayesieve.runs.folder import RunFolder
from bayesieve.runs.owned import MARKER, OwnedFolder
from bayesieve.runs.tables import SelectionFolder
from commands import ok, refused, write_table
from faults.injectors import RUN, contents, flip
from studies.comparison.compare import ComparisonFolder
from studies.search import SearchFolder

FLAGS = ["--data", "digits", "--net", "mlp:8", "--steps", "4", "--no-figures"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "a"
    runs.train(out=folder, **RUN)
    return folder


@pytest.fixture
def run(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "a")


@pytest.fixture
def table(tmp_path):
    return write_table(tmp_path / "t.csv")


def commands(target, run, table):
    """Every command that writes a folder of its own, into one that exists."""
    data = ("--data", "digits", "--net", "mlp:8")
    return {
        "train": ("train", *FLAGS, "--out", target),
        "prune": ("prune", run, "--zeros", "0.5", "--out", target),
        "sieve": ("sieve", run / "posterior.safetensors", *data, "--out", target),
        "compact": ("compact", run, "--out", target),
        "export": ("export", run, "--to", "bundle", "--masked-ok", "--out", target),
        "compare": ("compare", *data, "--epochs", "1", "--out", target),
        "sweep": ("sweep", *data, "--epochs", "1", "--out", target),
        "fit-table": ("fit-table", table, "--target", "y", "--out", table.parent / "m", "--report",
                      target),
        "fit-table bundle": ("fit-table", table, "--target", "y", "--report", table.parent / "m",
                             "--out", target),
        "select": ("select", table, "--target", "y", "--report", target),
        "demo": ("demo", "--epochs", "1", "--out", target),
        "attack": ("attack", run, "--out", target),
    }  # fmt: skip


NAMES = [
    "train", "prune", "sieve", "compact", "export", "compare", "sweep", "fit-table",
    "fit-table bundle", "select", "demo", "attack",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_a_folder_of_somebody_else_is_refused_by_name_and_stays(tmp_path, run, table, name):
    target = tmp_path / "p"
    files = ("checkpoints/w.pt", "figures/mine.png", "report.md", "config.json")
    for file in files:
        (target / file).parent.mkdir(parents=True, exist_ok=True)
        (target / file).write_text("{}")
    before = contents(tmp_path)
    arguments = commands(target, run, table)[name]
    forces = () if name in ("sweep", "attack") else ("--force",)
    for force in ([], forces):
        line = refused(2, *arguments, *force)
        assert str(target) in line
    assert contents(tmp_path) == before


def test_the_case_of_the_issue(tmp_path):
    foreign = tmp_path / "p" / "checkpoints" / "w.pt"
    foreign.parent.mkdir(parents=True)
    foreign.touch()
    line = refused(2, "train", *FLAGS, "--out", tmp_path / "p")
    assert f"{tmp_path / 'p'} holds checkpoints, not listed there" in line
    assert foreign.exists()


@pytest.mark.parametrize("name", ["train", "prune", "compact", "compare", "sweep", "select"])
def test_an_empty_path_is_refused(tmp_path, run, table, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    before = contents(tmp_path)
    line = refused(2, *commands("", run, table)[name])
    assert "the path is empty" in line
    assert contents(tmp_path) == before


def test_an_empty_path_is_refused_in_python(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"train: `out` is empty"):
        runs.train(out="", **RUN)


def test_force_removes_what_we_wrote_and_nothing_else(run):
    mine = {"notes.txt": "a", "figures/mine.png": "b", "checkpoints/w.pt": "c"}
    for name, text in mine.items():
        (run / name).parent.mkdir(exist_ok=True)
        (run / name).write_text(text)
    ours = RunFolder(run)
    assert "holds a finished run" in refused(2, "train", *FLAGS, "--out", run)
    with ours.locked():
        ours.begin(force=True)
    assert {name: value.decode() for name, value in contents(run).items()} == mine | {
        MARKER: (run / MARKER).read_text()
    }
    assert ours.listed() == {}


def test_the_marker_lists_every_file_of_a_run(finished):
    listed = RunFolder(finished).listed()
    files = {name for name in contents(finished) if name not in (MARKER, LOCK)}
    checkpoints = {name for name in files if name.startswith("checkpoints/")}
    assert checkpoints
    assert files - checkpoints == {name for name in listed if "*" not in name}
    assert all(listed[name] for name in files - checkpoints if not name.endswith(".safetensors"))


def test_a_foreign_file_under_a_name_of_ours_is_refused_with_force_too(run):
    (run / "chains.json").write_text("mine")
    line = refused(2, "train", *FLAGS, "--out", run, "--force")
    assert "holds chains.json, not listed there" in line
    assert (run / "chains.json").read_text() == "mine"


def test_a_run_of_an_earlier_version_is_read_but_not_replaced(run, tmp_path):
    (run / MARKER).unlink()
    before = contents(run)
    for force in ((), ("--force",)):
        line = refused(2, "train", *FLAGS, "--out", run, *force)
        assert "holds a run of an earlier version" in line
        assert "Give another --out, or move it away" in line
    ok("evaluate", run)
    ok("prune", run, "--zeros", "0.5", "--no-figures", "--out", tmp_path / "b")
    assert contents(run) == before
    ok("report", run, "--test-examples", "8")  # a new file may be added to it
    assert contents(run).keys() - before.keys() == {"report.html"}
    assert "report.html, not listed there" in refused(2, "report", run)
    assert "holds a finished run" not in refused(2, "demo", "--out", run)


def test_an_unfinished_run_of_an_earlier_version_is_resumed(run, finished):
    expected = (finished / "posterior.safetensors").read_bytes()
    for name in (MARKER, "metrics.json", "posterior.safetensors", "report.md"):
        (run / name).unlink()
    ok("train", "--out", run, "--resume", "--no-figures")
    assert (run / "posterior.safetensors").read_bytes() == expected
    assert {"config.json", "metrics.json"} <= RunFolder(run).listed().keys()


def test_a_bundle_with_a_foreign_file_is_not_replaced(run, tmp_path):
    bundle = save_bundle(nn.Linear(2, 1), tmp_path / "bundle")
    export = ("export", run, "--to", "bundle", "--masked-ok", "--out", bundle)
    (bundle / "notes.txt").write_text("mine")
    before = contents(bundle)
    assert "notes.txt" in refused(2, *export, "--force")
    assert contents(bundle) == before
    (bundle / "notes.txt").unlink()
    save_bundle(nn.Linear(3, 1), bundle, force=True)


def test_a_folder_of_another_kind_is_refused(tmp_path):
    kinds = [RunFolder, ComparisonFolder, SearchFolder, SelectionFolder]
    for kind in kinds:
        folder = kind(tmp_path / kind.__name__)
        with folder.locked():
            folder.begin(force=False)
        for other in kinds:
            if other is not kind:
                with pytest.raises(UsageError, match=f"holds a {kind.kind}"):
                    other(folder.path).check_free(force=True)


HOSTILE = ["../victim.txt", "/victim.txt", "link/victim.txt", "sub/../../victim.txt", "", ".", ".."]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_marker_cannot_name_files_outside_its_folder(tmp_path, name):
    victims = tmp_path / "victims"
    victims.mkdir()
    for place in (victims, tmp_path):
        (place / "victim.txt").write_text("mine")
    folder = OwnedFolder(tmp_path / "a")
    folder.path.mkdir()
    (folder.path / "link").symlink_to(victims)
    named = str(tmp_path / "victim.txt") if name.startswith("/") else name
    folder._write_marker({named: None})
    with folder.locked():
        folder.begin(force=True)
    assert (victims / "victim.txt").read_text() == (tmp_path / "victim.txt").read_text() == "mine"


def test_a_damaged_marker_is_named_and_nothing_is_written(run):
    flip(run / MARKER, -20)
    before = contents(run)
    line = refused(1, "train", *FLAGS, "--out", run, "--force")
    assert MARKER in line
    assert contents(run) == before
    (run / MARKER).unlink()
    ok("evaluate", run)


def test_a_marker_that_is_changed_by_hand_is_refused(run):
    marker = json.loads((run / MARKER).read_text())
    marker["files"]["notes.txt"] = None
    (run / MARKER).write_text(json.dumps(marker))
    with pytest.raises(DamagedFileError, match="can still be read"):
        RunFolder(run).listed()


def test_only_commands_that_can_resume_are_told_to(tmp_path, run, table):
    (run / "metrics.json").unlink()
    assert "use `bayesieve train --resume`" in refused(2, "train", *FLAGS, "--out", run)
    table_run = RunFolder(tmp_path / "t")
    with table_run.locked():
        table_run.begin(force=False)
        table_run.create(RunFolder(run).read_config(), "fit-table")
    line = refused(2, "fit-table", table, "--target", "y", "--report", table_run.path, "--out",
                   tmp_path / "m")  # fmt: skip
    assert "holds an unfinished run; use --force to replace it, or another --report." in line
    assert "--resume" not in refused(2, "evaluate", table_run.path)


def test_a_folder_that_cannot_be_listed_first_is_not_written(tmp_path):
    folder = OwnedFolder(tmp_path / "a")
    with folder.locked():
        folder.begin(force=False)
        (folder.path / "b.txt").write_text("mine")
        with pytest.raises(UsageError, match=r"holds b\.txt"):
            folder.place("b.txt")
        os.symlink(tmp_path / "nowhere", folder.path / "c.txt")
        with pytest.raises(UsageError, match=r"holds c\.txt"):
            folder.place("c.txt")


def test_a_study_is_run_again_into_a_folder_of_its_own_only(tmp_path, monkeypatch):
    from studies import tdamp_uci

    monkeypatch.setattr(tdamp_uci, "main", lambda _: pytest.fail("the folder was not looked at"))
    (tmp_path / "file").write_text("mine")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "record.json").write_text("{}")
    (tmp_path / "mine" / "rows.md").write_text("mine")
    before = contents(tmp_path)
    for name, words in (("file", "is a file"), ("mine", "record.json, rows.md, not listed there")):
        line = refused(2, "reproduce", "tdamp-uci", "--quick", "--out", tmp_path / name)
        assert words in line
    assert contents(tmp_path) == before
