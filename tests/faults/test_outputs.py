"""An output is a regular file or a new name: no input, no device, no pipe, no link to one."""

import errno
import os
import shutil
import stat
from pathlib import Path

import pytest
from torch import nn

from bayesieve import files, runs
from bayesieve.cli.main import _message
from bayesieve.deliver.bundle import save_bundle
from bayesieve.errors import UsageError
from bayesieve.files import check_output, write_atomically
from commands import call, refused, write_table
from faults.injectors import RUN, Killed, contents, full_disk

posix = pytest.mark.skipif(os.name != "posix", reason="devices and pipes")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    home = tmp_path_factory.mktemp("runs")
    write_table(home / "t.csv", 60)
    runs.train(out=home / "a", **(RUN | {"data": f"csv:{home / 't.csv'}", "target": "y"}))
    save_bundle(nn.Linear(2, 1), home / "bundle", feature_names=["a", "b"])
    return home


@pytest.fixture
def home(finished, tmp_path):
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    return tmp_path


def special(folder, kind):
    """A device, a pipe, a socket or a link to one, as an output that a user might name."""
    path = folder / kind.replace(" ", "-")
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        try:
            os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 3))
        except PermissionError:
            pytest.skip("only root makes device nodes")
    elif kind == "link to a pipe":
        os.mkfifo(folder / "pipe")
        path.symlink_to(folder / "pipe")
    elif kind == "link to a device":
        path.symlink_to("/dev/null")
    else:
        path.symlink_to(path)
    return path


KINDS = ["pipe", "device", "link to a pipe", "link to a device", "link to itself"]


@posix
@pytest.mark.parametrize("kind", KINDS)
def test_no_command_replaces_a_special_file(home, kind):
    path = special(home, kind)
    before = contents(home)
    for arguments in (
        ("report", home / "a", "-o", path),
        ("report", home / "a", "--data", path),
        ("export", home / "bundle", "--to", "onnx", "--force", "--out", path),
        ("predict", home / "bundle", home / "t.csv", "--force", "--out", path),
        ("scratch", "train", "--figure", path),
    ):
        line = refused(2, *arguments)
        assert "give the name of a regular file" in line
        assert str(path) in line
    with pytest.raises(FileExistsError, match="regular file"):
        write_atomically(path, "x")
    assert contents(home) == before


@pytest.mark.parametrize("how", ["itself", "link", "hard link"])
@pytest.mark.parametrize(
    ("command", "read"),
    [
        (("report", "a", "-o"), "a/config.json"),
        (("report", "a", "-o"), "a/posterior.safetensors"),
        (("report", "a", "--data"), "t.csv"),
        (("export", "a", "--to", "c", "--masked-ok", "--force", "--out"), "t.csv"),
        (("export", "a", "--to", "c", "--masked-ok", "--force", "--out"), "a/metrics.json"),
        (("export", "bundle", "--to", "c", "--force", "--out"), "bundle/model.safetensors"),
        (("predict", "bundle", "t.csv", "--force", "--out"), "t.csv"),
        (("predict", "bundle", "t.csv", "--force", "--out"), "bundle/config.json"),
    ],
)
def test_no_command_writes_onto_its_input(finished, home, monkeypatch, command, read, how):
    monkeypatch.chdir(home)
    read = Path(finished if command[1] == "a" and read == "t.csv" else home, read)
    out = Path(read)
    if how != "itself":
        out = Path("other")
        (os.symlink if how == "link" else os.link)(Path(read).absolute(), out)
    before = contents(home)
    assert "is an input of this command" in refused(2, *command, out)
    assert contents(home) == before


def test_the_page_and_its_data_are_two_files(home):
    line = refused(2, "report", home / "a", "-o", home / "x", "--data", home / "x")
    assert "--data and --out are the same file" in line


def test_an_image_of_a_folder_that_is_read_is_an_input(tmp_path):
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "a.png").touch()
    with pytest.raises(UsageError, match="is an input"):
        check_output(tmp_path / "images" / "a.png", [tmp_path / "images"])
    check_output(tmp_path / "images" / "new.csv", [tmp_path / "images"])


def test_weights_to_start_from_are_not_replaced_by_the_run(home):
    path = home / "a" / "posterior.safetensors"
    before = contents(home)
    for command in (
        ("train", "--data", f"csv:{home / 't.csv'}", "--target", "y", "--warm-start", path),
        ("sieve", path, "--net", "mlp:8", "--data", f"csv:{home / 't.csv'}", "--target", "y"),
    ):
        assert "an input of this command" in refused(2, *command, "--force", "--out", home / "a")
    assert contents(home) == before


def test_a_full_disk_is_named_with_the_file(tmp_path, monkeypatch):
    write_atomically(tmp_path / "a.txt", "old")
    full_disk(monkeypatch)
    with pytest.raises(OSError, match="No space") as caught:
        write_atomically(tmp_path / "a.txt", "new")
    assert (
        _message(caught.value)
        == f"{tmp_path / 'a.txt'}: no space left on device; make room and try again."
    )
    assert contents(tmp_path) == {"a.txt": b"old"}


@pytest.mark.parametrize("after", [0, 1, 2, 5, 9, 14])
def test_a_full_disk_stops_a_run_with_one_line_and_no_half_files(tmp_path, monkeypatch, after):
    with monkeypatch.context() as patch:
        full_disk(patch, after)
        line = refused_after_notes("train", "--data", "digits", "--net", "mlp:8", "--steps", "4",
                                   "--no-figures", "--out", tmp_path / "a")  # fmt: skip
    assert "no space left on device" in line
    assert str(tmp_path / "a") in line
    assert not [name for name in contents(tmp_path) if name.endswith(".part")]


def refused_after_notes(*arguments):
    """The last line of a command that has begun its work and then fails."""
    result = call(*arguments)
    assert result.exit_code == 1, result.stderr
    assert "Traceback" not in result.stderr
    return result.stderr.strip().splitlines()[-1]


def test_half_files_of_a_killed_process_are_removed_at_the_next_write(tmp_path, monkeypatch):
    path = tmp_path / "a.txt"
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", lambda *_, **__: None)

        def killed(*_):
            raise Killed

        patch.setattr(Path, "replace", killed)
        with pytest.raises(Killed):
            write_atomically(path, "half")
    (tmp_path / ".a.txt.mine.part").touch()
    assert len(contents(tmp_path)) == 2
    write_atomically(path, "whole")
    assert contents(tmp_path) == {"a.txt": b"whole", ".a.txt.mine.part": b""}


@posix
def test_a_file_that_another_process_is_writing_is_no_leftover(tmp_path):
    target = tmp_path / "a.txt"
    part, stream = files._open_part(target)
    with stream:
        write_atomically(target, "other")
        assert part.exists()
    write_atomically(target, "again")
    assert not part.exists()


def test_other_errors_keep_their_own_file_name(tmp_path):
    def failing(stream):
        raise OSError(errno.EIO, "Input/output error", "elsewhere")

    with pytest.raises(OSError, match="elsewhere"):
        write_atomically(tmp_path / "a", failing)
