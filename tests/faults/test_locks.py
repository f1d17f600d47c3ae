"""One writer per folder, who is named; a lock outlives nobody."""

import json
import os
import signal
import socket
import threading
import time

import pytest

import bayesieve as bs
from bayesieve import lock as locks
from bayesieve.errors import InUseError
from bayesieve.lock import LOCK, Lock
from bayesieve.runs.owned import OwnedFolder
from commands import Forked, as_json, call, forked_command, ok, refused
from problems import line
from studies import search

posix = pytest.mark.skipif(os.name != "posix", reason="fork and flock")
TRAIN = ("train", "--data", "digits", "--net", "mlp:8", "--no-figures", "--device", "cpu")
SWEEP = ("sweep", "--data", "digits", "--net", "mlp:8", "--engine", "map", "--epochs", "1",
         "--no-figures", "--trials", "1")  # fmt: skip


def hold(path, ready):
    Lock(path, "a").acquire()
    ready.touch()
    signal.pause()


def held_by_another(tmp_path, path):
    """A process that has the lock and keeps it."""
    ready, tick = tmp_path / "ready", threading.Event()
    process = Forked(tmp_path / "errors.txt", hold, path, ready)
    for _ in range(3000):
        if ready.exists():
            return process
        tick.wait(0.02)
    raise AssertionError(process.errors)


@pytest.fixture
def notes(monkeypatch):
    said = []
    monkeypatch.setattr(locks._log, "info", said.append)
    return said


@posix
def test_the_owner_is_named_and_a_dead_one_is_taken_over_from(tmp_path, notes):
    path = tmp_path / ".lock"
    process = held_by_another(tmp_path, path)
    owner = json.loads(path.read_text())
    try:
        for attempt in (Lock(path, "runs/a").acquire, Lock(path, "runs/a").check):
            with pytest.raises(InUseError, match="runs/a is in use") as caught:
                attempt()
            assert f"process {owner['pid']} on {socket.gethostname()}" in str(caught.value)
            assert owner["time"] in str(caught.value)
    finally:
        process.end(signal.SIGKILL, 30)
    assert path.exists()  # killed: it could not tidy up
    with Lock(path, "runs/a"):
        pass
    assert notes == [note for note in notes if f"from process {owner['pid']}" in note]
    assert len(notes) == 1
    assert not path.exists()


def test_a_lock_of_another_host_is_asked_about(tmp_path, notes):
    path = tmp_path / ".lock"
    other = {"pid": 7, "host": "far away", "time": "2026-01-01", "command": "bayesieve"}
    path.write_text(json.dumps(other))
    with pytest.raises(InUseError, match=r"process 7 on far away.*remove"):
        Lock(path, "runs/a").acquire()
    assert json.loads(path.read_text()) == other
    path.unlink()
    with Lock(path, "runs/a"):
        assert json.loads(path.read_text())["pid"] == os.getpid()
    assert not notes


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"[1]", b'{"pid": "x"}'[:5]])
def test_a_damaged_lock_file_stops_nobody(tmp_path, notes, content):
    path = tmp_path / ".lock"
    path.write_bytes(content)
    with Lock(path, "runs/a"):
        assert json.loads(path.read_text())["pid"] == os.getpid()
    assert not path.exists()


@pytest.mark.parametrize("content", [{"pid": 2**22 + 1}, {"pid": "x"}, {"pid": None}])
def test_without_locks_of_the_file_system_the_process_decides(
    tmp_path, notes, monkeypatch, content
):
    def unsupported(_):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(locks, "try_lock", unsupported)
    path, host = tmp_path / ".lock", {"host": socket.gethostname()}
    path.write_text(json.dumps(content | host))  # a process that has ended
    with Lock(path, "runs/a"):
        assert len(notes) == 1
    path.write_text(json.dumps({"pid": os.getppid()} | host))  # one that runs
    with pytest.raises(InUseError, match=f"process {os.getppid()}"):
        Lock(path, "runs/a").acquire()


@posix
def test_waiting_says_for_whom_and_ends(tmp_path, notes, monkeypatch):
    path, clock = tmp_path / ".lock", iter(range(1000))
    monkeypatch.setattr(locks.time, "sleep", lambda _: None)
    monkeypatch.setattr(locks.time, "monotonic", lambda: next(clock))
    with Lock(path, "a"), pytest.raises(InUseError, match=r"in use after \d+ s: process") as caught:
        Lock(path, "the journal", wait=60).acquire()
    assert "the journal" in str(caught.value)
    (note,) = notes
    me = f"process {os.getpid()} on {socket.gethostname()}"
    assert note.startswith(f"waiting up to 60 s for the journal, which {me}")


@posix
def test_threads_of_one_process_exclude_each_other_but_calls_of_one_do_not(tmp_path):
    folder, said = OwnedFolder(tmp_path / "a"), []

    def try_it():
        try:
            with folder.locked():
                said.append("in")
        except InUseError:
            said.append("refused")

    with folder.locked():
        with folder.locked():
            assert (folder.path / LOCK).exists()
        thread = threading.Thread(target=try_it)
        thread.start()
        thread.join()
    assert said == ["refused"]
    assert not (folder.path / LOCK).exists()


@posix
def test_many_processes_that_lock_one_file_lose_no_count(tmp_path):
    path, counter = tmp_path / ".lock", tmp_path / "n"
    counter.write_text("0")
    processes = [Forked(tmp_path / f"{i}.txt", count, path, counter, 25) for i in range(4)]
    for process in processes:
        process._process.join(60)
        assert process._process.exitcode == 0, process.errors
    assert counter.read_text() == "100"


def count(path, counter, times):
    for _ in range(times):
        with Lock(path, "n", wait=60):
            counter.write_text(str(int(counter.read_text()) + 1))


@posix
def test_a_second_run_in_one_folder_is_refused_and_changes_nothing(tmp_path):
    out = tmp_path / "a"
    steps = ("--steps", "100000", "--checkpoint-every", "5")
    first = forked_command(tmp_path / "1.txt", *TRAIN, *steps, "--out", out)
    try:
        tick = threading.Event()
        while not list(out.glob("checkpoints/*.safetensors")):
            assert first.is_alive, first.errors
            tick.wait(0.02)
        config = (out / "config.json").read_bytes()
        for more in (("--force",), ("--resume",)):
            # two lines where --resume has said already what it is about to do
            result = refused_lines(*TRAIN, *steps, "--out", out, *more)
            assert "is in use: process" in result
        assert (out / "config.json").read_bytes() == config
        assert first.is_alive, first.errors
    finally:
        first.end(signal.SIGKILL, 60)
    assert (out / LOCK).exists()
    line = refused(2, *TRAIN, "--out", out)  # its lock hinders nobody
    assert "holds an unfinished run" in line


@posix
def test_the_writer_is_named_before_a_file_that_it_has_not_listed_yet(tmp_path):
    out = tmp_path / "a"
    ok(*TRAIN, "--steps", "4", "--out", out)
    (out / "posterior-9.safetensors").write_bytes(b"just written")
    process = held_by_another(tmp_path, out / LOCK)
    try:
        assert "is in use: process" in refused_lines(*TRAIN, "--out", out, "--force")
    finally:
        process.end(signal.SIGKILL, 30)
    assert "not listed there" in refused(2, *TRAIN, "--out", out, "--force")


@posix
def test_a_second_fit_into_one_folder_is_refused_and_changes_nothing(tmp_path, notes):
    out = tmp_path / "a"
    out.mkdir()
    process = held_by_another(tmp_path, out / LOCK)
    pid = json.loads((out / LOCK).read_text())["pid"]
    try:
        with pytest.raises(InUseError, match=f"is in use: process {pid} on"):
            bs.fit(line(), bs.MAP(), steps=2, folder=out)
        assert [path.name for path in out.iterdir()] == [LOCK]
    finally:
        process.end(signal.SIGKILL, 30)
    bs.fit(line(), bs.MAP(), steps=2, folder=out)
    assert len(notes) == 1
    assert not (out / LOCK).exists()


@posix
def test_a_fit_in_another_thread_is_refused_too(tmp_path):
    out, said = tmp_path / "a", []

    def fit_again():
        try:
            bs.fit(line(), bs.MAP(), steps=2, folder=out)
        except InUseError as error:
            said.append(str(error))

    def meanwhile(_):
        thread = threading.Thread(target=fit_again)
        thread.start()
        thread.join()

    bs.fit(line(), bs.MAP(), epochs=1, folder=out, callbacks=[meanwhile])
    assert f"process {os.getpid()}" in said[0]
    with pytest.raises(ValueError, match="holds checkpoints of an earlier run"):
        bs.fit(line(), bs.MAP(), steps=2, folder=out)
    assert not (out / LOCK).exists()


def test_resuming_where_nothing_is_makes_no_folder(tmp_path):
    with pytest.raises(ValueError, match="no checkpoint in"):
        bs.fit(line(), bs.MAP(), steps=2, folder=tmp_path / "b", resume=True)
    assert not (tmp_path / "b").exists()


def refused_lines(*arguments):
    result = call(*arguments)
    assert result.exit_code == 1, (result.exit_code, result.stderr)
    assert "Traceback" not in result.stderr
    return result.stderr


@posix
def test_a_sweep_goes_on_where_a_killed_worker_held_the_lock(tmp_path, monkeypatch):
    pytest.importorskip("optuna")
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "s"
    as_json(*SWEEP, "--out", "s")  # relative, as in the case that hung
    journal = out / "journal.log"
    old = out / "journal.log.lock"
    old.symlink_to("journal.log")  # what Optuna's own lock would have left
    process = held_by_another(tmp_path, out / ".journal.log.lock")
    process.end(signal.SIGKILL, 30)
    with journal.open("ab") as stream:
        stream.write(b'{"half a li')  # and a line that was cut off
    began = time.process_time()
    result = as_json(*SWEEP, "--out", "s")
    assert len(result["trials"]) == 2
    assert time.process_time() - began < 30
    assert all(json.loads(line) for line in journal.read_text().splitlines())


@posix
def test_a_sweep_waits_for_a_living_worker_only_so_long(tmp_path, monkeypatch):
    pytest.importorskip("optuna")
    monkeypatch.setattr(search, "_WAIT", 0.05)
    as_json(*SWEEP, "--out", tmp_path / "s")
    with Lock(tmp_path / "s" / ".journal.log.lock", "a"):
        result = refused_lines(*SWEEP, "--out", tmp_path / "s")
    assert "journal.log is in use after 0 s" in result


def test_ctrl_c_ends_a_sweep_without_a_traceback(tmp_path, monkeypatch, capfd):
    pytest.importorskip("optuna")

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(search, "fit_plan", interrupted)
    result = call(*SWEEP, "--out", tmp_path / "s")
    assert result.exit_code == 130
    assert result.stderr.startswith("error: stopped by Ctrl-C")
    assert len(result.stderr.strip().splitlines()) == 1
    assert capfd.readouterr().err == ""  # where Optuna logs
    monkeypatch.undo()
    assert len(as_json(*SWEEP, "--out", tmp_path / "s")["trials"]) == 1
